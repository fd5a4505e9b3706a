"""Questions in SQuAD's format and in tables, dealt out by article, and checked."""

import gzip
import json
import re

import pytest
from datasets import Dataset

from hf_attnzoo.data import load_questions

CONTEXT = "Ann lives in Malmö."
QAS = [
    {"id": "1", "question": "Where?", "answers": [{"text": "Malmö", "answer_start": 13}] * 2},
    {"id": "2", "question": "Why?", "is_impossible": True, "answers": []},
]
ROWS = [
    {"id": "1", "question": "Where?", "context": CONTEXT, "answers": ["Malmö"] * 2, "starts": [13, 13]},
    {"id": "2", "question": "Why?", "context": CONTEXT, "answers": [], "starts": []},
]


def squad(*paragraphs, title=None):
    return {"title": title, "paragraphs": list(paragraphs)}


def write(file, content):
    file.write_text(json.dumps(content, ensure_ascii=False))
    return file


def test_every_form_gives_the_same(tmp_path):
    content = {"data": [squad({"context": CONTEXT, "qas": QAS})]}
    write(tmp_path / "a.json", content)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    flat = [
        {name: row[name] for name in ("id", "question", "context")}
        | {"answers": {"text": row["answers"], "answer_start": row["starts"]}}
        for row in ROWS
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, flat)))
    Dataset.from_list(flat).to_parquet(tmp_path / "a.parquet")
    for file in sorted(tmp_path.iterdir()):
        assert load_questions(file).to_list() == ROWS, file.name
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "dev.json", content)
    assert load_questions(tmp_path / "folder", "validation").to_list() == ROWS


def test_an_article_is_in_one_split(tmp_path):
    data = [
        squad(
            *({"context": f"Text {number} of {part}.", "qas": QAS[1:]} for part in range(3)), title=f"Title {number}"
        )
        for number in range(60)
    ]
    file = write(tmp_path / "a.json", {"data": data})
    splits = [load_questions(file, split, shares=[0.5, 0.25, 0.25]) for split in ("train", "validation", "test")]
    assert sum(map(len, splits)) == 180
    articles = [{context.split()[1] for context in rows["context"]} for rows in splits]
    assert len(set.union(*articles)) == sum(map(len, articles)) == 60
    assert min(map(len, articles)) > 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": "Lund"}, "article 1: the answer 'Lund' doesn't stand at character 13, but 'Malm'"),
        ({"answer_start": -6}, "doesn't stand at character -6"),
        ({"text": ""}, "the answer '' doesn't stand at"),
    ],
)
def test_an_answer_stands_where_it_is_said_to(tmp_path, change, message):
    question = {"id": "1", "question": "Where?", "answers": [{"text": "Malmö", "answer_start": 13} | change]}
    file = write(tmp_path / "a.json", {"data": [squad({"context": CONTEXT, "qas": [question]})]})
    with pytest.raises(ValueError, match=re.escape(message)):
        load_questions(file)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.json", "[]", "not in the format of SQuAD"),
        ("a.json", '{"data": [{"paragraphs": [{"qas": []}]}]}', "not in the format of SQuAD: KeyError('context')"),
        ("a.json", '{"data": []}', "no questions"),
        ("a.jsonl", '{"question": "q", "context": "c"}', "a.jsonl:1: answers is None, not a mapping"),
        ("a.jsonl", '{"question": " ", "context": "c"}', "a.jsonl:1: question is ' ', no text"),
        ("a.csv", "question,context\n", "the name does not tell the format; it is .json, .jsonl or .parquet"),
        ("a.txt", "{}", "the name does not tell the format"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_questions(tmp_path / name)
