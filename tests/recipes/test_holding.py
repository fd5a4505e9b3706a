"""One run at a time for an output, and what a run says that is stopped."""

import errno
import io
import json
import os
import signal
import socket

import pytest
from filelock import FileLock
from rich.console import Console

from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes.disk import scratch_folder, tidy
from hf_attnzoo.recipes.holding import held, stoppable
from hf_attnzoo.recipes.resume import list_files


def forked(action):
    """Start a process. Returns its number, once `action`, given a function to call then, has called it."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            action(lambda: os.write(write, b"."))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read(1) == b"."
    return process


def ended(process):
    """The signal that has ended a process."""
    return os.waitpid(process, 0)[1]


def test_a_second_run_is_refused_until_the_first_is_dead(tmp_path, recipe_content):
    output = tmp_path / "runs" / "one"

    def hold(tell):
        with held(output):
            tell()
            signal.pause()

    process = forked(hold)
    try:
        with pytest.raises(ValueError, match="is writing there") as refused:
            run_recipe(build_recipe(recipe_content(output)), Console(quiet=True))
        assert [path.name for path in output.iterdir()] == [".lock"]
    finally:
        os.kill(process, signal.SIGKILL)
        assert ended(process) == signal.SIGKILL
    assert str(refused.value) == (
        f"output={output}: process {process} on {socket.gethostname()} is writing there: wait for its end, end it, or "
        "choose another output"
    )
    with held(output):
        assert json.loads((output / ".lock").read_text())["pid"] == os.getpid()
        # Nor from the same process
        with pytest.raises(ValueError, match="is writing there"), held(output):
            pass
    assert list(output.iterdir()) == []


def test_a_run_that_has_made_nothing_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="a typing error"), held(tmp_path / "new" / "run"):
        raise ValueError("a typing error")
    assert list(tmp_path.iterdir()) == []


def test_the_first_process_holds_the_output_for_all(tmp_path, monkeypatch):
    with held(tmp_path):
        monkeypatch.setenv("RANK", "1")
        with held(tmp_path):
            pass
        assert (tmp_path / ".lock").is_file()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EACCES])
def test_a_disk_without_locks_is_told_of(tmp_path, monkeypatch, caplog, number):
    def fail(lock):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FileLock, "acquire", fail)
    if number == errno.EACCES:
        with pytest.raises(PermissionError), held(tmp_path):
            pass
        return
    with held(tmp_path):
        (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"output={tmp_path}: the disk has no locks ([Errno {number}] {os.strerror(number)})")


def test_scratch_folders_are_each_runs_own(tmp_path):
    model = tmp_path / "model[1]"
    folders = {scratch_folder(model) for _ in range(3)}
    assert len(folders) == 3
    for folder in (model, tmp_path / "model1", *folders):
        folder.mkdir()
    tidy(model)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "model1", model]


def begun(output, step=None):
    """What a run has left that was killed after a checkpoint at `step`."""
    (output / "checkpoints").mkdir(parents=True)
    (output / "checkpoints" / "run.json").write_text("{}")
    # One that was being written
    (output / "checkpoints" / "checkpoint-60").mkdir()
    if step is not None:
        checkpoint = output / "checkpoints" / f"checkpoint-{step}"
        checkpoint.mkdir()
        (checkpoint / "weights").write_text("0.1")
        list_files(checkpoint)
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (30, "stopped: goes on from step 30 when started again\n"),
        (None, "stopped: there is no checkpoint yet, it begins at step 0 when started again\n"),
    ],
)
def test_an_interrupted_run_says_where_it_goes_on(tmp_path, step, line):
    console = Console(file=io.StringIO(), width=1000)
    with pytest.raises(KeyboardInterrupt), stoppable(tmp_path, console):
        raise KeyboardInterrupt
    # Nothing is under way, or all is done.
    assert console.file.getvalue() == ""
    begun(tmp_path, step)
    with pytest.raises(KeyboardInterrupt), stoppable(tmp_path, console):
        raise KeyboardInterrupt
    assert console.file.getvalue() == line
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_terminated_run_does_too_and_dies_of_the_signal(tmp_path):
    begun(tmp_path, 30)
    told = tmp_path / "told.txt"

    def run(tell):
        with told.open("w") as file, stoppable(tmp_path, Console(file=file, width=1000)), held(tmp_path):
            # A process of the run that is ended by itself, as loaders of data are, has nothing to say.
            loader = os.fork()
            if loader == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            if ended(loader) == signal.SIGTERM:
                tell()
            signal.pause()

    process = forked(run)
    os.kill(process, signal.SIGTERM)
    assert ended(process) == signal.SIGTERM
    assert told.read_text() == "stopped: goes on from step 30 when started again\n"
    assert not (tmp_path / ".lock").exists()
