"""Documents from files of every kind, and blocks worked out by hand."""

import gzip

import datasets
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hf_attnzoo import train_tokenizer
from hf_attnzoo.data import cut_blocks, load_texts

UNKNOWN, END = {"unk_token": "?"}, {"eos_token": "end"}
TEXT = "".join(f"line {number}\n" for number in range(10))  # 70 characters


def test_a_text_file_is_one_document_and_its_splits_are_parts_of_it(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert load_texts(tmp_path / "a.txt")["text"][:] == [TEXT]
    splits = ("train", "validation", "test")
    parts = [load_texts(tmp_path / "a.txt", split, shares=[0.5, 0.3, 0.2]) for split in splits]
    assert [part["text"][:] for part in parts] == [[TEXT[:35]], [TEXT[35:56]], [TEXT[56:]]]
    # 63 and 3.5 of 70 characters
    assert load_texts(tmp_path / "a.txt", "validation")["text"][:] == [TEXT[63:66]]


def test_gzip(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("Zoë\n".encode()))
    assert load_texts(tmp_path / "a.txt.gz")["text"][:] == ["Zoë\n"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_a_table_has_a_document_in_every_row(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    rows = datasets.Dataset.from_dict({"id": [1, 2, 3, 4], "text": ["a b", "c", "d", "e"]})
    if kind == "parquet":
        rows.to_parquet(path)
    elif kind == "jsonl":
        path.write_text("".join(f'{{"id": {row["id"]}, "text": "{row["text"]}"}}\n' for row in rows))
    else:
        mark = "," if kind == "csv" else "\t"
        path.write_text("".join(f"{a}{mark}{b}\n" for a, b in [("id", "text"), *((r["id"], r["text"]) for r in rows)]))
    assert load_texts(path)["text"][:] == ["a b", "c", "d", "e"]
    assert load_texts(path, "train", shares=[0.5, 0.25, 0.25])["text"][:] == ["a b", "c"]
    with pytest.raises(ValueError, match="text_column='body' is none of id, text"):
        load_texts(path, text_column="body")


def test_a_folder_has_a_file_for_each_split(tmp_path):
    (tmp_path / "train.txt").write_text("learn\n")
    (tmp_path / "dev.jsonl").write_text('{"text": "choose"}\n')
    assert load_texts(tmp_path, "train")["text"][:] == ["learn\n"]
    assert load_texts(tmp_path, "validation")["text"][:] == ["choose"]
    with pytest.raises(ValueError, match=r"split='test': .* has 0 files named for it; found: dev\.jsonl, train\.txt"):
        load_texts(tmp_path, "test")


def test_what_is_wrong_is_told_with_its_line(tmp_path):
    (tmp_path / "bytes.txt").write_bytes(b"good\nb\xffd\n")
    with pytest.raises(ValueError, match=r"bytes\.txt:2: not valid UTF-8"):
        load_texts(tmp_path / "bytes.txt")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:2: text is 3, no text"):
        load_texts(tmp_path / "bad.jsonl")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match=r"empty\.txt: no text"):
        load_texts(tmp_path / "empty.txt")
    (tmp_path / "short.txt").write_text("ab")
    with pytest.raises(ValueError, match=r"no text in the share of split 'test'"):
        load_texts(tmp_path / "short.txt", "test", shares=[1, 0, 0])
    for shares in ([0.5, 0.5], [0.5, 0.6, 0.1], [1.1, -0.1, 0]):
        with pytest.raises(ValueError, match=r"shares=.* three numbers"):
            load_texts(tmp_path / "short.txt", shares=shares)
    with pytest.raises(ValueError, match="split='dev' is not one of"):
        load_texts(tmp_path / "short.txt", "dev")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load_texts(tmp_path / "absent.txt")


def blocks_of(texts, tokenizer, size, **options):
    blocks = cut_blocks(datasets.Dataset.from_dict({"text": texts}), tokenizer, size, **options)
    assert blocks["labels"][:] == blocks["input_ids"][:]
    return blocks["input_ids"][:]


def test_every_block_begins_as_a_prompt_does():
    tokenizer = train_tokenizer("character", ["abcde"], causal=True)
    # <s> is 2, </s> is 3, letters are 4 to 8
    assert blocks_of(["abcde"], tokenizer, 3) == [[2, 4, 5], [2, 6, 7], [2, 8]]
    assert blocks_of(["ab", "c"], tokenizer, 4) == [[2, 4, 5, 3], [2, 6]]
    assert blocks_of(["abc"], tokenizer, 100) == [[2, 4, 5, 6]]
    assert blocks_of(["ab", "c"], tokenizer, 4, join=False) == [[2, 4, 5, 3], [2, 6, 3]]
    assert blocks_of(["abc", "", "de"], tokenizer, 3, join=False) == [
        [2, 4, 5],
        [2, 6, 3],
        [2, 3],
        [2, 7, 8],
        [2, 3],
    ]
    with pytest.raises(ValueError, match="block_size=1 must be at least 2"):
        blocks_of(["abc"], tokenizer, 1)
    with pytest.raises(ValueError, match="the texts have 0 tokens"):
        blocks_of([""], tokenizer, 4)


def test_answers_alone_are_predicted():
    tokenizer = train_tokenizer("character", ["abcde>\n"], causal=True)
    ids = tokenizer("a>bc\nd>e\n", add_special_tokens=False)["input_ids"]
    a, gt, b, c, line, _, _, e, _ = ids
    texts = datasets.Dataset.from_dict({"text": ["a>bc\nd>e\n", "a\nb>c"]})
    blocks = cut_blocks(texts, tokenizer, 20, join=False, answers_after=">")
    # <s> begins a text, </s> ends it
    assert blocks["input_ids"][:] == [[2, *ids, 3], [2, a, line, b, gt, c, 3]]
    assert blocks["labels"][:] == [
        [2, -100, -100, b, c, line, -100, -100, e, line, 3],
        [2, -100, -100, -100, -100, c, 3],
    ]
    with pytest.raises(ValueError, match="none of which can be predicted"):
        cut_blocks(texts.select([1]), train_tokenizer("character", ["ab"], causal=True), 3, answers_after="!")


def test_without_a_first_token_blocks_overlap_by_one():
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(["?", "end", *"abcde"])}, **UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **END)
    assert blocks_of(["a b c d e"], tokenizer, 3) == [[2, 3, 4], [4, 5, 6]]
    assert blocks_of(["a b", "c d"], tokenizer, 3) == [[2, 3, 1], [1, 4, 5]]
    assert blocks_of(["a b c d"], tokenizer, 3) == [[2, 3, 4], [4, 5]]
    assert blocks_of(["a b", "c d e"], tokenizer, 3, join=False) == [[2, 3, 1], [4, 5, 6], [6, 1]]
    with pytest.raises(ValueError, match="block_size=1 must be at least 2"):
        blocks_of(["a b"], tokenizer, 1)
    with pytest.raises(ValueError, match="the texts have 1 tokens, none of which can be predicted"):
        blocks_of(["a"], tokenizer, 3)
