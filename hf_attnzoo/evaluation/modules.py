"""The scores as `evaluate.Metric` modules, loaded by name and without a network.

They differ from those of `evaluate.load()` in where they come from, not in use: `compute`, `add`, `add_batch` and
`evaluate.combine` work as ever.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

import evaluate
from datasets import Features, List, Value

from . import scores

_TEXTS = """
Args:
    predictions: texts.
    references: as many texts, or as many lists of texts.
    lowercase: whether upper and lower case are the same. Default: False.
"""
_TOKENIZE = f"    tokenize: one of {', '.join(map(repr, scores.TOKENIZERS))}. Default: '13a'.\n"


class _TextMetric(evaluate.Metric):
    """A score of [`scores`] as a module: its value under the score's name, its settings under `<name>_signature`."""

    score: ClassVar[Callable[..., scores.Score]]
    inputs: ClassVar[str] = _TEXTS + _TOKENIZE
    citation: ClassVar[str] = ""

    def __init__(self, config_name: str | None = None, *, keep_in_memory: bool | None = None, **kwargs: Any) -> None:
        # In memory nothing can collide with another process, or be left behind; only a distributed run needs files
        alone = kwargs.get("num_process", 1) == 1
        if keep_in_memory is None:
            keep_in_memory = alone
        if alone:
            kwargs.setdefault("experiment_id", uuid.uuid4().hex)
        super().__init__(config_name, keep_in_memory=keep_in_memory, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        text = Value("string")
        return evaluate.MetricInfo(
            description=self.score.__doc__,
            citation=self.citation,
            inputs_description=self.inputs,
            features=[
                Features({"predictions": text, "references": text}),
                Features({"predictions": text, "references": List(text)}),
            ],
        )

    def _build_data_dir(self) -> str:
        if self.keep_in_memory:
            # A home that cannot be written must not stop an evaluation that writes nothing
            return os.path.join(self._data_dir_root, self.name, self.config_name)
        return super()._build_data_dir()

    def _infer_feature_from_batch(self, batch: dict[str, list]) -> Features:
        scores.checked(batch["predictions"], batch["references"])
        return super()._infer_feature_from_batch(batch)

    def _finalize(self) -> None:
        if self.writer is None:
            raise ValueError("predictions is empty; add some, or pass them to compute()")
        super()._finalize()

    def _compute(self, predictions: list[str], references: list, **options: Any) -> dict[str, float | str]:
        score = self.score(predictions, references, **options)
        return {self.name: score.value, f"{self.name}_signature": score.signature}


class ExactMatch(_TextMetric):
    score = staticmethod(scores.exact_match)
    inputs = _TEXTS


class SequenceErrorRate(_TextMetric):
    score = staticmethod(scores.sequence_error_rate)
    inputs = _TEXTS


class TokenErrorRate(_TextMetric):
    score = staticmethod(scores.token_error_rate)


class TokenAccuracy(_TextMetric):
    score = staticmethod(scores.token_accuracy)


class Bleu(_TextMetric):
    score = staticmethod(scores.bleu)
    citation = "Papineni et al. (2002), Bleu; Post (2018), A Call for Clarity in Reporting BLEU Scores"


class Chrf(_TextMetric):
    score = staticmethod(scores.chrf)
    inputs = _TEXTS
    citation = "Popović (2015), chrF: character n-gram F-score for automatic MT evaluation"


METRICS = {
    "exact_match": ExactMatch,
    "sequence_error_rate": SequenceErrorRate,
    "token_error_rate": TokenErrorRate,
    "token_accuracy": TokenAccuracy,
    "bleu": Bleu,
    "chrf": Chrf,
}


def load_metric(name: str, **kwargs: Any) -> evaluate.Metric:
    """A metric module by name, from this package and never from the network.

    Args:
        name:
            `"exact_match"`, `"sequence_error_rate"`, `"token_error_rate"`, `"token_accuracy"`, `"bleu"` or `"chrf"`.
        **kwargs:
            Those of `evaluate.Metric`. Texts are kept in memory, unless `num_process` is above 1: then give each run
            an `experiment_id` of its own.

    Returns:
        The module; `compute(predictions=..., references=...)` gives the score under its name and its settings under
        `<name>_signature`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in METRICS:
        raise ValueError(f"name is {name!r}; the metrics are {', '.join(METRICS)}")
    return METRICS[name](**kwargs)
