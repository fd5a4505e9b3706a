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
    For `DataLoader(batch_sampler=...)`; accelerate shards it, skips in it and sets its epoch. With `num_processes`,
    the batches that are too few for all processes at an epoch's end are divided among them: a step of N processes has
    the rows that N batches in a row have in one process, and none of them twice.

    Args:
        source_lengths: tokens of each row's source, shape `(N,)`.
        target_lengths: tokens of each row's target, shape `(N,)`; None where there are no targets.
        max_tokens: budget of a batch, padding included.
        max_rows: most rows of a batch, whatever their length.
        shuffle: False gives one fixed order, longest rows first, ties by index.
        seed: of the order.
        num_processes: how many processes share the batches out, one each in turn; `len()` is a multiple of it. Rows
            are taken twice only where no batch has as many rows as there are processes.

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
        num_processes: int = 1,
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
        if num_processes < 1:
            raise ValueError(f"num_processes={num_processes} must be at least 1")
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
        self.num_processes = num_processes
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
        count = len(self._cuts) + 1
        return count + -count % self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        if self.shuffle:
            generator = np.random.Generator(np.random.PCG64([self.seed, self.epoch]))
            order = np.lexsort((generator.random(len(self._keys[0])), *self._keys))
            batches = np.split(order, self._cuts)
            batches = [batches[place] for place in generator.random(len(batches)).argsort(kind="stable")]
        else:
            batches = np.split(np.lexsort(self._keys), self._cuts)
        for batch in _shared_out(batches, self.num_processes):
            yield batch.tolist()

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


def _shared_out(batches: list[np.ndarray], processes: int) -> list[np.ndarray]:
    """Batches of which the last ones are so divided that their number is a multiple of `processes`."""
    whole = len(batches) - len(batches) % processes
    if whole == len(batches):
        return batches
    if sum(map(len, batches[whole:])) < processes:
        # The largest takes the last place, since it can be divided.
        largest = max(reversed(range(len(batches))), key=lambda place: len(batches[place]))
        batches[largest], batches[-1] = batches[-1], batches[largest]
    last = batches[whole:]
    while len(last) < processes:
        largest = max(range(len(last)), key=lambda place: len(last[place]))
        rows = last[largest]
        middle = (len(rows) + 1) // 2
        # A single row can't be divided: another process reads it too.
        last[largest : largest + 1] = [rows[:middle], rows[middle:] if len(rows) > 1 else rows]
    return batches[:whole] + last
