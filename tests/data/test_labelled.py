"""Texts with classes, from every kind of table, and what is wrong with a row by its line."""

import gzip
import re

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from hf_attnzoo.data import load_labelled

ROWS = [{"text": "good", "label": "1"}, {"text": 'so, "so"', "label": "0"}]


def test_every_kind_of_table_gives_the_same(tmp_path):
    contents = {
        "a.jsonl": '{"text": "good", "label": 1}\n\n{"label": "0", "text": "so, \\"so\\""}\n',
        "a.csv": 'label,text\n1,good\n0,"so, ""so"""\n',
        "a.tsv": 'text\tlabel\ngood\t1\nso, "so"\t0\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    Dataset.from_list([{"text": row["text"], "label": int(row["label"])} for row in ROWS]).to_parquet(
        tmp_path / "a.parquet"
    )
    for file in sorted(tmp_path.iterdir()):
        assert load_labelled(file).to_list() == ROWS, file.name


def test_columns_and_classes_by_other_names(tmp_path):
    (tmp_path / "train.csv").write_text("premise,hypothesis,gold\nit rains,it is wet,0\nit rains,it is dry,2\n")
    rows = load_labelled(
        tmp_path,
        "train",
        text_column="premise",
        pair_column="hypothesis",
        label_column="gold",
        label_names=["yes", "maybe", "no"],
    )
    assert rows[1] == {"text": "it rains", "text_pair": "it is dry", "label": "no"}
    (tmp_path / "dev.csv").write_text("text,text_pair,label\na,b,x\n")
    assert load_labelled(tmp_path, "validation").to_list() == [{"text": "a", "text_pair": "b", "label": "x"}]


def test_one_table_is_dealt_out_by_its_texts(tmp_path):
    (tmp_path / "all.tsv").write_text("text\tlabel\n" + "".join(f"text {i % 50}\t{i}\n" for i in range(100)))
    splits = {split: load_labelled(tmp_path / "all.tsv", split, shares=[0.5, 0.3, 0.2]) for split in
              ("train", "validation", "test")}  # fmt: skip
    assert sum(map(len, splits.values())) == 100
    texts = [set(rows["text"]) for rows in splits.values()]
    assert len(set.union(*texts)) == sum(map(len, texts)) == 50
    # 25 of 50, give or take three standard deviations
    assert 14 < len(texts[0]) < 36


def test_the_hub_has_names_for_its_classes(monkeypatch):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    stored = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stored)
    assert load_labelled("someone/reviews", "test")["label"] == ["pos", "neg"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("text,label\na,1\n,0\n", {}, ":3: text is '', no text"),
        ("text,label\na,\n", {}, ":2: the label is '', no number or name"),
        ("text,label\na,1,2\n", {}, ":2: 3 columns, expected 2"),
        ("text,label\na,3\n", {"label_names": ["x", "y"]}, ":2: the label is '3', but label_names has x, y"),
        ("text,class\na,3\n", {}, ":2: label_column='label' is none of text, class"),
        ("text,label\na,3\n", {"pair_column": "b"}, "pair_column='b' is none of text, label"),
        ("text,label\n", {}, "no rows"),
        ("text,label\na,1\n", {"header": False}, "header=False, but the columns of a CSV are found by their names"),
        ("text,label\na,1\n", {"split": "train", "shares": [1, 1, 1]}, "must be three numbers"),
        ("text,label\na,1\n", {"split": "dev"}, "split='dev' is not one of"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, content, options, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_labelled(tmp_path / "a.csv", **options)


def test_a_place_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load_labelled(tmp_path / "nothing.csv", "train")
    (tmp_path / "notes").write_text("text\n")
    with pytest.raises(ValueError, match="the name does not tell the format"):
        load_labelled(tmp_path / "notes")
