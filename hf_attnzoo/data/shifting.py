"""Blocks of a language model that begin elsewhere in every epoch, and the batches that say which epoch it is."""

from collections.abc import Iterator

import numpy as np
import torch.utils.data
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .batching import TokenBudgetBatchSampler


class EpochBatchSampler(TokenBudgetBatchSampler):
    """A `TokenBudgetBatchSampler` that numbers rows on and on: row i of N is `epoch * N + i`.

    A dataset then knows the epoch of a row that it is asked for, in whichever process and after whatever pause.
    """

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * len(self._keys[0])
        for batch in super().__iter__():
            yield [first + row for row in batch]


class ShiftedBlocks(torch.utils.data.Dataset):
    """Blocks of `cut_blocks`, all of them moved on by fewer tokens than a block has, other ones in every epoch.

    A token stands early in a block now and late then, so it is learnt after little text and after much. In an epoch
    every token is predicted once, but for fewer than two blocks of them at the two ends of the text.

    Args:
        blocks: what `cut_blocks` returns. Of N of them, N - 1 or N - 2 full ones are left.
        tokenizer: that they were cut with.
        seed: of the shifts, which depend on it and on the epoch alone.

    Raises:
        ValueError: there are too few tokens for a single block wherever it begins.
    """

    def __init__(self, blocks: Dataset, tokenizer: PreTrainedTokenizerBase, *, seed: int = 0):
        self._start = tokenizer("")["input_ids"]
        # As `cut_blocks` has it: the last token of a block is the first of the next one, if nothing else begins it.
        self._overlap = 0 if self._start else 1
        repeated = len(self._start) + self._overlap
        size = len(blocks[0]["input_ids"])
        self._step = size - repeated
        parts = [np.asarray(blocks[0]["input_ids"][len(self._start) : repeated], np.int64)]
        for rows in blocks.select_columns(["input_ids"]).iter(batch_size=10_000):
            parts += [np.asarray(ids[repeated:], np.int64) for ids in rows["input_ids"]]
        self._ids = np.concatenate(parts)
        self._length = (len(self._ids) - self._overlap - (self._step - 1)) // self._step
        self._seed = seed
        if self._length < 1:
            raise ValueError(
                f"block_size={size} is too much to shift blocks in texts of {len(self._ids)} tokens: they must have "
                f"{2 * self._step - 1 + self._overlap}"
            )

    def __len__(self) -> int:
        return self._length

    def shift(self, epoch: int) -> int:
        """Tokens that blocks are moved on by in an epoch, from 0 to what a block predicts, less 1."""
        # The third number keeps them apart from the order of the batches.
        return int(np.random.Generator(np.random.PCG64([self._seed, epoch, 1])).integers(self._step))

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        epoch, row = divmod(index, self._length)
        first = self.shift(epoch) + row * self._step
        return {"input_ids": self._start + self._ids[first : first + self._step + self._overlap].tolist()}
