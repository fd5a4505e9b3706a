"""Blocks that begin elsewhere in every epoch: what they are of, worked out by hand."""

import datasets
import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from hf_attnzoo import train_tokenizer
from hf_attnzoo.data import EpochBatchSampler, ShiftedBlocks, TokenBudgetBatchSampler, cut_blocks

# <s> is 2, and every letter is as many as its place: a to o are 4 to 18
LETTERS = "abcdefghijklmno"
UNKNOWN = {"unk_token": "?"}


def shifted(length=15, size=4, seed=0):
    tokenizer = train_tokenizer("character", [LETTERS], causal=True)
    blocks = cut_blocks(datasets.Dataset.from_dict({"text": [LETTERS[:length]]}), tokenizer, size)
    return ShiftedBlocks(blocks, tokenizer, seed=seed)


def epoch_of(blocks, epoch):
    return [blocks[epoch * len(blocks) + row]["input_ids"] for row in range(len(blocks))]


def test_blocks_move_on_together_and_each_begins_as_a_prompt_does():
    blocks = shifted()
    # Three letters each: of 15, four blocks fit wherever the first begins, up to two letters later.
    assert len(blocks) == 4
    by_hand = [
        [[2, 4, 5, 6], [2, 7, 8, 9], [2, 10, 11, 12], [2, 13, 14, 15]],
        [[2, 5, 6, 7], [2, 8, 9, 10], [2, 11, 12, 13], [2, 14, 15, 16]],
        [[2, 6, 7, 8], [2, 9, 10, 11], [2, 12, 13, 14], [2, 15, 16, 17]],
    ]
    shifts = [by_hand.index(epoch_of(blocks, epoch)) for epoch in range(60)]
    assert [blocks.shift(epoch) for epoch in range(60)] == shifts
    # Each of three is drawn 20 times of 60 on average, with a deviation of 3.7.
    assert min(np.bincount(shifts, minlength=3)) > 8
    assert shifts != [shifted(seed=1).shift(epoch) for epoch in range(60)]
    assert shifts == [shifted().shift(epoch) for epoch in range(60)]


def test_the_last_block_may_end_with_the_text():
    # Of 14 letters the fourth block could lie at 11 to 13 after a shift of two: three letters, to the very end.
    blocks = shifted(length=14)
    assert len(blocks) == 4
    assert max(ids[-1] for epoch in range(30) for ids in epoch_of(blocks, epoch)) == 17
    assert len(shifted(length=13)) == 3
    assert len(shifted(length=5)) == 1
    with pytest.raises(ValueError, match=r"block_size=4 is too much .* texts of 4 tokens: they must have 5"):
        shifted(length=4)


def test_without_a_first_token_a_block_begins_with_the_last_token_of_the_one_before():
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(["?", *LETTERS])}, **UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **UNKNOWN)
    text = datasets.Dataset.from_dict({"text": [" ".join(LETTERS[:7])]})
    blocks = ShiftedBlocks(cut_blocks(text, tokenizer, 3), tokenizer)
    # Two to predict in each: blocks of letters 1 to 3 and 3 to 5, or 2 to 4 and 4 to 6.
    both = [[[1, 2, 3], [3, 4, 5]], [[2, 3, 4], [4, 5, 6]]]
    seen = [both.index(epoch_of(blocks, epoch)) for epoch in range(20)]
    assert set(seen) == {0, 1}


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_know_their_epoch_in_every_process(workers):
    blocks = shifted()
    sampler = EpochBatchSampler([0] * 4, [4] * 4, max_tokens=8, seed=5)
    plain = TokenBudgetBatchSampler([0] * 4, [4] * 4, max_tokens=8, seed=5)
    loader = DataLoader(blocks, batch_sampler=sampler, collate_fn=list, num_workers=workers)
    assert len(loader) == 2
    for epoch in (0, 3, 1):
        sampler.set_epoch(epoch)
        plain.set_epoch(epoch)
        expected = [[epoch_of(blocks, epoch)[row] for row in batch] for batch in plain]
        assert [[row["input_ids"] for row in batch] for batch in loader] == expected


def test_two_processes_share_the_rows_of_an_epoch():
    sampler = EpochBatchSampler([0] * 8, [4] * 8, max_tokens=8, seed=5)
    sampler.set_epoch(2)
    first, second = (list(BatchSamplerShard(sampler, 2, process)) for process in (0, 1))
    # Four batches of two rows: the rows of epoch 2 are numbered from 16.
    assert [len(first), len(second)] == [2, 2]
    assert sorted(row for batch in first + second for row in batch) == list(range(16, 24))
    assert [batch for pair in zip(first, second, strict=True) for batch in pair] == list(sampler)
