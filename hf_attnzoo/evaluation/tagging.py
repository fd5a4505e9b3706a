"""Scores of tagged words: how many tags are right, and how many of the entities that they mark.

Everywhere `predictions` and `references` hold N sentences, each a list with a tag for every word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ..wording import counted
from .generation import Statistics

TAGGING_METRICS = ("accuracy", "entity_f1", "entity_precision", "entity_recall")
"""Names of the scores of tagged words."""

Tags = Sequence[Sequence[str]]

_TAG = re.compile(r"([BIESLU])-(.+)")


def tagging_metrics(
    predictions: Tags, references: Tags, names: Sequence[str] = TAGGING_METRICS
) -> dict[str, float | str]:
    """Several scores at once, each `x` with its settings in `x_signature`.

    Args:
        predictions: N sentences.
        references: N sentences.
        names: any of `TAGGING_METRICS`. `"accuracy"` is the share of words with the right tag; the others are of
            entities, which are right if their type, their first and their last word are: precision, the share of those
            predicted that are right, recall, the share of those wanted that are found, and their harmonic mean
            (Tjong Kim Sang and De Meulder 2003), 0 where there is nothing to divide by.

    Raises:
        ValueError: see `tagging_statistics`.
    """
    results: dict[str, float | str] = {}
    for name in names:
        statistics = tagging_statistics(name, predictions, references)
        results[name], results[f"{name}_signature"] = statistics.value, statistics.signature
    return results


def tagging_statistics(name: str, predictions: Tags, references: Tags) -> Statistics:
    """A score in parts, one for each sentence; see `sentence_statistics`.

    Args:
        name: one of `TAGGING_METRICS`.
        predictions: N sentences.
        references: N sentences.

    Raises:
        ValueError: an unknown name, no sentences, another number of sentences or of tags, or for entities a tag that
            is neither `O` nor a type with `B-`, `I-`, `E-` (`L-`) or `S-` (`U-`) in front of it.
    """
    if name not in TAGGING_METRICS:
        raise ValueError(f"name is {name!r}; the scores of tags are {', '.join(TAGGING_METRICS)}")
    if len(predictions) == 0:
        raise ValueError("predictions is empty; at least 1 sentence is needed")
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions and {len(references)} references; pair them up")
    rows = []
    for number, (ours, theirs) in enumerate(zip(predictions, references, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(f"sentence {number}: {counted(len(ours), 'tag')} predicted, and {len(theirs)} wanted")
        if name == "accuracy":
            rows.append((sum(a == b for a, b in zip(ours, theirs, strict=True)), len(theirs)))
        else:
            found, wanted = set(entities(ours)), set(entities(theirs))
            rows.append((len(found & wanted), len(found), len(wanted)))
    table = np.array(rows, dtype=np.float64)
    sums = [int(value) for value in table.sum(axis=0)]
    if name == "accuracy":
        signature = f"sentences:{len(rows)}|words:{sums[1]}"
        return Statistics(table, lambda sums: _ratio(sums[0], sums[1]), ratio=True, signature=signature)
    signature = f"sentences:{len(rows)}|entities:{sums[2]}|predicted:{sums[1]}"
    score = {
        "entity_f1": lambda sums: _ratio(2 * sums[0], sums[1] + sums[2]),
        "entity_precision": lambda sums: _ratio(sums[0], sums[1]),
        "entity_recall": lambda sums: _ratio(sums[0], sums[2]),
    }[name]
    return Statistics(table, score, signature=signature)


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities that the tags of a sentence mark: type, first word, and the word after the last.

    An entity goes on with `I-` or `E-` (`L-`) of its type, and ends with `E-` (`L-`); all else that isn't `O` begins
    one, as the script of the CoNLL tasks has it: `I-` too, after `O` or another type.

    Raises:
        ValueError: a tag of another kind.
    """
    found: list[tuple[str, int, int]] = []
    going_on = None
    for place, tag in enumerate(tags):
        match = _TAG.fullmatch(tag)
        if match is None and tag != "O":
            raise ValueError(
                f"the tag {tag!r} marks no entity: such tags are O, or a type with B-, I-, E-, L-, S- or U- in front; "
                "accuracy is for any tags"
            )
        prefix, kind = ("O", None) if match is None else match.groups()
        if prefix in "IEL" and kind == going_on:
            found[-1] = (kind, found[-1][1], place + 1)
        elif prefix != "O":
            found.append((kind, place, place + 1))
        # What S- and E- mark is over.
        going_on = kind if prefix in "BI" else None
    return found


def _ratio(value: float, weight: float) -> float:
    return float(value / weight) if weight else 0.0
