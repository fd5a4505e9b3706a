"""What the tasks of encoders have in common, whose models say something of a text, and write none."""

import hashlib
import json
import logging
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from ...data import token_lengths
from ...models.tokenization_attnzoo import train_tokenizer
from ...pipelines.generating import position_limit
from ...registry import FAMILIES
from ..schema import DataSection, EvaluationSection, MaskingSection, TrainingSection
from ..trainer import ZooTrainer
from .base import Cut, Evaluated, Task, one_vocabulary

logger = logging.getLogger(__name__)

# Characters of a row that a message shows.
_SHOWN = 40

# Keys that mean nothing to a task that masks nothing.
MASKING = tuple(f"masking.{field.name}" for field in fields(MaskingSection))

_DEFAULTS = {
    "data": DataSection,
    "evaluation": EvaluationSection,
    "masking": MaskingSection,
    "training": TrainingSection,
}


class EncoderTask(Task):
    """See `Task`."""

    metrics: ClassVar[tuple[str, ...]]
    """Scores that there are."""

    unused: ClassVar[tuple[str, ...]]
    """Keys of a recipe that mean nothing here, beside those that mean nothing to any encoder."""

    writes = False
    generates = False
    counted = "tokens"
    processor_class = AutoTokenizer

    def check(self) -> None:
        recipe, name = self.recipe, self.card.task_name.lower()
        for key in (
            "evaluation.tokenize",
            "evaluation.lowercase",
            "data.join_texts",
            "data.answers_after",
            *self.unused,
        ):
            section, field = key.split(".")
            value = getattr(getattr(recipe, section), field)
            if value != getattr(_DEFAULTS[section](), field):
                raise ValueError(f"{key}={value} means nothing to {name}: leave it out")
        if recipe.generation:
            raise ValueError(f"generation.{next(iter(recipe.generation))} means nothing to {name}: leave it out")
        for metric in recipe.evaluation.metrics:
            if metric not in self.metrics:
                raise ValueError(f"evaluation.metrics has {metric!r}; those of {name} are {', '.join(self.metrics)}")

    def digest(self, rows: Dataset) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for row in rows:
            digest.update(json.dumps(row, sort_keys=True).encode())
        return digest.hexdigest()

    @property
    def longest(self) -> int | None:
        """Most tokens of a row, or None where the recipe doesn't say."""
        return self.recipe.data.max_source_length

    def build_processor(self, rows: Dataset) -> PreTrainedTokenizerBase:
        causal = {"causal": True} if FAMILIES[self.recipe.family].task == "causal-lm" else {}
        tokenizer = train_tokenizer(source_texts=self.texts(rows)[0], **one_vocabulary(self.recipe), **causal)
        self._set_limit(tokenizer)
        return tokenizer

    def adopt(self, processor: PreTrainedTokenizerBase, config: dict[str, Any]) -> None:
        if processor.pad_token_id is None:
            # GPT-2 has no token for padding; what stands there is masked.
            processor.pad_token = processor.eos_token
        self._set_limit(processor)

    def _set_limit(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # Pipelines cut texts there when they are asked to.
        if self.longest is not None:
            tokenizer.model_max_length = self.longest

    def vocabulary(self, processor: PreTrainedTokenizerBase) -> dict[str, int]:
        return {"text": len(processor)}

    def model_fields(self, processor: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"vocab_size": len(processor)} | self.label_fields()

    def collator(self, processor: PreTrainedTokenizerBase) -> Any:
        return DataCollatorWithPadding(processor)

    def source_lengths(self, prepared: Dataset, model: PreTrainedModel) -> np.ndarray:
        return token_lengths(prepared, "input_ids")

    def target_lengths(self, prepared: Dataset) -> np.ndarray:
        # Nothing is written.
        return np.zeros(len(prepared), dtype=np.int64)

    def rehearse(self, trainer: ZooTrainer) -> None:
        model = trainer.model.eval()
        for split, rows in (("training", trainer.train_dataset), ("validation", trainer.eval_dataset)):
            if not isinstance(rows, Dataset):
                # How long the rows of a stream get isn't known yet.
                continue
            longest = int(token_lengths(rows, "input_ids").argmax())
            batch = trainer.data_collator([rows[longest]])
            try:
                model(**{name: value.to(model.device) for name, value in batch.items()})
            except ValueError as error:
                raise ValueError(f"the longest text of the {split} split: {error}") from error

    def answer(
        self,
        model: PreTrainedModel,
        processor: PreTrainedTokenizerBase,
        inputs: dict[str, torch.Tensor],
        rows: Dataset,
    ) -> list[str]:
        return self.judged(self.forward(model, inputs), processor, inputs, rows)

    def forward(self, model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Any:
        """What a model in evaluation mode gives for inputs."""
        with torch.no_grad():
            return model(**{name: value.to(model.device) for name, value in inputs.items()})

    @abstractmethod
    def judged(
        self, outputs: Any, processor: PreTrainedTokenizerBase, inputs: Mapping[str, torch.Tensor], rows: Dataset
    ) -> list[str]:
        """What the outputs of a model for `inputs` say of each row, in words."""

    def shown_outputs(self, trainer: ZooTrainer, processor: PreTrainedTokenizerBase, rows: Dataset) -> list[str]:
        """What the model says of the rows that samples are taken from."""
        shown = rows.select(range(min(self.recipe.evaluation.samples, len(rows))))
        if len(shown) == 0:
            return []
        model = trainer.whole_model.eval()
        inputs = self.inputs(processor, shown)
        outputs = self.forward(model, inputs)
        return self.judged(outputs, processor, inputs, shown)

    def read(self, processor: PreTrainedTokenizerBase, ids: torch.Tensor, rows: Dataset) -> list[str]:
        raise NotImplementedError("an encoder writes nothing that could be read")

    def parts(self, processor: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"tokenizer": processor}

    def write_extras(self, rows: Dataset, folder: Path) -> None:
        # A text needs no file.
        return

    def next_command(self, folder: Path, rows: Dataset) -> list[str]:
        call = self.example(rows)
        program = (
            "import hf_attnzoo; from transformers import pipeline; "
            f"print(pipeline({self.card.pipeline!r}, model={str(folder)!r})({call}))"
        )
        return [Path(sys.executable).name, "-c", program]

    def has_map(self, model: PreTrainedModel) -> bool:
        return True


class ClassifyingTask(EncoderTask):
    """See `Task`; what models say of a text, or of its words, is one of some classes."""

    cuts = True

    labels: tuple[str, ...] = ()
    """Names of the classes, by their number."""

    def adopt(self, processor: PreTrainedTokenizerBase, config: dict[str, Any]) -> None:
        super().adopt(processor, config)
        names = [
            name for _, name in sorted((int(number), name) for number, name in config.get("id2label", {}).items())
        ]
        if sorted(names) == sorted(self.labels):
            # Its head goes on, so its classes keep their numbers.
            self.labels = tuple(names)

    def label_fields(self) -> dict[str, Any]:
        if not self.labels:
            return {}
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": {name: number for number, name in enumerate(self.labels)},
            "problem_type": "single_label_classification",
        }

    reads: int | None = None
    """Most tokens of a text that the model reads, where they are limited; None as long as there is no model."""

    def cut(self) -> dict[str, Any]:
        """Arguments of the tokenizer that cut a text off where the recipe says so, or where the model must."""
        truncated = self.longest if self.recipe.data.on_too_long == "truncate" else None
        limits = [limit for limit in (truncated, self.reads) if limit is not None]
        return {"truncation": True, "max_length": min(limits)} if limits else {}

    @abstractmethod
    def arguments(self, rows: Dataset) -> tuple[list[str], ...]:
        """What the tokenizer is called with."""

    @abstractmethod
    def encode(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        """Rows as the collator takes them, one for each, cut where `cut` says so."""

    def inputs_of(self, rows: Dataset) -> Iterable[str]:
        return map("\n".join, zip(*self.arguments(rows), strict=True))

    def prepare(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> tuple[Dataset, Dataset]:
        return self.within_limit(self.encode(rows, processor), rows)

    def prepare_evaluation(
        self, rows: Dataset, processor: PreTrainedTokenizerBase, model: PreTrainedModel, split: str = "test"
    ) -> Evaluated:
        if self.recipe.data.on_too_long == "raise":
            # By their whole lengths
            self.reads = None
            self.within_limit(self.encode(rows, processor), rows, split)
        self.reads = position_limit(model.config, "encoder")
        limit = self.cut().get("max_length")
        if limit is None:
            return Evaluated(self.encode(rows, processor), rows)
        # Pipelines are to read what was read here.
        processor.model_max_length = limit
        whole = processor(*self.arguments(rows), verbose=False, return_attention_mask=False)["input_ids"]
        longer = [number for number, ids in enumerate(whole) if len(ids) > limit]
        if longer and self.recipe.data.on_too_long == "raise":
            raise ValueError(
                f"{split}: row {longer[0]} has {len(whole[longer[0]])} tokens, and the model has positions for "
                f"{limit} ({len(longer)} of {len(rows)} rows are too long)"
            )
        cuts = [Cut(self.card.unit, limit, longer, len(rows))] if longer else []
        return Evaluated(self.encode(rows, processor), rows, cuts)

    def within_limit(self, prepared: Dataset, rows: Dataset, split: str = "train") -> tuple[Dataset, Dataset]:
        """Prepared rows that aren't too long, and the rows that they were made of.

        Raises:
            ValueError: if a row is too long and none may be, or all are.
        """
        data = self.recipe.data
        if self.longest is None or data.on_too_long == "truncate":
            return prepared, rows
        lengths = token_lengths(prepared, "input_ids")
        kept = np.flatnonzero(lengths <= self.longest)
        if len(kept) < len(rows):
            first = int((lengths > self.longest).argmax())
            message = f"{split}: row {first} has {lengths[first]} tokens, with data.max_source_length={self.longest}"
            if data.on_too_long == "raise" or len(kept) == 0:
                raise ValueError(f"{message} ({len(rows) - len(kept)} of {len(rows)} rows are too long)")
            logger.warning(
                "%s: such rows are skipped, %d of %d, of which it is the first, and begins %r",
                message,
                len(rows) - len(kept),
                len(rows),
                next(iter(self.inputs_of(rows.select([first]))))[:_SHOWN],
            )
        return prepared.select(kept), rows.select(kept)

    def check(self) -> None:
        super().check()
        if self.recipe.data.on_too_long == "truncate" and self.longest is None:
            raise ValueError("data.on_too_long=truncate needs data.max_source_length, the tokens that are left")


def whole(values: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
    """The logits among what a model gives, which come first."""
    return values[0] if isinstance(values, (tuple, list)) else values
