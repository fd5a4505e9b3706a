"""Scores of what a model has written, with intervals where a score is a share of rows or tokens."""

from collections.abc import Sequence

from ..evaluation import bootstrap_interval, exact_matches, generation_metrics, token_errors, wilson_interval
from .schema import Recipe


def score(
    recipe: Recipe, outputs: Sequence[str], accepted: Sequence[str] | Sequence[Sequence[str]]
) -> tuple[dict[str, float | str], dict[str, tuple[float, float]]]:
    """Scores of the test split.

    Args:
        recipe: whose `evaluation` section says which.
        outputs: what the model wrote.
        accepted: for each output what it should have been, or all that it might have been.

    Returns:
        Scores with their signatures, and 95 % intervals by score.
    """
    section = recipe.evaluation
    metrics = generation_metrics(
        outputs, accepted, lowercase=section.lowercase, tokenize=section.tokenize, names=section.metrics
    )
    hits = exact_matches(outputs, accepted, lowercase=section.lowercase)
    right, wrong = int(hits.sum()), int((1 - hits).sum())
    intervals = {}
    if "exact_match" in section.metrics:
        intervals["exact_match"] = wilson_interval(right, len(hits))
    if "sequence_error_rate" in section.metrics:
        intervals["sequence_error_rate"] = wilson_interval(wrong, len(hits))
    if "token_error_rate" in section.metrics:
        errors = token_errors(outputs, accepted, lowercase=section.lowercase, tokenize=section.tokenize)
        intervals["token_error_rate"] = bootstrap_interval(*errors, seed=recipe.seed)
    return metrics, intervals
