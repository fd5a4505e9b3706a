"""Accuracy by source length: where a model without attention gives way, and one with attention holds."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .intervals import bootstrap_interval
from .scores import References, checked, exact_matches, splitter, token_matches


@dataclass(frozen=True)
class LengthBin:
    """Accuracy on the sources of some lengths.

    Args:
        low, high:
            Shortest and longest source length of the bin, both included, in tokens.
        count:
            Sentences in the bin, at least 1.
        exact_match:
            Share of predictions that equal their reference.
        exact_match_interval:
            95 % bootstrap interval of it.
        token_accuracy:
            Share of positions with the right token.
        token_accuracy_interval:
            95 % bootstrap interval of it.
    """

    low: int
    high: int
    count: int
    exact_match: float
    exact_match_interval: tuple[float, float]
    token_accuracy: float
    token_accuracy_interval: tuple[float, float]


def by_length(
    predictions: Sequence[str],
    references: References,
    sources: Sequence[str],
    bins: int | Sequence[int] = 5,
    *,
    tokenize: str = "none",
    lowercase: bool = False,
    seed: int = 0,
) -> list[LengthBin]:
    """Accuracy in bins of source length.

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
        tokenize:
            What a token is, on both sides: `"none"` splits at white space, `"char"` at every character; see
            `TOKENIZERS`.
        lowercase:
            Whether upper and lower case are the same.
        seed:
            Seed of the bootstrap.

    Returns:
        The bins that hold a source, shortest first.

    Raises:
        ValueError: no texts or unequal numbers of them, a width below 1, edges that do not rise, or a source that no
            bin has room for.
    """
    predictions, references = checked(predictions, references)
    if len(sources) != len(predictions):
        raise ValueError(f"there are {len(sources)} sources and {len(predictions)} predictions; pair them up")
    split = splitter(tokenize)
    members = defaultdict(list)
    for index, source in enumerate(sources):
        members[_bin_of(len(split(source)), bins)].append(index)

    matches = exact_matches(predictions, references, lowercase=lowercase)
    right, positions = token_matches(predictions, references, lowercase=lowercase, tokenize=tokenize)
    # Two empty texts agree: without a position of their own they could not count
    right, positions = np.where(positions == 0, 1, right), np.maximum(positions, 1)
    return [
        LengthBin(
            low,
            high,
            len(chosen),
            float(matches[chosen].mean()),
            bootstrap_interval(matches[chosen], seed=seed),
            float(right[chosen].sum() / positions[chosen].sum()),
            bootstrap_interval(right[chosen], positions[chosen], seed=seed),
        )
        for (low, high), chosen in sorted(members.items())
    ]


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
