"""What the processes of `test_scale.py` do: in a file of its own, since they are started by name."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import Seq2SeqTrainingArguments, set_seed

from hf_attnzoo import BERTConfig, BERTForMaskedLM, train_tokenizer
from hf_attnzoo.data import MaskingCallback, MaskingCollator, TokenBudgetBatchSampler, token_lengths, tokenize_texts
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes.building import build_model, build_trainer, generation_config
from hf_attnzoo.recipes.resume import claim_output
from hf_attnzoo.recipes.run import find_family, load_splits
from hf_attnzoo.recipes.tasks import make_task
from hf_attnzoo.recipes.trainer import ZooTrainer

WORDS = ["alpha", "beta", "gamma", "delta", "omega", "sigma"]


def join_group(rank: int, size: int, folder: Path) -> None:
    """Become one of several processes, as a launcher would make it."""
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_WORLD_SIZE": f"{size}"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)


def smallest_budget(source: Any, target: Any, batches: int) -> int:
    """The fewest tokens that make so few batches."""
    low, high = int((source + target).max()), int((source + target).max()) * len(source)
    while low < high:
        middle = (low + high) // 2
        if len(TokenBudgetBatchSampler(source, target, max_tokens=middle)) <= batches:
            high = middle
        else:
            low = middle + 1
    return low


def trainer_of(content: dict[str, Any], batches: int | None = None) -> tuple[ZooTrainer, Callable[[], Path | None]]:
    """A recipe's trainer, with so many batches an epoch, and what finds the checkpoint to go on from."""
    recipe = build_recipe(content)
    family = find_family(recipe)
    task = make_task(family.task, recipe)
    set_seed(recipe.seed)
    rows = load_splits(recipe, task)
    processor = task.build_processor(rows["train"])
    digests = {split: task.digest(some) for split, some in rows.items()}
    datasets = {}
    for split in rows:
        datasets[split], rows[split] = task.prepare(rows[split], processor)
    model = build_model(recipe, family, task, processor)
    model.generation_config = generation_config(recipe, model, 8)
    if batches is not None:
        lengths = task.source_lengths(datasets["train"], model), token_lengths(datasets["train"], "labels")
        recipe.training.batch_tokens = smallest_budget(*lengths, batches)
    console = Console(quiet=True)
    trainer = build_trainer(recipe, task, model, processor, datasets, rows["validation"], console)

    def claim() -> Path | None:
        with trainer.accelerator.main_process_first():
            return claim_output(recipe, digests, trainer.is_world_process_zero(), trainer.args.world_size)

    return trainer, claim


def bert_trainer(output: str, batches: int, accumulation: int, steps: int) -> ZooTrainer:
    """A trainer of masked words, on texts of 1 to 6 words."""
    texts = [" ".join(WORDS[(i + j) % 6] for j in range(1 + i % 6)) for i in range(12)]
    tokenizer = train_tokenizer("wordpiece", texts, vocab_size=60)
    rows = tokenize_texts(Dataset.from_dict({"text": texts}), tokenizer)
    lengths = token_lengths(rows, "input_ids")
    set_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BERTForMaskedLM(
        BERTConfig(vocab_size=len(tokenizer), **sizes, initializer_range=0.5, dropout=0.0, attention_dropout=0.0)
    )
    arguments = Seq2SeqTrainingArguments(
        output_dir=output,
        max_steps=steps,
        gradient_accumulation_steps=accumulation,
        optim="sgd",
        learning_rate=0.5,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        save_strategy="no",
        logging_steps=1,
        remove_unused_columns=False,
        report_to=[],
    )
    collator = MaskingCollator(tokenizer)
    sampler = TokenBudgetBatchSampler(
        lengths,
        max_tokens=smallest_budget(lengths, 0 * lengths, batches),
        num_processes=arguments.world_size,
    )
    # The collator's word_ids are a column that the model doesn't read; it drops them itself.
    return ZooTrainer(
        model=model,
        args=arguments,
        batch_sampler=sampler,
        console=Console(quiet=True),
        train_dataset=rows.add_column("labels", rows["input_ids"]),
        data_collator=collator,
        callbacks=[MaskingCallback(collator)],
    )


def curve(content: dict[str, Any], batches: int, accumulation: int) -> dict[str, Any]:
    """Train a family, and tell its losses, its scores and its weights."""
    if content["family"] == "bert":
        trainer = bert_trainer(content["output"], batches, accumulation, content["training"]["max_steps"])
    else:
        content["training"]["gradient_accumulation_steps"] = accumulation
        trainer, _ = trainer_of(content, batches)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train()
    history = trainer.state.log_history
    return {
        "batches": len(trainer._batch_sampler),
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "scores": [
            {
                name: value
                for name, value in entry.items()
                if name.startswith("eval_") and not name.endswith(("loss", "runtime", "per_second"))
            }
            for entry in history
            if "eval_loss" in entry
        ],
        "before": before,
        "weights": {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()},
    }


def keep(result: dict[str, Any], folder: Path) -> None:
    """Write what `curve` tells."""
    folder.mkdir(parents=True)
    for name in ("before", "weights"):
        # Tied ones are the same memory, which the format refuses.
        save_file({key: tensor.clone().contiguous() for key, tensor in result[name].items()}, folder / name)
    numbers = {name: value for name, value in result.items() if name not in ("before", "weights")}
    (folder / "numbers.json").write_text(json.dumps(numbers))


def recall(folder: Path) -> dict[str, Any]:
    """Read what `keep` has written."""
    tensors = {name: load_file(folder / name) for name in ("before", "weights")}
    return json.loads((folder / "numbers.json").read_text()) | tensors


def all_families(rank: int, size: int, folder: Path, contents: dict[str, dict[str, Any]]) -> None:
    """Train every family a little."""
    join_group(rank, size, folder)
    for name, content in contents.items():
        result = curve(content, 2, 1)
        keep(result, folder / f"rank{rank}" / name)


def changes_disk(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audit event is one that changes what is on the disk."""
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    return event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


def stop_and_go_on(content: dict[str, Any], stop_at: int, output: str) -> None:
    """Run a recipe; run it again into `output`, stop, and go on with it."""
    run_recipe(build_recipe(content), Console(quiet=True))

    class Stopped(BaseException):
        pass

    step = ZooTrainer.training_step

    def stop(trainer: ZooTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if trainer.state.global_step == stop_at:
            raise Stopped
        return step(trainer, *args, **kwargs)

    ZooTrainer.training_step = stop
    again = build_recipe(content | {"output": output})
    try:
        run_recipe(again, Console(quiet=True))
    except Stopped:
        pass
    else:
        raise AssertionError("it was not stopped")
    finally:
        ZooTrainer.training_step = step
    run_recipe(again, Console(quiet=True))


def resumed(rank: int, size: int, folder: Path, content: dict[str, Any], stop_at: int) -> None:
    """See `stop_and_go_on`; and write down what this process opens to write."""
    join_group(rank, size, folder)
    written = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if changes_disk(event, arguments):
            written.append(str(arguments[0]))

    sys.addaudithook(watch)
    save = torch.save

    def watched_save(value: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        written.append(str(path))
        save(value, path, *args, **kwargs)

    torch.save = watched_save
    stop_and_go_on(content, stop_at, str(folder / "again"))
    (folder / f"written{rank}.json").write_text(json.dumps(written))
