"""Batches by a budget of tokens, rows of like length together."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute
from datasets import Dataset
from torch.utils.data import Sampler


def token_lengths(dataset: Dataset, column: str) -> np.ndarray:
    """Lengths of the lists in a column such as `input_ids`, shape `(len(dataset),)`.

    Raises:
        ValueError: the dataset has no such column.
    """
    if column not in dataset.column_names:
        raise ValueError(f"column {column!r} is not in the dataset; columns found: {', '.join(dataset.column_names)}")
    tables = dataset.select_columns([column]).with_format("arrow").iter(batch_size=10_000)
    lengths = [pyarrow.compute.list_value_length(table[column]).to_numpy() for table in tables]
    return np.concatenate(lengths).astype(np.int64) if lengths else np.zeros(0, np.int64)


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches whose padded size stays within `max_tokens`: rows x (longest source + longest target).

    Rows are sorted by length, ties in random order, cut into batches, and the batches shuffled. Lengths alone decide
    where the cuts are, so every epoch has the same number of batches and `len()` is right for all of them.
    The order depends on `seed` and the epoch only: equal in all processes, and the same again when training resumes.
    For `DataLoader(batch_sampler=...)`; accelerate shards it, skips in it and sets its epoch.

    Args:
        source_lengths: tokens of each row's source, shape `(N,)`.
        target_lengths: tokens of each row's target, shape `(N,)`; None where there are no targets.
        max_tokens: budget of a batch, padding included.
        max_rows: most rows of a batch, whatever their length.
        shuffle: False gives one fixed order, longest rows first, ties by index.
        seed: of the order.

    Raises:
        ValueError: a bad argument, or a row that exceeds the budget alone; the row and its lengths are named.
    """

    def __init__(
        self,
        source_lengths: Sequence[int],
        target_lengths: Sequence[int] | None = None,
        *,
        max_tokens: int,
        max_rows: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ):
        source = np.asarray(source_lengths, dtype=np.int64)
        target = np.zeros_like(source) if target_lengths is None else np.asarray(target_lengths, dtype=np.int64)
        if source.ndim != 1 or len(source) == 0 or source.shape != target.shape:
            raise ValueError(
                f"source_lengths of shape {source.shape} and target_lengths of shape {target.shape} must be equally"
                " long lists of at least one number"
            )
        if max_tokens < 1 or (max_rows is not None and max_rows < 1):
            raise ValueError(f"max_tokens={max_tokens} and max_rows={max_rows} must be at least 1")
        if source.min() < 0 or target.min() < 0:
            raise ValueError("source_lengths and target_lengths must not be negative")
        too_long = np.flatnonzero(source + target > max_tokens)
        if len(too_long):
            row = too_long[0]
            raise ValueError(
                f"row {row} has {source[row]} source and {target[row]} target tokens,"
                f" {source[row] + target[row]} in all: more than max_tokens={max_tokens} ({len(too_long)} such rows)"
            )
        self.max_tokens = max_tokens
        self.max_rows = max_rows
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        # Longest first: a batch that does not fit in memory shows at once. Targets run down and up in turn, so that
        # they change little from one source length to the next.
        self._keys = (np.where(source % 2, target, -target), -source)
        order = np.lexsort(self._keys)
        self._cuts = _cuts(source[order], target[order], max_tokens, max_rows or len(source))

    @classmethod
    def from_dataset(cls, dataset: Dataset, **options) -> "TokenBudgetBatchSampler":
        """A sampler over the tokenised rows of a dataset, from its columns `input_ids` and, if there, `labels`."""
        target = token_lengths(dataset, "labels") if "labels" in dataset.column_names else None
        return cls(token_lengths(dataset, "input_ids"), target, **options)

    def __len__(self) -> int:
        return len(self._cuts) + 1

    def __iter__(self) -> Iterator[list[int]]:
        if not self.shuffle:
            yield from (batch.tolist() for batch in np.split(np.lexsort(self._keys), self._cuts))
            return
        generator = np.random.Generator(np.random.PCG64([self.seed, self.epoch]))
        order = np.lexsort((generator.random(len(self._keys[0])), *self._keys))
        batches = np.split(order, self._cuts)
        for index in generator.random(len(batches)).argsort(kind="stable"):
            yield batches[index].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass; each epoch has its own."""
        self.epoch = epoch

    @property
    def sampler(self) -> "TokenBudgetBatchSampler":
        # In several processes accelerate hands the epoch to its shard's `batch_sampler.sampler`
        return self


def _cuts(source: np.ndarray, target: np.ndarray, max_tokens: int, max_rows: int) -> list[int]:
    """Where new batches begin, greedily, the first one aside."""
    cuts = []
    start = longest_source = longest_target = 0
    for i, (s, t) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        longest_source, longest_target = max(longest_source, s), max(longest_target, t)
        if i - start == max_rows or (i - start + 1) * (longest_source + longest_target) > max_tokens:
            cuts.append(i)
            start, longest_source, longest_target = i, s, t
    return cuts
