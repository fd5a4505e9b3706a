"""What goes wrong behind a recipe, told by the recipe's keys: functions name their own arguments."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields

from ..data.sources import option_names
from .schema import DataSection, Recipe, TokenizerSection

TOKENIZER_KEYS = {field.name: f"tokenizer.{field.name}" for field in fields(TokenizerSection)}
"""Arguments of `train_tokenizer` -> keys of a recipe."""

LENGTH_KEYS = {field.name: f"data.{field.name}" for field in fields(DataSection)}
"""Arguments of what makes tokens of rows -> keys of a recipe."""

BATCH_KEYS = {"max_tokens": "training.batch_tokens", "max_rows": "training.batch_rows"}
"""Arguments of batch samplers -> keys of a recipe."""


def data_keys(recipe: Recipe, split: str) -> dict[str, str]:
    """Options of sources and files -> keys of a recipe.

    Args:
        recipe: which may have some of them for one split.
        split: `train`, `validation` or `test`.
    """
    own = getattr(recipe.data, split)
    return {name: f"data.{split if name in own else 'options'}.{name}" for name in option_names()}


@contextmanager
def told_by_keys(keys: Mapping[str, str]) -> Iterator[None]:
    """Add to an error that names arguments, as in `header=False` or `vocab_size must be`, where a recipe has them.

    Args:
        keys: arguments -> keys of a recipe.

    Raises:
        ValueError: what was raised inside.
    """
    try:
        yield
    except ValueError as error:
        named = re.findall(r"(?<![\w.])(\w+)(?:=| must\b)", str(error))
        found = dict.fromkeys(keys[name] for name in named if name in keys)
        if not found:
            raise
        raise ValueError(f"{error} (in a recipe: {', '.join(found)})") from error
