"""One reader for each file format: rows with their line, good and bad alike. `readers.load_pairs` judges them."""

import contextlib
import csv
import functools
import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

Column = str | int | None

SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}

# Characters of a field of CSV, past which it is taken for one whose quote is never closed
_LONGEST_FIELD = 2**24


class Row(NamedTuple):
    """A pair as found, or what is wrong with it.

    Lines count from 1; `side` is 1 where the fault lies in the target's file.
    """

    line: int
    source: object = None
    target: object = None
    problem: str | None = None
    side: int = 0


def format_of(path: Path) -> str | None:
    """The format that a file's name tells, `.gz` aside; None if it tells none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1]) if suffixes else None


def column_names(path: Path, kind: str) -> list[str]:
    """Names of a table's columns: the first line of a TSV or CSV, the fields of the first object of a JSONL file.

    Raises:
        ValueError: the file is empty, or its beginning cannot be read.
    """
    if kind == "parquet":
        return _parquet_columns(path)
    if kind == "jsonl":
        for number, line in read_lines(path):
            if line.strip():
                try:
                    return list(json.loads(line))
                except (ValueError, TypeError, RecursionError) as error:
                    raise ValueError(f"{path}:{number}: broken JSON: {error}") from error
        raise ValueError(f"{path}: the file has no rows")
    number, names = next((_tsv if kind == "tsv" else _csv)(path), (0, [""]))
    if isinstance(names, str):
        raise ValueError(f"{path}:{number}: {names}")
    if names == [""]:
        raise ValueError(f"{path}: the file has no header line")
    return names


def choose_columns(columns: Sequence[str], source: Column, target: Column, where: str) -> tuple[int, int]:
    """Positions of source and target among a table's columns.

    In order: the columns asked for (by name, by the language of a `translation` column, or by number from 0); those
    named `source` and `target`; the only two columns there are, the first being the source.

    Raises:
        ValueError: no such column, or more than one way to choose; the columns found are listed.
    """
    found = f"columns found: {', '.join(map(repr, columns)) or 'none'}"

    def position(argument: str, column: str | int) -> int:
        if isinstance(column, int) and not isinstance(column, bool):
            if 0 <= column < len(columns):
                return column
            raise ValueError(f"{where}: {argument}={column} is outside 0..{len(columns) - 1}; {found}")
        matches = [i for i, name in enumerate(columns) if name == column]
        matches = matches or [i for i, name in enumerate(columns) if name == f"translation.{column}"]
        if len(matches) != 1:
            what = "no column has that name" if not matches else "more than one column has that name"
            raise ValueError(f"{where}: {argument}={column!r}: {what}; {found}")
        return matches[0]

    if source is None and target is None and {"source", "target"} <= set(columns):
        source, target = "source", "target"
    if source is not None and target is not None:
        chosen = position("source_column", source), position("target_column", target)
        if chosen[0] == chosen[1]:
            raise ValueError(f"{where}: source_column={source!r} and target_column={target!r} are one column; {found}")
        return chosen
    # The languages of a `translation` column are stored in no meaningful order
    ordered = len(columns) == 2 and not any(name.startswith("translation.") for name in columns)
    if len(columns) == 2 and source is not None:
        index = position("source_column", source)
        return index, 1 - index
    if len(columns) == 2 and target is not None:
        index = position("target_column", target)
        return 1 - index, index
    if ordered:
        return 0, 1
    raise ValueError(f"{where}: say which columns are meant with source_column= and target_column=; {found}")


def read_lines(path: Path, ends: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, plain or gzip, without their ends, or with `\\n` for each.

    Only `\\n` and `\\r\\n` end a line: text may hold U+2028 and its like. A byte-order mark is dropped. Bytes that are
    not UTF-8 come through as lone surrogates, for the judge of the row to find.
    """
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(path.open("rb"))
        start = handle.peek(4)[:4]
        if start.startswith(b"\x1f\x8b"):
            handle = stack.enter_context(gzip.GzipFile(fileobj=handle))
        number = 0
        try:
            for raw in handle:
                number += 1
                if number == 1:
                    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise ValueError(f"{path}:1: this is UTF-16; save the file as UTF-8")
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
                yield number, f"{line}\n" if ends and raw.endswith(b"\n") else line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}:{number + 1}: the gzip data is damaged or cut short ({error})") from error


def read_text(path: Path) -> str:
    """All of a UTF-8 file, plain or gzip, with `\\n` for the ends of its lines, without a byte-order mark.

    Raises:
        ValueError: it isn't UTF-8, by its line, or the gzip data is damaged.
    """
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: the gzip data is damaged or cut short ({error})") from error
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path}:1: this is UTF-16; save the file as UTF-8")
    try:
        return raw.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not valid UTF-8") from error


def read_column(path: Path, kind: str, header: bool | None, column: str) -> Iterator[Row]:
    """Rows of a table of which one column counts: it is their `source`.

    Raises:
        ValueError: there is no such column, or the file cannot be read.
    """
    names = column_names(path, kind) if header is not False else [column]
    if column not in names:
        raise ValueError(f"{path}: text_column={column!r} is none of {', '.join(names)}")
    if kind == "parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            values = chain.from_iterable(batch[0].to_pylist() for batch in file.iter_batches(columns=[column]))
            for number, value in enumerate(values, 1):
                yield Row(number, value)
    elif kind == "jsonl":
        for number, line in read_lines(path):
            try:
                record = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError) as error:
                yield Row(number, problem=f"broken JSON: {error}")
                continue
            if record is not None:
                yield Row(number, record.get(column) if isinstance(record, dict) else record)
    else:
        rows = (_tsv if kind == "tsv" else _csv)(path)
        if header is not False:
            next(rows, None)
        place = names.index(column)
        for number, cells in rows:
            if isinstance(cells, str):
                yield Row(number, problem=cells)
            else:
                yield Row(number, cells[place] if place < len(cells) else None)


def read_records(path: Path, kind: str, header: bool | None) -> Iterator[tuple[int, dict[str, object] | str]]:
    """Numbered rows of a table as mappings from its columns, or what is wrong with a row.

    Args:
        path: of the table.
        kind: `tsv`, `csv`, `jsonl` or `parquet`.
        header: whether the first line of a TSV or CSV names the columns. None: it does.

    Raises:
        ValueError: a table without names for its columns, or one that cannot be read.
    """
    if kind == "parquet":
        import pyarrow
        from pyarrow.parquet import ParquetFile

        number = 0
        try:
            with ParquetFile(path) as file:
                for batch in file.iter_batches():
                    for record in batch.to_pylist():
                        number += 1
                        yield number, record
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path}: not a Parquet file that can be read ({error})") from error
    elif kind == "jsonl":
        for number, line in read_lines(path):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"broken JSON: {error}"
                continue
            yield (
                number,
                record if isinstance(record, dict) else f"a JSON object is expected, not {type(record).__name__}",
            )
    else:
        if header is False:
            raise ValueError(f"{path}: header=False, but the columns of a {kind.upper()} are found by their names")
        names = column_names(path, kind)
        for number, cells in islice((_tsv if kind == "tsv" else _csv)(path), 1, None):
            if cells == [""]:
                continue
            if not isinstance(cells, str) and len(cells) != len(names):
                cells = f"{len(cells)} columns, expected {len(names)}"
            yield number, cells if isinstance(cells, str) else dict(zip(names, cells, strict=True))


def read_parallel(source_path: Path, target_path: Path) -> Iterator[Row]:
    """Two files, a line of one belonging to the same line of the other."""
    lines = zip_longest((text for _, text in read_lines(source_path)), (text for _, text in read_lines(target_path)))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None:
            yield Row(number, problem=f"no line here, but {target_path} goes on: are they parallel?")
        elif target is None:
            yield Row(number, problem=f"no line here, but {source_path} goes on: are they parallel?", side=1)
        else:
            yield Row(number, source, target)


def read_table(
    path: Path, kind: str, header: bool | None, source: Column, target: Column, delimiter: str | None = None
) -> Iterator[Row]:
    """TSV or CSV. With `header=None` the first line is a header if it names both columns, or two languages.

    Raises:
        ValueError: no telling which columns are meant, or a name asked for that the first line does not have.
    """
    found = _tsv(path) if kind == "tsv" else _csv(path, delimiter or ",")
    records = (record for record in found if record[1] != [""])
    number, first = next(records, (0, None))
    if first is None:
        raise ValueError(f"{path}: the file has no rows")
    where = f"{path}:{number}"
    if isinstance(first, str):
        raise ValueError(f"{where}: {first}{_other_delimiter(path, kind, delimiter)}")
    if len(first) == 1 and (hint := _other_delimiter(path, kind, delimiter)):
        raise ValueError(f"{where}: there is one column, {first[0][:80]!r}{hint}")
    by_name = [column for column in (source, target) if isinstance(column, str)]
    if by_name and header is False:
        raise ValueError(f"{where}: column names {by_name} need a header line, but header=False")
    asked = header is not None
    if not asked:
        header = bool(by_name) or {"source", "target"} <= set(first)
        if not header and _are_languages(first):
            header = True
            _warn_once(
                f"{where}: read as a header, since these are two languages: {first}. If they are a pair, say "
                "header=False (in a recipe: data.options.header=false)."
            )
    if header:
        indices = choose_columns(first, source, target, where)
    else:
        numbers = [str(i) for i in range(len(first))]
        indices = choose_columns(numbers, source, target, f"{where} (no header, so columns have numbers)")
        if not asked:
            _warn_once(
                f"{where}: read as data, not as a header: {first}. Say header=False to be sure of it, or header=True "
                "(in a recipe: data.options.header=false, or true)."
            )
        records = chain([(number, first)], records)
    for number, cells in records:
        if isinstance(cells, str):
            yield Row(number, problem=cells)
        elif len(cells) != len(first):
            yield Row(number, problem=f"{len(cells)} columns, expected {len(first)}")
        else:
            yield Row(number, cells[indices[0]], cells[indices[1]])


@functools.lru_cache
def _warn_once(message: str) -> None:
    # A file is read for each of its splits
    logger.warning("%s", message)


def _are_languages(cells: Sequence[str]) -> bool:
    """Whether a line holds two different codes of ISO 639-1, such as `de` and `pt-BR`, and nothing else."""
    codes = [re.fullmatch(r"([A-Za-z]{2})([-_][A-Za-z]{2})?", cell) for cell in cells]
    if len(cells) != 2 or None in codes or cells[0] == cells[1]:
        return False
    from babel import Locale

    known = Locale("en").languages
    return all(code[1].lower() in known for code in codes)


def _other_delimiter(path: Path, kind: str, delimiter: str | None) -> str:
    """What to say of a first line that is a single column: the options that read it as several, or nothing."""
    line = next((text for _, text in read_lines(path) if text), "")
    options = {"\t": "format='tsv'", ";": "delimiter=';'", "|": "delimiter='|'", ",": "format='csv'"}
    if kind == "tsv":
        options |= {mark: f"format='csv' and {options[mark]}" for mark in ";|"}
    for mark, option in options.items():
        if mark in line and mark != (delimiter or ("\t" if kind == "tsv" else ",")):
            option = "delimiter=','" if kind == "csv" and mark == "," else option
            return f"; if {mark!r} stands between the columns, say {option}"
    return ""


def read_jsonl(path: Path, source: Column, target: Column) -> Iterator[Row]:
    """One JSON object a line; a `translation` object inside it counts as columns named by language."""
    for argument, column in (("source_column", source), ("target_column", target)):
        if isinstance(column, int):
            raise ValueError(f"{path}: {argument}={column}: columns of JSON have names, not numbers")
    names = None
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            yield Row(number, problem=f"broken JSON: {error.msg} at character {error.pos + 1}")
            continue
        except (ValueError, RecursionError) as error:
            yield Row(number, problem=f"broken JSON: {error}")
            continue
        if not isinstance(record, dict):
            yield Row(number, problem=f"a JSON object is expected, not {type(record).__name__}")
            continue
        record = flatten(record)
        if names is None:
            columns = list(record)
            names = [columns[i] for i in choose_columns(columns, source, target, f"{path}:{number}")]
        missing = [name for name in names if name not in record]
        if missing:
            yield Row(number, problem=f"no {missing[0]!r} here; columns found: {', '.join(map(repr, record))}")
        else:
            yield Row(number, record[names[0]], record[names[1]])


def read_parquet(path: Path, source: Column, target: Column) -> Iterator[Row]:
    """A Parquet file; lines are rows, counted from 1."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.empty_table().flatten().column_names
            names = [columns[i] for i in choose_columns(columns, source, target, str(path))]
            number = 0
            for batch in file.iter_batches(columns=names):
                table = pyarrow.Table.from_batches([batch]).flatten()
                for pair in zip(*(table[name].to_pylist() for name in names), strict=True):
                    number += 1
                    yield Row(number, *pair)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a Parquet file that can be read ({error})") from error


def _parquet_columns(path: Path) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a Parquet file that can be read ({error})") from error


def flatten(record: dict) -> dict:
    """A row with the languages of its `translation` column, if it has one, as columns `translation.<language>`."""
    if not isinstance(record.get("translation"), dict):
        return record
    flat = {name: value for name, value in record.items() if name != "translation"}
    return flat | {f"translation.{language}": text for language, text in record["translation"].items()}


def _tsv(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    # A quote is text in TSV: the csv module could only be told not to act on it, and limits the length of a field
    for number, line in read_lines(path):
        yield number, line.split("\t")


def _csv(path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str] | str]]:
    reader = csv.reader(_with_ends(read_lines(path)), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        # The module's own limit, 131,072, is one for all who use it
        usual = csv.field_size_limit(_LONGEST_FIELD)
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            record = f"broken CSV: {error}"
            if "field limit" in record:
                record = f"a field has more than {_LONGEST_FIELD:,} characters: is a quote not closed?"
        finally:
            csv.field_size_limit(usual)
        yield number, record or [""]


def _with_ends(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    # The csv module keeps a line end inside quotes, if it is given one
    for _, line in lines:
        yield line + "\n"
