"""Make `attention.ipynb` out of `attention.md`: jupytext splits the text into cells, nbclient runs them.

    pip install -e '.[lecture]' && python training/lecture/build.py

The notebook is committed with its pictures, so that it can be read where nothing runs; what is edited is the text.
"""

import io
from base64 import b64decode, b64encode
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent
TEXT, NOTEBOOK = FOLDER / "attention.md", FOLDER / "attention.ipynb"


def cells_of_text() -> NotebookNode:
    """The notebook without outputs; the same text makes the same notebook, names of cells included."""
    notebook = jupytext.read(TEXT)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def run(notebook: NotebookNode) -> NotebookNode:
    """The notebook with outputs, run where it lies, and with nothing in it of the machine or the hour.

    Raises:
        CellExecutionError: if a cell fails.
    """
    options = {"timeout": 900, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": FOLDER}}, **options).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def shrink(notebook: NotebookNode) -> NotebookNode:
    """The notebook with its pictures in 256 colours, which is a third of their size."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                picture, file = Image.open(io.BytesIO(b64decode(output["data"]["image/png"]))), io.BytesIO()
                picture.convert("RGB").quantize(256).save(file, "png", optimize=True)
                output["data"]["image/png"] = b64encode(file.getvalue()).decode()
    return notebook


if __name__ == "__main__":
    nbformat.write(shrink(run(cells_of_text())), NOTEBOOK)
