"""`load_labelled`: texts, or pairs of texts, and their classes, from files, folders and the Hub."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, Dataset, Features, List, Value

from .formats import format_of, read_records
from .readers import HUB_NAME, SPLIT_ALIASES, from_hub, listing
from .splits import check_split, split_of


def load_labelled(
    path: str | os.PathLike,
    split: str | None = None,
    *,
    text_column: str = "text",
    pair_column: str | None = None,
    label_column: str = "label",
    label_names: Sequence[str] | None = None,
    shares: Sequence[float] = (0.9, 0.05, 0.05),
    header: bool | None = None,
    config_name: str | None = None,
    revision: str | None = None,
) -> Dataset:
    """Read texts and their classes.

    Args:
        path: one of
            - a table, `.jsonl`, `.csv`, `.tsv` or `.parquet`, the first three also as `.gz`;
            - a folder with such tables named for their split, `train.csv`, `validation.csv` (or `valid`, `val`,
              `dev`) and `test.csv`;
            - the name of a dataset on the Hub.
        split: `train`, `validation` or `test`. Of one table a hash of the text deals the rows out by `shares`, so that
            no text is in two splits. None takes all of a table.
        text_column: name of the column of texts.
        pair_column: name of the column of second texts. Default: `None`, `text_pair` if there is such a column.
        label_column: name of the column of classes, numbers or names.
        label_names: names of the classes 0, 1, ... where the column has numbers. Default: `None`, those of the dataset
            on the Hub, or the numbers themselves.
        shares: parts of a single table that are `train`, `validation` and `test`; they add up to 1.
        header: whether the first line of a TSV or CSV names the columns; it must.
        config_name: configuration of a Hub dataset.
        revision: commit, branch or tag of a Hub dataset.

    Returns:
        A dataset with the string columns `text`, `label`, and `text_pair` if there are pairs.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: a bad argument, no such column, or a row without text or class, by its line.
    """
    columns = {"text": text_column, "text_pair": pair_column, "label": label_column}
    file = Path(path)
    if file.is_file():
        rows = _of_table(file, header)
        dealt = None if split is None else check_split(split)
    elif file.is_dir():
        names = SPLIT_ALIASES.get(check_split(split), (split,))
        found = [entry for entry in sorted(file.iterdir()) if entry.name.split(".")[0] in names and format_of(entry)]
        if len(found) != 1:
            raise ValueError(f"split={split!r}: {file} has {len(found)} tables named for it; found: {listing(file)}")
        rows, dealt = _of_table(found[0], header), None
    else:
        rows, names_there = hub_rows(path, config_name, check_split(split), revision, label_column)
        label_names, dealt = label_names or names_there, None
    return _collected(os.fspath(path), rows, columns, label_names, dealt, shares)


def _of_table(file: Path, header: bool | None) -> Iterator[tuple[int, dict[str, Any] | str]]:
    kind = format_of(file)
    if kind is None:
        raise ValueError(f"{file}: the name does not tell the format; it is .jsonl, .csv, .tsv or .parquet")
    return read_records(file, kind, header)


def hub_rows(
    path: str | os.PathLike, config_name: str | None, split: str, revision: str | None, label_column: str = ""
) -> tuple[Iterator[tuple[int, dict[str, Any]]], list[str] | None]:
    """Numbered rows of a dataset on the Hub, and the names of the classes in a column, if it has them.

    Raises:
        FileNotFoundError: if there is no such dataset.
    """
    if not HUB_NAME.fullmatch(os.fspath(path)):
        raise FileNotFoundError(f"{path}: no such file or folder")
    with from_hub(path):
        rows = datasets.load_dataset(os.fspath(path), config_name, split=split, revision=revision)
    feature = rows.features.get(label_column)
    # Tags of words are lists of classes.
    feature = feature.feature if isinstance(feature, List) else feature
    return enumerate(rows, 1), feature.names if isinstance(feature, ClassLabel) else None


def _collected(
    where: str,
    rows: Iterator[tuple[int, dict[str, Any] | str]],
    columns: dict[str, str | None],
    label_names: Sequence[str] | None,
    split: str | None,
    shares: Sequence[float],
) -> Dataset:
    collected: dict[str, list[str]] = {}
    for number, record in rows:
        place = f"{where}:{number}"
        if isinstance(record, str):
            raise ValueError(f"{place}: {record}")
        if not collected:
            if columns["text_pair"] is None:
                columns = {**columns, "text_pair": "text_pair"} if "text_pair" in record else columns
            columns = {name: column for name, column in columns.items() if column is not None}
            for name, column in columns.items():
                if column not in record:
                    option = "pair_column" if name == "text_pair" else f"{name}_column"
                    raise ValueError(f"{place}: {option}={column!r} is none of {', '.join(map(str, record))}")
            collected = {name: [] for name in columns}
        values = {name: record.get(column) for name, column in columns.items()}
        for name in ("text", "text_pair"):
            if name in values and (not isinstance(values[name], str) or not values[name].strip()):
                raise ValueError(f"{place}: {columns[name]} is {values[name]!r}, no text")
        values["label"] = _class_name(values["label"], label_names, place)
        if split is None or split_of(values["text"], shares) == split:
            for name, value in values.items():
                collected[name].append(value)
    if not collected or not collected["text"]:
        raise ValueError(f"{where}: no rows" + (f" in the share of split {split!r}" if split else ""))
    return Dataset.from_dict(collected, features=Features({name: Value("string") for name in collected}))


def _class_name(label: Any, names: Sequence[str] | None, place: str) -> str:
    if label is None or label == "" or isinstance(label, (list, dict, float)):
        raise ValueError(f"{place}: the label is {label!r}, no number or name of a class")
    if names is None:
        return str(label)
    if isinstance(label, str) and label in names:
        return label
    if not str(label).isdecimal() or int(label) >= len(names):
        raise ValueError(f"{place}: the label is {label!r}, but label_names has {', '.join(names)}")
    return names[int(label)]
