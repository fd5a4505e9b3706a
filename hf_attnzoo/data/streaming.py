"""Batches of a stream: rows are read a buffer at a time, put into batches of like length, and forgotten."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import datasets
import numpy as np
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

from .batching import TokenBudgetBatchSampler


@dataclass(frozen=True)
class _Place:
    """Where a buffer begins.

    Args:
        batch: number of its first batch, counted from the start of training.
        rows: rows read before it.
        epoch: number of the pass over the stream.
        buffer: number of the buffer in that pass.
        stream: state of the stream before its first row; None at the start of a pass.
    """

    batch: int = 0
    rows: int = 0
    epoch: int = 0
    buffer: int = 0
    stream: dict[str, Any] | None = None


class StreamedBatches(torch.utils.data.IterableDataset):
    """Batches of a token budget from a stream without an end in sight.

    `buffer_size` rows are read, prepared, sorted by length, cut into batches and given out in random order, as
    `TokenBudgetBatchSampler` does with a whole dataset; then come the next. Nothing but one buffer is ever held. At
    the end of the stream it begins anew, its shards in another order, so that there is always a next batch.

    The batches depend on the stream, the seed and the number of processes, and on nothing else. `state_dict` tells
    where a batch was read, and training that is resumed goes on from there: what came before that buffer isn't read
    again, except in a file that has no way to its middle but through its beginning.

    Args:
        rows: the stream. Several processes share it out: by shards if their number is a multiple, else row by row.
        prepare: makes rows as a collator takes them, of those in a buffer; maybe none.
        lengths: tokens of the source and of the target of each prepared row, shape `(N,)` each; 0 for the one that
            there isn't.
        buffer_size: rows read at a time.
        max_tokens: see `TokenBudgetBatchSampler`.
        max_rows: the same.
        seed: of the order of batches.
        on_pass: is told the number of every pass before its first batch. Default: `None`, nobody is.
        rank: number of this process.
        world_size: number of processes.

    Raises:
        ValueError: a size is out of range; while iterating, a whole pass gives no batch.
    """

    def __init__(
        self,
        rows: datasets.IterableDataset,
        prepare: Callable[[Dataset], Dataset],
        lengths: Callable[[Dataset], tuple[np.ndarray, np.ndarray]],
        *,
        buffer_size: int = 10_000,
        max_tokens: int,
        max_rows: int | None = None,
        seed: int = 0,
        on_pass: Callable[[int], None] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        if buffer_size < 1:
            raise ValueError(f"buffer_size={buffer_size} must be at least 1")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be from 0 to {world_size - 1}, since world_size={world_size}")
        self._rows = split_dataset_by_node(rows, rank, world_size) if world_size > 1 else rows
        self._prepare = prepare
        self._lengths = lengths
        self._buffer_size = buffer_size
        self._on_pass = on_pass
        self._budget = {"max_tokens": max_tokens, "max_rows": max_rows, "seed": seed}
        self._processes = {"rank": rank, "world_size": world_size}
        # Of the buffers begun since the last state was asked for, and how much of the first one is done with.
        self._places, self._done = [_Place()], 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Lists of prepared rows, without end."""
        place, done = self._places[-1], self._done
        while True:
            begin = place
            place = yield from self._pass(place, done)
            if begin.buffer == 0 and place.batch == begin.batch:
                raise ValueError(f"the stream gives no batch: {place.rows - begin.rows} rows, of which none is left")
            place, done = _Place(place.batch, place.rows, place.epoch + 1), 0
            self._places.append(place)

    def _pass(self, place: _Place, done: int) -> Generator[list[dict[str, Any]], None, _Place]:
        """What is left of a pass over the stream; returns the place behind its end."""
        if self._on_pass is not None:
            self._on_pass(place.epoch)
        self._rows.set_epoch(place.epoch)
        self._rows.load_state_dict(place.stream)
        stream = iter(self._rows)
        while buffer := list(islice(stream, self._buffer_size)):
            after, count = self._rows.state_dict(), len(buffer)
            prepared = self._prepare(Dataset.from_list(buffer, features=self._rows.features))
            del buffer
            batches = self._batches(prepared, place)
            for batch in batches[done:]:
                columns = prepared[batch]
                yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            place = _Place(place.batch + len(batches), place.rows + count, place.epoch, place.buffer + 1, after)
            self._places.append(place)
            done = 0
            # Before the next rows are read
            del prepared, batches
        return place

    def _batches(self, prepared: Dataset, place: _Place) -> list[list[int]]:
        if len(prepared) == 0:
            return []
        sampler = TokenBudgetBatchSampler(*self._lengths(prepared), **self._budget)
        # One number for both; there are fewer buffers in a pass than that.
        sampler.set_epoch((place.epoch << 32) + place.buffer)
        return list(sampler)

    def rows_read(self, batches: int) -> int:
        """Rows of the stream that this process has read for so many batches, the rest of their buffer left out.

        Args:
            batches: number given out since the start of training.
        """
        return self._place(batches).rows

    def state_dict(self, batches: int) -> dict[str, Any]:
        """What `load_state_dict` needs to go on behind a batch; numbers and texts alone, as JSON can hold them.

        Args:
            batches: how many have been trained on since the start; no fewer than at the last call.
        """
        place = self._place(batches)
        self._places = self._places[self._places.index(place) :]
        return {"place": asdict(place), "done": batches - place.batch, **self._processes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, when next iterated over.

        Args:
            state: from `state_dict` in the same process of as many.

        Raises:
            ValueError: the state is of another process, or of another number of them.
        """
        for name, value in self._processes.items():
            if state[name] != value:
                raise ValueError(
                    f"the stream was left with {name}={state[name]}, and can't be gone on with as {value}"
                )
        self._places, self._done = [_Place(**state["place"])], state["done"]

    def _place(self, batches: int) -> _Place:
        return [place for place in self._places if place.batch <= batches][-1]
