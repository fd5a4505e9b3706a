"""Evaluation without a network: scores of written texts, their intervals, accuracy by source length, and attention.

```python
from hf_attnzoo.evaluation import generation_metrics

generation_metrics(["2021-03-05"], ["2021-03-05"], tokenize="char")
```
"""

import importlib
from typing import TYPE_CHECKING, Any

from .intervals import bootstrap_interval, wilson_interval
from .lengths import LengthBin, by_length
from .scores import (
    TOKENIZERS,
    Score,
    bleu,
    chrf,
    exact_match,
    exact_matches,
    generation_metrics,
    sequence_error_rate,
    token_accuracy,
    token_error_rate,
    token_errors,
    token_matches,
)

if TYPE_CHECKING:
    from .modules import load_metric
    from .plotting import plot_by_length
    from .pointing import pointing_hits, pointing_score, share_of_hits

__all__ = [
    "generation_metrics",
    "load_metric",
    "exact_match",
    "sequence_error_rate",
    "token_error_rate",
    "token_accuracy",
    "bleu",
    "chrf",
    "Score",
    "TOKENIZERS",
    "exact_matches",
    "token_errors",
    "token_matches",
    "bootstrap_interval",
    "wilson_interval",
    "by_length",
    "plot_by_length",
    "LengthBin",
    "pointing_score",
    "pointing_hits",
    "share_of_hits",
]


# Seconds to import, for transformers' pipelines and for matplotlib: only for those who use them
_LAZY = {
    "load_metric": "modules",
    "plot_by_length": "plotting",
    "pointing_score": "pointing",
    "pointing_hits": "pointing",
    "share_of_hits": "pointing",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
