"""Sentences in words, and the tag of each word: of names, or parts of speech."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import DataCollatorForTokenClassification, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from ...attention_maps import attention_map, plot_grid
from ...data import first_tokens, load_annotated_source
from ...evaluation.tagging import TAGGING_METRICS, entities, tagging_metrics, tagging_statistics
from ...hub import CardTexts
from ...models.losses import IGNORE_INDEX
from ..trainer import ZooTrainer
from .base import Outcome
from .encoding import MASKING, ClassifyingTask, whole

# What a word is said to be that the model has not read, since the sentence was cut off before it.
OUTSIDE = "O"


class TokenClassificationTask(ClassifyingTask):
    """Rows have the columns `tokens` and `tags`; see `load_tagged`.

    A sentence is read as its words with spaces between them. A word's tag is that of its first token.
    """

    card = CardTexts(
        pipeline_tag="token-classification",
        task_name="Token classification",
        tags=("token-classification",),
        pipeline="token-classification",
        verb="tag",
        unit="sentences",
        sample_columns=("sentence", "tags", "output"),
    )
    given = "sentences"
    head = "AutoModelForTokenClassification"
    metrics = TAGGING_METRICS
    unused = ("data.max_target_length", "data.block_size", "data.stride", *MASKING)
    own_data = "attnzoo train token-classification data.source=YOUR_SENTENCES.conll"

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        rows = load_annotated_source("token-classification", source, **options)
        if training:
            found = {tag for tags in rows["tags"] for tag in tags}
            self.labels = tuple(options.get("tag_names") or sorted(found, key=_order))
            if len(self.labels) < 2:
                raise ValueError(f"data: the training split of {source!r} has the tag {self.labels[0]!r} alone")
            if any(name.startswith("entity") for name in self.recipe.evaluation.metrics):
                # Other tags than those of entities are told now, not at the first evaluation.
                for tag in self.labels:
                    entities([tag])
        return rows

    def build_processor(self, rows: Dataset) -> PreTrainedTokenizerBase:
        processor = super().build_processor(rows)
        # Evaluation puts the classes of batches together by their left ends.
        processor.padding_side = "right"
        return processor

    def adopt(self, processor: PreTrainedTokenizerBase, config: dict[str, Any]) -> None:
        super().adopt(processor, config)
        processor.padding_side = "right"

    def show(self, row: dict[str, Any]) -> str:
        return f"{' '.join(row['tokens'])!r} → {' '.join(row['tags'])}"

    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        return ([" ".join(words) for words in rows["tokens"]],)

    def arguments(self, rows: Dataset) -> tuple[list[str], ...]:
        return self.texts(rows)

    def encode(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        numbers = {name: number for number, name in enumerate(self.labels)}
        for name in sorted({tag for tags in rows["tags"] for tag in tags}):
            if name not in numbers:
                raise ValueError(
                    f"data: the tag {name!r} is none of the training split's, {', '.join(self.labels)}; "
                    "data.options.tag_names can name more"
                )
        encoded, places = self._aligned(processor, rows["tokens"])
        labels = []
        for ids, tags, firsts in zip(encoded["input_ids"], rows["tags"], places, strict=True):
            row = [IGNORE_INDEX] * len(ids)
            for tag, place in zip(tags, firsts, strict=True):
                if place is not None:
                    row[place] = numbers[tag]
            labels.append(row)
        columns = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        return Dataset.from_dict({**columns, "labels": labels})

    def _aligned(
        self, processor: PreTrainedTokenizerBase, sentences: Sequence[list[str]]
    ) -> tuple[Any, list[list[int | None]]]:
        """Encoded sentences, and for every word of each the place of its first token, if it has one."""
        texts = [" ".join(words) for words in sentences]
        encoded = processor(texts, verbose=False, return_offsets_mapping=True, **self.cut())
        spans = encoded["offset_mapping"]
        return encoded, [first_tokens(words, row) for words, row in zip(sentences, spans, strict=True)]

    def collator(self, processor: PreTrainedTokenizerBase) -> DataCollatorForTokenClassification:
        return DataCollatorForTokenClassification(processor, label_pad_token_id=IGNORE_INDEX)

    def _tags(
        self, processor: PreTrainedTokenizerBase, classes: Sequence[Sequence[int]], rows: Dataset
    ) -> list[list[str]]:
        """The tag of every word, from the classes of all tokens; of one that was cut off, `O`."""
        _, places = self._aligned(processor, rows["tokens"])
        return [
            [OUTSIDE if place is None else self.labels[of_tokens[place]] for place in firsts]
            for of_tokens, firsts in zip(classes, places, strict=True)
        ]

    def trainer_options(self, processor: PreTrainedTokenizerBase, validation: Dataset) -> dict[str, Any]:
        def compute(prediction: EvalPrediction) -> dict[str, float]:
            tags = self._tags(processor, prediction.predictions.tolist(), validation)
            scores = tagging_metrics(tags, list(validation["tags"]), self.recipe.evaluation.metrics)
            return {name: value for name, value in scores.items() if not name.endswith("_signature")}

        return {"compute_metrics": compute, "preprocess_logits_for_metrics": best_classes}

    def measure(
        self, trainer: ZooTrainer, processor: PreTrainedTokenizerBase, prepared: Dataset, rows: Dataset
    ) -> Outcome | None:
        trainer.compute_metrics = None
        predicted = trainer.predict(prepared)
        if not trainer.is_world_process_zero():
            return None
        tags, wanted = self._tags(processor, predicted.predictions.tolist(), rows), list(rows["tags"])
        parts = {name: tagging_statistics(name, tags, wanted) for name in self.recipe.evaluation.metrics}
        return self.outcome(parts, [" ".join(row) for row in tags])

    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        return " ".join(row["tokens"]), " ".join(row["tags"]), output

    def example(self, rows: Dataset) -> str:
        text = json.dumps(" ".join(rows[0]["tokens"]), ensure_ascii=False)
        # Of a word in several tokens the first one has learnt to say what it is.
        return f'{text}, aggregation_strategy="first"'

    def draw(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, rows: Dataset, path: Path) -> None:
        texts, cut = self.texts(rows)[0], {"max_length": self.cut().get("max_length")}
        maps = [attention_map(model, processor, text, **cut) for text in texts]
        plot_grid(maps, path, titles=[item.source_text for item in maps], columns=2, vmax=0.5)

    def inputs(self, processor: PreTrainedTokenizerBase, rows: Dataset) -> dict[str, Tensor]:
        return dict(processor(self.texts(rows)[0], padding=True, return_tensors="pt", **self.cut()))

    def judged(
        self, outputs: Any, processor: PreTrainedTokenizerBase, inputs: Mapping[str, Tensor], rows: Dataset
    ) -> list[str]:
        classes = [
            best[mask.bool()].tolist()
            for best, mask in zip(outputs.logits.argmax(dim=-1).cpu(), inputs["attention_mask"].cpu(), strict=True)
        ]
        return [" ".join(tags) for tags in self._tags(processor, classes, rows)]

    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        answers = []
        for words, text in zip(rows["tokens"], self.texts(rows)[0], strict=True):
            found = pipe(text, ignore_labels=[])
            places = first_tokens(words, [(item["start"], item["end"]) for item in found])
            answers.append(" ".join(OUTSIDE if place is None else found[place]["entity"] for place in places))
        return answers


def best_classes(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """What evaluation keeps of logits `(B, T, L)`, the first of several outputs: the best classes, shape `(B, T)`."""
    return whole(logits).argmax(dim=-1)


def _order(tag: str) -> tuple[Any, ...]:
    """What is outside first, numbers by size, then entities by type."""
    prefix, _, kind = tag.rpartition("-")
    return tag != OUTSIDE, not tag.isdecimal(), len(tag) if tag.isdecimal() else 0, kind, prefix
