import contextlib
import copy
import functools
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoConfig, AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedConfig, PreTrainedTokenizerFast

from hf_attnzoo.models.tokenization_attnzoo import (
    TOKENIZER_KINDS,
    AttnZooTokenizer,
    tokenizer_sides,
    train_tokenizer,
    vocabulary_sizes,
)

SPECIAL_IDS = {"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3}

# Leading, trailing, doubled and exotic white space; spaces before signs; composed and decomposed letters, joined
# emoji, right-to-left text, NUL; what the decoders themselves look for ("<0x41>", "▁", "##"); English clippings.
AWKWARD = [
    "",
    " ",
    "  leading and trailing  ",
    "tab\tand\r\nline\n\n",
    "a , b . c ! d ? ( e )",
    "I 'm , do n't , it 's",
    "no\u00a0break\u202fthin\u3000wide",
    "\u00e9 e\u0301 \u1e9b\u0323",
    "\U0001f469\u200d\U0001f680\U0001f1e9\U0001f1ea",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e9\u05dc\u05d5\u05dd \u200f",
    "nul\x00 bell\x07",
    "<0x41> \u2581x \u0120y ##z @@ \ufffd",
]


@pytest.fixture
def separate() -> AttnZooTokenizer:
    """Source: d g o = 4..6 for ["dog", "god"], then nothing more. Target: three symbols, most frequent first."""
    return train_tokenizer(("character", "symbol"), ["dog", "god"], ["D AO G", "G AO D AO"])


@functools.cache
def small_bpe(kind: str) -> PreTrainedTokenizerFast:
    return train_tokenizer(kind, ["the quick brown fox, the lazy dog"] * 2)


def ids_of(tokenizer, text, **kwargs):
    return tokenizer(text, add_special_tokens=False, **kwargs)["input_ids"]


class TestKinds:
    def test_character_counts_every_character_spaces_too(self):
        tokenizer = train_tokenizer("character", ["ab a", "b"])
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"a": 4, "b": 5, " ": 6}
        assert tokenizer("b a")["input_ids"] == [5, 6, 4, 3]
        assert tokenizer("bz")["input_ids"] == [5, 0, 3]
        assert tokenizer.decode([5, 6, 6, 4, 3], skip_special_tokens=True) == "b  a"

    def test_word_keeps_the_most_frequent(self):
        # the 3, cat 2, sat 1, dog 1, with room for two of them
        tokenizer = train_tokenizer("word", ["the cat sat", "the dog", "the cat"], vocab_size=6)
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"the": 4, "cat": 5}
        assert tokenizer("the dog cat")["input_ids"] == [4, 0, 5, 3]
        assert tokenizer.decode([4, 0, 5, 3]) == "the <unk> cat </s>"

    def test_word_min_frequency(self):
        tokenizer = train_tokenizer("word", ["the cat sat", "the dog", "the cat"], min_frequency=2)
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"the": 4, "cat": 5}

    def test_word_cuts(self):
        text = (
            "Don\u2019t  stop: it's 1,000.50-ish, U.S. (\u00e9te\u0301 x_y)\u2026 "
            "\u0928\u092e\u0938\u094d\u0924\u0947 1990s 5."
        )
        expected = (
            "Don\u2019t stop : it's 1,000.50-ish , U . S . ( \u00e9te\u0301 x _ y ) \u2026 "
            "\u0928\u092e\u0938\u094d\u0924\u0947 1990s 5 ."
        )
        tokenizer = train_tokenizer("word", [text])
        assert tokenizer.tokenize(text) == expected.split(" ")
        assert tokenizer.decode(ids_of(tokenizer, text)) == expected

    def test_symbol_splits_at_white_space_only(self):
        tokenizer = train_tokenizer("symbol", ["AH0 ; B\tAH0\n"])
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"AH0": 4, ";": 5, "B": 6}
        assert tokenizer(" B  AH0; ")["input_ids"] == [6, 0, 3]
        assert tokenizer.decode([6, 4, 3], skip_special_tokens=True) == "B AH0"

    def test_bpe_learns_the_merges_of_the_paper(self):
        # The dictionary of Sennrich et al. (2016), algorithm 1: pairs es 9, then es+t 9, l+o 7, lo+w 7
        words = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
        tokenizer = train_tokenizer("bpe", words, vocab_size=4 + 256 + 10 + 4)
        entries = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
        assert entries[:4] == ["<unk>", "<pad>", "<s>", "</s>"]
        assert entries[4:260] == [f"<0x{byte:02X}>" for byte in range(256)]
        assert entries[260:] == [*"deilnorstw", "es", "est", "lo", "low"]
        assert tokenizer("lowest")["input_ids"] == [273, 271, 3]

    def test_bpe_never_merges_what_occurs_once(self):
        assert vocabulary_sizes(train_tokenizer("bpe", ["abc"])) == (263, 263)

    def test_bpe_size_is_a_limit_even_for_a_large_alphabet(self):
        tokenizer = train_tokenizer("bpe", ["aaab\u4e00\u4e01\u4e02"], vocab_size=4 + 256 + 1)
        assert len(tokenizer) == 261
        assert tokenizer.convert_ids_to_tokens(260) == "a"

    def test_bpe_writes_an_unseen_character_as_its_bytes(self):
        tokenizer = train_tokenizer("bpe", ["aa"])
        encoding = tokenizer("a\u00e9", return_offsets_mapping=True)
        # e acute is C3 A9 in UTF-8, and byte b has id 4 + b
        assert encoding["input_ids"][-3:] == [4 + 0xC3, 4 + 0xA9, 3]
        assert encoding["offset_mapping"][-3:] == [(1, 2), (1, 2), (0, 0)]

    def test_bpe_cuts_digits_apart_and_keeps_the_space_with_the_word(self):
        tokenizer = train_tokenizer("bpe", ["in 2024 in 2024 in"] * 2)
        assert tokenizer.tokenize("in 2024") == ["in", " 2", "0", "2", "4"]

    def test_byte_bpe_learns_the_merges_of_the_paper_on_bytes(self):
        # The dictionary of Sennrich et al. (2016), algorithm 1, as in the test of "bpe"
        words = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
        tokenizer = train_tokenizer("byte-bpe", words, vocab_size=4 + 256 + 4)
        entries = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
        assert entries[:4] == ["<unk>", "<pad>", "<s>", "</s>"]
        # In GPT-2's order: printable ASCII, then printable Latin-1, then the others
        assert entries[4:98] == [chr(code) for code in range(ord("!"), ord("~") + 1)]
        assert entries[98:110] == [chr(code) for code in range(0xA1, 0xAD)]
        assert entries[260:] == ["es", "est", "lo", "low"]
        assert tokenizer("lowest")["input_ids"] == [263, 261, 3]

    def test_byte_bpe_writes_every_byte_and_knows_no_unknown(self):
        tokenizer = train_tokenizer("byte-bpe", ["aa"] * 2)
        vocab = tokenizer.get_vocab()
        # e acute is C3 A9 in UTF-8; both bytes are printable in Latin-1, and a space is byte 32, the 33rd unprintable
        assert tokenizer("\u00e9 ")["input_ids"] == [vocab["\u00c3"], vocab["\u00a9"], vocab[chr(256 + 32)], 3]
        bytes_of = {len(tokenizer(chr(code), add_special_tokens=False)["input_ids"]) for code in range(128)}
        assert bytes_of == {1}

    def test_byte_bpe_cuts_as_gpt2_does(self):
        tokenizer = train_tokenizer("byte-bpe", ["I'll see 2024 cats"] * 2)
        assert tokenizer.tokenize("I'll see 2024 cats") == ["I", "'ll", "\u0120see", "\u01202024", "\u0120cats"]

    def test_byte_bpe_does_not_merge_a_text_into_a_special_token(self):
        tokenizer = train_tokenizer("byte-bpe", ["a<s> b<s></s> c<pad>"] * 3)
        for text in ("<s>", "</s>", "<pad>", "a<s>"):
            ids = ids_of(tokenizer, text, split_special_tokens=True)
            assert min(ids) >= 4
            assert tokenizer.decode(ids) == text
        assert ids_of(tokenizer, "a<s>")[-1] == 2

    def test_lowercase(self):
        tokenizer = train_tokenizer("word", ["The the \u00c9t\u00e9"], lowercase=True)
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"the": 4, "\u00e9t\u00e9": 5}
        assert tokenizer("THE </s>")["input_ids"] == [4, 3, 3]

    @pytest.mark.parametrize("kind", TOKENIZER_KINDS)
    def test_special_tokens_in_the_texts_do_not_move_ids(self, kind):
        tokenizer = train_tokenizer(kind, ["b <s> <s> b </s> <pad> <unk> a"])
        assert {token: tokenizer.get_vocab()[token] for token in SPECIAL_IDS} == SPECIAL_IDS
        assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
        for name, value in (("unk", 0), ("pad", 1), ("bos", 2), ("eos", 3)):
            assert getattr(tokenizer, f"{name}_token_id") == value
        assert tokenizer.all_special_ids == [2, 3, 0, 1] + [4] * (kind == "wordpiece")

    @pytest.mark.parametrize("kind", TOKENIZER_KINDS)
    def test_training_is_repeatable(self, kind):
        texts = [f"{word} {number}" for number in range(40) for word in ("alpha", "beta", "gamma", "delta")]
        first, second = (train_tokenizer(kind, iter(texts), vocab_size=300) for _ in range(2))
        assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


class TestPlainTokenizer:
    @pytest.mark.parametrize("kind", TOKENIZER_KINDS)
    def test_needs_no_code_of_ours(self, kind, tmp_path):
        tokenizer = train_tokenizer(kind, ["ab ba", "ab"])
        tokenizer.save_pretrained(tmp_path)
        assert type(tokenizer) is PreTrainedTokenizerFast
        assert sorted(os.listdir(tmp_path)) == ["tokenizer.json", "tokenizer_config.json"]
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert type(loaded) is PreTrainedTokenizerFast
        assert dict(loaded("ab ba", text_target="ab")) == dict(tokenizer("ab ba", text_target="ab"))
        segments = {"token_type_ids"} if kind == "wordpiece" else set()
        assert set(loaded("ab")) == {"input_ids", "attention_mask"} | segments

    def test_one_vocabulary_of_both_sides(self):
        tokenizer = train_tokenizer("character", ["aab"], ["bc"], shared=True)
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"a": 4, "b": 5, "c": 6}
        assert tokenizer("ab", text_target="cb") == {
            "input_ids": [4, 5, 3],
            "attention_mask": [1, 1, 1],
            "labels": [6, 5, 3],
        }
        assert vocabulary_sizes(tokenizer) == (7, 7)
        assert tokenizer_sides(tokenizer) == (tokenizer, tokenizer)

    @pytest.mark.parametrize("kind", ["character", "bpe", "byte-bpe"])
    @pytest.mark.parametrize("text", AWKWARD)
    def test_awkward_texts_come_back(self, kind, text):
        tokenizer = train_tokenizer(kind, AWKWARD)
        assert tokenizer.decode(ids_of(tokenizer, text)) == text
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
        assert tokenizer.batch_decode([tokenizer(text)["input_ids"]] * 2, skip_special_tokens=True) == [text] * 2

    @pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
    @settings(max_examples=150, deadline=None)
    @given(text=st.text(max_size=40))
    def test_bpe_gives_any_text_back(self, kind, text):
        tokenizer = small_bpe(kind)
        ids = ids_of(tokenizer, text, split_special_tokens=True)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids

    @settings(max_examples=50, deadline=None)
    @given(texts=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5), data=st.data())
    def test_character_gives_any_text_of_its_alphabet_back(self, texts, data):
        tokenizer = train_tokenizer("character", texts)
        text = data.draw(st.text(alphabet=sorted(set("".join(texts))), max_size=30))
        ids = ids_of(tokenizer, text, split_special_tokens=True)
        assert tokenizer.decode(ids) == text
        assert len(ids) == len(text)

    @settings(max_examples=50, deadline=None)
    @given(parts=st.lists(st.sampled_from(["known", " ", "\n", "x", ",", "'"]) | st.text(max_size=3), max_size=10))
    def test_word_offsets_point_at_the_word_also_of_unk(self, parts):
        text = "".join(parts)
        tokenizer = train_tokenizer("word", ["known"])
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True)
        pieces = [text[start:end] for start, end in encoding["offset_mapping"]]
        # The four separators U+001C..1F are white space to Python alone, not to Unicode.
        assert "".join(pieces) == "".join(char for char in text if not char.isspace() or "\x1c" <= char <= "\x1f")
        assert encoding["input_ids"] == [4 if piece == "known" else 0 for piece in pieces]

    def test_offsets_and_word_ids(self):
        tokenizer = train_tokenizer("word", ["a b"])
        encoding = tokenizer("  a (zug) b", return_offsets_mapping=True)
        assert encoding["input_ids"] == [4, 0, 0, 0, 5, 3]
        assert encoding["offset_mapping"] == [(2, 3), (4, 5), (5, 8), (8, 9), (10, 11), (0, 0)]
        assert encoding.word_ids() == [0, 1, 2, 3, 4, None]

    def test_special_tokens_in_a_text(self):
        tokenizer = train_tokenizer("character", ["a</s>b"])
        assert len(ids_of(tokenizer, "a</s>b")) == 3
        assert tokenizer.decode(ids_of(tokenizer, "a</s>b", split_special_tokens=True)) == "a</s>b"

    def test_batches(self):
        tokenizer = train_tokenizer("character", ["abc"])
        batch = tokenizer(["abc", "", "a"], padding=True, return_tensors="pt")
        assert batch["input_ids"].dtype == torch.long
        assert batch["input_ids"].tolist() == [[4, 5, 6, 3], [3, 1, 1, 1], [4, 3, 1, 1]]
        assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]
        left = tokenizer(["abc", "a"], padding=True, padding_side="left")
        assert left["input_ids"] == [[4, 5, 6, 3], [1, 1, 4, 3]]
        cut = tokenizer(["abc", "a"], padding="max_length", max_length=3, truncation=True)
        assert cut["input_ids"] == [[4, 5, 3], [4, 3, 1]]
        assert tokenizer("a", "b")["input_ids"] == [4, 3, 5, 3]


class TestTwoVocabularies:
    def test_each_text_is_read_by_its_own_side(self, separate):
        assert separate.source_tokenizer.get_vocab() == SPECIAL_IDS | {"d": 4, "g": 5, "o": 6}
        assert separate.target_tokenizer.get_vocab() == SPECIAL_IDS | {"AO": 4, "D": 5, "G": 6}
        assert separate("dog", text_target="D AO G") == {
            "input_ids": [4, 6, 5, 3],
            "attention_mask": [1, 1, 1, 1],
            "labels": [5, 4, 6, 3],
        }
        assert separate(text_target="AO") == {"input_ids": [4, 3], "attention_mask": [1, 1]}
        assert separate.encode("god") == [5, 6, 4, 3]
        assert separate.tokenize("god") == ["g", "o", "d"]

    def test_ids_are_the_targets(self, separate):
        assert separate.decode([5, 4, 6, 3], skip_special_tokens=True) == "D AO G"
        assert separate.decode(torch.tensor([[5, 3], [4, 3]]), skip_special_tokens=True) == ["D", "AO"]
        assert separate.batch_decode([[5, 4, 3, 1]]) == ["D AO </s> <pad>"]
        assert separate.convert_ids_to_tokens([5, 4, 3]) == ["D", "AO", "</s>"]
        assert separate.convert_tokens_to_ids(["D", "AO", "d"]) == [5, 4, 0]
        assert separate.get_vocab() == separate.target_tokenizer.get_vocab()

    def test_the_source_side_reads_source_ids(self, separate):
        source, target = tokenizer_sides(separate)
        assert source.decode([4, 6, 5, 3], skip_special_tokens=True) == "dog"
        assert source.convert_ids_to_tokens([4, 6]) == ["d", "o"]
        assert target.decode([5, 3]) == "D </s>"
        assert type(source) is type(target) is PreTrainedTokenizerFast

    def test_sizes(self):
        tokenizer = train_tokenizer(("character", "symbol"), ["dog"], ["D AO G K T"])
        assert vocabulary_sizes(tokenizer) == (7, 9)
        assert (tokenizer.source_vocab_size, tokenizer.target_vocab_size) == (7, 9)
        assert len(tokenizer) == tokenizer.vocab_size == 9

    def test_a_pair_for_every_setting(self):
        tokenizer = train_tokenizer(
            ["word", "character"],
            ["A a B b"],
            ["Aa aB"],
            vocab_size=(5, 30),
            min_frequency=(2, 1),
            lowercase=(True, False),
        )
        assert tokenizer.source_tokenizer.get_vocab() == SPECIAL_IDS | {"a": 4}
        assert tokenizer.target_tokenizer.get_vocab() == SPECIAL_IDS | {"a": 4, " ": 5, "A": 6, "B": 7}

    def test_nothing_changes_between_calls(self, separate):
        expected = dict(separate(["dog", "g"], padding=True))
        for call in (
            lambda: separate(text_target=["D AO", "G"], padding=True, padding_side="left"),
            lambda: separate("dog", text_target="D", truncation=True, max_length=2),
            lambda: separate(text_target=3),
            lambda: separate("dog", text_target=["D", 3]),
            lambda: separate.target_tokenizer("D AO G", return_tensors="pt"),
        ):
            with contextlib.suppress(TypeError, ValueError):
                call()
            assert dict(separate(["dog", "g"], padding=True)) == expected
            assert separate.decode([5, 3]) == "D </s>"

    def test_threads_do_not_mix_the_sides(self, separate):
        def work(number):
            if number % 2:
                return separate(text_target="D AO G")["input_ids"]
            return separate("dog")["input_ids"]

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(work, range(400)))
        assert results == [[4, 6, 5, 3], [5, 4, 6, 3]] * 200

    def test_batch_options_reach_both_sides(self, separate):
        batch = separate(
            ["dog", "g"], text_target=["D", "D AO G"], padding=True, padding_side="left", return_tensors="pt"
        )
        assert batch["input_ids"].tolist() == [[4, 6, 5, 3], [1, 1, 5, 3]]
        assert batch["labels"].tolist() == [[1, 1, 5, 3], [5, 4, 6, 3]]
        cut = separate("dog", text_target="D AO G", truncation=True, max_length=2, max_target_length=3)
        assert (cut["input_ids"], cut["labels"]) == ([4, 3], [5, 4, 3])

    def test_settings_changed_later_reach_both_sides(self, separate):
        separate.padding_side = separate.truncation_side = "left"
        separate.model_max_length = 3
        batch = separate(["dog", "g"], text_target=["D", "D AO G"], padding=True, truncation=True)
        assert batch["input_ids"] == [[6, 5, 3], [1, 5, 3]]
        assert batch["labels"] == [[1, 5, 3], [4, 6, 3]]

    def test_offsets_and_word_ids_are_the_sources(self, separate):
        encoding = separate("dxg", text_target="D AO", return_offsets_mapping=True)
        assert encoding["input_ids"] == [4, 0, 5, 3]
        assert encoding["offset_mapping"] == [(0, 1), (1, 2), (2, 3), (0, 0)]
        assert encoding.word_ids() == [0, 1, 2, None]
        assert encoding.tokens() == ["d", "<unk>", "g", "</s>"]

    def test_split_words(self):
        tokenizer = train_tokenizer("word", ["a b"], ["x y"])
        encoding = tokenizer([["a", "b"], ["b"]], text_target=[["y"], ["x", "y"]], is_split_into_words=True)
        assert encoding["input_ids"] == [[4, 5, 3], [5, 3]]
        assert encoding["labels"] == [[5, 3], [4, 5, 3]]

    def test_neither_text(self, separate):
        with pytest.raises(ValueError, match="text_target"):
            separate()

    @pytest.mark.parametrize("clone", [copy.deepcopy, lambda tokenizer: pickle.loads(pickle.dumps(tokenizer))])  # noqa: S301
    def test_copies(self, separate, clone):
        twin = clone(separate)
        assert dict(twin("dog", text_target="D AO G")) == dict(separate("dog", text_target="D AO G"))
        twin.add_tokens(["new"])
        assert vocabulary_sizes(twin) == (8, 8)
        assert vocabulary_sizes(separate) == (7, 7)

    def test_collator(self, separate):
        features = [dict(separate(source, text_target=target)) for source, target in (("dog", "D"), ("g", "D AO G"))]
        batch = DataCollatorForSeq2Seq(separate)(features)
        assert batch["input_ids"].tolist() == [[4, 6, 5, 3], [5, 3, 1, 1]]
        assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
        assert batch["labels"].tolist() == [[5, 3, -100, -100], [5, 4, 6, 3]]

    def test_ids_of_special_tokens_must_agree(self, separate):
        backends = [copy.deepcopy(side.backend_tokenizer) for side in tokenizer_sides(separate)]
        backends[0].add_special_tokens(["<x>", "<end>"])
        backends[1].add_special_tokens(["<end>"])
        with pytest.raises(ValueError, match=r"eos_token='<end>' must have the same id .* 8 .* 7"):
            AttnZooTokenizer(tokenizer_object=backends[0], target_tokenizer_object=backends[1], eos_token="<end>")  # noqa: S106


@pytest.fixture
def copier() -> AttnZooTokenizer:
    """Source: call 4, . 5, now 6. Target: called 4, now 5, slots 6 and 7."""
    sources = ["call now.", "call now.", "call.", "call"]
    return train_tokenizer("word", sources, ["called now", "called"], copy_slots=2)


class TestCopying:
    def test_slots_are_the_last_of_the_target(self, copier):
        assert copier.source_tokenizer.get_vocab() == SPECIAL_IDS | {"call": 4, ".": 5, "now": 6}
        assert copier.get_vocab() == SPECIAL_IDS | {"called": 4, "now": 5, "<copy_0>": 6, "<copy_1>": 7}
        assert copier.copy_slots == 2
        assert vocabulary_sizes(copier) == (7, 8)

    def test_slots_stand_for_the_words_of_each_text(self, copier):
        encoding = copier("now Bob Ann Bob", text_target="Ann called Bob Cid now")
        # Bob is the first word without an entry, Ann the second; Cid is nowhere in the source.
        assert encoding == {
            "input_ids": [6, 0, 0, 0, 3],
            "attention_mask": [1, 1, 1, 1, 1],
            "copy_ids": [5, 6, 7, 6, 3],
            "labels": [7, 4, 6, 0, 5, 3],
        }
        # What the source's vocabulary has and the target's hasn't needs a slot too.
        assert copier("call Bob.")["copy_ids"] == [6, 7, 0, 3]
        assert copier(text_target="Bob now")["input_ids"] == [0, 5, 3]

    def test_words_beyond_the_slots_are_unknown(self, copier):
        encoding = copier("Ann Bob Cid Ann", text_target="Cid Bob")
        assert encoding["copy_ids"] == [6, 7, 0, 6, 3]
        assert encoding["labels"] == [0, 7, 3]

    def test_decoding_with_the_source(self, copier):
        ids = [2, 7, 4, 6, 0, 5, 3, 1]
        assert copier.decode(ids, skip_special_tokens=True) == "<copy_1> called <copy_0> now"
        assert copier.decode_copied(ids, "now Bob Ann Bob") == "<s> Ann called Bob <unk> now </s> <pad>"
        assert copier.decode_copied(torch.tensor(ids), "Bob Ann", skip_special_tokens=True) == "Ann called Bob now"
        # A slot that stands for nothing here
        assert copier.decode_copied([6, 4, 7], "Bob") == "Bob called <unk>"
        assert copier.decode_copied([6, 4, 7], "Bob", skip_special_tokens=True) == "Bob called"
        assert copier.copied_words("call now Ann, Bob") == {6: "call", 7: "Ann"}

    def test_batches_of_texts(self, copier):
        rows = torch.tensor([[6, 4], [4, 6], [7, 5], [0, 0]])
        sources = ["Ann", "Bob Cid"]
        assert copier.batch_decode(rows, sources=sources) == ["Ann called", "called Ann", "Cid now", "<unk> <unk>"]
        options = {"sources": sources * 2, "skip_special_tokens": True}
        assert copier.batch_decode(rows, **options) == ["Ann called", "called Bob", "now", ""]
        assert copier.batch_decode([], sources=[]) == []
        for wrong in (["Ann"] * 3, []):
            with pytest.raises(ValueError, match=f"sources has {len(wrong)} texts, .* the 4 of sequences"):
                copier.batch_decode(rows, sources=wrong)

    def test_padding_and_tensors(self, copier):
        options = {"padding": True, "return_tensors": "pt"}
        batch = copier(["Ann now", "now"], text_target=["now", "called Ann now"], **options)
        assert batch["copy_ids"].tolist() == [[6, 5, 3], [5, 3, -100]]
        assert batch["labels"].tolist() == [[5, 3, 1, 1], [4, 0, 5, 3]]
        left = copier(["Ann now", "now"], padding=True, padding_side="left")
        assert left["copy_ids"] == [[6, 5, 3], [-100, 5, 3]]
        single = copier("Ann", text_target="Ann", return_tensors="pt")
        assert {name: tensor.tolist() for name, tensor in single.items()} == {
            "input_ids": [[0, 3]],
            "attention_mask": [[1, 1]],
            "copy_ids": [[6, 3]],
            "labels": [[6, 3]],
        }

    def test_truncation(self, copier):
        encoding = copier("Ann Bob now", text_target="Bob Ann", truncation=True, max_length=2)
        assert encoding["copy_ids"] == [6, 3]
        # What is cut off can't be copied.
        assert encoding["labels"] == [0, 3]

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_collator(self, copier, side):
        copier.padding_side = side
        features = [dict(copier(text, text_target="now")) for text in ("Ann now Bob", "now")]
        batch = DataCollatorForSeq2Seq(copier)(features)
        padded = {"right": [5, 3, -100, -100], "left": [-100, -100, 5, 3]}
        assert batch["copy_ids"].tolist() == [[6, 5, 7, 3], padded[side]]
        alone = copier.pad([{"input_ids": [5, 3], "copy_ids": [5, 3]}], padding="max_length", max_length=4)
        assert alone["copy_ids"] == [padded[side]]

    def test_one_vocabulary(self):
        tokenizer = train_tokenizer("word", ["call now"], ["now called"], shared=True, copy_slots=1)
        vocab = SPECIAL_IDS | {"now": 4, "call": 5, "called": 6, "<copy_0>": 7}
        assert tokenizer.source_tokenizer.get_vocab() == tokenizer.get_vocab() == vocab
        encoding = tokenizer("call Ann", text_target="Ann called")
        assert encoding["input_ids"] == [5, 0, 3]
        assert encoding["copy_ids"] == [5, 7, 3]
        assert encoding["labels"] == [7, 6, 3]

    def test_case(self):
        texts = {"source_texts": ["call"], "target_texts": ["Called anna"]}
        tokenizer = train_tokenizer("word", **texts, copy_slots=2, lowercase=(True, False))
        # A word is looked up as it stands in the text, whatever the source's side makes of it.
        encoding = tokenizer("call Bob BOB anna", text_target="BOB bob Bob")
        assert encoding["copy_ids"] == [6, 7, 0, tokenizer.convert_tokens_to_ids("anna"), 3]
        tokenizer = train_tokenizer("word", **texts, copy_slots=2, lowercase=True)
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"anna": 4, "called": 5, "<copy_0>": 6, "<copy_1>": 7}
        encoding = tokenizer("BOB Bob Anna", text_target="bob")
        assert encoding["copy_ids"] == [6, 6, 4, 3]
        assert encoding["labels"] == [6, 3]
        assert tokenizer.decode_copied([6, 4], "BOB Bob") == "BOB anna"

    def test_the_name_of_a_slot_is_a_word_like_others(self):
        texts = ["a <copy_0> <copy_0>", "a b"]
        tokenizer = train_tokenizer("symbol", texts, texts, copy_slots=2)
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"a": 4, "b": 5, "<copy_0>": 6, "<copy_1>": 7}
        encoding = tokenizer("b c <copy_0>", text_target="<copy_0> a <copy_1>")
        assert encoding["copy_ids"] == [5, 6, 7, 3]
        assert encoding["labels"] == [7, 4, 0, 3]
        assert tokenizer.decode_copied(encoding["labels"], "b c <copy_0>") == "<copy_0> a <unk> </s>"

    def test_characters(self):
        tokenizer = train_tokenizer("character", ["ab"], ["ba"], copy_slots=1)
        encoding = tokenizer("a\u00e9b", text_target="b\u00e9")
        assert tokenizer.get_vocab() == SPECIAL_IDS | {"a": 4, "b": 5, "<copy_0>": 6}
        assert encoding["copy_ids"] == [4, 6, 5, 3]
        assert tokenizer.decode_copied(encoding["labels"], "a\u00e9b", skip_special_tokens=True) == "b\u00e9"

    def test_a_character_that_lower_case_makes_two_of(self):
        # The capital I with a dot, as Turkish has it, becomes an i and a combining dot.
        tokenizer = train_tokenizer("character", ["i\u0307"], ["i\u0307"], lowercase=True, copy_slots=2)
        i, dot = tokenizer.convert_tokens_to_ids(["i", "\u0307"])
        encoding = tokenizer("x\u0130\u0130y", text_target="\u0130y")
        slots = list(tokenizer.slot_ids)
        assert encoding["copy_ids"] == [slots[0], i, dot, i, dot, slots[1], 3]
        assert encoding["labels"] == [i, dot, slots[1], 3]
        assert tokenizer.decode_copied(encoding["copy_ids"][:-1], "xIIy".replace("I", "\u0130")) == "xi\u0307i\u0307y"

    def test_slots_stay_the_last(self, copier):
        before = copier.get_vocab()
        for add in (
            copier.add_tokens,
            lambda tokens: copier.add_special_tokens({"additional_special_tokens": tokens}),
        ):
            with pytest.raises(ValueError, match=r"tokens zebra would come behind the copy_slots=2 entries"):
                add(["now", "zebra"])
        assert copier.get_vocab() == before
        assert copier.source_tokenizer.get_vocab() == SPECIAL_IDS | {"call": 4, ".": 5, "now": 6}
        # What is there already comes behind nothing.
        copier.add_tokens(["now"])
        assert copier.get_vocab() == before
        without = train_tokenizer("word", ["call"], ["now"], copy_slots=0)
        assert without.add_tokens(["zebra"]) == 1
        assert without("zebra")["copy_ids"] == [5, 3]

    def test_no_slots_copy_what_both_sides_know(self):
        tokenizer = train_tokenizer("bpe", ["the cat"] * 3, ["the dog"] * 3, copy_slots=0)
        source, target = tokenizer_sides(tokenizer)
        encoding = tokenizer("the cat")
        for source_id, copied in zip(encoding["input_ids"], encoding["copy_ids"], strict=True):
            token = source.convert_ids_to_tokens(source_id)
            assert copied == target.get_vocab().get(token, 0)
        assert encoding["copy_ids"][0] == target.get_vocab()["the"]
        assert 0 in encoding["copy_ids"]
        assert tokenizer.decode_copied(encoding["copy_ids"][:1], "the cat") == "the"

    def test_saved_and_loaded(self, copier, tmp_path):
        copier.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
        assert loaded.copy_slots == 2
        texts = {"text": ["Ann now", "Bob"], "text_target": ["Ann", "Ann"], "padding": True}
        assert dict(loaded(**texts)) == dict(copier(**texts))
        assert loaded.decode_copied([6, 5], "Ann") == "Ann now"
        loaded.source_tokenizer.save_pretrained(tmp_path / "side")
        assert "copy_slots" not in json.loads((tmp_path / "side" / "tokenizer_config.json").read_text())
        assert dict(copy.deepcopy(copier)("Ann")) == dict(copier("Ann"))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"copy_slots": -1}, "copy_slots must be an int of at least 0, or None, got -1"),
            ({"copy_slots": 1.5}, "got 1.5"),
            ({"copy_slots": 1, "kind": "bpe"}, "copy_slots=1 needs one kind .* 'bpe' and 'bpe'"),
            ({"copy_slots": True}, "got True"),
            ({"copy_slots": 1, "kind": "byte-bpe", "vocab_size": 300}, "needs one kind .* 'byte-bpe' and 'byte-bpe'"),
            ({"copy_slots": 1, "kind": ("word", "character")}, "copy_slots=1 needs one kind"),
            ({"copy_slots": 0, "shared": True, "causal": True}, "copy_slots=0 .* causal=True"),
        ],
    )
    def test_what_training_refuses(self, options, message):
        with pytest.raises(ValueError, match=message):
            train_tokenizer(**{"kind": "word", "source_texts": ["a"], "target_texts": ["b"]} | options)

    def test_what_a_call_refuses(self, copier):
        for call in (
            lambda: copier("a", "b"),
            lambda: copier("a", text_target="b", text_pair_target="c"),
            lambda: copier([["a"]], is_split_into_words=True),
        ):
            with pytest.raises(ValueError, match="copy_slots=2 needs texts that are strings"):
                call()
        with pytest.raises(ValueError, match="text_target has 1 texts, but text has 2"):
            copier(["a", "b"], text_target=["c"])
        with pytest.raises(ValueError, match="return_overflowing_tokens"):
            copier(["a b c d"], return_overflowing_tokens=True, truncation=True, max_length=2)
        with pytest.raises(ValueError, match="sources must be a list of texts, got one string: 'ab'"):
            copier.batch_decode([[6], [7]], sources="ab")
        backends = [copy.deepcopy(side.backend_tokenizer) for side in tokenizer_sides(copier)]
        with pytest.raises(ValueError, match="copy_slots=3: the target vocabulary has no such entries"):
            AttnZooTokenizer(tokenizer_object=backends[0], target_tokenizer_object=backends[1], copy_slots=3)


class TestSavingAndLoading:
    def test_twice_with_added_tokens_and_sides(self, separate, tmp_path):
        separate.add_special_tokens({"extra_special_tokens": ["<2de>"]})
        separate.source_tokenizer.add_tokens(["dd"])
        separate.add_tokens(["raw", AddedToken("whole", single_word=True, lstrip=True, normalized=False)])
        separate.padding_side = "left"
        separate(["dog", "g"], text_target=["D", "AO"], padding=True, truncation=True, max_length=4)

        loaded = separate
        for folder in ("first", "second", "third"):
            loaded.save_pretrained(tmp_path / folder)
            loaded = AttnZooTokenizer.from_pretrained(tmp_path / folder)
            source, target = tokenizer_sides(loaded)
            assert source.get_added_vocab() == SPECIAL_IDS | {"<2de>": 7, "dd": 8, "raw": 9, "whole": 10}
            assert target.get_added_vocab() == SPECIAL_IDS | {"<2de>": 7, "raw": 8, "whole": 9}
            for side, number in ((source, 10), (target, 9)):
                added = side.added_tokens_decoder[number]
                assert (added.single_word, added.lstrip, added.rstrip, added.normalized, added.special) == (
                    True,
                    True,
                    False,
                    False,
                    False,
                )
                assert side.added_tokens_decoder[7].special
            assert vocabulary_sizes(loaded) == (11, 10)
            assert (loaded.padding_side, loaded.extra_special_tokens) == ("left", ["<2de>"])
            assert loaded("<2de>d", text_target="D<2de>raw") == {
                "input_ids": [7, 4, 3],
                "attention_mask": [1, 1, 1],
                "labels": [5, 7, 8, 3],
            }
            assert loaded.decode([7, 5, 8, 3], skip_special_tokens=True) == "D raw"

        for name in ("tokenizer.json", "target_tokenizer.json"):
            first, second, third = ((tmp_path / folder / name).read_bytes() for folder in ("first", "second", "third"))
            assert first == second == third
            assert json.loads(first)["padding"] is json.loads(first)["truncation"] is None
        config = "tokenizer_config.json"
        assert (tmp_path / "second" / config).read_bytes() == (tmp_path / "third" / config).read_bytes()

    def test_what_is_in_the_folder(self, separate, tmp_path):
        written = separate.save_pretrained(tmp_path)
        names = ["target_tokenizer.json", "tokenizer.json", "tokenizer_config.json"]
        assert sorted(map(os.path.basename, written)) == names
        assert sorted(os.listdir(tmp_path)) == sorted([*names, "tokenization_attnzoo.py"])
        assert str(tmp_path) not in (tmp_path / "tokenizer_config.json").read_text()

    def test_vocabulary_alone(self, separate, tmp_path):
        paths = separate.save_vocabulary(str(tmp_path), "my")
        assert [os.path.basename(path) for path in paths] == ["my-tokenizer.json", "my-target_tokenizer.json"]
        loaded = AttnZooTokenizer(*paths, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")  # noqa: S106
        assert loaded("dog", text_target="G")["labels"] == [6, 3]

    def test_one_side_is_saved_as_a_plain_tokenizer(self, separate, tmp_path):
        separate.save_pretrained(tmp_path / "both")
        side = AttnZooTokenizer.from_pretrained(tmp_path / "both").source_tokenizer
        side.save_pretrained(tmp_path / "source")
        loaded = AutoTokenizer.from_pretrained(tmp_path / "source", trust_remote_code=True)
        assert type(loaded) is PreTrainedTokenizerFast
        assert loaded("dog")["input_ids"] == [4, 6, 5, 3]

    def test_a_folder_without_the_target(self, separate, tmp_path):
        separate.save_pretrained(tmp_path)
        (tmp_path / "target_tokenizer.json").unlink()
        with pytest.raises(ValueError, match="target_tokenizer_file"):
            AttnZooTokenizer.from_pretrained(tmp_path)

    def test_auto_class_with_the_package(self, separate, tmp_path):
        class TokenizerTestConfig(PreTrainedConfig):
            model_type = "attnzoo_tokenizer_test"

        AutoConfig.register("attnzoo_tokenizer_test", TokenizerTestConfig, exist_ok=True)
        AutoTokenizer.register(TokenizerTestConfig, tokenizer_class=AttnZooTokenizer, exist_ok=True)
        TokenizerTestConfig().save_pretrained(tmp_path)
        separate.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert type(loaded) is AttnZooTokenizer
        assert loaded("dog", text_target="G")["labels"] == [6, 3]

        # A shared vocabulary beside a model of the same family stays plain.
        train_tokenizer("character", ["ab"]).save_pretrained(tmp_path)
        assert type(AutoTokenizer.from_pretrained(tmp_path)) is PreTrainedTokenizerFast

    def test_auto_class_without_the_package(self, separate, tmp_path):
        separate.add_tokens(["raw"])
        separate.save_pretrained(tmp_path / "first")
        script = """
import json, pickle, sys
sys.modules["hf_attnzoo"] = None
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("first", trust_remote_code=True)
tokenizer.save_pretrained("second")
tokenizer = AutoTokenizer.from_pretrained("second", trust_remote_code=True)
tokenizer = pickle.loads(pickle.dumps(tokenizer))
print(json.dumps({
    "call": dict(tokenizer("dog", text_target="D raw")),
    "text": tokenizer.decode([5, 7, 3], skip_special_tokens=True),
    "source": tokenizer.source_tokenizer.convert_ids_to_tokens([4, 7]),
    "module": type(tokenizer).__module__.split(".")[0],
}))
"""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
        result = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[-1]) == {
            "call": {"input_ids": [4, 6, 5, 3], "attention_mask": [1, 1, 1, 1], "labels": [5, 7, 3]},
            "text": "D raw",
            "source": ["d", "raw"],
            "module": "transformers_modules",
        }
        assert (tmp_path / "second" / "tokenization_attnzoo.py").is_file()


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"kind": "caracter"},
                "kind must be one of 'character', 'word', .*got 'caracter'; did you mean 'character'",
            ),
            ({"kind": "zzz"}, "kind must be one of .*got 'zzz'$"),
            ({"kind": None}, "kind must be one of"),
            ({"kind": ("word",)}, r"kind must be one value or a pair .*got \('word',\)"),
            ({"kind": ("word", "bpe")}, "kind must be one value for a shared vocabulary, got 'word', 'bpe'"),
            ({"vocab_size": (9, 8)}, "vocab_size must be one value for a shared vocabulary"),
            ({"vocab_size": 4}, "vocab_size must be an int of at least 5 for kind='word', got 4"),
            ({"vocab_size": 260, "kind": "bpe"}, "vocab_size must be an int of at least 261 for kind='bpe', got 260"),
            ({"vocab_size": "30k"}, "vocab_size must be an int .*got '30k'"),
            ({"min_frequency": 0}, "min_frequency must be an int of at least 1, got 0"),
            ({"min_frequency": 9}, "min_frequency=9: nothing in the texts"),
            ({"source_texts": []}, "source_texts must hold at least one text"),
            ({"source_texts": iter(())}, "source_texts must hold at least one text"),
            ({"source_texts": ["", " \n"]}, "nothing in the texts"),
            ({"source_texts": "a text"}, "source_texts must be an iterable of texts, got one string: 'a text'"),
            ({"source_texts": ["a", None]}, "source_texts must hold strings, got None as text number 2"),
            ({"target_texts": []}, "target_texts must hold at least one text"),
            ({"target_texts": [], "shared": True}, "target_texts must hold at least one text"),
            ({"target_texts": ["a"], "vocab_size": (9, 4)}, "vocab_size must be an int of at least 5 .*got 4"),
            ({"shared": False}, "shared=False needs target_texts"),
        ],
    )
    def test_names_argument_value_and_limit(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            train_tokenizer(**{"kind": "word", "source_texts": ["a"]} | arguments)

    def test_both_vocabularies_are_needed(self):
        with pytest.raises(ValueError, match="target_tokenizer_object and target_tokenizer_file are both None"):
            AttnZooTokenizer(tokenizer_object=train_tokenizer("word", ["a"]).backend_tokenizer)


def test_a_causal_tokenizer_opens_a_text_and_leaves_it_open(tmp_path):
    train_tokenizer("character", ["abc"], causal=True).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(["ab", "c"], padding=True)
    assert batch["input_ids"] == [[2, 4, 5], [1, 2, 6]]
    assert batch["attention_mask"] == [[1, 1, 1], [0, 1, 1]]
    with pytest.raises(ValueError, match="causal=True"):
        train_tokenizer("character", ["abc"], ["xyz"], causal=True)


@pytest.fixture
def loaded(tmp_path) -> PreTrainedTokenizerFast:
    texts = ["plays played playing play", "red. red, read!", "the the the"] * 3
    train_tokenizer("wordpiece", texts, vocab_size=60).save_pretrained(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


class TestWordPiece:
    def test_a_pair_has_two_segments_and_offsets_in_its_own_texts(self, loaded):
        pair = loaded("played, the", "red", return_offsets_mapping=True)
        assert pair.tokens() == ["<s>", "played", ",", "the", "</s>", "red", "</s>"]
        assert pair["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1]
        assert pair["offset_mapping"] == [(0, 0), (0, 6), (6, 7), (8, 11), (0, 0), (0, 3), (0, 0)]
        assert pair.word_ids() == [None, 0, 1, 2, None, 0, None]

    def test_batches_are_padded_on_the_right_with_the_first_segment(self, loaded):
        batch = loaded([("red", "red"), ("red", "red the")], padding=True)
        assert batch["input_ids"][0][-1] == loaded.pad_token_id == 1
        assert batch["token_type_ids"] == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]]
        assert batch["attention_mask"][0] == [1, 1, 1, 1, 1, 0]

    def test_special_tokens(self, loaded):
        assert (loaded.cls_token_id, loaded.sep_token_id, loaded.mask_token_id) == (2, 3, 4)
        assert loaded("the <mask> red").input_ids[2] == 4
        assert sorted(loaded.get_vocab().values()) == list(range(len(loaded)))

    def test_the_longest_known_piece_comes_first(self, loaded):
        vocab = loaded.get_vocab()
        word = "playedlay"
        pieces = loaded.tokenize(word)
        rest, expected = word, []
        while rest:
            mark = "##" if expected else ""
            length = max(n for n in range(len(rest) + 1) if n == 0 or mark + rest[:n] in vocab)
            assert length, "the word has characters of the texts alone"
            expected.append(mark + rest[:length])
            rest = rest[length:]
        assert pieces == expected
        assert len(pieces) > 1
        assert loaded.decode(loaded(word).input_ids, skip_special_tokens=True) == word

    def test_words_with_unknown_characters_and_ideographs(self):
        tokenizer = train_tokenizer("wordpiece", ["\u5317\u4eac a, b\u20ac"] * 2)
        assert tokenizer.tokenize("\u4eac\u5317a,z\u20ac") == ["\u4eac", "\u5317", "a", ",", "<unk>", "\u20ac"]

    @pytest.mark.parametrize("size", [6, 9, 14, 30])
    def test_it_is_no_larger_than_asked_for(self, size):
        texts = ["the quick brown fox jumps over the lazy dog"] * 4
        assert len(train_tokenizer("wordpiece", texts, vocab_size=size)) <= size

    @pytest.mark.parametrize("options", [{"target_texts": ["a"]}, {"causal": True}, {"vocab_size": 5}])
    def test_it_is_for_encoders(self, options):
        with pytest.raises(ValueError, match="wordpiece"):
            train_tokenizer("wordpiece", ["a"], **options)
