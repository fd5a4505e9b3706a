"""`load_texts`: documents for language models, from files, folders and the Hub; and the blocks they are cut into."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import datasets
import numpy as np
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerBase

from .formats import format_of, read_column, read_lines, read_text
from .readers import HUB_NAME, SPLIT_ALIASES, from_hub, listing
from .splits import SPLITS, check_split

TEXT_FEATURES = Features({"text": Value("string")})
PART_FEATURES = Features({"text": Value("string"), "part": Value("int64")})

# Label of a token that is not predicted, as torch's cross-entropy has it
_IGNORED = -100

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


def cut_blocks(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    join: bool = True,
    answers_after: str | None = None,
) -> Dataset:
    """Token ids of documents, one after the other with an end between them, in blocks of one length.

    Every token is predicted once. Where the tokenizer begins a text with special tokens, so does every block, and a
    prompt looks like what the model has learnt from. Where it doesn't, the first token of a block is the last of the
    one before, and the very first of all is not predicted. What is left over at the end makes a shorter block.

    Args:
        dataset: with the string column `text`.
        tokenizer: for a causal language model.
        block_size: tokens of a block.
        join: whether documents follow each other in a block. Otherwise each begins one, and its last is shorter, with
            the end that follows the document.
        answers_after: what stands in front of the answer in a line, such as `">"`. Only answers, with what ends their
            lines, and the ends of documents are predicted then: in a prompt, the questions can't be foreseen. It takes
            a fast tokenizer. Default: `None`, all tokens are.

    Returns:
        A dataset of `input_ids` and `labels`, up to `block_size` each: the same, but -100 where nothing is predicted.

    Raises:
        ValueError: `block_size` leaves no room for a token to predict, or there is none in the texts.
    """
    start = tokenizer("")["input_ids"]
    overlap = 0 if start else 1
    step = block_size - len(start) - overlap
    if step < 1:
        raise ValueError(f"block_size={block_size} must be at least {len(start) + overlap + 1}")
    end = tokenizer.eos_token_id
    # Pairs of a token and its label
    documents: list[list[tuple[int, int]]] = []
    for text in dataset["text"]:
        document = _labelled_tokens(text, tokenizer, answers_after)
        if end is None:
            documents.append(document)
        elif join:
            documents += [[(end, end)], document] if documents else [document]
        else:
            documents.append([*document, (end, end)])
    streams = [list(chain.from_iterable(documents))] if join else documents
    first_tokens = [(index, index) for index in start]
    blocks = [
        first_tokens + stream[first : first + step + overlap]
        for stream in streams
        for first in range(0, len(stream) - overlap, step)
    ]
    if not any(label != _IGNORED for block in blocks for _, label in block[1:]):
        raise ValueError(f"the texts have {sum(map(len, streams))} tokens, none of which can be predicted")
    features = Features({"input_ids": List(Value("int64")), "labels": List(Value("int64"))})
    columns = {"input_ids": [[index for index, _ in block] for block in blocks]}
    columns["labels"] = [[label for _, label in block] for block in blocks]
    return Dataset.from_dict(columns, features=features)


def _labelled_tokens(
    text: str, tokenizer: PreTrainedTokenizerBase, answers_after: str | None
) -> list[tuple[int, int]]:
    if answers_after is None:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return list(zip(ids, ids, strict=True))
    encoded = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
    answer = np.zeros(len(text) + 1, dtype=bool)
    for found in re.finditer(f"(?<={re.escape(answers_after)}).*\n?", text):
        answer[found.start() : found.end()] = True
    return [
        (index, index if answer[begin] else _IGNORED)
        for index, (begin, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]
