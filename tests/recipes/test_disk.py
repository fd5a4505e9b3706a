"""What is said of a file that can't be written: a full disk is not a limit on files."""

import errno
import resource

import pytest
from safetensors import SafetensorError

from hf_attnzoo.recipes import disk
from hf_attnzoo.recipes.disk import writing


@pytest.fixture
def limit_of_files(monkeypatch):
    """Function that sets how many bytes a file may have."""

    def limit(size):
        monkeypatch.setattr(disk.resource, "getrlimit", lambda which: (size, size))

    limit(resource.RLIM_INFINITY)
    return limit


def refused(path, error):
    with pytest.raises(OSError, match="can't be written") as caught, writing(path / "model"):
        raise error
    return str(caught.value)


def test_a_full_disk_is_told_by_what_is_free(tmp_path, limit_of_files, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1_234_000_000}))
    full = OSError(errno.ENOSPC, "No space left on device")
    for size in (resource.RLIM_INFINITY, 5_000_000):
        limit_of_files(size)
        assert refused(tmp_path, full).endswith("(1,234 MB are free there)")
    limit_of_files(resource.RLIM_INFINITY)
    assert refused(tmp_path, RuntimeError("file write failed")).endswith("(1,234 MB are free there)")


def test_a_limit_on_files_is_told(tmp_path, limit_of_files):
    errors = [
        OSError(errno.EFBIG, "File too large"),
        SafetensorError("I/O error: File too large (os error 27)"),
        RuntimeError("PytorchStreamWriter failed writing file"),
    ]
    limit_of_files(5_000_000)
    for error in errors:
        assert refused(tmp_path, error).endswith("(no file may have more than 5.0 MB here: see ulimit -f)")
    limit_of_files(resource.RLIM_INFINITY)
    assert refused(tmp_path, errors[0]).endswith("(the file system takes no file as large)")


def test_other_errors_are_none_of_it(tmp_path):
    with pytest.raises(RuntimeError, match=r"^a bug$"), writing(tmp_path):
        raise RuntimeError("a bug")
