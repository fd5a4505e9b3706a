"""Folders that are made: new ones alone, and whole or not at all; and files that can be written."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_new_folder(folder: Path, name: str, outside: Path | None = None) -> None:
    """See that a folder can be made without touching anything that is there.

    Args:
        folder: to make, which doesn't exist or is empty.
        name: of the argument that it is.
        outside: a folder of a model that it must not lie in, since that is copied. Default: `None`, anywhere.

    Raises:
        ValueError: it has no name of its own, such as `.`, it holds something, it is or lies in a file, a disk is
            mounted there, or it lies in `outside`.
    """
    if folder.name in ("", ".."):
        raise ValueError(f"{name}={folder} has no name of its own: name a new folder")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{name}={folder} is a file, or a link: name a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{name}={folder} holds something: name a new folder")
    if os.path.ismount(folder):
        raise ValueError(f"{name}={folder} is a disk of its own: name a new folder in it")
    _check_above(folder, name)
    if outside is not None and folder.resolve().is_relative_to(outside.resolve()):
        raise ValueError(f"{name}={folder} lies in the folder of the model, {outside}: name another place")


def check_new_file(file: Path, name: str) -> None:
    """See that a file can be written, in folders that may have to be made.

    Args:
        file: to write, which may be there.
        name: of the argument that it is.

    Raises:
        ValueError: it is a folder, or lies in a file.
    """
    if file.is_dir():
        raise ValueError(f"{name}={file} is a folder: name a file in it")
    _check_above(file, name)


def _check_above(path: Path, name: str) -> None:
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise ValueError(f"{name}={path} can't be made, since {above} is a file: name another place")


@contextmanager
def new_folder(folder: Path, name: str, outside: Path | None = None) -> Iterator[Path]:
    """Make a folder that appears when it is whole.

    Args:
        folder: see `check_new_folder`, as the others.
        name: of the argument that it is.
        outside: a folder that it must not lie in.

    Yields:
        An empty folder to fill, which takes that place at the end, or is removed if something goes wrong.

    Raises:
        ValueError: see `check_new_folder`.
    """
    check_new_folder(folder, name, outside)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
