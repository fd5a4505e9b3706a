"""The lecture: the notebook holds what its text says, with pictures, and runs from the first cell to the last."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "training" / "lecture"
NOTEBOOK = FOLDER / "attention.ipynb"

# A path of somebody's machine
OF_A_MACHINE = re.compile(r"(?<![\w.])/(home|Users|root|tmp|work|opt|usr)/|[A-Z]:\\")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    for name in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason="pip install -e '.[lecture]'")
    spec = importlib.util.spec_from_file_location("lecture_build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def kinds(cell: dict[str, Any]) -> list[str]:
    """What a cell has put out: streams by name, and what pictures and values are shown as."""
    return [kind for output in cell["outputs"] for kind in sorted(output.get("data") or [output.get("name", "error")])]


def test_the_notebook_is_made_of_the_text(build, cells):
    made = build.cells_of_text().cells
    kept = [(cell["id"], cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert kept == [(cell.id, cell.cell_type, cell.source) for cell in made]


def test_every_step_says_shows_and_asks(cells):
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    page = "\n\n".join(texts)
    steps = re.split(r"^## (?=\d+\. )", page, flags=re.MULTILINE)[1:]
    assert [int(step.split(".")[0]) for step in steps] == list(range(1, 14))
    assert [step.splitlines()[0] for step in steps if "*Change this and see.*" not in step] == []
    # A step begins with a heading, and all cells up to the next are its own.
    pictures, step = dict.fromkeys(range(1, 14), 0), 0
    for cell in cells:
        heading = re.search(r"^## (\d+)\. ", "".join(cell["source"]), re.MULTILINE)
        step = int(heading[1]) if cell["cell_type"] == "markdown" and heading else step
        if cell["cell_type"] == "code":
            pictures[step] = pictures.get(step, 0) + kinds(cell).count("image/png")
    assert [step for step in range(1, 14) if not pictures[step]] == []


def test_outputs_are_small_and_tell_nothing_of_a_machine(cells):
    assert NOTEBOOK.stat().st_size < 1_000_000
    for cell in cells:
        if cell["cell_type"] == "code":
            assert set(kinds(cell)) <= {"stdout", "text/plain", "image/png"}
            assert not OF_A_MACHINE.search(json.dumps([output.get("text", "") for output in cell["outputs"]]))
            assert set(cell["metadata"]) == set()


def test_every_cell_runs(request, cells):
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    if importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel"):
        build = request.getfixturevalue("build")
        ran = [cell for cell in build.run(build.cells_of_text()).cells if cell.cell_type == "code"]
        # What comes out is what is kept, picture by picture. A warning of some other version may come on top.
        came = [[kind for kind in kinds(cell) if kind != "stderr"] for cell in ran]
        assert came == [kinds(cell) for cell in cells if cell["cell_type"] == "code"]
        return
    script = "import matplotlib; matplotlib.use('Agg')\n" + "\n".join(code)
    done = subprocess.run([sys.executable, "-c", script], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
