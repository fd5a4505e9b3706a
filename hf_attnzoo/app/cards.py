"""What a card shows its model with, for a page to begin with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from .demo import Field

_MOST = 6
_LONGEST = 300

# Which may begin with comments that look like headings, as those of the Hub's own template do
_FRONT_MATTER = re.compile(r"\A---\n.*?^---$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SAMPLES = re.compile(r"^## Samples\n+((?:\|.*\n)+)", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")

# A cell of a table has lost the ends of its lines, which are part of what a language model is given
_FROM_TABLE = ("text",)


def find_card(model: str) -> Path | None:
    """The card of a model, if it has one and it can be had.

    Args:
        model: folder, or name on the Hub.
    """
    path = cached_file(
        model,
        "README.md",
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else Path(path)


def card_title(card: Path) -> str | None:
    """The first heading of a card."""
    title = _TITLE.search(_FENCE.sub("", _FRONT_MATTER.sub("", _read(card))))
    return None if title is None else title[1].strip()


def card_examples(card: Path, fields: Sequence[Field]) -> Iterator[dict[str, Any]]:
    """Inputs that a card has, those of its code first, then those of its samples.

    Args:
        card: of a model.
        fields: that an input has a value for.

    Yields:
        Values by the names of the fields; pictures as paths, of files beside the card.
    """
    text = _read(card)
    seen: list[dict[str, Any]] = []
    for values in (*_called(text, fields), *_sampled(text, fields)):
        found = _checked(values, fields, card.parent)
        if found is not None and found not in seen:
            seen.append(found)
            yield found
        if len(seen) == _MOST:
            return


def _read(card: Path) -> str:
    return card.read_text(encoding="utf-8", errors="replace")


def _called(text: str, fields: Sequence[Field]) -> Iterator[dict[str, Any]]:
    """Arguments of the calls in a card's code that are written out."""
    for block in _CODE.findall(text):
        try:
            statements = ast.parse(block).body
        # Of a null byte it is a ValueError
        except (SyntaxError, ValueError):
            continue
        for statement in statements:
            call = getattr(statement, "value", None)
            if not isinstance(statement, ast.Expr) or not isinstance(call, ast.Call):
                continue
            names = [field.name for field in fields]
            given = {**dict(zip(names, call.args, strict=False)), **{word.arg: word.value for word in call.keywords}}
            try:
                values = {name: ast.literal_eval(value) for name, value in given.items() if name in names}
            # A TypeError of a list as a key, which Python would refuse as well
            except (ValueError, TypeError):
                continue
            # A pair of texts is one argument of its pipeline
            (first, *_) = names
            yield values[first] if isinstance(values.get(first), dict) else values


def _sampled(text: str, fields: Sequence[Field]) -> Iterator[dict[str, Any]]:
    """First cells of the table of samples."""
    table = _SAMPLES.search(text)
    if table is None or fields[0].name not in _FROM_TABLE:
        return
    for line in table[1].splitlines()[2:]:
        cell = _CELL.split(line)[1].strip()
        yield {fields[0].name: re.sub(r"\\(.)", r"\1", cell)}


def _checked(values: dict[str, Any], fields: Sequence[Field], folder: Path) -> dict[str, Any] | None:
    """Values that are of the right kind, with None for an optional one that is missing; or None alone."""
    found: dict[str, Any] = {}
    for field in fields:
        value = values.get(field.name)
        if value is None and field.optional:
            found[field.name] = ""
            continue
        if not isinstance(value, str) or not value.strip():
            return None
        if field.kind == "image":
            # Nothing but what lies beside the card
            path = folder / Path(value).name
            if not path.is_file():
                return None
            value = str(path)
        elif len(value) > _LONGEST * field.lines:
            return None
        found[field.name] = value
    return found
