"""From text to text: pairs of a source and a target."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ...attention_maps import attention_map, plot_grid
from ...data import Seq2SeqCollator, load_source, references, token_lengths, tokenize_pairs
from ...hub import CardTexts
from ...models.tokenization_attnzoo import train_tokenizer, vocabulary_sizes
from ..schema import both_sides
from .base import Task


class TranslationTask(Task):
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

    processor_class = AutoTokenizer

    own_data = "attnzoo train parallel-text data.source=YOUR_PAIRS.tsv"

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        return load_source(source, **options)

    def show(self, row: dict[str, Any]) -> str:
        return f"{row['source']!r} → {row['target']!r}"

    def digest(self, rows: Dataset) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for batch in rows.select_columns(["source", "target"]).iter(batch_size=10_000):
            digest.update("\0".join([*batch["source"], *batch["target"], ""]).encode())
        return digest.hexdigest()

    def targets(self, rows: Dataset) -> list[str] | list[list[str]]:
        return references(rows)

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
        )

    def vocabulary(self, processor: PreTrainedTokenizerBase) -> dict[str, int]:
        return dict(zip(("source", "target"), vocabulary_sizes(processor), strict=True))

    def model_fields(self, processor: PreTrainedTokenizerBase) -> dict[str, Any]:
        source_size, target_size = vocabulary_sizes(processor)
        return {"vocab_size": target_size, "source_vocab_size": None if self.recipe.tokenizer.shared else source_size}

    def prepare(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        data = self.recipe.data
        return tokenize_pairs(
            rows,
            processor,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
            on_too_long=data.on_too_long,
        )

    def collator(self, processor: PreTrainedTokenizerBase) -> Seq2SeqCollator:
        return Seq2SeqCollator(processor)

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
