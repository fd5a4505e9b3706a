"""Scores of what a model has written, with intervals."""

from collections.abc import Sequence

from ..evaluation import scores_with_intervals
from .schema import Recipe


def score(
    recipe: Recipe,
    outputs: Sequence[str],
    accepted: Sequence[str] | Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
) -> tuple[dict[str, float | str], dict[str, tuple[float, float]]]:
    """Scores of the test split.

    Args:
        recipe: whose `evaluation` section says which.
        outputs: what the model wrote.
        accepted: for each output what it should have been, or all that it might have been.
        sources: the texts that were read, if they were texts.

    Returns:
        Scores with their signatures, and 95 % intervals by score, of those that have one.
    """
    section = recipe.evaluation
    return scores_with_intervals(
        outputs,
        accepted,
        names=section.metrics,
        lowercase=section.lowercase,
        tokenize=section.tokenize,
        sources=sources,
        seed=recipe.seed,
    )
