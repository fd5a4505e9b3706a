"""The folder that a run leaves, and the proof that it holds what was trained."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import transformers
from datasets import Dataset
from rich.console import Console
from transformers import PreTrainedModel, pipeline

from ..evaluation import plot_in_context
from ..hub import RunFacts, check_card, model_card, plot_curve
from ..hub.card import metric_name
from ..registry import Family
from ..wording import counted
from .disk import discard, scratch_folder, writing
from .reporting import say
from .resume import METRICS
from .tasks.base import Processor, Task


def save_run(
    folder: Path,
    family: Family,
    task: Task,
    model: PreTrainedModel,
    processor: Processor,
    facts: RunFacts,
    rows: Dataset,
    pictured: Dataset | None,
) -> None:
    """Write model, processor, code, card, scores and picture; the folder appears whole or not at all.

    Args:
        folder: to write.
        family: row of the registry.
        task: of the recipe.
        model: trained.
        processor: its tokenizer or processor.
        facts: for the card.
        rows: of the test split, the first of which the card shows how to ask for.
        pictured: rows to draw the attention of, or None.
    """
    scratch = scratch_folder(folder)
    with writing(folder):
        # With the pipeline's code, so that the folder is a pipeline also where this package isn't installed.
        pipe = pipeline(task.card.pipeline, model=model, device=model.device, **task.parts(processor))
        pipe.save_pretrained(scratch)
        model_card(facts).save(scratch / "README.md")
        metrics = {"metrics": facts.metrics, "intervals": facts.intervals, "steps": facts.steps}
        metrics["seconds"] = facts.seconds
        if facts.energy is not None:
            metrics["energy"] = dataclasses.asdict(facts.energy)
        if reading := task.reading():
            metrics["reading"] = reading
        if facts.shots:
            metrics["shots"] = [dataclasses.asdict(each) for each in facts.shots]
        text = json.dumps(metrics, indent=2, ensure_ascii=False) + "\n"
        (scratch / METRICS).write_text(text, encoding="utf-8")
        task.write_extras(rows, scratch)
        if pictured is not None:
            task.draw(model, processor, pictured, scratch / "attention.png")
        if facts.shots:
            plot_in_context({facts.name: facts.shots}, scratch / "shots.png")
        if facts.evaluations:
            found = any(facts.best_metric in each for each in facts.evaluations)
            metric, name = (facts.best_metric, metric_name(facts.best_metric)) if found else (None, None)
            plot_curve(facts.loss_curve, facts.evaluations, scratch / "curve.png", metric=metric, name=name)
        # A folder can't replace a full one in a single move. Between these the checkpoints still have the model.
        discard(folder)
        scratch.rename(folder)
        # Not before: a model that is safe is worth more than a card that is right
        check_card(folder / "README.md")


def check_reload(
    folder: Path,
    family: Family,
    task: Task,
    model: PreTrainedModel,
    processor: Processor,
    rows: Dataset,
    outputs: Sequence[str],
    console: Console,
) -> None:
    """Load a saved run as anybody would, and see that it is the same.

    Args:
        folder: that the run was saved to.
        family: row of the registry.
        task: of the recipe.
        model: that was saved.
        processor: that was saved.
        rows: some rows of the test split.
        outputs: what was written for them.
        console: where to report to.

    Raises:
        RuntimeError: if a weight or the inputs made of a row differ.
    """
    loaded = getattr(transformers, task.head).from_pretrained(folder)
    weights, loaded_weights = model.state_dict(), loaded.state_dict()
    for name in weights.keys() | loaded_weights.keys():
        if name not in weights or name not in loaded_weights or not loaded_weights[name].equal(weights[name].cpu()):
            raise RuntimeError(f"{folder}: {name} is not what was saved")
    loaded_processor = task.processor_class.from_pretrained(folder)
    pipe = pipeline(task.card.pipeline, model=str(folder))
    auto_class = task.processor_class.__name__
    agree = f"loaded back from {folder}: {task.head}, {auto_class} and pipeline({task.card.pipeline!r}) agree"
    if not outputs:
        say(console, agree)
        return
    before, after = task.inputs(processor, rows), task.inputs(loaded_processor, rows)
    for name in before.keys() | after.keys():
        if name not in before or name not in after or not before[name].equal(after[name]):
            raise RuntimeError(f"{folder}: the saved {auto_class} makes other {name} of the first test rows")
    by_hand = task.answer(loaded, loaded_processor, after, rows)
    answers = list(zip(outputs, by_hand, task.ask(pipe, rows), strict=True))
    differ = sum(len(set(same)) > 1 for same in answers)
    # Sampling draws anew, and elsewhere than on one device in one precision numbers are rounded otherwise.
    some = f"{counted(differ, 'answer')} of {len(answers):,} {'differs' if differ == 1 else 'differ'}"
    say(console, f"{agree} on the weights; {some}" if differ else agree)
