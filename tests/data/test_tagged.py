"""Words and tags from every kind of file, and what is wrong with a row by its line."""

import gzip
import json
import re

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_attnzoo.data import first_tokens, load_tagged

ROWS = [
    {"tokens": ["Marie", "Curie", "sat"], "tags": ["B-PER", "I-PER", "O"]},
    {"tokens": ["In", "Paris"], "tags": ["O", "B-LOC"]},
]


def test_every_kind_of_file_gives_the_same(tmp_path):
    four = "-DOCSTART- -X- O O\n\nMarie NNP I-NP B-PER\nCurie NNP I-NP I-PER\nsat VBD O O\n\n"
    contents = {
        "a.conll": f"{four}In IN O O\r\nParis NNP O B-LOC",
        "a.txt": "\n\nMarie B-PER\nCurie I-PER\nsat O\n\n\nIn O\nParis B-LOC\n\n",
        "a.tsv": "Marie\tB-PER\nCurie\tI-PER\nsat\tO\n\nIn\tO\nParis\tB-LOC\n",
        "a.jsonl": "\n".join(map(json.dumps, ROWS)),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    Dataset.from_list(ROWS).to_parquet(tmp_path / "a.parquet")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 9
    for file in files:
        assert load_tagged(file).to_list() == ROWS, file.name


def test_a_word_of_a_tsv_may_have_a_space_in_it(tmp_path):
    (tmp_path / "a.tsv").write_text("New York\tB-LOC\nis\tO\n")
    assert load_tagged(tmp_path / "a.tsv")[0] == {"tokens": ["New York", "is"], "tags": ["B-LOC", "O"]}


def test_folders_have_splits_and_one_file_is_dealt_out(tmp_path):
    (tmp_path / "train.conll").write_text("a O\n")
    (tmp_path / "dev.jsonl").write_text(json.dumps({"words": ["b"], "pos": [1]}))
    (tmp_path / "notes.md").write_text("no data")
    options = {"tokens_column": "words", "tags_column": "pos", "tag_names": ["NOUN", "VERB"]}
    assert load_tagged(tmp_path, "validation", **options).to_list() == [{"tokens": ["b"], "tags": ["VERB"]}]
    assert load_tagged(tmp_path, "train")["tokens"][:] == [["a"]]
    (tmp_path / "all.bio").write_text("".join(f"w{number % 50} O\n\n" for number in range(100)))
    shares = [0.5, 0.3, 0.2]
    splits = [load_tagged(tmp_path / "all.bio", split, shares=shares) for split in ("train", "validation", "test")]
    words = [{tokens[0] for tokens in rows["tokens"]} for rows in splits]
    assert sum(map(len, splits)) == 100
    assert len(set.union(*words)) == sum(map(len, words)) == 50


def test_the_hub_has_names_for_its_tags(monkeypatch):
    features = Features({"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=["O", "B-PER"]))})
    stored = Dataset.from_dict({"tokens": [["Marie", "sat"]], "ner_tags": [[1, 0]]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stored)
    rows = load_tagged("somebody/names", "train", tags_column="ner_tags")
    assert rows.to_list() == [{"tokens": ["Marie", "sat"], "tags": ["B-PER", "O"]}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "a O\nb\n", "a.conll:2: 1 columns, expected 2 as before"),
        ("a.conll", "a\n", "a.conll:1: 1 columns, expected a word and its tag"),
        ("a.tsv", "a\tO\n\tO\n", "a.tsv:2: the word is '' and its tag 'O'; both must be text"),
        ("a.conll", b"a O\n\xff O\n", "a.conll:2: the word is '\\udcff' and its tag 'O'; both must be text"),
        ("a.conll", "\n\n", "a.conll: no rows"),
        ("a.jsonl", '\n{"tokens": ["a"], "tags": ["O", "O"]}\n', "a.jsonl:2: there are 1 tokens and 2 tags"),
        ("a.jsonl", '{"tokens": "a", "tags": ["O"]}', "a.jsonl:1: the tokens are 'a', no list of them"),
        ("a.jsonl", '{"tokens": [" "], "tags": ["O"]}', "a.jsonl:1: the token ' ' is no text"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [null]}', "a.jsonl:1: the tag None is no number or name"),
        ("a.jsonl", '{"tokens": ["a"]}', "a.jsonl:1: tags_column='tags' is none of tokens"),
        ("a.jsonl", "{", "a.jsonl:1: broken JSON"),
        ("a.csv", "tokens,tags\n", "a.csv: the name does not tell the format"),
    ],
)
def test_what_is_wrong_is_told_by_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=re.escape(message)):
        load_tagged(tmp_path / name)


def test_nothing_by_that_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load_tagged(tmp_path / "nowhere", "train")


def test_the_first_token_of_every_word():
    # a bc d: `a`, a space, `b`, `c`, nothing, and `d` with the space before it
    spans = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 4), (4, 6), (0, 0)]
    assert first_tokens(["a", "bc", "d"], spans) == [1, 3, 6]
    # One token for two words is the first one's, and what was cut off has none.
    assert first_tokens(["a", "b", "c"], [(0, 3)]) == [0, None, None]
    assert first_tokens(["a", "b"], [(0, 1), (0, 1), (2, 3)]) == [0, 2]
