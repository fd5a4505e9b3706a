"""`load_questions`: questions about texts that hold the answers, as in SQuAD, from files, folders and the Hub."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value

from .formats import format_of, read_records, read_text
from .labelled import hub_rows
from .readers import SPLIT_ALIASES, listing
from .splits import check_split, split_of

QUESTION_FEATURES = Features(
    {
        "id": Value("string"),
        "question": Value("string"),
        "context": Value("string"),
        "answers": List(Value("string")),
        "starts": List(Value("int64")),
    }
)


def load_questions(
    path: str | os.PathLike,
    split: str | None = None,
    *,
    shares: Sequence[float] = (0.9, 0.05, 0.05),
    config_name: str | None = None,
    revision: str | None = None,
) -> Dataset:
    """Read questions, the texts they are about, and their answers.

    Args:
        path: one of
            - a file in SQuAD's own format, `.json`, also as `.json.gz`;
            - a table, `.jsonl` or `.parquet`, with the columns `question`, `context` and `answers`, a mapping of
              `text` and `answer_start`, and perhaps `id` and `title`, as SQuAD has them on the Hub;
            - a folder with such files named for their split, `train.json`, `validation.json` (or `valid`, `val`,
              `dev`) and `test.json`;
            - the name of a dataset on the Hub with these columns.
        split: `train`, `validation` or `test`. Of one file a hash of the article (its title, else its first text)
            deals whole articles out by `shares`, so that no text is in two splits. None takes all of a file.
        shares: parts of a single file that are `train`, `validation` and `test`; they add up to 1.
        config_name: configuration of a Hub dataset.
        revision: commit, branch or tag of a Hub dataset.

    Returns:
        A dataset of `id`, `question`, `context`, `answers`, a list of accepted texts, empty where there is no answer
        (SQuAD 2.0), and `starts`, where in the context each begins.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: a bad argument, a file of another form, or an answer that doesn't stand where it is said to be.
    """
    file, dealt = Path(path), None
    if file.is_file():
        rows = _of_file(file)
        dealt = None if split is None else check_split(split)
    elif file.is_dir():
        names = SPLIT_ALIASES.get(check_split(split), (split,))
        found = [entry for entry in sorted(file.iterdir()) if entry.is_file() and entry.name.split(".")[0] in names]
        if len(found) != 1:
            raise ValueError(f"split={split!r}: {file} has {len(found)} files named for it; found: {listing(file)}")
        rows = _of_file(found[0])
    else:
        records, _ = hub_rows(path, config_name, check_split(split), revision)
        rows = ((f"{path}:{number}", _article(record), record) for number, record in records)
    collected: dict[str, list[Any]] = {name: [] for name in QUESTION_FEATURES}
    for place, article, record in rows:
        if dealt is None or split_of(article, shares) == dealt:
            for name, value in _checked(record, place, len(collected["id"])).items():
                collected[name].append(value)
    if not collected["id"]:
        raise ValueError(f"{path}: no questions" + (f" in the share of split {split!r}" if split else ""))
    return Dataset.from_dict(collected, features=QUESTION_FEATURES)


def _of_file(file: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Where a question stands, the article it is about, and the question."""
    kind = format_of(file)
    if kind in ("jsonl", "parquet"):
        for number, record in read_records(file, kind, None):
            if isinstance(record, str):
                raise ValueError(f"{file}:{number}: {record}")
            yield f"{file}:{number}", _article(record), record
        return
    if not file.name.removesuffix(".gz").endswith(".json"):
        raise ValueError(f"{file}: the name does not tell the format; it is .json, .jsonl or .parquet")
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not valid JSON: {error}") from error
    try:
        for number, article in enumerate(content["data"], 1):
            paragraphs = article["paragraphs"]
            name = str(article.get("title") or paragraphs[0]["context"])
            for paragraph in paragraphs:
                for question in paragraph["qas"]:
                    # What SQuAD 2.0 has instead of an answer is none.
                    answers = [] if question.get("is_impossible") else question["answers"]
                    yield (
                        f"{file}: article {number}",
                        name,
                        {
                            "id": question.get("id"),
                            "question": question["question"],
                            "context": paragraph["context"],
                            "answers": {
                                "text": [answer["text"] for answer in answers],
                                "answer_start": [answer["answer_start"] for answer in answers],
                            },
                        },
                    )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{file}: not in the format of SQuAD: {error!r}") from error


def _article(record: dict[str, Any]) -> str:
    return str(record.get("title") or record.get("context"))


def _checked(record: dict[str, Any], place: str, number: int) -> dict[str, Any]:
    for name in ("question", "context"):
        value = record.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{place}: {name} is {value!r}, no text")
    answers = record.get("answers")
    if not isinstance(answers, dict) or not {"text", "answer_start"} <= answers.keys():
        raise ValueError(f"{place}: answers is {answers!r:.80}, not a mapping of text and answer_start")
    texts, starts = list(answers["text"]), list(answers["answer_start"])
    if len(texts) != len(starts):
        raise ValueError(f"{place}: answers has {len(texts)} texts and {len(starts)} places")
    for text, start in zip(texts, starts, strict=True):
        there = record["context"][start : start + len(text)] if start >= 0 else ""
        if not text.strip() or there != text:
            raise ValueError(f"{place}: the answer {text!r} doesn't stand at character {start}, but {there!r}")
    key = record.get("id")
    return {
        "id": str(number if key is None else key),
        "question": record["question"],
        "context": record["context"],
        "answers": texts,
        "starts": starts,
    }
