"""From a recipe to a trained, measured, drawn, saved and reloaded model."""

import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset, disable_progress_bars
from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
from transformers import (
    AutoTokenizer,
    EarlyStoppingCallback,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainingArguments,
    pipeline,
    set_seed,
)

from ..attention_maps import attention_map, plot_grid
from ..data import Seq2SeqCollator, load_source, token_lengths, tokenize_pairs
from ..evaluation import bootstrap_interval, exact_matches, generation_metrics, token_errors, wilson_interval
from ..hub import RunFacts, model_card
from ..models.tokenization_attnzoo import train_tokenizer, vocabulary_sizes
from ..registry import FAMILIES, Family
from .reporting import make_console, report, say
from .resume import CHECKPOINTS, METRICS, MODEL, claim_output, has_ended, load_best, read_state
from .schema import Recipe, nearest, wrong_type
from .trainer import ZooTrainer, decode_rows, text_metrics

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Args:
        model: folder of model, tokenizer, card and picture.
        metrics: scores on the test split.
        samples: source, reference and output of some test pairs.
        seconds: wall time of training.
    """

    model: Path
    metrics: dict[str, float | str]
    samples: list[tuple[str, str, str]]
    seconds: float


def run_recipe(recipe: Recipe, console: Console | None = None) -> RunResult:
    """Train, score on the test split, draw attention, save, and load back.

    A run that was killed goes on from its last complete checkpoint when it is started again; one that has ended starts
    afresh.

    Args:
        recipe: what to do.
        console: where to report to. Default: `None`, standard output.

    Returns:
        Folder and scores.

    Raises:
        ValueError: if the recipe asks for something that doesn't exist, before any training.
    """
    console = console or make_console()
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    family = _family(recipe)
    set_seed(recipe.seed)
    disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    output = Path(recipe.output)

    texts = load_splits(recipe)
    for split, rows in texts.items():
        say(console, f"{split}: {len(rows):,} pairs, such as {rows[0]['source']!r} → {rows[0]['target']!r}")
    tokenizer = build_tokenizer(recipe, texts["train"])
    datasets = {split: _tokenize(recipe, rows, tokenizer) for split, rows in texts.items()}
    # From token ids back to texts: pairs that were too long are not among them.
    texts = {split: texts[split].select(rows["row"]) for split, rows in datasets.items()}
    model = build_model(recipe, family, tokenizer)
    longest = int(token_lengths(datasets["train"], "labels").max())
    model.generation_config = generation_config(recipe, model, longest)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(console, f"{type(model).__name__}: {parameters:,} parameters")

    trainer = build_trainer(
        recipe, model, tokenizer, datasets, texts["validation"]["target"], console, texts["validation"]["source"]
    )
    _rehearse(recipe, trainer)
    checkpoint = claim_output(recipe, texts, trainer.is_world_process_zero())
    train(trainer, checkpoint)
    seconds = trainer.seconds
    # The texts are scored below, with intervals.
    trainer.compute_metrics = None
    predicted = trainer.predict(datasets["test"])
    if not trainer.is_world_process_zero():
        return RunResult(output / MODEL, {}, [], seconds)

    outputs = decode_rows(tokenizer, predicted.predictions, texts["test"]["source"])
    metrics, intervals = score(recipe, outputs, texts["test"]["target"])
    samples = list(zip(texts["test"]["source"], texts["test"]["target"], outputs, strict=True))
    samples = samples[: recipe.evaluation.samples]
    pictured = samples[: recipe.evaluation.maps] if _has_attention(model) else []

    # The trainer fills the generation settings with defaults for its own use.
    model.generation_config = generation_config(recipe, model, longest)
    model.eval()
    folder = output / MODEL
    facts = RunFacts(
        name=recipe.name,
        summary=family.summary,
        paper=family.paper,
        license=recipe.license,
        data_name=data_name(recipe),
        data_license=recipe.data.license,
        rows={split: len(rows) for split, rows in datasets.items()},
        parameters=parameters,
        vocabulary=vocabulary_sizes(tokenizer),
        steps=trainer.state.global_step,
        seconds=seconds,
        loss_curve=[(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry],
        metrics=metrics,
        intervals=intervals,
        samples=samples,
        recipe=recipe.to_yaml(),
        has_map=bool(pictured),
    )
    save_run(folder, family, model, tokenizer, facts, pictured)
    shutil.rmtree(output / CHECKPOINTS)
    report(console, facts)
    check_reload(folder, family, model, tokenizer, samples, console)
    return RunResult(folder, metrics, samples, seconds)


def _family(recipe: Recipe) -> Family:
    if recipe.family not in FAMILIES:
        raise ValueError(
            f"family={recipe.family!r} is none of {', '.join(FAMILIES)}; "
            f"did you mean {nearest(recipe.family, FAMILIES)!r}?"
        )
    family = FAMILIES[recipe.family]
    if family.task != "seq2seq":
        pairs = ", ".join(name for name, other in FAMILIES.items() if other.task == "seq2seq")
        raise ValueError(
            f"family={recipe.family!r} is for {family.task}, and recipes train on pairs of texts: {pairs}. "
            f"Train it with transformers' Trainer"
        )
    return family


def load_splits(recipe: Recipe) -> dict[str, Dataset]:
    """The three splits of texts.

    Args:
        recipe: whose `data` section says where they are.

    Returns:
        `train`, `validation` and `test`, with the columns `source` and `target`.

    Raises:
        ValueError: if no source is named, or a split is empty or streamed.
    """
    splits = {}
    for split in SPLITS:
        source = _source(recipe, split)
        # A file that is named for one split is all of it; one that is named for all of them is dealt out.
        whole = "source" in getattr(recipe.data, split) and os.path.isfile(source)
        arguments = {"split": None if whole else split, **recipe.data.options, **getattr(recipe.data, split)}
        arguments.pop("source", None)
        splits[split] = load_source(source, **arguments)
        if not isinstance(splits[split], Dataset):
            raise ValueError(f"data: {source!r} is streamed, and a run needs all of it: leave out streaming")
        if len(splits[split]) == 0:
            raise ValueError(f"data: the {split} split of {source!r} is empty")
    return splits


def _source(recipe: Recipe, split: str) -> str:
    source = {"source": recipe.data.source, **recipe.data.options, **getattr(recipe.data, split)}["source"]
    if source is None:
        raise ValueError("data.source is missing: name a built-in source, a file, a folder or a dataset on the Hub")
    return source


def data_name(recipe: Recipe) -> str:
    """What the recipe names its data, with commas where the splits come from several sources."""
    return ", ".join(dict.fromkeys(str(_source(recipe, split)) for split in SPLITS))


def build_tokenizer(recipe: Recipe, rows: Dataset) -> PreTrainedTokenizerBase:
    """A tokenizer trained on the training split, and on nothing else."""
    section = recipe.tokenizer

    def sides(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    return train_tokenizer(
        sides(section.kind),
        rows["source"],
        rows["target"],
        shared=section.shared,
        vocab_size=sides(section.vocab_size),
        min_frequency=sides(section.min_frequency),
        lowercase=sides(section.lowercase),
        copy_slots=section.copy_slots,
    )


def build_model(recipe: Recipe, family: Family, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A fresh model of the recipe's family, its vocabularies those of the tokenizer.

    Args:
        recipe: whose `model` section has fields of the configuration.
        family: row of the registry.
        tokenizer: whose vocabularies the model is for.

    Returns:
        The model.

    Raises:
        ValueError: if a field is unknown, of the wrong type, or set by the tokenizer alone.
    """
    fields = dict(recipe.model)
    config_class = family.config_class
    known = [field.name for field in dataclasses.fields(config_class)]
    for name in fields:
        if name != "preset" and name not in known:
            raise ValueError(
                f"model.{name} is no field of {config_class.__name__}; did you mean {nearest(name, known)!r}?"
            )
        if name in _FOLLOWS:
            raise ValueError(f"model.{name} follows from the tokenizer: set tokenizer.{_FOLLOWS[name]}")
    _check_copying(recipe, known)
    source_size, target_size = vocabulary_sizes(tokenizer)
    fields["vocab_size"] = target_size
    fields["source_vocab_size"] = None if recipe.tokenizer.shared else source_size
    if recipe.tokenizer.copy_slots:
        fields["num_copy_slots"] = recipe.tokenizer.copy_slots
    preset = fields.pop("preset", None)
    try:
        config = config_class.from_preset(preset, **fields) if preset else config_class(**fields)
    except StrictDataclassError as error:
        raise ValueError(f"model.{wrong_type(error, config_class, fields)}") from error
    return family.model_class(family.head)(config)


# Field of a configuration -> the key of a recipe's tokenizer section that decides on it.
_FOLLOWS = {"vocab_size": "vocab_size", "source_vocab_size": "vocab_size", "num_copy_slots": "copy_slots"}


def _check_copying(recipe: Recipe, known: list[str]) -> None:
    slots, copies = recipe.tokenizer.copy_slots, recipe.model.get("copy", False)
    if slots is not None and not copies:
        hint = "set model.copy=true" if "copy" in known else f"family={recipe.family!r} doesn't copy, leave it out"
        raise ValueError(f"tokenizer.copy_slots={slots} is for a model that copies words of the source: {hint}")
    if copies and slots is None and not recipe.tokenizer.shared:
        raise ValueError(
            "model.copy=true with two vocabularies needs to know which words are the same: set tokenizer.copy_slots, "
            "to how many unknown words of a text can be copied, or to 0"
        )


def generation_config(recipe: Recipe, model: PreTrainedModel, longest: int) -> GenerationConfig:
    """The model's generation settings, those of the recipe among them.

    Args:
        recipe: whose `generation` section counts.
        model: whose special tokens count.
        longest: tokens of the longest training target; twice as many may be written if the recipe sets no limit.

    Returns:
        Settings for `model.generation_config`.

    Raises:
        ValueError: if the recipe sets something that transformers' generation doesn't have.
    """
    config = GenerationConfig.from_model_config(model.config)
    known = [name for name in vars(config) if not name.startswith("_")]
    settings = dict(recipe.generation)
    if settings.get("max_new_tokens") is None and settings.get("max_length") is None:
        settings["max_new_tokens"] = 2 * longest
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"generation.{name} is unknown; did you mean {nearest(name, known)!r}?")
        setattr(config, name, value)
    config.validate(strict=True)
    return config


def _tokenize(recipe: Recipe, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    return tokenize_pairs(
        rows,
        tokenizer,
        max_source_length=recipe.data.max_source_length,
        max_target_length=recipe.data.max_target_length,
        on_too_long=recipe.data.on_too_long,
    )


def build_trainer(
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    datasets: dict[str, Dataset],
    references: Sequence[str],
    console: Console | None = None,
    sources: Sequence[str] | None = None,
) -> ZooTrainer:
    """The trainer of a recipe.

    Args:
        recipe: whose `output`, `training` and `evaluation` sections count.
        model: to train.
        tokenizer: saved with every checkpoint.
        datasets: tokenised `train` and `validation` splits.
        references: targets of the validation split, as texts.
        console: where to report to. Default: `None`, standard output.
        sources: sources of the validation split, as texts, which copied words are taken from.

    Returns:
        The trainer, which chooses the best checkpoint by `evaluation.best_metric`.
    """
    section = recipe.training
    if section.torch_compile:
        # Inductor turns a scan over time into a loop that counts, and refuses without this, which fullgraph=True
        # implies and the Trainer's call of torch.compile doesn't.
        torch._dynamo.config.capture_scalar_outputs = True
    lower_is_better = recipe.evaluation.best_metric.endswith("error_rate")
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(Path(recipe.output) / CHECKPOINTS),
        seed=recipe.seed,
        max_steps=section.max_steps,
        num_train_epochs=section.epochs,
        gradient_accumulation_steps=section.gradient_accumulation_steps,
        optim=section.optimizer,
        learning_rate=section.learning_rate,
        lr_scheduler_type=section.scheduler,
        warmup_steps=section.warmup_steps,
        weight_decay=section.weight_decay,
        adam_beta2=section.adam_beta2,
        max_grad_norm=section.max_grad_norm,
        use_cpu=not torch.accelerator.is_available(),
        bf16=section.precision == "bf16",
        fp16=section.precision == "fp16",
        activation_checkpointing=section.gradient_checkpointing,
        torch_compile=section.torch_compile,
        eval_strategy="steps",
        eval_steps=section.eval_steps,
        per_device_eval_batch_size=section.eval_batch_size,
        save_strategy="steps",
        save_steps=section.eval_steps,
        save_total_limit=section.save_total_limit,
        restore_callback_states_from_checkpoint=True,
        logging_steps=section.logging_steps,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{recipe.evaluation.best_metric}",
        greater_is_better=not lower_is_better,
        predict_with_generate=True,
        dataloader_num_workers=section.num_workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        # The trainer's default would turn the cache off in the model's own settings, for evaluation and for good.
        use_cache=True,
        report_to=[],
    )
    return ZooTrainer(
        model=model,
        args=arguments,
        batch_tokens=section.batch_tokens,
        console=console,
        train_dataset=datasets["train"],
        eval_dataset=datasets["validation"],
        data_collator=Seq2SeqCollator(tokenizer),
        processing_class=tokenizer,
        compute_metrics=text_metrics(tokenizer, recipe.evaluation, references, sources),
        callbacks=[EarlyStoppingCallback(section.patience)] if section.patience is not None else [],
    )


def _rehearse(recipe: Recipe, trainer: ZooTrainer) -> None:
    """Generate and score once, so that what would stop the first evaluation stops the run before any training."""
    evaluation = recipe.evaluation
    generation_metrics(["a"], ["a"], tokenize=evaluation.tokenize, names=evaluation.metrics)
    model = trainer.model.eval()
    batch = trainer.data_collator([trainer.eval_dataset[0]])
    try:
        names = ("input_ids", "attention_mask", "copy_ids")
        model.generate(**{name: batch[name].to(model.device) for name in names if name in batch})
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"generation: {error}") from error


def train(trainer: ZooTrainer, checkpoint: Path | None) -> None:
    """Train, or go on from a checkpoint; the model has the weights of the best checkpoint afterwards.

    Args:
        trainer: of a run whose output has been claimed.
        checkpoint: what a killed run left. A run may have been killed after its last step, before the model was saved:
            nothing is left to train then.
    """
    if checkpoint is None:
        trainer.train()
        return
    say(trainer.progress_report.console, f"going on from {checkpoint}")
    state = read_state(checkpoint)
    if not has_ended(state):
        trainer.train(resume_from_checkpoint=str(checkpoint))
        return
    load_best(trainer.model, state, checkpoint)
    trainer.state = state
    trainer.start_clock(state)


def score(
    recipe: Recipe, outputs: list[str], references: list[str]
) -> tuple[dict[str, float | str], dict[str, tuple[float, float]]]:
    """Scores of the test split, and intervals where a score is a share of pairs or tokens.

    Args:
        recipe: whose `evaluation` section says which.
        outputs: what the model wrote.
        references: what it should have written.

    Returns:
        Scores with their signatures, and intervals by score.
    """
    section = recipe.evaluation
    references = list(references)
    metrics = generation_metrics(
        outputs, references, lowercase=section.lowercase, tokenize=section.tokenize, names=section.metrics
    )
    intervals = {}
    if "exact_match" in section.metrics:
        hits = exact_matches(outputs, references, lowercase=section.lowercase)
        intervals["exact_match"] = wilson_interval(int(hits.sum()), len(hits))
    if "token_error_rate" in section.metrics:
        errors = token_errors(outputs, references, lowercase=section.lowercase, tokenize=section.tokenize)
        intervals["token_error_rate"] = bootstrap_interval(*errors, seed=recipe.seed)
    return metrics, intervals


def _has_attention(model: PreTrainedModel) -> bool:
    return getattr(model.config, "attention", None) != "none"


def save_run(
    folder: Path,
    family: Family,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    facts: RunFacts,
    pictured: list[tuple[str, str, str]],
) -> None:
    """Write model, tokenizer, code, card, scores and picture; the folder appears whole or not at all.

    Args:
        folder: to write.
        family: row of the registry.
        model: trained.
        tokenizer: its tokenizer.
        facts: for the card.
        pictured: samples to draw the attention of.
    """
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    # With the pipeline's code, so that the folder is a pipeline also where this package isn't installed.
    pipe = pipeline(family.pipelines[0], model=model, tokenizer=tokenizer, device=model.device)
    pipe.save_pretrained(scratch)
    model_card(facts).save(scratch / "README.md")
    metrics = {"metrics": facts.metrics, "intervals": facts.intervals, "steps": facts.steps, "seconds": facts.seconds}
    (scratch / METRICS).write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if facts.has_map:
        maps = [attention_map(model, tokenizer, source) for source, _, _ in pictured]
        titles = [f"{item.source_text} → {item.target_text}" for item in maps]
        plot_grid(maps, scratch / "attention.png", titles=titles, columns=2)
    # A folder can't replace a full one in a single move.
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def check_reload(
    folder: Path,
    family: Family,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: list[tuple[str, str, str]],
    console: Console,
) -> None:
    """Load a saved run as anybody would, and see that it is the same.

    Args:
        folder: that the run was saved to.
        family: row of the registry.
        model: that was saved.
        tokenizer: that was saved.
        samples: source, reference and output; the outputs are compared.
        console: where to report to.

    Raises:
        RuntimeError: if a weight or the ids of a source differ.
    """
    loaded = getattr(transformers, family.head).from_pretrained(folder)
    weights, loaded_weights = model.state_dict(), loaded.state_dict()
    for name in weights.keys() | loaded_weights.keys():
        if name not in weights or name not in loaded_weights or not loaded_weights[name].equal(weights[name].cpu()):
            raise RuntimeError(f"{folder}: {name} is not what was saved")
    loaded_tokenizer = AutoTokenizer.from_pretrained(folder)
    task = family.pipelines[0]
    translate = pipeline(task, model=str(folder))
    agree = f"loaded back from {folder}: {family.head}, AutoTokenizer and pipeline({task!r}) agree"
    if not samples:
        say(console, agree)
        return
    sources, outputs = [source for source, _, _ in samples], [output for _, _, output in samples]
    batch = loaded_tokenizer(sources, padding=True, return_tensors="pt")
    if not batch["input_ids"].equal(tokenizer(sources, padding=True, return_tensors="pt")["input_ids"]):
        raise RuntimeError(f"{folder}: the saved tokenizer makes other ids of {sources}")
    by_hand = decode_rows(loaded_tokenizer, loaded.generate(**batch), sources)
    by_pipeline = [item["translation_text"] for item in translate(sources)]
    answers = list(zip(outputs, by_hand, by_pipeline, strict=True))
    differ = sum(len(set(same)) > 1 for same in answers)
    # Sampling draws anew, and elsewhere than on one device in one precision numbers are rounded otherwise.
    say(console, f"{agree} on the weights; {differ} of {len(answers)} answers differ" if differ else agree)
