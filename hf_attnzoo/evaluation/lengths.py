"""Scores by source length: where a model without attention gives way, and one with attention holds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .generation import Statistics, sentence_statistics
from .intervals import score_interval
from .scores import References, checked, splitter


@dataclass(frozen=True)
class LengthBin:
    """Scores on the sources of some lengths.

    Args:
        low, high:
            Shortest and longest source length of the bin, both included, in tokens.
        count:
            Sentences in the bin, at least 1.
        scores:
            Scores by name. One that the sentences of the bin do not define, such as an error rate without a token in
            any reference, is left out.
        intervals:
            95 % intervals of them; see [`score_interval`]. One of which nothing is known is left out.
    """

    low: int
    high: int
    count: int
    scores: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]

    @property
    def exact_match(self) -> float:
        """Share of predictions that equal their reference."""
        return self.scores["exact_match"]

    @property
    def token_accuracy(self) -> float:
        """Share of positions with the right token."""
        return self.scores["token_accuracy"]


def by_length(
    predictions: Sequence[str],
    references: References,
    sources: Sequence[str],
    bins: int | Sequence[int] = 5,
    *,
    metrics: Sequence[str] = ("exact_match", "token_accuracy"),
    tokenize: str = "none",
    lowercase: bool = False,
    seed: int = 0,
) -> list[LengthBin]:
    """Scores in bins of source length, as in figure 2 of Bahdanau et al. (2015).

    Args:
        predictions:
            N texts.
        references:
            N texts, or N lists of texts.
        sources:
            N texts, whose lengths count.
        bins:
            Width of the bins, which then start at its multiples; or their rising edges, where `(5, 10, 16)` makes
            5 to 9 and 10 to 15.
        metrics:
            Which scores, of `GENERATION_METRICS`.
        tokenize:
            What a token is, in sources and scores: `"none"` splits at white space, `"char"` at every character; see
            `TOKENIZERS`.
        lowercase:
            Whether upper and lower case are the same.
        seed:
            Seed of the bootstrap.

    Returns:
        The bins that hold a source, shortest first.

    Raises:
        ValueError: no texts or unequal numbers of them, a width below 1, edges that do not rise, a source that no bin
            has room for, an unknown score, or one without statistics of sentences, `"gleu"` of several references.
    """
    predictions, references = checked(predictions, references)
    if len(sources) != len(predictions):
        raise ValueError(f"there are {len(sources)} sources and {len(predictions)} predictions; pair them up")
    split = splitter(tokenize)
    members = defaultdict(list)
    for index, source in enumerate(sources):
        members[_bin_of(len(split(source)), bins)].append(index)
    parts = {}
    for name in metrics:
        statistics = sentence_statistics(
            name, predictions, references, lowercase=lowercase, tokenize=tokenize, sources=sources
        )
        if statistics is None:
            raise ValueError(f"metrics has {name!r}, which draws one of several references: it has no parts by length")
        parts[name] = _agreeing(statistics) if name == "token_accuracy" else statistics
    return [_bin(low, high, chosen, parts, seed) for (low, high), chosen in sorted(members.items())]


def _bin(low: int, high: int, chosen: list[int], parts: Mapping[str, Statistics], seed: int) -> LengthBin:
    scores, intervals = {}, {}
    for name, statistics in parts.items():
        some = statistics.take(chosen)
        value = some.value
        if math.isnan(value):
            continue
        scores[name] = value
        interval = score_interval(some, seed=seed)
        if interval is not None:
            intervals[name] = interval
    return LengthBin(low, high, len(chosen), scores, intervals)


def _agreeing(statistics: Statistics) -> Statistics:
    """Two empty texts agree: without a position of their own they could not count."""
    right, positions = statistics.table.T
    table = np.stack([np.where(positions == 0, 1, right), np.maximum(positions, 1)], axis=1)
    return statistics._replace(table=table)


def _bin_of(length: int, bins: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(bins, int):
        if bins < 1:
            raise ValueError(f"bins is {bins}; a width must be at least 1")
        low = length // bins * bins
        return low, low + bins - 1
    edges = list(bins)
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"bins is {edges}; edges must be at least 2, and rise")
    if not edges[0] <= length < edges[-1]:
        raise ValueError(f"a source has {length} tokens; bins has room for {edges[0]} to {edges[-1] - 1}")
    above = bisect_right(edges, length)
    return edges[above - 1], edges[above] - 1
