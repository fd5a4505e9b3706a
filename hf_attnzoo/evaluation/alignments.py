"""Alignments of words against those that people have drawn: precision, recall and alignment error rate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .scores import Score

Links = frozenset[tuple[int, int]]

_LINK = re.compile(r"(\d+)([-p?])(\d+)", re.ASCII)


class GoldAlignment(NamedTuple):
    """The links of a pair of sentences by hand: pairs of a place in the source and one in the target, from 0.

    Args:
        sure: links that must be there.
        possible: links that may be there, the sure ones among them.
    """

    sure: Links
    possible: Links


def read_alignment(line: str) -> GoldAlignment:
    """Links in Pharaoh format: `0-0 1-2` are sure, `1p2` and `1?2` are possible.

    Args:
        line: links with white space between them, each a place in the source, `-`, `p` or `?`, and one in the target.

    Raises:
        ValueError: something that is not a link.
    """
    sure, possible = set(), set()
    for text in line.split():
        link = _LINK.fullmatch(text)
        if link is None:
            raise ValueError(f"{text!r} is no link such as 0-1, 0p1 or 0?1, in {line[:60]!r}")
        pair = int(link[1]), int(link[3])
        possible.add(pair)
        if link[2] == "-":
            sure.add(pair)
    return GoldAlignment(frozenset(sure), frozenset(possible))


def alignment_counts(predictions: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """What each sentence adds to the scores of alignments.

    Args:
        predictions:
            N lines of links in Pharaoh format; all of them count, possible or not.
        references:
            N lines of links by hand, sure and possible; see [`read_alignment`].

    Returns:
        Links that are sure, links that are possible, links, and sure links by hand, shape `(N, 4)`.

    Raises:
        ValueError: no lines, another number of references, or a line that is none of links.
    """
    for name, lines in (("predictions", predictions), ("references", references)):
        if isinstance(lines, str):
            raise ValueError(f"{name} is one string, {lines[:40]!r}; it must be a list of lines")
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions and {len(references)} references; pair them up")
    if not len(predictions):
        raise ValueError("predictions is empty; at least 1 line is needed")
    rows = []
    for prediction, reference in zip(predictions, references, strict=True):
        links, gold = read_alignment(prediction).possible, read_alignment(reference)
        rows.append((len(links & gold.sure), len(links & gold.possible), len(links), len(gold.sure)))
    return np.array(rows)


def alignment_error_rate(predictions: Sequence[str], references: Sequence[str]) -> Score:
    """Alignment error rate over the corpus (Och and Ney 2003): 0 is perfect, 1 the worst.

    With the links A of the predictions, the sure links S and the possible links P by hand, S among P:
    `1 - (|A and S| + |A and P|) / (|A| + |S|)`. Arguments and errors are those of [`alignment_counts`].
    """
    rows = alignment_counts(predictions, references)
    sure, possible, links, gold = rows.sum(axis=0)
    if not links + gold:
        raise ValueError("predictions and references hold no links at all; an error rate is per link")
    return Score(float(1 - (sure + possible) / (links + gold)), f"sentences:{len(rows)}|links:{links}|sure:{gold}")


def alignment_precision(predictions: Sequence[str], references: Sequence[str]) -> Score:
    """Share of the predicted links that are possible (Och and Ney 2003). Arguments are those of [`alignment_counts`].

    Raises:
        ValueError: no predicted link, or what [`alignment_counts`] refuses.
    """
    rows = alignment_counts(predictions, references)
    _, possible, links, _ = rows.sum(axis=0)
    if not links:
        raise ValueError("predictions hold no links at all; a precision is per predicted link")
    return Score(float(possible / links), f"sentences:{len(rows)}|links:{links}")


def alignment_recall(predictions: Sequence[str], references: Sequence[str]) -> Score:
    """Share of the sure links that are predicted (Och and Ney 2003). Arguments are those of [`alignment_counts`].

    Raises:
        ValueError: no sure link, or what [`alignment_counts`] refuses.
    """
    rows = alignment_counts(predictions, references)
    sure, _, _, gold = rows.sum(axis=0)
    if not gold:
        raise ValueError("references hold no sure links at all; a recall is per sure link")
    return Score(float(sure / gold), f"sentences:{len(rows)}|sure:{gold}")
