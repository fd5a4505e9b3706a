"""BPE-dropout: without any it is the tokenizer, with some it is algorithm 1 of its paper."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from hf_attnzoo.data import BPEDropout, BPEDropoutCollator, Seq2SeqCollator
from hf_attnzoo.models.tokenization_attnzoo import train_tokenizer

TEXTS = ["the lowest of the low, the newest", "wider than the widest", "Größe 12 größer", "low lower newer wide"] * 3


@pytest.fixture(scope="module", params=["bpe", "byte-bpe"])
def tokenizer(request):
    return train_tokenizer(request.param, TEXTS, shared=True, vocab_size=320, lowercase=True)


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("thelowsanid ßöG12,.é語🙂\n\t<>"), max_size=30))
def test_without_dropout_it_is_the_tokenizer(tokenizer, text):
    assert BPEDropout(tokenizer, 0)(text, random.Random(0)) == tokenizer(text)["input_ids"]


def test_a_text_comes_back_from_any_cut(tokenizer):
    cutter, text = BPEDropout(tokenizer, 0.5), "the lowest größe 語 of the newest"
    cuts = {tuple(cutter(text, random.Random(seed))) for seed in range(20)}
    assert len(cuts) > 10
    assert {tokenizer.decode(list(ids), skip_special_tokens=True) for ids in cuts} == {text}
    # `</s>` is id 3
    assert all(ids[-1] == 3 and 3 not in ids[:-1] for ids in cuts)
    # Nothing is left of it in the tokenizer.
    assert len({tuple(tokenizer(text)["input_ids"]) for _ in range(5)}) == 1
    assert tokenizer.backend_tokenizer.model.dropout is None


def of_merges(*merges):
    vocab = {entry: number for number, entry in enumerate([*"abc", *(a + b for a, b in merges)])}
    backend = Tokenizer(BPE(vocab, list(merges)))
    like = train_tokenizer("bpe", ["a b"], shared=True, vocab_size=300)
    backend.pre_tokenizer = like.backend_tokenizer.pre_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_a_merge_is_left_out_with_its_probability():
    cutter, draws = BPEDropout(of_merges(("a", "b"), ("ab", "c"), ("b", "c")), 0.3), 4000
    draw = random.Random(1)
    # Ids: a 0, b 1, c 2, ab 3, abc 4, bc 5
    counts = Counter(tuple(cutter("abc", draw)) for _ in range(draws))
    # First `a b` and `b c` are possible, `a b` before `b c`; after `a b` the one merge is `ab c`.
    expected = {(4,): 0.7 * 0.7, (3, 2): 0.7 * 0.3, (0, 5): 0.3 * 0.7, (0, 1, 2): 0.3 * 0.3}
    assert counts.keys() == expected.keys()
    for cut, share in expected.items():
        assert abs(counts[cut] / draws - share) < 4 * (share * (1 - share) / draws) ** 0.5


def test_a_special_token_in_a_text_is_left_whole(tokenizer):
    text = "the lowest</s>"
    assert all(
        BPEDropout(tokenizer, 0.9)(text, random.Random(seed)) == tokenizer(text)["input_ids"] for seed in range(3)
    )


def rows_of(tokenizer, texts):
    rows = []
    for row, text in enumerate(texts):
        ids = tokenizer(text)["input_ids"]
        rows.append({"source": text, "target": text, "row": row, "input_ids": ids, "labels": ids})
    return rows


def test_cuts_depend_on_seed_epoch_and_row_alone(tokenizer):
    rows = rows_of(tokenizer, ["the lowest of the newest"] * 2)

    def batch(rows, seed=0, epoch=0):
        collator = BPEDropoutCollator(Seq2SeqCollator(tokenizer), (tokenizer,) * 2, 0.4, seed=seed)
        collator.set_epoch(epoch)
        made = collator(rows)
        return [
            [token for token in row if token not in (-100, 1)]
            for name in ("input_ids", "labels")
            for row in made[name].tolist()
        ]

    first = batch(rows)
    # Four cuts of one text: two rows, two sides.
    assert len(set(map(tuple, first))) > 2
    assert batch(rows) == first
    assert batch(rows[::-1]) == [first[1], first[0], first[3], first[2]]
    assert batch(rows, seed=1) != first
    assert batch(rows, epoch=1) != first


def test_a_row_is_no_longer_than_the_limit(tokenizer):
    text = "the lowest of the newest"
    plain = tokenizer(text)["input_ids"]
    limits = (len(plain), len(plain) + 2)
    lengths = set()
    for seed in range(30):
        made = BPEDropoutCollator(Seq2SeqCollator(tokenizer), (tokenizer,) * 2, 0.2, seed=seed, limits=limits)(
            rows_of(tokenizer, [text])
        )
        assert made["input_ids"].shape[1] <= limits[0]
        lengths.add(made["labels"].shape[1])
    assert lengths == {len(plain), len(plain) + 1, len(plain) + 2}


def test_what_is_no_bpe_is_refused_or_left_alone(tokenizer):
    words = train_tokenizer("word", TEXTS, shared=True)
    with pytest.raises(ValueError, match=r"bpe_dropout=0\.1 is for tokenizers of the kinds bpe"):
        BPEDropoutCollator(Seq2SeqCollator(words), (words, words), 0.1, seed=0)
    with pytest.raises(ValueError, match=re.escape("tokenizer of WordLevel must be of BPE")):
        BPEDropout(words, 0.1)
    with pytest.raises(ValueError, match="rate=1 must be at least 0 and below 1"):
        BPEDropout(tokenizer, 1)
    one_side = BPEDropoutCollator(Seq2SeqCollator(words), (words, tokenizer), 0.9, seed=0)
    (row,) = rows_of(tokenizer, ["the lowest"])
    row["input_ids"] = words("the lowest")["input_ids"]
    made = one_side([row])
    assert made["input_ids"][0].tolist() == row["input_ids"]
    assert len(made["labels"][0]) > len(row["labels"])
