"""How far a score could be off, had other test sentences been drawn."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


def bootstrap_interval(
    values: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of `sum(values) / sum(weights)` over sentences (Efron, Tibshirani 1993, ch. 13).

    ```python
    bootstrap_interval(exact_matches(predictions, references))
    bootstrap_interval(*token_errors(predictions, references, tokenize="char"))
    ```

    Args:
        values:
            What a sentence adds to the score, shape `(N,)`: 1 for a match, the number of its errors, ...
        weights:
            What it adds to the divisor, shape `(N,)`, not negative: the tokens of its reference. None counts each
            sentence once, so that the score is the mean.
        level:
            Share of the resampled scores inside the interval, between 0 and 1.
        resamples:
            How many times N sentences are drawn with replacement.
        seed:
            Seed of the drawing.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no values, another number of weights, weights that are negative or all 0, or a number out of range.
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"values has shape {values.shape}; it must be (N,) with N at least 1")
    if weights.shape != values.shape:
        raise ValueError(f"weights has shape {weights.shape}; it must be that of values, {values.shape}")
    if weights.min() < 0 or not weights.any():
        raise ValueError(f"weights sum to {weights.sum()} with a least of {weights.min()}; none below 0, one above it")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1")
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; it must be at least 1")

    generator = np.random.default_rng(seed)
    sums = np.empty((resamples, 2))
    for row in sums:
        drawn = generator.integers(len(values), size=len(values))
        row[:] = values[drawn].sum(), weights[drawn].sum()
    # A draw of empty references only has no score
    sums = sums[sums[:, 1] > 0]
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share of all-or-nothing sentences (Wilson 1927): honest where all, or none, are right.

    A bootstrap can't draw the mistake that isn't in the sample, and would call 1,000 right of 1,000 certain.

    Args:
        successes: sentences that are right.
        trials: sentences.
        level: confidence, between 0 and 1.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no trials, successes outside 0..trials, or a level out of range.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"successes={successes}, trials={trials}: there must be a trial, and 0 to all may succeed")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, spread = successes / trials, z * z / trials
    center = (share + spread / 2) / (1 + spread)
    reach = z / (1 + spread) * (share * (1 - share) / trials + spread / (4 * trials)) ** 0.5
    return max(0.0, center - reach), min(1.0, center + reach)
