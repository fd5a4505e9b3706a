"""Masks are where they should be, as many as they should be, and the same whenever they should be the same."""

import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from hf_attnzoo import BERTConfig, BERTForMaskedLM, BERTForPreTraining, train_tokenizer
from hf_attnzoo.data import (
    MaskingCallback,
    MaskingCollator,
    masked_once,
    masking_blocks,
    next_sentence_pairs,
    tokenize_texts,
)

MASK, PAD = 4, 1
WORDS = ["alpha", "beta", "gamma", "delta", "omega", "sigma"]
DOCUMENTS = [
    [" ".join(WORDS[(i + j + d) % 6] for j in range(1 + (i * d) % 5)) + "." for i in range(12)] for d in range(1, 7)
]


@pytest.fixture(scope="module")
def tokenizer():
    # Small enough that words have several pieces.
    return train_tokenizer("wordpiece", [sentence for document in DOCUMENTS for sentence in document], vocab_size=40)


@pytest.fixture(scope="module")
def rows(tokenizer):
    texts = [" ".join(document) for document in DOCUMENTS] + ["alpha", "beta gamma"]
    return list(tokenize_texts(Dataset.from_dict({"text": texts}), tokenizer))


def batch_of(rows, tokenizer, **options):
    return MaskingCollator(tokenizer, **options)(rows)


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_a_share_of_each_row_is_masked_and_nothing_else_is_touched(rows, tokenizer, unit):
    batch = batch_of(rows, tokenizer, unit=unit)
    assert batch.keys() == {"input_ids", "attention_mask", "labels", "token_type_ids"}
    for number, row in enumerate(rows):
        ids = torch.tensor(row["input_ids"])
        labels, seen = batch["labels"][number, : len(ids)], batch["input_ids"][number, : len(ids)]
        chosen = labels != -100
        assert torch.equal(labels[chosen], ids[chosen])
        assert torch.equal(seen[~chosen], ids[~chosen])
        assert not chosen[[0, -1]].any(), "special tokens are no words"
        assert (batch["input_ids"][number, len(ids) :] == PAD).all()
        assert (batch["labels"][number, len(ids) :] == -100).all()
        assert batch["attention_mask"][number].sum() == len(ids)
        budget = max(1, round(0.15 * (len(ids) - 2)))
        first_word = row["word_ids"].count(0)
        assert 1 <= chosen.sum() <= max(budget, first_word, row["word_ids"].count(1))
        if unit == "token":
            assert chosen.sum() == budget


def test_a_word_is_masked_as_a_whole(rows, tokenizer):
    pieces = 0
    for with_words in (True, False):
        given = rows if with_words else [{"input_ids": row["input_ids"]} for row in rows]
        batch = batch_of(given, tokenizer, unit="word", probability=0.4)
        for number, row in enumerate(rows):
            chosen = (batch["labels"][number, : len(row["word_ids"])] != -100).numpy()
            words = np.array(row["word_ids"])
            for word in set(row["word_ids"]) - {-1}:
                assert chosen[words == word].all() or not chosen[words == word].any()
                pieces += (words == word).sum() > 1 and chosen[words == word].all()
    assert pieces > 10


def test_a_span_is_whole_words_with_one_fate(rows, tokenizer):
    lengths, fates = [], set()
    collator = MaskingCollator(tokenizer, unit="span", probability=0.4, mask_share=0.4, random_share=0.3)
    for epoch in range(40):
        collator.set_epoch(epoch)
        batch = collator(rows[:6])
        for number, row in enumerate(rows[:6]):
            words = np.array(row["word_ids"])
            ids = np.array(row["input_ids"])
            labels = batch["labels"][number, : len(ids)].numpy()
            seen = batch["input_ids"][number, : len(ids)].numpy()
            chosen = labels != -100
            assert abs(chosen.sum() - 0.4 * (len(ids) - 2)) <= 3
            for word in set(row["word_ids"]) - {-1}:
                assert chosen[words == word].all() or not chosen[words == word].any()
                if chosen[words == word].all():
                    masked = seen[words == word] == MASK
                    assert masked.all() or not masked.any()
                    fates.add("mask" if masked.all() else "kept" if (seen == ids)[words == word].all() else "random")
            runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]]))))[::2]
            lengths += runs.tolist()
    assert fates == {"mask", "kept", "random"}
    assert max(lengths) > 5


def test_eight_in_ten_are_masked_one_is_another_word_one_stays(rows, tokenizer):
    collator = MaskingCollator(tokenizer, probability=0.5)
    masked = kept = total = 0
    others = []
    for epoch in range(60):
        collator.set_epoch(epoch)
        batch = collator(rows)
        chosen = batch["labels"] != -100
        seen, wanted = batch["input_ids"][chosen], batch["labels"][chosen]
        total += len(seen)
        masked += (seen == MASK).sum().item()
        kept += (seen == wanted).sum().item()
        others.append(seen[(seen != MASK) & (seen != wanted)])
    assert total > 5000
    assert masked / total == pytest.approx(0.8, abs=0.015)
    # One in thirty-five random words is the word itself.
    assert kept / total == pytest.approx(0.1 + 0.1 / (len(tokenizer) - 5), abs=0.012)
    others = torch.cat(others)
    assert others.min() >= 5
    assert len(others.unique()) == len(tokenizer) - 5


def test_the_same_row_is_masked_the_same_in_any_batch_process_and_worker(rows, tokenizer):
    collator = MaskingCollator(tokenizer, unit="word", seed=3)
    collator.set_epoch(2)
    labels = [label[: len(row["input_ids"])] for label, row in zip(collator(rows)["labels"], rows, strict=True)]
    assert collator.epoch == 2
    again = pickle.loads(pickle.dumps(collator))  # noqa: S301
    for number, row in enumerate(rows):
        assert torch.equal(again([row])["labels"][0], labels[number])
    loader = DataLoader(rows, batch_size=3, collate_fn=collator, num_workers=2, multiprocessing_context="fork")
    found = [label for batch in loader for label in batch["labels"]]
    for number, label in enumerate(labels):
        assert torch.equal(found[number][: len(label)], label)

    def differs(**change):
        other = MaskingCollator(tokenizer, **{"unit": "word", "seed": 3} | change)
        other.set_epoch(2)
        return not torch.equal(other(rows)["labels"], collator(rows)["labels"])

    assert differs(seed=4)
    assert not differs()
    before = collator(rows)["labels"]
    collator.set_epoch(3)
    assert not torch.equal(collator(rows)["labels"], before)


def test_workers_that_live_on_see_the_epoch(rows, tokenizer):
    collator = MaskingCollator(tokenizer)
    loader = DataLoader(
        rows, batch_size=8, collate_fn=collator, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    for epoch in (0, 1):
        collator.set_epoch(epoch)
        expected = MaskingCollator(tokenizer)
        expected.set_epoch(epoch)
        assert torch.equal(next(iter(loader))["labels"], expected(rows)["labels"])


def test_padding_on_the_left(rows, tokenizer):
    right = batch_of(rows[:2], tokenizer)
    tokenizer.padding_side = "left"
    try:
        left = batch_of(rows[:2], tokenizer, pad_to_multiple_of=8)
    finally:
        tokenizer.padding_side = "right"
    assert left["input_ids"].shape[1] % 8 == 0
    for number, row in enumerate(rows[:2]):
        length = len(row["input_ids"])
        for name in right:
            assert torch.equal(left[name][number, -length:], right[name][number, :length])
        assert (left["labels"][number, :-length] == -100).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "words"}, "'words'"),
        ({"probability": 0.0}, "probability=0.0"),
        ({"mask_share": 1.5}, "mask_share=1.5"),
        ({"mask_share": 0.8, "random_share": 0.3}, "random_share=0.3"),
    ],
)
def test_options_out_of_range(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        MaskingCollator(tokenizer, **options)


def test_what_can_not_be_masked(tokenizer):
    characters = train_tokenizer("character", ["abc"])
    with pytest.raises(ValueError, match="mask_token_id"):
        MaskingCollator(characters)
    characters.add_special_tokens({"mask_token": "<mask>"})
    with pytest.raises(ValueError, match="word_ids"):
        MaskingCollator(characters, unit="word")([{"input_ids": [4, 5, 3]}])
    with pytest.raises(ValueError, match="rows is empty"):
        MaskingCollator(tokenizer)([])
    nothing = MaskingCollator(tokenizer)([{"input_ids": [2, 0, 3]}])
    assert (nothing["labels"] == -100).all()
    assert nothing["input_ids"].tolist() == [[2, 0, 3]]


def test_trainer_counts_the_epochs(rows, tokenizer, tmp_path):
    config = BERTConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    collator = MaskingCollator(tokenizer, unit="word")
    seen = []

    def spy(given):
        seen.append(collator.epoch)
        return collator(given)

    trainer = Trainer(
        model=BERTForMaskedLM(config),
        args=TrainingArguments(
            str(tmp_path), num_train_epochs=3, per_device_train_batch_size=8, report_to=[], use_cpu=True,
            remove_unused_columns=False, save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=rows,
        data_collator=spy,
        callbacks=[MaskingCallback(collator)],
    )  # fmt: skip
    trainer.train()
    assert seen == [0, 1, 2]


class TestPairs:
    def test_seconds_follow_or_come_from_elsewhere(self, tokenizer):
        # Every sentence says where it stands: document and number, in words of one piece each.
        names = [f"{letter}{digit}" for letter in "abcdef" for digit in range(8)]
        marked = train_tokenizer("wordpiece", [" ".join(names)] * 3, vocab_size=200)
        documents = [[f"{letter}{digit}" for digit in range(8)] for letter in "abcdef"]
        counts = [0, 0]
        for row in next_sentence_pairs(documents * 4, marked, max_length=40, seed=1):
            text = marked.convert_ids_to_tokens(row["input_ids"])
            assert (text[0], text[-1]) == ("<s>", "</s>")
            middle = text.index("</s>")
            assert row["token_type_ids"] == [0] * (middle + 1) + [1] * (len(text) - middle - 1)
            first, second = (
                marked.decode(marked.convert_tokens_to_ids(part)).split()
                for part in (text[1:middle], text[middle + 1 : -1])
            )
            for part in (first, second):
                assert part
                assert [name[0] for name in part] == [part[0][0]] * len(part)
                assert [int(name[1]) for name in part] == [int(part[0][1]) + i for i in range(len(part))]
            counts[row["next_sentence_label"]] += 1
            if row["next_sentence_label"] == 0:
                assert second[0] == f"{first[-1][0]}{int(first[-1][1]) + 1}"
        assert min(counts) > 0.3 * sum(counts)

    def test_rows_fit_and_are_reproducible(self, tokenizer):
        first = next_sentence_pairs(DOCUMENTS, tokenizer, max_length=16, seed=5)
        assert max(map(len, first["input_ids"])) == 16
        assert min(map(len, first["input_ids"])) >= 5
        again = next_sentence_pairs(iter(DOCUMENTS), tokenizer, max_length=16, seed=5)
        assert first.to_dict() == again.to_dict()
        assert first.to_dict() != next_sentence_pairs(DOCUMENTS, tokenizer, max_length=16, seed=6).to_dict()

    def test_every_sentence_is_read(self, tokenizer):
        rows = next_sentence_pairs(DOCUMENTS, tokenizer, max_length=400, random_share=0.0, short_share=0.0)
        assert rows["next_sentence_label"] == [0] * len(DOCUMENTS)
        text = " ".join(" ".join(document) for document in DOCUMENTS)
        assert sum(map(len, rows["input_ids"])) - 3 * len(rows) == len(tokenizer.tokenize(text))

    def test_what_is_refused(self, tokenizer):
        for documents, options, message in (
            ([["a"]], {}, "documents has 1"),
            (["a text", "b"], {}, "one string: 'a text'"),
            (DOCUMENTS, {"random_share": 1.5}, "random_share=1.5"),
            (DOCUMENTS, {"max_length": 4}, "max_length=4"),
        ):
            with pytest.raises(ValueError, match=message):
                next_sentence_pairs(documents, tokenizer, **options)

    def test_bert_learns_from_them(self, tokenizer):
        rows = list(next_sentence_pairs(DOCUMENTS, tokenizer, max_length=24))[:4]
        batch = MaskingCollator(tokenizer, unit="word")(rows)
        assert batch["next_sentence_label"].tolist() == [row["next_sentence_label"] for row in rows]
        torch.manual_seed(0)
        config = BERTConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        model = BERTForPreTraining(config).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.3 * losses[0]


def test_long_texts_become_several_rows(tokenizer):
    texts = Dataset.from_dict({"text": [" ".join(DOCUMENTS[1]), "alpha"], "extra": [1, 2]})
    rows = tokenize_texts(texts, tokenizer, max_length=10)
    assert len(rows) > 3
    assert rows.column_names == ["input_ids", "token_type_ids", "word_ids"]
    assert max(map(len, rows["input_ids"])) == 10
    with pytest.raises(ValueError, match=r"'texts'.*text"):
        tokenize_texts(texts, tokenizer, column="texts")


def test_blocks_hold_one_document_and_the_numbers_of_its_words():
    tokenizer = train_tokenizer("wordpiece", ["playing plays played play"] * 3, vocab_size=40)
    texts = ["plays\nplaying play\n", "play"]
    blocks = masking_blocks({"text": texts}, tokenizer, 5)
    # <s> tokens </s>
    assert {(ids[0], ids[-1]) for ids in blocks["input_ids"]} == {(2, 3)}
    assert blocks[-1]["input_ids"] == tokenizer("play").input_ids
    document = [token for ids in blocks["input_ids"][:-1] for token in ids[1:-1]]
    assert document == tokenizer("plays playing play", add_special_tokens=False).input_ids
    words = [word for numbers in blocks["word_ids"][:-1] for word in numbers if word != -1]
    # One number for each word, through lines and blocks
    assert sorted(set(words)) == [0, 1, 2]
    assert words == sorted(words)
    with pytest.raises(ValueError, match="block_size=2 must be at least 3"):
        masking_blocks({"text": texts}, tokenizer, 2)
    with pytest.raises(ValueError, match="without a single token"):
        masking_blocks({"text": ["\n \n"]}, tokenizer, 5)
    with pytest.raises(ValueError, match="no cls_token_id"):
        masking_blocks({"text": texts}, train_tokenizer("word", texts), 5)


def test_masks_that_stay_are_those_of_the_collator():
    tokenizer = train_tokenizer("wordpiece", ["playing plays played play"] * 3, vocab_size=40)
    rows = Dataset.from_dict({"input_ids": [tokenizer(text).input_ids for text in ("plays playing", "play play")]})
    collator = MaskingCollator(tokenizer, probability=0.5, seed=4)
    once = masked_once(rows, collator)
    batch = collator(list(rows))
    for number, row in enumerate(once):
        length = len(row["input_ids"])
        assert row["input_ids"] == batch["input_ids"][number, :length].tolist()
        assert row["labels"] == batch["labels"][number, :length].tolist()
        assert any(label != -100 for label in row["labels"])
