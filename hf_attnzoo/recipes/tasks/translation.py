"""From text to text: pairs of a source and a target."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ...attention_maps import attention_map, plot_grid
from ...data import (
    BPEDropoutCollator,
    Seq2SeqCollator,
    load_source,
    references,
    token_lengths,
    tokenize_buffer,
    tokenize_pairs,
    truncate_pairs,
)
from ...hub import CardTexts
from ...models.tokenization_attnzoo import tokenizer_sides, train_tokenizer, vocabulary_sizes
from ...pipelines.generating import position_limit
from ...registry import FAMILIES
from ..schema import both_sides
from .base import Cut, Evaluated
from .writing import WritingTask


class TranslationTask(WritingTask):
    """Rows have the columns `source` and `target`, and `references` where several targets are right."""

    card = CardTexts(
        pipeline_tag="translation",
        task_name="Translation",
        tags=("seq2seq",),
        pipeline="attnzoo-translation",
        verb="translate",
        unit="pairs",
        sample_columns=("source", "reference", "output"),
    )

    given = "sources"
    head = "AutoModelForSeq2SeqLM"
    processor_class = AutoTokenizer

    own_data = "attnzoo train parallel-text data.source=YOUR_PAIRS.tsv"

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        return load_source(source, **options)

    def show(self, row: dict[str, Any]) -> str:
        return f"{row['source']!r} → {row['target']!r}"

    def digest(self, rows: Dataset) -> str:
        digest = hashlib.blake2b(digest_size=16)
        columns = [name for name in ("source", "target", "references") if name in rows.column_names]
        for batch in rows.select_columns(columns).iter(batch_size=10_000):
            digest.update(json.dumps([batch[name] for name in columns]).encode())
        return digest.hexdigest()

    def targets(self, rows: Dataset) -> list[str] | list[list[str]]:
        return references(rows)

    def source_texts(self, rows: Dataset) -> list[str]:
        return list(rows["source"])

    def inputs_of(self, rows: Dataset) -> Iterable[str]:
        return rows["source"]

    def build_processor(self, rows: Dataset) -> PreTrainedTokenizerBase:
        section = self.recipe.tokenizer
        return train_tokenizer(
            both_sides(section.kind),
            rows["source"],
            rows["target"],
            shared=section.shared,
            vocab_size=both_sides(section.vocab_size),
            min_frequency=both_sides(section.min_frequency),
            lowercase=both_sides(section.lowercase),
            copy_slots=section.copy_slots,
        )

    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        return list(rows["source"]), list(rows["target"])

    def vocabulary(self, processor: PreTrainedTokenizerBase) -> dict[str, int]:
        return dict(zip(("source", "target"), vocabulary_sizes(processor), strict=True))

    def model_fields(self, processor: PreTrainedTokenizerBase) -> dict[str, Any]:
        self._check_copying()
        section = self.recipe.tokenizer
        source_size, target_size = vocabulary_sizes(processor)
        fields = {"vocab_size": target_size, "source_vocab_size": None if section.shared else source_size}
        return fields | ({"num_copy_slots": section.copy_slots} if section.copy_slots else {})

    def _check_copying(self) -> None:
        recipe, slots = self.recipe, self.recipe.tokenizer.copy_slots
        copies = recipe.model.get("copy", False)
        if slots is not None and not copies:
            can = hasattr(FAMILIES[recipe.family].config_class, "copy")
            hint = "set model.copy=true" if can else f"family={recipe.family!r} doesn't copy, leave it out"
            raise ValueError(f"tokenizer.copy_slots={slots} is for a model that copies words of the source: {hint}")
        if copies and slots is None and not recipe.tokenizer.shared:
            raise ValueError(
                "model.copy=true with two vocabularies needs to know which words are the same: set "
                "tokenizer.copy_slots, to how many unknown words of a text can be copied, or to 0"
            )

    def prepare(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> tuple[Dataset, Dataset]:
        data = self.recipe.data
        prepared = tokenize_pairs(
            rows,
            processor,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
            on_too_long=data.on_too_long,
            split="train",
        )
        # Pairs that were too long are not among them.
        rows = rows.select(prepared["row"])
        if self.recipe.training.bpe_dropout:
            # To be cut anew, batch by batch.
            for side in ("source", "target"):
                prepared = prepared.add_column(side, rows[side])
        return prepared, rows

    def prepare_evaluation(
        self, rows: Dataset, processor: PreTrainedTokenizerBase, model: PreTrainedModel, split: str = "test"
    ) -> Evaluated:
        data = self.recipe.data
        wanted = {"max_source_length": data.max_source_length, "max_target_length": data.max_target_length}
        prepared = tokenize_pairs(rows, processor, **(wanted if data.on_too_long == "raise" else {}), split=split)
        limits, cuts = {}, []
        for name, column, what, side in (
            ("max_source_length", "input_ids", "sources", "encoder"),
            ("max_target_length", "labels", "targets", "decoder"),
        ):
            # References stay whole: it is the loss that takes labels of so many tokens.
            limits[name] = limit = position_limit(model.config, side)
            lengths = token_lengths(prepared, column)
            if limit is None or lengths.max() <= limit:
                continue
            longer = np.flatnonzero(lengths > limit).tolist()
            if data.on_too_long == "raise":
                raise ValueError(
                    f"{split}: row {longer[0]} has {lengths[longer[0]]} tokens in {column}, and the model has "
                    f"positions for {limit} ({len(longer)} of {len(rows)} rows are too long)"
                )
            cuts.append(Cut(what, limit, longer, len(rows), read=column == "input_ids"))
        return Evaluated(truncate_pairs(prepared, processor, **limits) if cuts else prepared, rows, cuts)

    def prepare_buffer(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        data = self.recipe.data
        return tokenize_buffer(rows, processor, data.max_source_length, data.max_target_length, data.on_too_long)

    def check_stream(self) -> None:
        data, budget = self.recipe.data, self.recipe.training.batch_tokens
        for name in ("max_source_length", "max_target_length"):
            if getattr(data, name) is None:
                raise ValueError(f"data.streaming=True needs data.{name}: how long rows are isn't known beforehand")
        if data.max_source_length + data.max_target_length > budget:
            raise ValueError(
                f"training.batch_tokens={budget} must be at least data.max_source_length="
                f"{data.max_source_length} plus data.max_target_length={data.max_target_length}"
            )

    def collator(self, processor: PreTrainedTokenizerBase) -> Seq2SeqCollator:
        return Seq2SeqCollator(processor)

    def dropout_collator(self, processor: PreTrainedTokenizerBase, model: PreTrainedModel) -> BPEDropoutCollator:
        if self.recipe.tokenizer.copy_slots is not None:
            raise ValueError(
                f"training.bpe_dropout={self.recipe.training.bpe_dropout} cuts words, and "
                f"tokenizer.copy_slots={self.recipe.tokenizer.copy_slots} copies whole ones: leave out one of them"
            )
        data = self.recipe.data
        return BPEDropoutCollator(
            self.collator(processor),
            tokenizer_sides(processor),
            self.recipe.training.bpe_dropout,
            seed=self.recipe.seed,
            # What the recipe takes, and what the model has positions for
            limits=(
                _least(data.max_source_length, position_limit(model.config, "encoder")),
                _least(data.max_target_length, position_limit(model.config, "decoder")),
            ),
        )

    def source_lengths(self, prepared: Dataset, model: PreTrainedModel) -> np.ndarray:
        return token_lengths(prepared, "input_ids")

    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        return row["source"], row["target"], output

    def example(self, rows: Dataset) -> str:
        return json.dumps(rows[0]["source"], ensure_ascii=False)

    def next_command(self, folder: Path, rows: Dataset) -> list[str]:
        source = rows[0]["source"]
        # Two dashes keep a text from being taken for an option.
        return ["attnzoo", "translate", str(folder), *(["--"] if source.startswith("-") else []), source]

    def write_extras(self, rows: Dataset, folder: Path) -> None:
        # A text needs no file.
        return

    def draw(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, rows: Dataset, path: Path) -> None:
        maps = [attention_map(model, processor, source) for source in rows["source"]]
        titles = [f"{item.source_text} → {item.target_text}" for item in maps]
        plot_grid(maps, path, titles=titles, columns=2)

    def parts(self, processor: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"tokenizer": processor}

    def inputs(self, processor: PreTrainedTokenizerBase, rows: Dataset) -> dict[str, torch.Tensor]:
        return processor(list(rows["source"]), padding=True, return_tensors="pt")

    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        return [item["translation_text"] for item in pipe(list(rows["source"]))]


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
