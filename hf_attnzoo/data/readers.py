"""`load_pairs`: pairs of texts from wherever a person keeps them, as a `datasets.Dataset` of `source` and `target`."""

import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import datasets
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetsError

from .formats import (
    SUFFIXES,
    Column,
    Row,
    choose_columns,
    flatten,
    format_of,
    read_jsonl,
    read_parallel,
    read_parquet,
    read_table,
)
from .splits import check_split, split_of

logger = logging.getLogger(__name__)

PAIR_FEATURES = Features({"source": Value("string"), "target": Value("string")})

FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))

# Other names under which a split is commonly stored
SPLIT_ALIASES = {
    "validation": ("validation", "valid", "val", "dev"),
    "train": ("train", "training"),
    "test": ("test",),
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WARNINGS = 5


class Layout(NamedTuple):
    """How a TSV or CSV is laid out: `header` and `delimiter` of `load_pairs`."""

    header: bool | None
    delimiter: str | None

    def check(self, kind: str, where: str | os.PathLike) -> None:
        """Refuse a delimiter where it means nothing."""
        if self.delimiter is not None and kind != "csv":
            raise ValueError(f"delimiter={self.delimiter!r} is for CSV, and {where} is read as {kind}: leave it out")


def load_pairs(
    path: str | os.PathLike,
    target_path: str | os.PathLike | None = None,
    *,
    split: str | None = None,
    source_column: Column = None,
    target_column: Column = None,
    format: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    config_name: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
    on_error: str = "raise",
) -> Dataset | IterableDataset:
    """Read pairs of texts. Texts are kept as they are: nothing is stripped, folded or tokenised.

    Files are UTF-8, plain or gzip (told by content); only `\\n` and `\\r\\n` end a line. Wholly empty lines of a TSV,
    CSV or JSONL file are passed over. A TSV has no quoting; a CSV has.

    Args:
        path: one of, in this order
            - the file of the sources, if `target_path` is given: parallel text files;
            - a folder: one written by `save_to_disk`; or one with `train.tsv`, `validation.jsonl.gz`; or one with
              parallel files `train.en`, `train.de`, whose endings `source_column` and `target_column` name; or any
              other that `datasets.load_dataset` understands;
            - a file: TSV, CSV, JSONL or Parquet;
            - the name of a dataset on the Hub.
        target_path: the file of the targets, line by line.
        split: which split of a folder or a Hub dataset (a folder may call validation `valid`, `val` or `dev`). A
            single file has no splits: None takes all of it, while `train`, `validation`, `test` take the 90, 5 and
            5 % of rows that a hash of the source deals them, so that no source is in two splits.
        source_column: name of the column, language in a `translation` column, ending of a parallel file in a folder,
            or number (from 0) of a TSV's or CSV's column. Default: `source`, or the first of just two columns.
        target_column: likewise. Default: `target`, or the second of just two columns.
        format: `tsv`, `csv`, `jsonl` or `parquet`, where the file's name does not tell.
        header: whether a TSV or CSV begins with the names of its columns. None: it does if a column is asked for by
            name, or if the first line holds `source` and `target`, or two languages by their codes, such as `de` and
            `en`; otherwise it does not. A warning tells what was taken for which.
        delimiter: the character between the columns of a CSV. None: a comma.
        config_name: configuration of a Hub dataset.
        revision: commit, branch or tag of a Hub dataset.
        streaming: read while iterating; the result is an `IterableDataset`.
        on_error: what to do about a bad row (wrong number of columns, empty side, invalid UTF-8, a NUL character,
            broken JSON, a line without partner): `raise`, or `skip` it with a warning and a count.

    Returns:
        A dataset with string columns `source` and `target`.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: a bad argument, or a bad row as `FILE:LINE: what is wrong`.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error={on_error!r} must be 'raise' or 'skip'")
    if format is not None and format not in FORMATS:
        raise ValueError(f"format={format!r} is not one of {', '.join(FORMATS)}")
    path = os.fspath(path)
    here = Path(path).expanduser()
    columns = (source_column, target_column)
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(f"delimiter={delimiter!r} must be one character, and no quote or end of a line")
    layout = Layout(header, delimiter)

    if target_path is not None:
        return _from_files((here, Path(target_path).expanduser()), split, columns, "text", layout, streaming, on_error)
    if here.is_dir():
        return _from_folder(here, split, columns, layout, streaming, on_error)
    if here.is_file():
        kind = format or format_of(here)
        if kind is None:
            raise ValueError(
                f"{path}: the name does not tell the format; give format= ({', '.join(FORMATS)}), or target_path="
                " for parallel text files"
            )
        return _from_files((here, here), split, columns, kind, layout, streaming, on_error)
    if format_of(here) is not None or not HUB_NAME.fullmatch(path):
        raise FileNotFoundError(f"{path}: no such file or folder")
    if split is None:
        raise ValueError(f"split=None: say which split of the Hub dataset {path!r} is meant")
    layout.check("dataset", path)
    with from_hub(path):
        dataset = datasets.load_dataset(path, config_name, split=split, revision=revision, streaming=streaming)
    return _from_dataset(dataset, path, None, columns, streaming, on_error)


def _from_files(
    paths: tuple[Path, Path],
    split: str | None,
    columns: tuple[Column, Column],
    kind: str,
    layout: Layout,
    streaming: bool,
    on_error: str,
) -> Dataset | IterableDataset:
    """One file (named twice), or a parallel pair with `kind="text"`."""
    if split is not None:
        check_split(split)
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
    layout.check(kind, paths[0])
    return _dataset(
        _file_pairs, streaming, paths=paths, split=split, columns=columns, kind=kind, layout=layout, on_error=on_error
    )


def _file_pairs(
    paths: tuple[Path, Path],
    split: str | None,
    columns: tuple[Column, Column],
    kind: str,
    layout: Layout,
    on_error: str,
) -> Iterator[dict[str, str]]:
    if kind == "text":
        rows = read_parallel(*paths)
    elif kind == "jsonl":
        rows = read_jsonl(paths[0], *columns)
    elif kind == "parquet":
        rows = read_parquet(paths[0], *columns)
    else:
        rows = read_table(paths[0], kind, layout.header, *columns, layout.delimiter)
    for row in _good(rows, (str(paths[0]), str(paths[1])), on_error):
        if split is None or split_of(row.source) == split:
            yield {"source": row.source, "target": row.target}


def _from_folder(
    folder: Path,
    split: str | None,
    columns: tuple[Column, Column],
    layout: Layout,
    streaming: bool,
    on_error: str,
) -> Dataset | IterableDataset:
    if (folder / "state.json").is_file():
        layout.check("dataset", folder)
        stored = datasets.load_from_disk(str(folder))
        return _from_dataset(stored, str(folder), split and check_split(split), columns, streaming, on_error)
    if split is None:
        raise ValueError(f"split=None: say which split of {folder} is meant; found: {listing(folder)}")
    names = SPLIT_ALIASES.get(split, (split,))
    if (folder / "dataset_dict.json").is_file():
        layout.check("dataset", folder)
        stored = datasets.load_from_disk(str(folder))
        found = [name for name in stored if name in names]
        if len(found) != 1:
            raise ValueError(f"split={split!r}: {folder} has {len(found)} such splits; found: {', '.join(stored)}")
        return _from_dataset(stored[found[0]], f"{folder}/{found[0]}", None, columns, streaming, on_error)

    endings = {}
    for file in sorted(folder.iterdir()):
        stem, _, ending = file.name.removesuffix(".gz").rpartition(".")
        if stem in names and file.is_file():
            if (stem, ending) in endings:
                raise ValueError(f"{folder} has both {endings[stem, ending].name} and {file.name}: remove one")
            endings[stem, ending] = file
    choices = []
    for stem in names:
        pair = tuple(endings.get((stem, column)) for column in columns)
        if None not in pair:
            choices.append((pair, "text"))
        else:
            tables = [file for (name, _), file in endings.items() if name == stem and format_of(file)]
            choices += [((file, file), format_of(file)) for file in tables]
    if len(choices) == 1:
        # These files are the split, whole: nothing is dealt out
        return _from_files(choices[0][0], None, columns, choices[0][1], layout, streaming, on_error)
    if choices or endings:
        raise ValueError(
            f"split={split!r}: which of {', '.join(file.name for file in endings.values())} in {folder} are meant?"
            " One table is needed, or two parallel files whose endings source_column= and target_column= name."
        )
    layout.check("dataset", folder)
    try:
        dataset = datasets.load_dataset(str(folder), split=split, streaming=streaming)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder}: nothing here for split {split!r}; found: {listing(folder)}") from error
    except DatasetsError as error:
        raise ValueError(f"{folder}: nothing that can be read as data ({error}); found: {listing(folder)}") from error
    return _from_dataset(dataset, str(folder), None, columns, streaming, on_error)


@contextmanager
def from_hub(path: str | os.PathLike) -> Iterator[None]:
    """Errors of loading a dataset of the Hub, each in a line that names it.

    Args:
        path: name of the dataset.

    Raises:
        FileNotFoundError: there is none that could be had.
        ValueError: it can't be read.
    """
    try:
        yield
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(
            f"{os.fspath(path)}: no such file or folder here, and no such dataset could be had from the Hub ({error})"
        ) from error
    except (RuntimeError, DatasetsError) as error:
        # Such as a dataset that is a program, which nobody runs any more
        told = f"{error}; revision='refs/convert/parquet' may have it, or a part of it"
        raise ValueError(f"{os.fspath(path)}: {told}") from error


def listing(folder: Path) -> str:
    """Names in a folder, the first twenty of them, for a message."""
    names = sorted(file.name for file in folder.iterdir())
    return ", ".join(names[:20] + ["..."] * (len(names) > 20)) or "nothing"


def _from_dataset(
    dataset: Dataset | IterableDataset,
    where: str,
    split: str | None,
    columns: tuple[Column, Column],
    streaming: bool,
    on_error: str,
) -> Dataset | IterableDataset:
    dataset = dataset.with_format(None)
    first = next(iter(dataset), None)
    if first is None:
        raise ValueError(f"{where}: there are no rows")
    found = list(flatten(first))
    names = [found[i] for i in choose_columns(found, *columns, where)]
    stored = list(dict.fromkeys(name if name in first else "translation" for name in names))
    dataset = dataset.select_columns(stored)
    pairs = {"dataset": dataset, "names": tuple(names), "where": where, "split": split, "on_error": on_error}
    if streaming:
        return _streamed_pairs(**pairs)
    kept = [row.line - 1 for row in _stored_rows(**pairs)]
    if not kept:
        raise ValueError(_nothing_left(where, split))
    if len(kept) < len(dataset):
        dataset = dataset.select(kept)
    if "translation" in stored:
        dataset = dataset.flatten()
    dataset = dataset.select_columns(names).rename_columns(dict(zip(names, PAIR_FEATURES, strict=True)))
    return dataset if dataset.features == PAIR_FEATURES else dataset.cast(PAIR_FEATURES)


def _streamed_pairs(
    dataset: Dataset | IterableDataset, names: tuple[str, str], where: str, split: str | None, on_error: str
) -> IterableDataset:
    """The same as a stream, which keeps the dataset's shards, and a place in one of them to go on from."""
    if isinstance(dataset, Dataset):
        dataset = dataset.to_iterable_dataset()
    warnings = itertools.count(1)

    def pair(record: dict, number: int) -> dict[str, str | None]:
        flat = flatten(record)
        row = Row(number + 1, *(flat.get(name) for name in names))
        _, problem = _problem(row)
        if problem is not None:
            message = f"{where}:{row.line}: {problem}"
            if on_error == "raise":
                raise ValueError(message)
            if next(warnings) <= _WARNINGS:
                logger.warning("%s (skipped)", message)
            return {"source": None, "target": None}
        return {"source": row.source, "target": row.target}

    def wanted(row: dict) -> bool:
        return row["source"] is not None and (split is None or split_of(row["source"]) == split)

    stored = dataset.column_names
    pairs = dataset.map(pair, with_indices=True, remove_columns=[name for name in stored if name not in PAIR_FEATURES])
    return pairs.filter(wanted).cast(PAIR_FEATURES)


def _stored_rows(
    dataset: Dataset | IterableDataset, names: tuple[str, str], where: str, split: str | None, on_error: str
) -> Iterator[Row]:
    """The good rows of a dataset that belong to `split`; lines are rows, counted from 1."""

    def rows() -> Iterator[Row]:
        line = 0
        for batch in dataset.iter(batch_size=1000):
            texts = []
            for name in names:
                if name in batch:
                    texts.append(batch[name])
                else:
                    language = name.removeprefix("translation.")
                    texts.append([(item or {}).get(language) for item in batch["translation"]])
            for source, target in zip(*texts, strict=True):
                line += 1
                yield Row(line, source, target)

    for row in _good(rows(), (where, where), on_error):
        if split is None or split_of(row.source) == split:
            yield row


def _dataset(
    generator: Callable[..., Iterator[dict[str, str]]], streaming: bool, **arguments
) -> Dataset | IterableDataset:
    if streaming:
        return IterableDataset.from_generator(generator, features=PAIR_FEATURES, gen_kwargs=arguments)
    # Not Dataset.from_generator: its cache would not notice that a file has changed
    sources, targets = [], []
    for pair in generator(**arguments):
        sources.append(pair["source"])
        targets.append(pair["target"])
    if not sources:
        raise ValueError(_nothing_left(str(arguments["paths"][0]), arguments["split"]))
    return Dataset.from_dict({"source": sources, "target": targets}, features=PAIR_FEATURES)


def _nothing_left(where: str, split: str | None) -> str:
    if split is None:
        return f"{where}: no usable rows"
    return f"{where}: no usable rows in split {split!r}, which takes a share of this one file; give a file of its own"


def _good(rows: Iterable[Row], paths: tuple[str, str], on_error: str) -> Iterator[Row]:
    """The rows without fault; the others raise, or are skipped, reported and counted."""
    total = bad = 0
    for row in rows:
        total += 1
        side, problem = (row.side, row.problem) if row.problem else _problem(row)
        if problem is None:
            yield row
            continue
        message = f"{paths[side]}:{row.line}: {problem}"
        if on_error == "raise":
            raise ValueError(message)
        bad += 1
        if bad <= _WARNINGS:
            logger.warning("%s (skipped)", message)
    if bad:
        logger.warning("%s: skipped %d of %d rows", paths[0], bad, total)


def _problem(row: Row) -> tuple[int, str | None]:
    """Which side of a pair is at fault, and how."""
    for side, (name, text) in enumerate((("source", row.source), ("target", row.target))):
        if not isinstance(text, str):
            return side, f"the {name} is {'missing' if text is None else f'{type(text).__name__}, not text'}"
        if not text.strip():
            return side, f"the {name} is empty"
        if "\0" in text:
            return side, f"the {name} holds a NUL character"
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            # What `surrogateescape` makes of a byte above 0x7f
            if 0xDC80 <= code <= 0xDCFF:
                return (
                    side,
                    f"the {name} is not valid UTF-8: byte 0x{code - 0xDC00:02x} at character {error.start + 1}",
                )
            return side, f"the {name} holds half of a surrogate pair at character {error.start + 1}"
    return 0, None
