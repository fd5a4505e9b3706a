"""Is one system better than another, or was it the luck of the test sentences?

Both tests of sacreBLEU are there, for every score and with a seed of their own. They differ from sacreBLEU's in two
things. A shuffled or resampled difference that equals the real one counts as no smaller: where two systems differ in
one sentence only, every shuffle gives the same difference, and sacreBLEU's strict comparison calls that significant.
And the bootstrap's p-value is two-sided, sacreBLEU's being of one side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .generation import Statistics
from .intervals import resample

# Shuffles at a time
_CHUNK = 1000


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same sentences, by one score.

    Args:
        first, second:
            Their scores.
        difference:
            The first less the second.
        interval:
            95 % interval of the difference, by paired bootstrap.
        first_higher:
            Share of the resampled test sets on which the first has the higher score, ties counted half (Koehn 2004).
        p_bootstrap:
            How likely a difference of this size is between systems that are alike, by paired bootstrap, two-sided.
        p_randomization:
            The same by approximate randomization.
    """

    first: float
    second: float
    difference: float
    interval: tuple[float, float]
    first_higher: float
    p_bootstrap: float
    p_randomization: float


def compare(
    first: Statistics, second: Statistics, *, resamples: int = 1000, trials: int = 10_000, seed: int = 0
) -> Comparison:
    """Paired tests of two systems.

    Paired bootstrap (Koehn 2004): test sets are drawn with replacement, the same for both systems; for the p-value the
    differences are moved to a mean of 0, as if the systems were alike. Approximate randomization (Riezler and Maxwell
    2005): for each sentence a coin says whether the systems change places.

    Args:
        first, second:
            Of [`sentence_statistics`], the same score of the same sentences.
        resamples:
            How many test sets are drawn.
        trials:
            How often systems change places.
        seed:
            Seed of both.

    Returns:
        The comparison. A p-value is at least 1 over one more than the number of drawings.

    Raises:
        ValueError: another number of sentences, or a number below 1.
    """
    if first.table.shape != second.table.shape:
        raise ValueError(f"second has a table of shape {second.table.shape}, first of {first.table.shape}")
    for name, value in (("resamples", resamples), ("trials", trials)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    difference = first.value - second.value
    drawn = np.array(
        [
            first.score(ours) - second.score(theirs)
            for ours, theirs in zip(
                resample(first.table, resamples=resamples, seed=seed),
                resample(second.table, resamples=resamples, seed=seed),
                strict=True,
            )
        ]
    )
    # A draw of empty references only has no score
    drawn = drawn[~np.isnan(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Comparison(
        first=first.value,
        second=second.value,
        difference=difference,
        interval=(float(low), float(high)),
        first_higher=float(((drawn > 0) + 0.5 * (drawn == 0)).mean()),
        p_bootstrap=_p_value(drawn - difference, difference),
        p_randomization=_p_value(_shuffled(first, second, trials, seed), difference),
    )


def _shuffled(first: Statistics, second: Statistics, trials: int, seed: int) -> np.ndarray:
    """Differences after systems have changed places at random, shape `(trials,)`."""
    generator = np.random.default_rng(seed)
    ours, theirs = first.table.sum(axis=0), second.table.sum(axis=0)
    moves = second.table - first.table
    # Only sentences on which they differ can change anything
    moves = moves[moves.any(axis=1)]
    differences = []
    for start in range(0, trials, _CHUNK):
        size = (min(_CHUNK, trials - start), len(moves))
        moved = generator.integers(2, size=size).astype(np.float64) @ moves
        differences += [first.score(ours + move) - second.score(theirs - move) for move in moved]
    return np.array(differences)


def _p_value(differences: np.ndarray, difference: float) -> float:
    # Sums of the same numbers in another order differ in the last digits
    as_large = np.abs(differences) >= abs(difference) - 1e-9 * max(abs(difference), 1e-3)
    return float((as_large.sum() + 1) / (len(differences) + 1))
