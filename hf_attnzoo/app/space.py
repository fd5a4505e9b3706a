"""A Space: the page of a model as a folder that the Hub runs."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata, resources
from os import PathLike
from pathlib import Path

import yaml
from huggingface_hub import ModelCard, SpaceCardData

from .. import __version__
from ..folders import check_new_folder, new_folder
from ..hub import find_model
from .cards import find_card
from .demo import Demo
from .page import import_gradio

# What a page needs besides gradio, which the Hub installs by `sdk_version`
_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy", "pillow", "matplotlib")

# The package itself, which no index has: its code, and what its pages are made of
_CODE = (".py", ".css", ".js", ".html")

# Of a model's folder. What a training program keeps, pickles above all, stays.
_MODEL_FILES = (".safetensors", ".json", ".txt", ".model", ".spm", ".jinja", ".md", ".png", ".jpg", ".jpeg", ".py")
_LEFT_BEHIND = ("trainer_state", "training_args", "optimizer", "scheduler", "rng_state")

_APP = '''"""{title}: what the model makes of an input, and where it looks."""

from pathlib import Path

from hf_attnzoo.app import load_demo, serve

serve(load_demo({model}, name={name}))
'''

_README = """---
{front_matter}
---

# {title}

{summary}.

`app.py` runs here and on any machine: `pip install -r requirements.txt && python app.py`. `hf_attnzoo/` is the code of
hf-attnzoo {version}, under the Apache License 2.0; {model}.
"""


def export_space(demo: Demo, model: str | PathLike, target: str | PathLike) -> Path:
    """Write a Space with the page of a model; it appears whole or not at all.

    The Space holds the code of this package, which can't be installed from an index, and a copy of the model's folder,
    or, of a model on the Hub, its name alone. The versions that it asks for are those of this machine.

    Args:
        demo: of the model, from `load_demo`: what goes has been seen to load.
        model: what it was loaded from, a folder, the name of a starter, or a name on the Hub.
        target: folder to write, which doesn't exist or is empty.

    Returns:
        `target`.

    Raises:
        ImportError: gradio is not installed, so there is no telling its version.
        ValueError: `target` holds something, has no name such as `.`, or lies in the folder of the model.
        FileNotFoundError: the folder has no weights in safetensors.
    """
    gradio = import_gradio()
    target, folder = Path(target), Path(find_model(model))
    local = folder.is_dir()
    check_new_folder(target, "target", folder if local else None)
    if local and not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(f"{folder}: no weights in safetensors, and a pickle goes nowhere")
    with new_folder(target, "target") as scratch:
        _write(scratch, demo, str(folder) if local else str(model), local, gradio.__version__)
    return target


def _write(target: Path, demo: Demo, model: str, local: bool, gradio_version: str) -> None:
    here = 'Path(__file__).with_name("model")' if local else _literal(model)
    app = _APP.format(title=_one_line(demo.name), model=here, name=_literal(demo.name))
    if not local:
        app = app.replace("from pathlib import Path\n\n", "")
    (target / "app.py").write_text(app, encoding="utf-8")
    (target / "README.md").write_text(_readme(demo, model, local, gradio_version), encoding="utf-8")
    versions = {"gradio": gradio_version, **{name: _version(name) for name in _NEEDED}}
    lines = "".join(f"{name}=={version}\n" for name, version in versions.items())
    (target / "requirements.txt").write_text(lines, encoding="utf-8")
    package = Path(str(resources.files("hf_attnzoo")))
    _copy(package, target / "hf_attnzoo", (path for path in package.rglob("*") if path.suffix in _CODE))
    terms = _terms(package)
    if terms is not None:
        (target / "hf_attnzoo" / "LICENSE").write_text(terms, encoding="utf-8")
    if local:
        _copy(Path(model), target / "model", filter(_goes, Path(model).iterdir()))


def _goes(path: Path) -> bool:
    named = path.suffix.lower() in _MODEL_FILES or path.name == "LICENSE"
    return path.is_file() and named and not path.name.startswith((".", *_LEFT_BEHIND))


def _copy(source: Path, target: Path, files: Iterator[Path]) -> None:
    for file in files:
        copied = target / file.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        # The content, of a link too
        shutil.copyfile(file, copied)


def _readme(demo: Demo, model: str, local: bool, gradio_version: str) -> str:
    title = _one_line(demo.name)
    license = _license(model)
    data = SpaceCardData(
        title=title,
        emoji="👀",
        colorFrom="indigo",
        colorTo="blue",
        sdk="gradio",
        sdk_version=gradio_version,
        python_version=".".join(platform.python_version_tuple()[:2]),
        app_file="app.py",
        pinned=False,
        # Of the whole; a model without a licence gives none
        license=license if local else "apache-2.0",
        models=None if local else [model],
        tags=["hf-attnzoo", "attention"],
        short_description="See what a model writes, and where it looks",
    )
    said = f"`model/` is under {license}" if license else "`model/` says nothing of its licence"
    return _README.format(
        front_matter=data.to_yaml(),
        title=title,
        summary=demo.summary,
        version=__version__,
        model=said if local else f"the model is [{model}](https://huggingface.co/{model})",
    )


def _license(model: str) -> str | None:
    card = find_card(model)
    if card is None:
        return None
    try:
        return ModelCard(card.read_text(encoding="utf-8", errors="replace"), ignore_metadata_errors=True).data.license
    except (ValueError, yaml.YAMLError):
        return None


def _terms(package: Path) -> str | None:
    """The licence of this package, which lies beside it, or where it was installed."""
    if (package.parent / "LICENSE").is_file():
        return (package.parent / "LICENSE").read_text(encoding="utf-8")
    files = metadata.files("hf-attnzoo") or ()
    return next((file.read_text(encoding="utf-8") for file in files if file.name == "LICENSE"), None)


def _version(name: str) -> str:
    # Without the name of the build, `+cpu`, which the index doesn't have
    return metadata.version(name).partition("+")[0]


def _literal(text: str) -> str:
    # JSON's escapes beyond 16 bits are two halves, which Python doesn't join
    return json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.replace('"', "'").replace("\\", "/").split())
