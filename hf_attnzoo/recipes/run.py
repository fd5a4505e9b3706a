"""From a recipe to a trained, measured, drawn, saved and reloaded model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
import transformers
from babel import Locale
from datasets import Dataset, IterableDataset, concatenate_datasets, disable_progress_bars
from rich.console import Console
from transformers import set_seed

from ..data import CAPTION_SOURCES, SOURCES, SPLITS, TEXT_SOURCES, token_lengths
from ..hub import RunFacts, load_average
from ..registry import FAMILIES, Family
from ..wording import counted, counted_unit
from .building import build_model, build_trainer, generation_config, heed_launcher, model_settings
from .choosing import ending_of, tell_ending
from .disk import discard
from .energy import check_energy, energy_of
from .holding import held, stoppable
from .keys import LENGTH_KEYS, TOKENIZER_KEYS, data_keys, told_by_keys
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
from .soundness import schedule_warnings, shared_inputs
from .starting import from_hub, starting_model, starting_point, starting_processor
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
    # What is wrong with it is told before there are data.
    model_settings(recipe, family)
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
        with told_by_keys(data_keys(recipe, "train")):
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
    shared = [] if stream is not None else shared_inputs(task, rows)
    for sentence in shared:
        say(console, f"warning: {sentence}")
    datasets, cuts = {}, {}
    with starting_point(recipe, family) as start:
        if start is None:
            with told_by_keys(TOKENIZER_KEYS):
                processor = task.build_processor(learnt)
        else:
            processor = starting_processor(start, recipe, task, learnt, console)
            digests["pretrained"] = start.digest()
        if stream is None:
            with told_by_keys(LENGTH_KEYS):
                datasets["train"], rows["train"] = task.prepare(rows["train"], processor)
        else:
            datasets["train"] = stream
        if start is None:
            model, new = build_model(recipe, family, task, processor), set()
        else:
            model, new = starting_model(start, recipe, family, task, processor, console)
    for split in SPLITS:
        if split == "train":
            continue
        # Every row counts here, as far as the model can read it.
        with told_by_keys(LENGTH_KEYS):
            evaluated = task.prepare_evaluation(rows[split], processor, model, split)
        datasets[split] = task.for_evaluation(evaluated.prepared, processor)
        rows[split], cuts[split] = evaluated.rows, evaluated.cuts
    told_cuts = [cut.told(split) for split, some in cuts.items() for cut in some]
    for sentence in told_cuts:
        say(console, f"warning: {sentence}")
    if task.generates:
        longest = _longest_target(recipe, datasets["train"])
        model.generation_config = generation_config(recipe, model, longest)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(console, f"{type(model).__name__}: {counted(parameters, 'parameter')}")
    adapter = None if recipe.training.lora.rank is None else Adapter(model, new, recipe, task, console)

    trainer = build_trainer(recipe, task, model, processor, datasets, rows["validation"], console)
    task.rehearse(trainer)
    for sentence in schedule_warnings(recipe, trainer.total_steps):
        say(console, f"warning: {sentence}")
    with trainer.accelerator.main_process_first():
        checkpoint = claim_output(recipe, digests, trainer.is_world_process_zero(), trainer.args.world_size)
    train(trainer, checkpoint)
    ending = ending_of(recipe, trainer.state)
    tell_ending(console, recipe, ending, trainer.state.global_step)
    if recipe.training.average_last is not None:
        ending = replace(ending, averaged=average_last(trainer, recipe.training.average_last))
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
    # The example is what anybody's call of the pipeline takes: nothing that had to be cut.
    unread = {number for cut in cuts["test"] if cut.read for number in cut.rows}
    whole = [number for number in range(len(outcome.outputs)) if number not in unread]
    numbers = (list(range(len(outcome.outputs))) if task.cuts else whole)[: recipe.evaluation.samples]
    shown, outputs = rows["test"].select(numbers), [outcome.outputs[number] for number in numbers]
    asked = rows["test"].select(whole[:1]) if unread and whole else rows["test"]
    pictured = shown.select(range(min(recipe.evaluation.maps, len(shown)))) if task.has_map(model) else []
    samples = [task.sample(*each) for each in zip(shown, numbers, outputs, strict=True)]

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
        example=task.example(asked),
        recipe=recipe.to_yaml(public=True),
        has_map=len(pictured) > 0,
        pretrained=without_folders(recipe.pretrained.model),
        evaluations=evaluations(trainer.state.log_history),
        best_metric=recipe.evaluation.best_metric,
        ending=ending,
        processes=trainer.args.world_size,
        accumulation=recipe.training.gradient_accumulation_steps,
        base_model=recipe.pretrained.model if from_hub(recipe.pretrained.model) else None,
        pretrained_tokenizer=recipe.pretrained.tokenizer,
        new_weights=new,
        languages=languages(recipe),
        hub_datasets=hub_datasets(recipe),
        lora=None if adapter is None else (recipe.training.lora.rank, adapter.trained),
        shots=outcome.shots,
        energy=energy_of(trainer.state),
        split=reported_split(recipe),
        cuts=told_cuts,
        shared=shared,
        digests=_named_digests(digests, stream is not None),
        attends=hasattr(model.config, "num_attention_heads") or getattr(model.config, "attention", "none") != "none",
    )
    save_run(folder, family, task, model, processor, facts, asked, pictured if facts.has_map else None)
    if adapter is None and is_adapter(output / ADAPTER):
        # Of a run that had its model here before
        discard(output / ADAPTER)
    discard(output / CHECKPOINTS)
    report(console, facts)
    check_reload(folder, family, task, model, processor, shown, outputs, console)
    command = task.next_command(folder, asked)
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


def load_splits(recipe: Recipe, task: Task, names: Sequence[str] = SPLITS) -> dict[str, Dataset]:
    """The three splits of the data.

    Args:
        recipe: whose `data` section says where they are.
        task: of the recipe.
        names: of those that are wanted. Default: all three.

    Returns:
        `train`, `validation` and `test`; `train` is an `IterableDataset` with `data.streaming`.

    Raises:
        ValueError: if no source is named, a split is empty, or streamed without being meant to.
    """
    if recipe.data.streaming:
        task.check_stream()
    splits = {}
    for split in names:
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
            with told_by_keys(data_keys(recipe, split)):
                rows = task.load(source, training=split == "train", **arguments)
            if not isinstance(rows, Dataset) and not recipe.data.streaming:
                raise ValueError(f"data: {source!r} is streamed, and a run needs all of it: set data.streaming=true")
            for name, number in (("skip", skip), ("take", take)):
                if number is not None:
                    rows = _part(rows, name, number, split)
            if recipe.data.streaming and split != "train":
                with told_by_keys(data_keys(recipe, split)):
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


def reported_split(recipe: Recipe) -> str:
    """The name that the recipe has for the split that is reported, `test` if it has none."""
    named = {**recipe.data.options, **recipe.data.test}.get("split")
    return named if isinstance(named, str) else "test"


def _named_digests(digests: Mapping[str, str], streamed: bool) -> dict[str, str]:
    """Digests of the splits as a card calls them; of a stream it is that of its beginning."""
    names = {"train": f"first {_HEAD} train"} if streamed else {}
    return {names.get(split, split): digests[split] for split in SPLITS}


def hub_datasets(recipe: Recipe) -> list[str]:
    """Names of the recipe's sources that are neither built in nor here, and so were had from the Hub."""
    sources = dict.fromkeys(source for split in SPLITS for source in _sources(recipe, split))
    built_in = SOURCES.keys() | CAPTION_SOURCES.keys() | TEXT_SOURCES.keys()
    return [source for source in sources if source not in built_in and not Path(source).expanduser().exists()]


def languages(recipe: Recipe) -> list[str]:
    """Languages of pairs of texts, source and target, where the names of their columns are codes of ISO 639-1.

    Args:
        recipe: whose `data` section says what the columns are called.

    Returns:
        Two codes; or none, where the splits disagree or a name is no such code.
    """
    options = [{**recipe.data.options, **getattr(recipe.data, split)} for split in SPLITS]
    pairs = [[each.get("source_column"), each.get("target_column")] for each in options]
    known = Locale("en").languages
    sure = all(pair == pairs[0] for pair in pairs) and all(len(str(name)) == 2 and name in known for name in pairs[0])
    return pairs[0] if sure else []


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
    trainer.find_place(checkpoint)
    trainer.state = state
    trainer.start_clock(state)


def average_last(trainer: ZooTrainer, number: int) -> tuple[int, ...]:
    """Give a trained model the mean of its last checkpoints.

    Args:
        trainer: whose training has ended.
        number: of checkpoints; a short run may have fewer.

    Returns:
        Their steps.

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
    return tuple(steps)
