"""How far a score could be off, had other test sentences been drawn."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from .generation import Statistics


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

    Where all sentences agree, all are right for instance, a bootstrap has nothing to draw from and would call the
    score certain. There the interval is Wilson's for a share with N trials, since no score between 0 and 1 spreads
    more than one that is all or nothing: 1,000 sentences without an error have an error rate of 0 to 0.0038, were a
    wrong one wrong throughout. (Of a rate r above 1 it is r times that of a share of 1.)

    Args:
        values:
            What a sentence adds to the score, shape `(N,)`, not negative: 1 for a match, the number of its errors, ...
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
        ValueError: no values, another number of weights, values or weights that are negative, weights that are all 0,
            or a number out of range.
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"values has shape {values.shape}; it must be (N,) with N at least 1")
    if weights.shape != values.shape:
        raise ValueError(f"weights has shape {weights.shape}; it must be that of values, {values.shape}")
    if values.min() < 0:
        raise ValueError(f"values has {values.min()}; none may be below 0")
    if weights.min() < 0 or not weights.any():
        raise ValueError(f"weights sum to {weights.sum()} with a least of {weights.min()}; none below 0, one above it")
    _check(level, resamples)
    rate = values.sum() / weights.sum()
    if np.allclose(values, rate * weights):
        scale, trials = max(rate, 1.0), np.count_nonzero(weights)
        low, high = wilson_interval(min(rate / scale * trials, trials), trials, level=level)
        return scale * low, scale * high

    sums = resample(np.stack([values, weights], axis=1), resamples=resamples, seed=seed)
    # A draw of empty references only has no score
    sums = sums[sums[:, 1] > 0]
    return _percentiles(sums[:, 0] / sums[:, 1], level)


def score_interval(
    statistics: Statistics, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float] | None:
    """Interval of any score that is made of what its sentences add, such as BLEU (Koehn 2004).

    Args:
        statistics:
            Of [`sentence_statistics`].
        level:
            Share of the resampled scores inside the interval, between 0 and 1.
        resamples:
            How many times N sentences are drawn with replacement.
        seed:
            Seed of the drawing.

    Returns:
        Lower and upper end: Wilson's for a share of all-or-nothing sentences, that of [`bootstrap_interval`] for other
        shares and rates, percentiles of the resampled scores for the rest. None if all of those are the same, as with
        a BLEU of 100: nothing is known then.

    Raises:
        ValueError: a level or a number of resamples out of range.
    """
    _check(level, resamples)
    if statistics.ratio:
        values, weights = statistics.table.T
        if (weights == 1).all() and np.isin(values, (0, 1)).all():
            return wilson_interval(int(values.sum()), len(values), level=level)
        return bootstrap_interval(values, weights, level=level, resamples=resamples, seed=seed)
    drawn = [statistics.score(sums) for sums in resample(statistics.table, resamples=resamples, seed=seed)]
    low, high = _percentiles(drawn, level)
    return (low, high) if high - low > 1e-9 * max(abs(high), 1) else None


def resample(table: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """Sums over N rows drawn with replacement, as often as `resamples` says.

    Args:
        table:
            Shape `(N, K)`.
        resamples:
            R.
        seed:
            Of the drawing; tables of the same N are drawn alike.

    Returns:
        Shape `(R, K)`.
    """
    generator = np.random.default_rng(seed)
    sums = np.empty((resamples, table.shape[1]))
    for row in sums:
        row[:] = table[generator.integers(len(table), size=len(table))].sum(axis=0)
    return sums


def wilson_interval(successes: float, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share of all-or-nothing sentences (Wilson 1927): honest where all, or none, are right.

    A bootstrap can't draw the mistake that isn't in the sample, and would call 1,000 right of 1,000 certain.

    Args:
        successes: sentences that are right, or the sum of what they got, each 0 to 1.
        trials: sentences.
        level: confidence, between 0 and 1.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no trials, successes outside 0..trials, or a level out of range.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"successes={successes}, trials={trials}: there must be a trial, and 0 to all may succeed")
    _check(level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, spread = successes / trials, z * z / trials
    center = (share + spread / 2) / (1 + spread)
    reach = z / (1 + spread) * (share * (1 - share) / trials + spread / (4 * trials)) ** 0.5
    return max(0.0, center - reach), min(1.0, center + reach)


def _percentiles(drawn: ArrayLike, level: float) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _check(level: float, resamples: int = 1) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1")
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; it must be at least 1")
