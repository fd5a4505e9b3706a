"""What a person should know of a run before its scores are believed: shared rows, and schedules that never come."""

import unicodedata

from datasets import Dataset

from ..wording import counted
from .optimization import warmup_steps
from .schema import Recipe
from .tasks.base import Task


def shared_inputs(task: Task, rows: dict[str, Dataset]) -> list[str]:
    """How many rows of the other splits stand in the training split too, as far as their inputs go.

    Texts are the same that differ in white space, or in how Unicode composes their letters, and in nothing else.

    Args:
        task: whose inputs they are.
        rows: all splits, `train` among them.

    Returns:
        A sentence for each split that has such rows: `200 of 200 test sources also stand in the training data.`
    """
    others = {split: some for split, some in rows.items() if split != "train"}
    inputs = {split: [_plain(text) for text in task.inputs_of(some)] for split, some in others.items()}
    wanted = {text for texts in inputs.values() for text in texts}
    # The training split may be large: of it no more is kept than is found.
    found = wanted.intersection(map(_plain, task.inputs_of(rows["train"])))
    sentences = []
    for split, texts in inputs.items():
        count, of = sum(text in found for text in texts), len(texts)
        stand = "stands" if count == 1 else "stand"
        if count:
            sentences.append(f"{count:,} of {of:,} {split} {task.given} also {stand} in the training data.")
    return sentences


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def schedule_warnings(recipe: Recipe, steps: int) -> list[str]:
    """What of a recipe's schedule lies beyond the end of its training.

    Args:
        recipe: of the run.
        steps: of the whole training.

    Returns:
        A sentence for each key that counts more steps than there are.
    """
    section = recipe.training
    consequences = {
        "warmup_steps": (warmup_steps(section), "the rate never reaches its height"),
        "eval_steps": (section.eval_steps, "there is one evaluation, at the end"),
        "logging_steps": (section.logging_steps, "no loss is told"),
    }
    return [
        f"training.{name}={value:,} of {counted(steps, 'step')}: {consequence}."
        for name, (value, consequence) in consequences.items()
        if value > steps
    ]
