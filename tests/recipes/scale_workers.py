"""What the processes of `test_scale.py` do: in a file of its own, since they are started by name."""

import errno
import itertools
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Seq2SeqTrainingArguments, modeling_utils, set_seed

from hf_attnzoo import BERTConfig, BERTForMaskedLM, train_tokenizer
from hf_attnzoo.data import MaskingCallback, MaskingCollator, TokenBudgetBatchSampler, token_lengths, tokenize_texts
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.building import build_model, build_trainer, generation_config
from hf_attnzoo.recipes.disk import discard
from hf_attnzoo.recipes.holding import LOCK
from hf_attnzoo.recipes.resume import claim_output, last_complete_checkpoint
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
        if split != "train":
            datasets[split] = task.for_evaluation(datasets[split], processor)
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
    trainer.gather_model()
    history = trainer.state.log_history
    return {
        "batches": len(trainer._batch_sampler),
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "scores": [
            {
                name: value
                for name, value in entry.items()
                if name.startswith("eval_") and not name.endswith(("runtime", "per_second"))
            }
            for entry in history
            if "eval_loss" in entry
        ],
        "before": before,
        "weights": {name: tensor.clone() for name, tensor in trainer.whole_model.state_dict().items()},
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


def whole_run(content: dict[str, Any]) -> str:
    """Run a recipe; returns the folder of its model."""
    return str(run_recipe(build_recipe(content), Console(quiet=True)).model)


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


def streamed(rank: int, size: int, folder: Path, content: dict[str, Any], stop_at: int) -> None:
    """See `stop_and_go_on`; and write down which rows this process trains on, by run and by step."""
    join_group(rank, size, folder)
    step, runs = ZooTrainer.training_step, []

    def watch(trainer: ZooTrainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        number = trainer.state.global_step
        if not runs or number <= runs[-1][-1][0]:
            runs.append([])
        texts = trainer.processing_class.batch_decode(inputs["input_ids"], skip_special_tokens=True)
        runs[-1].append((number, texts))
        return step(trainer, model, inputs, *args, **kwargs)

    ZooTrainer.training_step = watch
    stop_and_go_on(content, stop_at, str(folder / "again"))
    (folder / f"rows{rank}.json").write_text(json.dumps(runs))


def sharded(
    rank: int, size: int, folder: Path, environment: dict[str, str], contents: dict[str, dict[str, Any]], run: str
) -> None:
    """Train every family with FSDP2 on the processor, where torch can do it and Accelerate doesn't offer it.

    Args:
        environment: variables that `accelerate launch` would set.
        run: family whose recipe is run to its end.
    """
    join_group(rank, size, folder)
    os.environ |= environment
    PartialState._prepare_backend = lambda *args: ("gloo", DistributedType.MULTI_GPU)
    PartialState.set_device = lambda state: setattr(state, "device", torch.device("cpu"))
    run_module.heed_launcher = lambda recipe: recipe
    shards = {}
    gather = ZooTrainer.gather_model

    def spy(trainer: ZooTrainer) -> None:
        units = [module for module in trainer.model.modules() if isinstance(module, FSDPModule)]
        plain = [name for name, weight in trainer.model.named_parameters() if not isinstance(weight, DTensor)]
        shards[trainer.model.config.model_type] = {"units": len(units), "plain": plain}
        gather(trainer)

    ZooTrainer.gather_model = spy
    for family, content in contents.items():
        result = curve(content, 2, 1)
        if rank == 0:
            keep(result, folder / family)
    run_recipe(build_recipe(contents[run] | {"output": str(folder / "whole")}), Console(quiet=True))
    (folder / f"shards{rank}.json").write_text(json.dumps(shards))


class Watched:
    """Forks of this process that are killed, or told that the disk is full, when they change the disk for a k-th time.

    Args:
        start: folder that each of them gets a copy of, and works in.
        action: what they do.
        check: called with the copy, after each of them.
    """

    def __init__(self, start: Path, action: Callable[[], None], check: Callable[[Path], None]):
        self.start, self.action, self.check = start, action, check
        self.events = 0

    def run(self) -> None:
        """Kill at every event, until there is none left; and with half of what was being written when there was."""
        self._installed()
        for number in itertools.count():
            folder, writing, ended = self.attempt(number)
            self.check(folder)
            if ended:
                self.events = number
                shutil.rmtree(folder)
                return
            if writing is not None and (folder / writing).is_file():
                for size in {(folder / writing).stat().st_size // 2, 0}:
                    os.truncate(folder / writing, size)
                    self.check(folder)
            shutil.rmtree(folder)

    def attempt(self, number: int, error: int | None = None) -> tuple[Path, str | None, bool]:
        """One fork. Returns its folder, the file that it was writing, and whether it came to its end."""
        # What is there is removed or replaced, never written to: links will do.
        folder = Path(shutil.copytree(self.start, self.start.with_name("attempt"), copy_function=os.link))
        read, write = os.pipe()
        drawn = random.getstate()
        process = os.fork()
        if process == 0:
            # A fork draws anew.
            random.setstate(drawn)
            os.chdir(folder)
            self.state = [number, write, None, error]
            status = 0
            try:
                self.action()
                if self.state is not None:
                    os.write(write, b"unreached")
            except BaseException as problem:
                os.write(write, f"{type(problem).__name__}: {problem}".encode())
                status = 1
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            told = pipe.read().decode()
        _, status = os.waitpid(process, 0)
        if error is None and status not in (0, signal.SIGKILL):
            raise AssertionError(told)
        return folder, told or None, status == 0

    def _installed(self) -> None:
        self.state = None
        save, save_tensors = torch.save, modeling_utils.safe_save_file

        # These write without Python's knowledge.
        def watched_save(value: Any, path: Any, *args: Any, **kwargs: Any) -> None:
            self._event("open", (str(path), "w", os.O_WRONLY))
            save(value, path, *args, **kwargs)

        def watched_save_tensors(tensors: Any, path: Any, *args: Any, **kwargs: Any) -> None:
            self._event("open", (str(path), "w", os.O_WRONLY))
            save_tensors(tensors, path, *args, **kwargs)

        torch.save, modeling_utils.safe_save_file = watched_save, watched_save_tensors
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.state is None or not changes_disk(event, arguments):
            return
        left, pipe, writing, error = self.state
        if str(arguments[0]).endswith(".py"):
            # There are many of these, and one is as good as the other. What was written before is whole by now.
            self.state[2] = None
            return
        if error is not None and event not in ("open", "os.mkdir"):
            # A full disk stops nobody from removing things.
            return
        if left == 0:
            self.state = None
            if error is not None:
                raise OSError(error, os.strerror(error), str(arguments[0]))
            if writing is not None:
                os.write(pipe, os.path.relpath(writing).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self.state = [left - 1, pipe, os.path.abspath(str(arguments[0])) if event == "open" else None, error]


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(left: dict[str, bytes], right: dict[str, bytes]) -> None:
    """Assert that folders have the same files."""
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            raise AssertionError(f"{name} is {left.get(name)!r:.500}, not {right.get(name)!r:.500}")


def killed_while_saving(rank: int, size: int, folder: Path, content: dict[str, Any]) -> None:
    """Save the third checkpoint of a run, and its model in the place of an older one, killed at every moment of it."""
    os.chdir(folder)
    # In each copy the run is at the same place.
    content = content | {"output": "run"}
    recipe = build_recipe(content)
    checkpoints, model = Path("run", "checkpoints"), Path("run", "model")
    run_recipe(recipe, Console(quiet=True))
    counts, full = {}, {}

    def watch(name: str, action: Callable[[], None], check: Callable[[Path, Path], None]) -> None:
        here = Path(shutil.copytree(folder / "run", folder / name / "start" / "run")).parent
        done = Path(shutil.copytree(here, folder / name / "done"))
        watched = Watched(here, action, lambda copy: check(copy, done))
        drawn = random.getstate()
        process = os.fork()
        if process == 0:
            random.setstate(drawn)
            os.chdir(done)
            action()
            os._exit(0)
        if os.waitpid(process, 0)[1] != 0:
            raise AssertionError(f"{name} fails without being killed")
        watched.run()
        counts[name] = watched.events
        full[name] = 0
        # A full disk at some of the same moments
        for number in itertools.count(0, 3):
            copy, told, ended = watched.attempt(number, errno.ENOSPC)
            if told == "unreached":
                shutil.rmtree(copy)
                break
            if ended:
                # Where nobody has noticed it, nothing is missing.
                whole = checkpoints / "checkpoint-6" if name == "checkpoint" else model
                same(contents_of(copy / whole), contents_of(done / whole))
                shutil.rmtree(copy)
                continue
            for part in (
                "OSError: ",
                str(checkpoints / "checkpoint-6" if name == "checkpoint" else model),
                "No space",
            ):
                if part not in told:
                    raise AssertionError(f"{name}: {told} doesn't tell {part}")
            check(copy, done)
            shutil.rmtree(copy)
            full[name] += 1

    claim = []

    def check_checkpoint(copy: Path, done: Path) -> None:
        found = last_complete_checkpoint(copy / checkpoints)
        if found is None:
            raise AssertionError("no checkpoint is left")
        before = folder / "checkpoint" / "start" if found.name == "checkpoint-4" else done
        same(contents_of(found), contents_of(before / checkpoints / found.name))

    def check_model(copy: Path, done: Path) -> None:
        files = contents_of(copy / model) if (copy / model).exists() else {}
        if files and files != contents_of(done / model):
            if files != contents_of(folder / "model" / "start" / model):
                raise AssertionError(f"{model} is neither the old nor the new one: {sorted(files)}")
            files = {}
        os.chdir(copy)
        found = claim[0]()
        os.chdir(folder)
        if not files:
            # The model can be had from the last checkpoint.
            last = contents_of(folder / "model" / "start" / checkpoints / "checkpoint-6")
            if found is None:
                raise AssertionError("neither the model nor a checkpoint is left")
            same(contents_of(copy / found), last)
        left = {path.name for path in (copy / "run").iterdir()} - {"model", "checkpoints", ".run.json", LOCK}
        if left:
            raise AssertionError(f"{left} lies about")

    save_checkpoint, save_run, claim_output = ZooTrainer._save_checkpoint, run_module.save_run, run_module.claim_output

    def spy_claim(*args: Any) -> Path | None:
        claim.append(lambda: claim_output(*args))
        return claim_output(*args)

    def spy_checkpoint(trainer: ZooTrainer, *args: Any) -> None:
        if trainer.state.global_step == 6:
            watch("checkpoint", lambda: save_checkpoint(trainer, *args), check_checkpoint)
        save_checkpoint(trainer, *args)

    def spy_run(*args: Any) -> None:
        def save() -> None:
            save_run(*args)
            discard(checkpoints)

        watch("model", save, check_model)
        save_run(*args)

    ZooTrainer._save_checkpoint, run_module.save_run, run_module.claim_output = spy_checkpoint, spy_run, spy_claim
    run_recipe(recipe, Console(quiet=True))
    (folder / "counts.json").write_text(json.dumps({"killed": counts, "full": full}))
