"""Evaluation without a network: scores of texts, intervals, significance, scores by source length, and attention.

```python
from hf_attnzoo.evaluation import generation_metrics

generation_metrics(["2021-03-05"], ["2021-03-05"], tokenize="char")
```
"""

import importlib
from typing import TYPE_CHECKING, Any

from .alignments import (
    GoldAlignment,
    alignment_counts,
    alignment_error_rate,
    alignment_precision,
    alignment_recall,
    read_alignment,
)
from .classification import (
    CLASSIFICATION_METRICS,
    accuracy,
    classification_metrics,
    classification_statistics,
    confusion_matrix,
    f1_score,
    matthews_correlation,
)
from .correction import gleu
from .generation import GENERATION_METRICS, Statistics, generation_metrics, sentence_statistics
from .intervals import bootstrap_interval, score_interval, wilson_interval
from .lengths import LengthBin, by_length
from .scores import (
    TOKENIZERS,
    Score,
    bleu,
    character_error_rate,
    chrf,
    exact_match,
    exact_matches,
    phoneme_error_rate,
    sequence_error_rate,
    ter,
    token_accuracy,
    token_error_rate,
    token_errors,
    token_matches,
    word_error_rate,
)
from .significance import Comparison, compare
from .squad import SQUAD_METRICS, normalize_answer, squad_exact, squad_f1, squad_metrics, squad_statistics
from .tagging import TAGGING_METRICS, entities, tagging_metrics, tagging_statistics

if TYPE_CHECKING:
    from .in_context import SHOTS, ShotScore, in_context_accuracy, longest_prompt, plot_in_context
    from .judging import JUDGED_TASKS, judged_report
    from .likelihood import LIKELIHOOD_METRICS, TextLikelihood, row_losses, text_likelihood
    from .masked import MASKED_METRICS, masked_likelihood, masked_scores, masked_statistics
    from .modules import load_metric
    from .plotting import plot_by_length, plot_confusion
    from .pointing import pointing_hits, pointing_score, share_of_hits
    from .report import (
        evaluation_report,
        length_bins,
        parts_report,
        parts_scores,
        report_tables,
        scores_with_intervals,
        worst_sentences,
    )

__all__ = [
    "generation_metrics",
    "GENERATION_METRICS",
    "load_metric",
    "exact_match",
    "sequence_error_rate",
    "token_error_rate",
    "token_accuracy",
    "word_error_rate",
    "character_error_rate",
    "phoneme_error_rate",
    "bleu",
    "chrf",
    "ter",
    "gleu",
    "Score",
    "TOKENIZERS",
    "exact_matches",
    "token_errors",
    "token_matches",
    "sentence_statistics",
    "Statistics",
    "bootstrap_interval",
    "score_interval",
    "wilson_interval",
    "compare",
    "Comparison",
    "scores_with_intervals",
    "worst_sentences",
    "evaluation_report",
    "report_tables",
    "length_bins",
    "by_length",
    "plot_by_length",
    "LengthBin",
    "in_context_accuracy",
    "longest_prompt",
    "plot_in_context",
    "ShotScore",
    "SHOTS",
    "text_likelihood",
    "TextLikelihood",
    "row_losses",
    "LIKELIHOOD_METRICS",
    "alignment_error_rate",
    "alignment_precision",
    "alignment_recall",
    "alignment_counts",
    "read_alignment",
    "GoldAlignment",
    "pointing_score",
    "pointing_hits",
    "share_of_hits",
    "classification_metrics",
    "accuracy",
    "f1_score",
    "matthews_correlation",
    "confusion_matrix",
    "CLASSIFICATION_METRICS",
    "squad_metrics",
    "squad_exact",
    "squad_f1",
    "normalize_answer",
    "SQUAD_METRICS",
    "tagging_metrics",
    "tagging_statistics",
    "entities",
    "TAGGING_METRICS",
    "JUDGED_TASKS",
    "judged_report",
    "parts_report",
    "parts_scores",
    "plot_confusion",
    "masked_likelihood",
    "masked_scores",
    "masked_statistics",
    "MASKED_METRICS",
    "classification_statistics",
    "squad_statistics",
]


# Seconds to import, for transformers' pipelines and for matplotlib: only for those who use them
_LAZY = {
    "load_metric": "modules",
    "in_context_accuracy": "in_context",
    "longest_prompt": "in_context",
    "plot_in_context": "in_context",
    "ShotScore": "in_context",
    "SHOTS": "in_context",
    "text_likelihood": "likelihood",
    "TextLikelihood": "likelihood",
    "row_losses": "likelihood",
    "LIKELIHOOD_METRICS": "likelihood",
    "plot_by_length": "plotting",
    "plot_confusion": "plotting",
    "JUDGED_TASKS": "judging",
    "judged_report": "judging",
    "MASKED_METRICS": "masked",
    "masked_likelihood": "masked",
    "masked_scores": "masked",
    "masked_statistics": "masked",
    "parts_report": "report",
    "parts_scores": "report",
    "scores_with_intervals": "report",
    "worst_sentences": "report",
    "evaluation_report": "report",
    "report_tables": "report",
    "length_bins": "report",
    "pointing_score": "pointing",
    "pointing_hits": "pointing",
    "share_of_hits": "pointing",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
