"""The kinds of data that recipes train on."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..schema import Recipe
    from .base import Task

# task of a family in the registry -> module and class
_TASKS = {
    "seq2seq": ("translation", "TranslationTask"),
    "causal-lm": ("language_modeling", "LanguageModelingTask"),
    "image-to-text": ("captioning", "CaptioningTask"),
    "masked-lm": ("masked_language_modeling", "MaskedLanguageModelingTask"),
    "text-classification": ("text_classification", "TextClassificationTask"),
    "token-classification": ("token_classification", "TokenClassificationTask"),
    "question-answering": ("question_answering", "QuestionAnsweringTask"),
}


def trainable() -> tuple[str, ...]:
    """The tasks of families that recipes can train."""
    return tuple(_TASKS)


def task_class(name: str) -> "type[Task]":
    """The class of a task.

    Args:
        name: one of `trainable()`.
    """
    module, cls = _TASKS[name]
    return getattr(importlib.import_module(f".{module}", __name__), cls)


def make_task(name: str, recipe: "Recipe") -> "Task":
    """The task of a recipe.

    Args:
        name: one of `trainable()`.
        recipe: of the run.
    """
    return task_class(name)(recipe)
