"""`load_texts`: documents for language models, from files, folders and the Hub."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
from datasets import Dataset, Features, IterableDataset, Value

from .formats import format_of, read_column, read_lines, read_text
from .readers import HUB_NAME, SPLIT_ALIASES, from_hub, listing
from .splits import SPLITS, check_split

TEXT_FEATURES = Features({"text": Value("string")})
PART_FEATURES = Features({"text": Value("string"), "part": Value("int64")})
# Characters after which a part of a streamed text file ends with its line.
_PART = 10_000


def load_texts(
    path: str | os.PathLike,
    split: str | None = None,
    *,
    shares: Sequence[float] = (0.9, 0.05, 0.05),
    text_column: str = "text",
    header: bool | None = None,
    config_name: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> Dataset | IterableDataset:
    """Read documents.

    Args:
        path: one of
            - a text file, plain or `.gz`, of any name that is no table's: one document;
            - a table, `.jsonl`, `.csv`, `.tsv` or `.parquet`, with a column of documents;
            - a folder with such files named for their split, `train.txt`, `validation.txt` (or `valid`, `val`, `dev`)
              and `test.txt`;
            - the name of a dataset on the Hub.
        split: `train`, `validation` or `test`. Of one text file they are consecutive parts of it, of one table
            consecutive rows, with the `shares` given. None takes all of a file.
        shares: parts of a single file that are `train`, `validation` and `test`; they add up to 1.
        text_column: name of the column in a table or dataset.
        header: whether the first line of a TSV or CSV names the columns.
        config_name: configuration of a Hub dataset.
        revision: commit, branch or tag of a Hub dataset.
        streaming: read while iterating; the result is an `IterableDataset`. A single file, whose length isn't known
            then, is taken whole, with `split=None`.

    Returns:
        A dataset with the string column `text`, as it is in the file, line ends included. Streamed, the document in a
        text file comes in parts of some thousand characters, numbered from 0 in the column `part`.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: a bad argument, a file that isn't UTF-8 or holds no text, or a row without one, by its line.
    """
    shares = tuple(shares)
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares={list(shares)} must be three numbers of at least 0 that add up to 1")
    file = Path(path)
    if file.is_file():
        if streaming and split is not None:
            raise ValueError(
                f"split={split!r}: where the shares of one file {file} end isn't known while it is streamed: name a "
                "file for each split, or say split=None"
            )
        if streaming:
            return _stream_file(file, text_column, header)
        return _from_file(file, split and check_split(split), shares, text_column, header)
    if file.is_dir():
        names = SPLIT_ALIASES.get(check_split(split), (split,))
        found = [entry for entry in sorted(file.iterdir()) if entry.is_file() and entry.name.split(".")[0] in names]
        if len(found) != 1:
            raise ValueError(f"split={split!r}: {file} has {len(found)} files named for it; found: {listing(file)}")
        if streaming:
            return _stream_file(found[0], text_column, header)
        return _from_file(found[0], None, shares, text_column, header)
    if not HUB_NAME.fullmatch(os.fspath(path)):
        raise FileNotFoundError(f"{path}: no such file or folder")
    with from_hub(path):
        rows = datasets.load_dataset(
            os.fspath(path), config_name, split=check_split(split), revision=revision, streaming=streaming
        )
    return _text_of(rows, os.fspath(path), text_column)


def _text_of(rows: Dataset | IterableDataset, where: str, text_column: str) -> Dataset | IterableDataset:
    names = rows.column_names or list(next(iter(rows), {}))
    if text_column not in names:
        raise ValueError(f"{where}: text_column={text_column!r} is none of {', '.join(names)}")
    return rows.select_columns([text_column]).rename_column(text_column, "text").cast(TEXT_FEATURES)


def _from_file(
    file: Path, split: str | None, shares: tuple[float, ...], text_column: str, header: bool | None
) -> Dataset:
    kind = format_of(file)
    if kind is None:
        text = read_text(file)
        first, last = _part(len(text), split, shares)
        documents = [text[first:last]]
    else:
        documents = list(_read_table(file, kind, text_column, header))
        first, last = _part(len(documents), split, shares)
        documents = documents[first:last]
    if not any(documents):
        raise ValueError(f"{file}: no text" + (f" in the share of split {split!r}" if split else ""))
    return Dataset.from_dict({"text": documents}, features=TEXT_FEATURES)


def _stream_file(file: Path, text_column: str, header: bool | None) -> IterableDataset:
    kind = format_of(file)
    if kind is None:
        return IterableDataset.from_generator(_parts, features=PART_FEATURES, gen_kwargs={"file": file})
    arguments = {"file": file, "kind": kind, "column": text_column, "header": header}
    return IterableDataset.from_generator(_documents, features=TEXT_FEATURES, gen_kwargs=arguments)


def _documents(**arguments) -> Iterator[dict[str, str]]:
    for text in _read_table(**arguments):
        yield {"text": text}


def _parts(file: Path) -> Iterator[dict[str, str | int]]:
    """The text of a file, whole lines together until they are long enough."""
    lines, length, part = [], 0, 0
    for number, line in read_lines(file, ends=True):
        _check_text(line, f"{file}:{number}")
        lines.append(line)
        length += len(line)
        if length >= _PART:
            yield {"text": "".join(lines), "part": part}
            lines, length, part = [], 0, part + 1
    if lines:
        yield {"text": "".join(lines), "part": part}


def join_parts(rows: Dataset) -> Dataset:
    """Documents whole again, of rows of `load_texts`: parts that follow each other are one.

    Args:
        rows: with the column `text`, and `part` if they were streamed from a text file.

    Returns:
        A dataset with the string column `text`.
    """
    if "part" not in rows.column_names:
        return rows
    documents: list[list[str]] = []
    before = None
    for text, part in zip(rows["text"], rows["part"], strict=True):
        if part == 0 or before is None or part != before + 1:
            documents.append([])
        documents[-1].append(text)
        before = part
    return Dataset.from_dict({"text": ["".join(parts) for parts in documents]}, features=TEXT_FEATURES)


def _part(length: int, split: str | None, shares: tuple[float, ...]) -> tuple[int, int]:
    """Where a split begins and ends in something of a length."""
    if split is None:
        return 0, length
    place = SPLITS.index(split)
    bounds = [0, *(int(length * sum(shares[:count])) for count in (1, 2)), length]
    return bounds[place], bounds[place + 1]


def _read_table(file: Path, kind: str, column: str, header: bool | None) -> Iterator[str]:
    for row in read_column(file, kind, header, column):
        if row.problem is not None or not isinstance(row.source, str):
            raise ValueError(f"{file}:{row.line}: {row.problem or f'{column} is {row.source!r}, no text'}")
        _check_text(row.source, f"{file}:{row.line}")
        yield row.source


def _check_text(text: str, where: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"{where}: not valid UTF-8")
