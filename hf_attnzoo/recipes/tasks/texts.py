"""What the tasks of language models have in common, masked or not: their rows are texts."""

import hashlib
from collections.abc import Iterable
from typing import Any

from datasets import Dataset

from ...data import load_text_source


class OfTexts:
    """Rows have the column `text`; see `Task`."""

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        return load_text_source(source, **options)

    def show(self, row: dict[str, Any]) -> str:
        return f"{len(row['text']):,} characters that begin {row['text'][:40]!r}"

    def digest(self, rows: Dataset) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for text in rows["text"]:
            digest.update(f"{text}\0".encode())
        return digest.hexdigest()

    def inputs_of(self, rows: Dataset) -> Iterable[str]:
        return rows["text"]

    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        return (list(rows["text"]),)
