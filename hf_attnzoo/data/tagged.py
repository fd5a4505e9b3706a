"""`load_tagged`: words and the tag of each, such as those of names, from CoNLL files, tables, folders and the Hub."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value

from .formats import format_of, read_lines, read_records
from .labelled import hub_rows
from .readers import SPLIT_ALIASES, listing
from .splits import check_split, split_of

TAGGED_FEATURES = Features({"tokens": List(Value("string")), "tags": List(Value("string"))})

# Columns of words and tags, a word a line.
_COLUMN_SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".tsv", ".txt")

# The line between the documents of CoNLL-2003.
_DOCUMENT = "-DOCSTART-"


def load_tagged(
    path: str | os.PathLike,
    split: str | None = None,
    *,
    tokens_column: str = "tokens",
    tags_column: str = "tags",
    tag_names: Sequence[str] | None = None,
    shares: Sequence[float] = (0.9, 0.05, 0.05),
    config_name: str | None = None,
    revision: str | None = None,
) -> Dataset:
    """Read sentences that are cut into words, and the tag of every word.

    Args:
        path: one of
            - a file in the columns of CoNLL, `.conll`, `.bio`, `.iob`, `.iob2`, `.txt` or `.tsv`: a word a line, its
              tag in the last column, white space between columns (in a `.tsv` tabs alone), an empty line after a
              sentence;
            - a table, `.jsonl` or `.parquet`, with a list of words and a list of tags in each row;
            - a folder with such files named for their split, `train.conll`, `validation.conll` (or `valid`, `val`,
              `dev`) and `test.conll`;
            - the name of a dataset on the Hub, with such lists.
            All but Parquet also as `.gz`.
        split: `train`, `validation` or `test`. Of one file a hash of the sentence deals the rows out by `shares`, so
            that no sentence is in two splits. None takes all of a file.
        tokens_column: name of the column of lists of words.
        tags_column: name of the column of lists of tags, numbers or names.
        tag_names: names of the tags 0, 1, ... where the column has numbers. Default: `None`, those of the dataset on
            the Hub, or the numbers themselves.
        shares: parts of a single file that are `train`, `validation` and `test`; they add up to 1.
        config_name: configuration of a Hub dataset.
        revision: commit, branch or tag of a Hub dataset.

    Returns:
        A dataset of `tokens` and `tags`, lists of strings of one length.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: a bad argument, no such column, or a row that isn't words with a tag each, by its line.
    """
    file, dealt = Path(path), None
    if file.is_file():
        rows = _of_file(file)
        dealt = None if split is None else check_split(split)
    elif file.is_dir():
        names = SPLIT_ALIASES.get(check_split(split), (split,))
        found = [entry for entry in sorted(file.iterdir()) if entry.name.split(".")[0] in names and _kind(entry)]
        if len(found) != 1:
            raise ValueError(f"split={split!r}: {file} has {len(found)} files named for it; found: {listing(file)}")
        rows = _of_file(found[0])
    else:
        rows, names_there = hub_rows(path, config_name, check_split(split), revision, tags_column)
        tag_names = tag_names or names_there
    collected: dict[str, list[list[str]]] = {"tokens": [], "tags": []}
    for number, record in rows:
        place = f"{path}:{number}"
        if isinstance(record, str):
            raise ValueError(f"{place}: {record}")
        if "line" not in record:
            for name, column in (("tokens_column", tokens_column), ("tags_column", tags_column)):
                if column not in record:
                    raise ValueError(f"{place}: {name}={column!r} is none of {', '.join(map(str, record))}")
            record = {"tokens": record[tokens_column], "tags": record[tags_column]}
        tokens, tags = _checked(record["tokens"], record["tags"], tag_names, place)
        if dealt is None or split_of(" ".join(tokens), shares) == dealt:
            collected["tokens"].append(tokens)
            collected["tags"].append(tags)
    if not collected["tokens"]:
        raise ValueError(f"{path}: no rows" + (f" in the share of split {split!r}" if split else ""))
    return Dataset.from_dict(collected, features=TAGGED_FEATURES)


def first_tokens(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """The first token of every word of a sentence, None of a word that has none.

    Args:
        words: of the sentence, which was read with a space between each two.
        spans: for every token the first character and the one after the last; equal where there is none.
    """
    places: list[int | None] = []
    begin, token = 0, 0
    for word in words:
        end = begin + len(word)
        while token < len(spans) and (spans[token][1] <= begin or spans[token][0] == spans[token][1]):
            token += 1
        found = token < len(spans) and spans[token][0] < end
        places.append(token if found else None)
        # One token has one tag, that of the first word in it.
        token += found
        begin = end + 1
    return places


def _kind(file: Path) -> str | None:
    """`columns`, or the format of a table with lists in it, or None."""
    name = file.name.lower().removesuffix(".gz")
    kind = format_of(file)
    return "columns" if name.endswith(_COLUMN_SUFFIXES) else kind if kind in ("jsonl", "parquet") else None


def _of_file(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    kind = _kind(file)
    if kind is None:
        raise ValueError(
            f"{file}: the name does not tell the format; it is .jsonl, .parquet, or with a word and its tag on each "
            f"line {', '.join(_COLUMN_SUFFIXES)}"
        )
    return _columns(file) if kind == "columns" else read_records(file, kind, None)


def _columns(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Sentences by their first line."""
    separator = "\t" if ".tsv" in file.name.lower() else None
    tokens: list[str] = []
    tags: list[str] = []
    first, width = 0, None
    for number, line in read_lines(file):
        if not line.strip():
            if tokens:
                yield first, {"line": first, "tokens": tokens, "tags": tags}
            tokens, tags = [], []
            continue
        cells = line.split(separator)
        if cells[0] == _DOCUMENT:
            continue
        width = width or len(cells)
        if len(cells) != width or width < 2:
            expected = "a word and its tag" if width < 2 else f"{width} as before"
            yield number, f"{len(cells)} columns, expected {expected}"
            continue
        if not tokens:
            first = number
        if not _is_text(cells[0]) or not _is_text(cells[-1]):
            yield number, f"the word is {cells[0]!r} and its tag {cells[-1]!r}; both must be text"
            continue
        tokens.append(cells[0])
        tags.append(cells[-1].strip())
    if tokens:
        yield first, {"line": first, "tokens": tokens, "tags": tags}


def _checked(tokens: Any, tags: Any, names: Sequence[str] | None, place: str) -> tuple[list[str], list[str]]:
    for name, value in (("tokens", tokens), ("tags", tags)):
        if not isinstance(value, list) or not value:
            raise ValueError(f"{place}: the {name} are {value!r:.80}, no list of them")
    if len(tokens) != len(tags):
        raise ValueError(f"{place}: there are {len(tokens)} tokens and {len(tags)} tags; every token has one")
    for token in tokens:
        if not isinstance(token, str) or not _is_text(token):
            raise ValueError(f"{place}: the token {token!r} is no text that could be read")
    return tokens, [_tag_name(tag, names, place) for tag in tags]


def _is_text(value: str) -> bool:
    # What isn't UTF-8 comes as lone surrogates.
    return bool(value.strip()) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _tag_name(tag: Any, names: Sequence[str] | None, place: str) -> str:
    if isinstance(tag, bool) or not isinstance(tag, (str, int)) or tag == "":
        raise ValueError(f"{place}: the tag {tag!r} is no number or name")
    if names is None or (isinstance(tag, str) and tag in names):
        return str(tag)
    if not str(tag).isdecimal() or int(tag) >= len(names):
        raise ValueError(f"{place}: the tag is {tag!r}, but tag_names has {', '.join(names)}")
    return names[int(tag)]
