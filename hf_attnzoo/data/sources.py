"""The tables of built-in sources, and the doors to them, to files and to the Hub."""

import difflib
import inspect
import os
from collections.abc import Callable, Iterable

from datasets import Dataset, IterableDataset

from .captions import load_captions
from .dates import dates
from .g2p import g2p
from .in_context import in_context
from .labelled import load_labelled
from .questions import load_questions
from .readers import load_pairs
from .sequences import copy, reverse
from .shapes import shapes
from .tagged import load_tagged
from .texts import load_texts

SOURCES: dict[str, Callable[..., Dataset]] = {"dates": dates, "reverse": reverse, "copy": copy, "g2p": g2p}
"""Built-in sources of pairs of texts by name: functions of `(split, size, ...)`."""

CAPTION_SOURCES: dict[str, Callable[..., Dataset]] = {"shapes": shapes}
"""Built-in sources of pictures and captions by name: functions of `(split, size, ...)`."""

TEXT_SOURCES: dict[str, Callable[..., Dataset]] = {"in_context": in_context}
"""Built-in sources of texts for language models by name: functions of `(split, size, ...)`."""


def load_source(name_or_path: str | os.PathLike, split: str | None = None, **options) -> Dataset | IterableDataset:
    """A dataset of `source` and `target` from a built-in source, a file, a folder or the Hub.

    Args:
        name_or_path: a name in `SOURCES`, which goes before a file of that name (write `./dates` for the file), or
            whatever `load_pairs` reads.
        split: `train`, `validation` or `test`; see `load_pairs` for what it means for a file.
        **options: the other arguments of the source's function, or of `load_pairs`.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: an option that the source does not have (the nearest one is named), or that it needs and lacks,
            or whatever the source itself refuses.
    """
    return _load(name_or_path, split, options, SOURCES, load_pairs)


def load_caption_source(name_or_path: str | os.PathLike, split: str | None = None, **options) -> Dataset:
    """A dataset of `image` and `caption` from a built-in source, a folder of images or the Hub.

    Args:
        name_or_path: a name in `CAPTION_SOURCES`, which goes before a folder of that name (write `./shapes` for the
            folder), or whatever `load_captions` reads.
        split: `train`, `validation` or `test`; see `load_captions` for what it means for a folder.
        **options: the other arguments of the source's function, or of `load_captions`.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: as in `load_source`.
    """
    return _load(name_or_path, split, options, CAPTION_SOURCES, load_captions)


def load_text_source(
    name_or_path: str | os.PathLike, split: str | None = None, **options
) -> Dataset | IterableDataset:
    """A dataset of `text` from a built-in source, a file, a folder or the Hub.

    Args:
        name_or_path: a name in `TEXT_SOURCES`, which goes before a file of that name (write `./in_context` for the
            file), or whatever `load_texts` reads.
        split: `train`, `validation` or `test`; see `load_texts` for what it means for a file.
        **options: the other arguments of the source's function, or of `load_texts`.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: as in `load_source`.
    """
    return _load(name_or_path, split, options, TEXT_SOURCES, load_texts)


def load_annotated_source(task: str, name_or_path: str | os.PathLike, split: str | None = None, **options) -> Dataset:
    """A dataset of texts with what is to be said of them, from a file, a folder or the Hub.

    Args:
        task: `text-classification`, read by `load_labelled`, `token-classification`, by `load_tagged`, or
            `question-answering`, by `load_questions`.
        name_or_path: whatever that one reads.
        split: `train`, `validation` or `test`; see there for what it means for a file.
        **options: the other arguments of that one.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: another task, or as in `load_source`.
    """
    readers = {
        "text-classification": load_labelled,
        "token-classification": load_tagged,
        "question-answering": load_questions,
    }
    if task not in readers:
        raise ValueError(f"task={task!r} is none of {', '.join(readers)}")
    return _load(name_or_path, split, options, {}, readers[task])


def option_names() -> set[str]:
    """Names of the options that a source has, or a reader of files."""
    built_in = [*SOURCES.values(), *CAPTION_SOURCES.values(), *TEXT_SOURCES.values()]
    readers = [load_pairs, load_captions, load_texts, load_labelled, load_tagged, load_questions]
    names = {name for function in built_in + readers for name in inspect.signature(function).parameters}
    return names - {"path", "split", "streaming"}


def _load(
    name_or_path: str | os.PathLike,
    split: str | None,
    options: dict,
    sources: dict[str, Callable[..., Dataset]],
    reader: Callable[..., Dataset | IterableDataset],
) -> Dataset | IterableDataset:
    name = os.fspath(name_or_path)
    if name in sources:
        source, given, what = sources[name], {"split": split}, f"source {name!r}"
    else:
        source, given, what = reader, {"path": name, "split": split}, f"{name!r}, read as a file or dataset,"
    parameters = inspect.signature(source).parameters
    known = [parameter for parameter in parameters if parameter not in given]
    for option in options:
        if option not in known:
            nearest = difflib.get_close_matches(option, known, n=1, cutoff=0)[0]
            hint = _hint(name, sources) if name not in sources and not os.path.exists(name) else ""
            raise ValueError(
                f"{what} has no option {option!r}; did you mean {nearest!r}? It has {', '.join(known)}{hint}"
            )
    for option in known:
        if parameters[option].default is inspect.Parameter.empty and option not in options:
            raise ValueError(f"{what} needs the option {option!r}, {option}=...")
    try:
        return source(**given, **options)
    except FileNotFoundError as error:
        hint = _hint(name, sources)
        if not hint:
            raise
        raise FileNotFoundError(f"{error}{hint}") from error


def _hint(name: str, sources: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, sources, n=1)
    return f"; did you mean the built-in source {nearest[0]!r}?" if nearest else ""


def references(rows: Dataset) -> list[str] | list[list[str]]:
    """What outputs for these rows are scored against: what a row lists, else its one target.

    Args:
        rows: of `load_source`, with the column `target`, and `references`, lists of accepted texts, if there are
            several; or of `load_caption_source`, with `caption`, and `captions` if there are several.

    Raises:
        ValueError: rows of neither.
    """
    for column in ("references", "captions", "target", "caption"):
        if column in rows.column_names:
            return list(rows[column])
    raise ValueError(f"rows have neither target nor caption; columns found: {', '.join(rows.column_names)}")
