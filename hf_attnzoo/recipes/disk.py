"""Folders that are there whole or not at all, and disks that are full."""

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

try:
    import resource
except ImportError:
    # Windows has no such limits
    resource = None

# What torch's writer says of a disk that is full holds one of these.
_WRITER = ("inline_container", "PytorchStreamWriter", "file write failed")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a folder; where that fails, tell which.

    Args:
        path: the folder.

    Raises:
        OSError: if a file in it can't be written, whoever writes it and whatever that one raises.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in _WRITER):
            raise
        raise OSError(f"{path} can't be written: {error} ({_room(error, path)})") from error


def _room(error: Exception, path: Path) -> str:
    """What keeps a file from being written: a limit on files, or a disk that is full."""
    too_large = getattr(error, "errno", None) == errno.EFBIG or os.strerror(errno.EFBIG) in str(error)
    # torch's writer doesn't say why it fails
    if resource is not None and (too_large or isinstance(error, RuntimeError)):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            return f"no file may have more than {limit / 1e6:,.1f} MB here: see ulimit -f"
    if too_large:
        return "the file system takes no file as large"
    place = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return f"{shutil.disk_usage(place).free / 1e6:,.0f} MB are free there"


def discard(folder: Path) -> None:
    """Remove a folder, at once to everybody's eyes: killed in the middle of it, no half of the folder stays behind.

    Args:
        folder: which need not be there.
    """
    doomed = _beside(folder, "removing")
    if folder.exists():
        folder.rename(doomed)
        shutil.rmtree(doomed)


def scratch_folder(folder: Path) -> Path:
    """Where a folder is made that takes its place when it is whole: another one for everybody who asks.

    Args:
        folder: to be.
    """
    return _beside(folder, "writing")


def _beside(folder: Path, state: str) -> Path:
    # Where a disk has no locks, two runs may be at it.
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.{state}")


def tidy(folder: Path) -> None:
    """Remove what killed runs have left of a folder that they were making or removing.

    Args:
        folder: the one that is left alone.
    """
    for state in ("removing", "writing"):
        for left in folder.parent.glob(f".{glob.escape(folder.name)}.*{state}"):
            shutil.rmtree(left, ignore_errors=True)
