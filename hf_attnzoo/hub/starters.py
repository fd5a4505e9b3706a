"""Small trained models that come with the package, by name."""

import json
import math
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from safetensors import safe_open

from ..registry import FAMILIES, Family

_FOLDER = Path(__file__).parents[1] / "starters"
_PREFIX = "attnzoo_"


@dataclass(frozen=True)
class Starter:
    """A trained model that comes with the package.

    Args:
        name: that commands and `pretrained` take.
        summary: what it does, in a few words.
        recipe: shipped recipe that trained it.
        settings: what was set otherwise than in the recipe.
        command: of `attnzoo`, to try it with.
        words: what follows the name in that command; `{folder}` is its folder.
    """

    name: str
    summary: str
    recipe: str
    settings: tuple[str, ...]
    command: str
    words: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it lies: an ordinary folder of a saved model."""
        return _FOLDER / self.name

    @property
    def example(self) -> list[str]:
        """Words of a command line to try it with."""
        return ["attnzoo", self.command, self.name, *(word.format(folder=self.folder) for word in self.words)]

    @property
    def family(self) -> Family:
        """Row of the registry."""
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        return FAMILIES[config["model_type"].removeprefix(_PREFIX)]

    @property
    def parameters(self) -> int:
        """How many numbers its weights are."""
        with safe_open(self.folder / "model.safetensors", framework="numpy") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


STARTERS: dict[str, Starter] = {
    starter.name: starter
    for starter in (
        Starter(
            name="dates-rnnsearch",
            summary="dates in twelve locales, written as ISO 8601",
            recipe="quickstart",
            settings=(),
            command="translate",
            words=("12 mars 2019",),
        ),
        Starter(
            name="dates-transformer",
            summary="the same, by attention alone",
            recipe="dates-transformer",
            settings=(),
            command="translate",
            words=("3. Mai 1988",),
        ),
        Starter(
            name="g2p-luong",
            summary="how English words are said, in the phonemes of CMUdict",
            recipe="g2p",
            settings=(
                "model.num_encoder_layers=1",
                "model.num_decoder_layers=1",
                "model.embedding_size=64",
                "model.hidden_size=192",
                "model.dropout=0.1",
                "training.epochs=2",
                "training.learning_rate=0.003",
                "training.warmup_steps=100",
                "training.eval_steps=1284",
                "data.validation.size=300",
                "data.test.size=2000",
            ),
            command="translate",
            words=("attention",),
        ),
        Starter(
            name="in-context-gpt",
            summary="letters for letters, as the prompt shows by example",
            recipe="in-context",
            settings=(),
            command="few-shot",
            words=("letters", "gad"),
        ),
        Starter(
            name="shapes-captioner",
            summary="what pictures of coloured shapes show",
            recipe="shapes",
            settings=(),
            command="caption",
            words=("{folder}/example.png",),
        ),
    )
}
"""The models that come with the package, by name. `training/starters.py` makes their folders."""


def pretrained(name: str) -> str:
    """The folder of a model that comes with the package, for `from_pretrained`, `pipeline` and all that takes folders.

    Its weights are stored in 16 bits, and loaded in 32 unless a `dtype` is given.

    Args:
        name: one of `STARTERS`, such as `"dates-rnnsearch"`; never a path.

    Raises:
        ValueError: there is no such model; the message has the names of all.
    """
    if name not in STARTERS:
        raise ValueError(f"name={name!r} is none of the models that come with hf-attnzoo, {', '.join(STARTERS)}")
    return str(STARTERS[name].folder)


def is_starter(folder: str | PathLike) -> bool:
    """Whether a folder is that of a model that comes with the package."""
    return Path(folder).resolve() in {starter.folder.resolve() for starter in STARTERS.values()}


def find_model(name_or_path: str | PathLike) -> str:
    """What `from_pretrained` takes for a folder, a name of `STARTERS`, or a name on the Hub, looked for in this order.

    Args:
        name_or_path: any of these. A folder or file of that name goes before a model that comes with the package, as
            transformers has it for names on the Hub.

    Returns:
        The folder of a model that comes with the package, and anything else as it was.
    """
    name = fspath(name_or_path)
    return pretrained(name) if name in STARTERS and not Path(name).exists() else name
