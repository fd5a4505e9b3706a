"""From a recipe to a trained, measured, drawn, saved and reloaded model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
import transformers
from datasets import Dataset, IterableDataset, concatenate_datasets, disable_progress_bars
from rich.console import Console
from transformers import set_seed

from ..data import CAPTION_SOURCES, SOURCES, SPLITS, TEXT_SOURCES, token_lengths
from ..hub import RunFacts, load_average
from ..registry import FAMILIES, Family
from ..wording import counted, counted_unit
from .building import build_model, build_trainer, generation_config, heed_launcher
from .disk import discard
from .energy import check_energy, energy_of
from .holding import held, stoppable
from .lora import ADAPTER, Adapter, is_adapter
from .reporting import make_console, report, say
from .resume import (
    CHECKPOINTS,
    MODEL,
    averaged_steps,
    check_whole,
    checkpoint_at,
    claim_output,
    has_ended,
    load_best,
    read_state,
    steps_ended_at,
)
from .saving import check_reload, save_run
from .schema import Recipe, nearest, without_folders
from .starting import starting_model, starting_point, starting_processor
from .tasks import make_task, task_class, trainable
from .tasks.base import Task
from .trainer import ZooTrainer

# Of a streamed training split: what is shown and what tells one run's data from another's.
_HEAD = 100
# Rows of a validation or test split: these are kept in memory while the training split is streamed.
_MOST_HELD = 100_000


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Args:
        model: folder of model, tokenizer, card and picture.
        metrics: scores on the test split.
        samples: some rows of the test split, a target and the output last.
        seconds: wall time of training.
        next_command: words of a command to try the model with.
        own_data: command that trains such a model on other data.
    """

    model: Path
    metrics: dict[str, float | str]
    samples: list[tuple[str, ...]]
    seconds: float
    next_command: list[str] = field(default_factory=list)
    own_data: str = ""


def run_recipe(recipe: Recipe, console: Console | None = None) -> RunResult:
    """Train, score on the test split, draw attention, save, and load back.

    A run that was killed goes on from its last complete checkpoint when it is started again; one that has ended starts
    afresh, and its model is replaced when the new one is whole. Two runs never share an output.

    Args:
        recipe: what to do.
        console: where to report to. Default: `None`, standard output.

    Returns:
        Folder and scores.

    Raises:
        ValueError: if the recipe asks for something that doesn't exist, or another run is at its output, before any
            training.
    """
    console = console or make_console()
    with stoppable(Path(recipe.output), console), held(Path(recipe.output)):
        return _run(heed_launcher(recipe), console)


def _run(recipe: Recipe, console: Console) -> RunResult:
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    family = find_family(recipe)
    task = make_task(recipe.task or family.task, recipe)
    task.check()
    check_energy(recipe.training)
    set_seed(recipe.seed)
    disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    output = Path(recipe.output)
    steps = steps_ended_at(output)
    if steps is not None:
        say(
            console,
            f"{output} has the model of a run that has ended, at step {steps}: it is trained anew, and replaced in "
            "the end. To keep it choose another output; to go on from it, there, set "
            f"pretrained.model={output / MODEL}",
        )

    rows = load_splits(recipe, task)
    # Of a stream the first rows stand for all where those have to be looked at.
    stream = rows["train"] if recipe.data.streaming else None
    if stream is not None:
        rows["train"] = _held(stream.take(_HEAD), data_name(recipe), "train")
    for split, some in rows.items():
        unit = task.card.unit
        streamed = split == "train" and stream is not None
        rows_of = f"a stream of {unit}" if streamed else counted_unit(len(some), unit)
        say(console, f"{split}: {rows_of}, such as {task.show(some[0])}")
    learnt = rows["train"] if stream is None else stream
    if recipe.tokenizer.train_rows is not None:
        learnt = _part(learnt, "take", recipe.tokenizer.train_rows, "train")
    digests = {split: task.digest(some) for split, some in rows.items()}
    datasets = {}
    with starting_point(recipe, family) as start:
        if start is None:
            processor = task.build_processor(learnt)
        else:
            processor = starting_processor(start, recipe, task, learnt, console)
            digests["pretrained"] = start.digest()
        for split in SPLITS:
            if split == "train" and stream is not None:
                datasets[split] = stream
                continue
            datasets[split], rows[split] = task.prepare(rows[split], processor)
            if split != "train":
                datasets[split] = task.for_evaluation(datasets[split], processor)
        if start is None:
            model = build_model(recipe, family, task, processor)
        else:
            model, new = starting_model(start, recipe, family, task, processor, console)
    if task.generates:
        longest = _longest_target(recipe, datasets["train"])
        model.generation_config = generation_config(recipe, model, longest)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(console, f"{type(model).__name__}: {counted(parameters, 'parameter')}")
    adapter = None if recipe.training.lora.rank is None else Adapter(model, new, recipe, task, console)

    trainer = build_trainer(recipe, task, model, processor, datasets, rows["validation"], console)
    task.rehearse(trainer)
    with trainer.accelerator.main_process_first():
        checkpoint = claim_output(recipe, digests, trainer.is_world_process_zero(), trainer.args.world_size)
    train(trainer, checkpoint)
    if recipe.training.average_last is not None:
        average_last(trainer, recipe.training.average_last)
    seconds = trainer.seconds
    if adapter is not None:
        if trainer.is_world_process_zero():
            adapter.save(output / ADAPTER)
        # What is measured is what is saved.
        adapter.merge()
    outcome = task.measure(trainer, processor, datasets["test"], rows["test"])
    if outcome is None:
        return RunResult(output / MODEL, {}, [], seconds)

    model = trainer.whole_model
    if task.generates:
        # The trainer fills the generation settings with defaults for its own use.
        model.generation_config = generation_config(recipe, model, longest)
    model.eval()
    shown = rows["test"].select(range(min(recipe.evaluation.samples, len(outcome.outputs))))
    outputs = outcome.outputs[: len(shown)]
    pictured = shown.select(range(min(recipe.evaluation.maps, len(shown)))) if task.has_map(model) else []
    samples = [task.sample(row, number, outputs[number]) for number, row in enumerate(shown)]

    folder = output / MODEL
    facts = RunFacts(
        kind=task.card,
        name=recipe.name,
        summary=family.summary,
        paper=family.paper,
        license=recipe.license,
        data_name=data_name(recipe),
        data_license=recipe.data.license,
        rows={
            split: task.size(prepared, rows[split]) if prepared is not stream else trainer.rows_streamed
            for split, prepared in datasets.items()
        },
        parameters=parameters,
        vocabulary=task.vocabulary(processor),
        steps=trainer.state.global_step,
        seconds=seconds,
        loss_curve=[(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry],
        metrics=outcome.metrics,
        intervals=outcome.intervals,
        samples=samples,
        example=task.example(rows["test"]),
        recipe=recipe.to_yaml(public=True),
        has_map=len(pictured) > 0,
        pretrained=without_folders(recipe.pretrained.model),
        evaluations=evaluations(trainer.state.log_history),
        best_metric=recipe.evaluation.best_metric,
        hub_datasets=hub_datasets(recipe),
        lora=None if adapter is None else (recipe.training.lora.rank, adapter.trained),
        shots=outcome.shots,
        energy=energy_of(trainer.state),
        attends=hasattr(model.config, "num_attention_heads") or getattr(model.config, "attention", "none") != "none",
    )
    save_run(folder, family, task, model, processor, facts, rows["test"], pictured if facts.has_map else None)
    if adapter is None and is_adapter(output / ADAPTER):
        # Of a run that had its model here before
        discard(output / ADAPTER)
    discard(output / CHECKPOINTS)
    report(console, facts)
    check_reload(folder, family, task, model, processor, shown, outputs, console)
    command = task.next_command(folder, rows["test"])
    return RunResult(folder, facts.metrics, samples, seconds, command, task.own_data)


def find_family(recipe: Recipe) -> Family:
    """The family of a recipe.

    Args:
        recipe: which names it.

    Raises:
        ValueError: if there is no such family, or no recipe can train it.
    """
    if recipe.family not in FAMILIES:
        raise ValueError(
            f"family={recipe.family!r} is none of {', '.join(FAMILIES)}; "
            f"did you mean {nearest(recipe.family, FAMILIES)!r}?"
        )
    family = FAMILIES[recipe.family]
    if recipe.task is not None:
        if recipe.task not in trainable():
            raise ValueError(
                f"task={recipe.task!r} is none of {', '.join(trainable())}; "
                f"did you mean {nearest(recipe.task, trainable())!r}?"
            )
        if task_class(recipe.task).head not in family.config_class.auto_classes:
            raise ValueError(f"task={recipe.task!r} needs a head that family={recipe.family!r} has not")
        return family
    if family.task not in trainable():
        names = ", ".join(name for name, other in FAMILIES.items() if other.task in trainable())
        raise ValueError(
            f"family={recipe.family!r} is for {family.task}, and recipes train {names}. "
            f"Train it with transformers' Trainer"
        )
    return family


def load_splits(recipe: Recipe, task: Task) -> dict[str, Dataset]:
    """The three splits of the data.

    Args:
        recipe: whose `data` section says where they are.
        task: of the recipe.

    Returns:
        `train`, `validation` and `test`; `train` is an `IterableDataset` with `data.streaming`.

    Raises:
        ValueError: if no source is named, a split is empty, or streamed without being meant to.
    """
    if recipe.data.streaming:
        task.check_stream()
    splits = {}
    for split in SPLITS:
        parts = []
        for source in _sources(recipe, split):
            # A file that is named for one split is all of it; one that is named for all of them is dealt out, also
            # where others are added to it.
            whole = source != recipe.data.source and "source" in getattr(recipe.data, split) and os.path.isfile(source)
            arguments = {"split": None if whole else split, **recipe.data.options, **getattr(recipe.data, split)}
            arguments.pop("source", None)
            skip, take = (arguments.pop(name, None) for name in ("skip", "take"))
            if recipe.data.streaming:
                arguments["streaming"] = True
            rows = task.load(source, training=split == "train", **arguments)
            if not isinstance(rows, Dataset) and not recipe.data.streaming:
                raise ValueError(f"data: {source!r} is streamed, and a run needs all of it: set data.streaming=true")
            for name, number in (("skip", skip), ("take", take)):
                if number is not None:
                    rows = _part(rows, name, number, split)
            if recipe.data.streaming and split != "train":
                rows = _held(rows, source, split)
            if isinstance(rows, Dataset) and len(rows) == 0:
                raise ValueError(f"data: the {split} split of {source!r} is empty")
            parts.append(rows)
        splits[split] = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
    return splits


def _part(rows: Dataset | IterableDataset, name: str, number: int, split: str) -> Dataset | IterableDataset:
    """Rows without the first ones (`skip`), or the first ones alone (`take`)."""
    if not isinstance(number, int) or isinstance(number, bool) or number < (1 if name == "take" else 0):
        raise ValueError(f"data.{split}.{name}={number!r} must be a number of rows")
    if isinstance(rows, Dataset):
        number = min(number, len(rows))
    return rows.skip(number) if name == "skip" else rows.take(number)


def _held(rows: Dataset | IterableDataset, source: str, split: str) -> Dataset:
    """The rows of a stream that is short enough to be held in memory."""
    if isinstance(rows, Dataset):
        return rows
    held = list(islice(rows, _MOST_HELD + 1))
    if not held:
        raise ValueError(f"data: the {split} split of {source!r} is empty")
    if len(held) > _MOST_HELD:
        raise ValueError(
            f"data: the {split} split of {source!r} has more than {_MOST_HELD:,} rows, and is read in "
            f"full: set data.{split}.take"
        )
    return Dataset.from_list(held, features=rows.features)


def _longest_target(recipe: Recipe, train: Dataset | IterableDataset) -> int:
    if isinstance(train, Dataset):
        return int(token_lengths(train, "labels").max())
    data = recipe.data
    return data.max_target_length or data.block_size or _HEAD


def _sources(recipe: Recipe, split: str) -> list[str]:
    source = {"source": recipe.data.source, **recipe.data.options, **getattr(recipe.data, split)}["source"]
    if source is None:
        raise ValueError("data.source is missing: name a built-in source, a file, a folder or a dataset on the Hub")
    sources = source if isinstance(source, list) else [source]
    if not sources or not all(isinstance(item, str) for item in sources):
        raise ValueError(f"data.{split}.source={source!r} must be a name, or a list of names")
    return sources


def data_name(recipe: Recipe) -> str:
    """What a card calls the recipe's data, with commas where the splits come from several sources."""
    sources = (without_folders(source) for split in SPLITS for source in _sources(recipe, split))
    return ", ".join(dict.fromkeys(sources))


def hub_datasets(recipe: Recipe) -> list[str]:
    """Names of the recipe's sources that are neither built in nor here, and so were had from the Hub."""
    sources = dict.fromkeys(source for split in SPLITS for source in _sources(recipe, split))
    built_in = SOURCES.keys() | CAPTION_SOURCES.keys() | TEXT_SOURCES.keys()
    return [source for source in sources if source not in built_in and not Path(source).expanduser().exists()]


def evaluations(history: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Scores of the validation split during training.

    Args:
        history: the log of a trainer.

    Returns:
        For each evaluation its `step` and scores, `loss` among them; one that was made again after a restart counts
        once.
    """
    found = {}
    for entry in history:
        if "eval_loss" in entry:
            scores = {
                key.removeprefix("eval_"): value
                for key, value in entry.items()
                if key.startswith("eval_") and not key.endswith(("runtime", "per_second"))
            }
            found[entry["step"]] = {"step": entry["step"], **scores}
    return list(found.values())


def train(trainer: ZooTrainer, checkpoint: Path | None) -> None:
    """Train, or go on from a checkpoint; the model has the weights of the best checkpoint afterwards.

    Args:
        trainer: of a run whose output has been claimed.
        checkpoint: what a killed run left. A run may have been killed after its last step, before the model was saved:
            nothing is left to train then.
    """
    if checkpoint is None:
        trainer.train()
        trainer.gather_model()
        return
    say(trainer.progress_report.console, f"going on from {checkpoint}")
    state = read_state(checkpoint)
    if not has_ended(state):
        trainer.train(resume_from_checkpoint=str(checkpoint))
        trainer.gather_model()
        return
    load_best(trainer.model, state, checkpoint)
    trainer.state = state
    trainer.start_clock(state)


def average_last(trainer: ZooTrainer, number: int) -> None:
    """Give a trained model the mean of its last checkpoints.

    Args:
        trainer: whose training has ended.
        number: of checkpoints; a short run may have fewer.

    Raises:
        ValueError: if one of them is not as it was written.
    """
    steps = averaged_steps(trainer.state.save_steps, trainer.state.global_step, number)
    checkpoints = [checkpoint_at(Path(trainer.args.output_dir), step) for step in steps]
    for checkpoint in checkpoints:
        check_whole(checkpoint, f"which training.average_last={number} needs")
    load_average(trainer.model, checkpoints)
    where = f"{'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
    say(trainer.progress_report.console, f"mean of {counted(len(steps), 'checkpoint')}, at {where}")
