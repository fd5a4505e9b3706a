"""Texts, or pairs of texts, and the class of each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from ...attention_maps import plot_grid, summary_attention_map
from ...data import load_annotated_source
from ...evaluation.classification import (
    CLASSIFICATION_METRICS,
    classification_metrics,
    classification_statistics,
)
from ...hub import CardTexts
from ..trainer import ZooTrainer
from .base import Outcome
from .encoding import MASKING, ClassifyingTask, whole


class TextClassificationTask(ClassifyingTask):
    """Rows have the columns `text` and `label`, the name of a class, and `text_pair` where there are pairs."""

    card = CardTexts(
        pipeline_tag="text-classification",
        task_name="Text classification",
        tags=("text-classification",),
        pipeline="text-classification",
        verb="classify",
        unit="texts",
        sample_columns=("text", "class", "output"),
    )
    head = "AutoModelForSequenceClassification"
    metrics = CLASSIFICATION_METRICS
    unused = ("data.max_target_length", "data.block_size", "data.stride", *MASKING)
    own_data = "attnzoo train sentence-classification data.source=YOUR_TEXTS.csv"

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        rows = load_annotated_source("text-classification", source, **options)
        if training:
            self.labels = tuple(sorted(set(rows["label"]), key=lambda name: (not name.isdecimal(), len(name), name)))
            if names := options.get("label_names"):
                self.labels = tuple(names)
            if len(self.labels) < 2:
                raise ValueError(f"data: the training split of {source!r} has the class {self.labels[0]!r} alone")
        return rows

    def show(self, row: dict[str, Any]) -> str:
        return f"{_text(row)!r} → {row['label']}"

    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        pairs = list(rows["text_pair"]) if "text_pair" in _columns(rows) else []
        return ([*rows["text"], *pairs],)

    def arguments(self, rows: Dataset) -> tuple[list[str], ...]:
        return tuple(list(rows[name]) for name in ("text", "text_pair") if name in rows.column_names)

    def encode(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        numbers = {name: number for number, name in enumerate(self.labels)}
        for name in sorted(set(rows["label"])):
            if name not in numbers:
                raise ValueError(
                    f"data: the class {name!r} is none of the training split's, {', '.join(self.labels)}; "
                    "data.options.label_names can name more"
                )
        encoded = processor(*self.arguments(rows), verbose=False, return_attention_mask=False, **self.cut())
        columns = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        return Dataset.from_dict({**columns, "labels": [numbers[name] for name in rows["label"]]})

    def trainer_options(self, processor: PreTrainedTokenizerBase, validation: Dataset) -> dict[str, Any]:
        def compute(prediction: EvalPrediction) -> dict[str, float]:
            scores = classification_metrics(
                prediction.predictions.tolist(), prediction.label_ids.tolist(), self.recipe.evaluation.metrics
            )
            return {name: value for name, value in scores.items() if not name.endswith("_signature")}

        return {"compute_metrics": compute, "preprocess_logits_for_metrics": best_class}

    def measure(
        self, trainer: ZooTrainer, processor: PreTrainedTokenizerBase, prepared: Dataset, rows: Dataset
    ) -> Outcome | None:
        trainer.compute_metrics = None
        predicted = trainer.predict(prepared)
        if not trainer.is_world_process_zero():
            return None
        classes, wanted = predicted.predictions.tolist(), list(prepared["labels"])
        parts = {name: classification_statistics(name, classes, wanted) for name in self.recipe.evaluation.metrics}
        return self.outcome(parts, [self.labels[number] for number in classes])

    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        return _text(row), row["label"], output

    def example(self, rows: Dataset) -> str:
        return json.dumps(_questions(rows.select([0]))[0], ensure_ascii=False)

    def draw(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, rows: Dataset, path: Path) -> None:
        cut = {"max_length": self.cut().get("max_length")}
        maps = [summary_attention_map(model, processor, row["text"], row.get("text_pair"), **cut) for row in rows]
        plot_grid(maps, path, titles=[item.source_text for item in maps], columns=1, vmax=0.5)

    def inputs(self, processor: PreTrainedTokenizerBase, rows: Dataset) -> dict[str, Tensor]:
        return dict(processor(*self.arguments(rows), padding=True, return_tensors="pt", **self.cut()))

    def judged(
        self, outputs: Any, processor: PreTrainedTokenizerBase, inputs: Mapping[str, Tensor], rows: Dataset
    ) -> list[str]:
        return [self.labels[number] for number in outputs.logits.argmax(dim=-1).tolist()]

    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        return [answer["label"] for answer in pipe(_questions(rows), **self.cut())]


def best_class(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """What evaluation keeps of logits `(B, L)`, the first of several outputs: the best class, shape `(B,)`."""
    return whole(logits).argmax(dim=-1)


def _columns(rows: Any) -> list[str]:
    return rows.column_names if isinstance(rows, Dataset) else list(rows)


def _text(row: dict[str, Any]) -> str:
    return f"{row['text']} / {row['text_pair']}" if "text_pair" in row else row["text"]


def _questions(rows: Dataset) -> list[Any]:
    if "text_pair" in rows.column_names:
        return [{"text": row["text"], "text_pair": row["text_pair"]} for row in rows]
    return list(rows["text"])
