"""One run at a time for an output; and what a run says that is stopped."""

import errno
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout
from rich.console import Console

from .reporting import is_first_process, say
from .resume import step_to_go_on_from

logger = logging.getLogger(__name__)

# In the output while a run is under way: locked, with the process that has locked it.
LOCK = ".lock"

# What a file system says that has no locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def held(output: Path) -> Iterator[None]:
    """Keep other runs from an output, those on other machines too that share its disk.

    The lock is the operating system's and ends with the process, however that ends. The first process of a run has it
    for all of them. On a disk without locks the run goes on, and says that nothing keeps others away.

    Args:
        output: folder, which is made where it isn't there.

    Raises:
        ValueError: if another run has it, naming its process.
    """
    if not is_first_process():
        yield
        return
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    output.mkdir(parents=True, exist_ok=True)
    file = output / LOCK
    lock = FileLock(file, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
        with suppress(OSError):
            file.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8")
    except Timeout:
        raise ValueError(
            f"output={output}: {_holder(file)} is writing there: wait for its end, end it, or choose another output"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "output=%s: the disk has no locks (%s), so nothing keeps a second run from writing there", output, error
        )
    try:
        yield
    finally:
        # While it is locked: afterwards a file of this name is another run's.
        file.unlink(missing_ok=True)
        lock.release()
        for folder in made:
            # Only where nothing has come into it
            with suppress(OSError):
                folder.rmdir()


def _holder(file: Path) -> str:
    """Who has a lock, as far as it can be read."""
    try:
        owner = json.loads(file.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError):
        return "another process"


@contextmanager
def stoppable(output: Path, console: Console) -> Iterator[None]:
    """Where a run is interrupted or told to terminate, say where it will go on; it ends as it would have anyway.

    Args:
        output: of the run.
        console: where to report to.
    """
    process, terminated = os.getpid(), False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:
            # A fork, such as a loader of data
            os.kill(os.getpid(), signal.SIGTERM)
        terminated = True
        raise KeyboardInterrupt

    ours = (
        is_first_process()
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        step = step_to_go_on_from(output)
        if step is not None:
            where = f"goes on from step {step}" if step else "there is no checkpoint yet, it begins at step 0"
            say(console, f"stopped: {where} when started again")
        if terminated:
            os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
