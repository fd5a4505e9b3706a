"""Blocks of many and long texts: what a tokenizer makes of them, however they are read, in little memory."""

import itertools
import tracemalloc

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerFast

from hf_attnzoo import train_tokenizer
from hf_attnzoo.data import blocks, cut_blocks

UNKNOWN, END = {"unk_token": "?"}, {"eos_token": "</s>"}
LINES = ["one  two\n", "\n", "  three > four\n", "naïve\t> five > six \n", "\n", "\n", "seven\n", "eight"]
TEXTS = ["".join(LINES * 6), "", "nine\nten", "\n" * 90, "".join(reversed(LINES))]


def spaced():
    """Has a mark at the start of each text, which is none after a line."""
    words = {"?": 0, "</s>": 1, **{f"▁{word}": number for number, word in enumerate(["one", "\ntwo\n", "six"], 2)}}
    backend = Tokenizer(WordLevel(words, **UNKNOWN))
    backend.pre_tokenizer = Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **END)


def tokenizers():
    yield spaced()
    for kind in ("character", "word", "bpe", "byte-bpe"):
        yield train_tokenizer(kind, TEXTS, causal=True, **({"vocab_size": 280} if "bpe" in kind else {}))


def naive_blocks(texts, tokenizer, size, join, mark):
    """One token at a time."""
    documents = []
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        document = []
        for token, (begin, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            line = text[text.rfind("\n", 0, begin) + 1 : begin]
            document.append((token, token if mark is None or mark in line else -100))
        documents.append(document)
    end = [(tokenizer.eos_token_id,) * 2]
    if join:
        streams = [documents[0] + [pair for document in documents[1:] for pair in end + document]]
    else:
        streams = [document + end for document in documents]
    start = [(token, token) for token in tokenizer("")["input_ids"]]
    again = 0 if start else 1
    found = []
    for stream in streams:
        left = stream
        while len(left) > again:
            room = size - len(start)
            found.append(start + left[:room])
            left = left[room - again :]
    return [[[pair[side] for pair in block] for block in found] for side in (0, 1)]


@pytest.mark.parametrize(("join", "mark"), [(True, None), (False, None), (True, ">"), (False, ">")])
def test_long_and_many_texts_make_the_blocks_of_whole_ones(monkeypatch, join, mark):
    # As if texts were long
    for name, value in (("_BATCH", 60), ("_PIECE", 25), ("_AROUND", 12)):
        monkeypatch.setattr(blocks, name, value)
    for tokenizer, size in itertools.product(tokenizers(), (3, 16)):
        given = cut_blocks(Dataset.from_dict({"text": TEXTS}), tokenizer, size, join, mark)
        assert [given["input_ids"][:], given["labels"][:]] == naive_blocks(TEXTS, tokenizer, size, join, mark)


def test_a_text_is_read_in_pieces_where_the_tokenizer_sees_no_difference(monkeypatch):
    monkeypatch.setattr(blocks, "_PIECE", 4)
    text = "one two\n\nsix\none\n"
    characters, byte_pairs = (train_tokenizer(kind, TEXTS, causal=True) for kind in ("character", "byte-bpe"))
    assert list(blocks._pieces(text, characters)) == ["one two\n", "\nsix\n", "one\n"]
    assert list(blocks._pieces(text, spaced())) == [text]
    # The first of two ends of lines is a word of its own before a third, and else goes with the second
    assert list(blocks._pieces("one two\n\n\nsix\none\n", byte_pairs)) == ["one two\n\n\nsix\n", "one\n"]


def test_a_token_takes_less_room_than_a_pair():
    texts = Dataset.from_dict({"text": ["one two six\n" * 20_000]})
    tokenizer = train_tokenizer("character", ["one two six\n"], causal=True)
    tracemalloc.start()
    given = cut_blocks(texts, tokenizer, 129)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 240,000 characters, 128 in a block. A pair of token and label has 56 bytes, and takes 8 in each of two lists.
    assert len(given) == 1875
    assert most / 240_000 < 100
    ids, labels = (given.data[name].chunk(0).values for name in ("input_ids", "labels"))
    assert ids.buffers()[1].address == labels.buffers()[1].address
