"""Checkpoints as they lie on a disk: read without running anything, every parameter accounted for."""

import argparse
import glob
import json
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..models.positions import sinusoids

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "source.spm", "spiece.model")


class Weights(dict[str, Tensor]):
    """Parameters of a checkpoint by name, each of which has to be taken."""

    def take(self, name: str) -> Tensor:
        """Remove a parameter and return it.

        Raises:
            ValueError: if there is none of that name.
        """
        if name not in self:
            raise ValueError(f"the checkpoint lacks the parameter {name}")
        return self.pop(name)

    def check_empty(self) -> None:
        """Refuse what nobody has taken.

        Raises:
            ValueError: naming the parameters that are left.
        """
        if self:
            raise ValueError(f"the converted model has no place for {', '.join(sorted(self))}")


@dataclass
class Checkpoint:
    """What is converted.

    Args:
        kind: its `model_type`, or the name of the program that wrote it.
        folder: where it lies.
        config: its configuration, as it stands in the file.
        weights: its parameters, and buffers.
        tokenizer: what the conversion made of its vocabulary. Default: `None`, the tokenizer in its folder goes along,
            if there is one.
    """

    kind: str
    folder: Path
    config: dict[str, Any]
    weights: Weights
    tokenizer: PreTrainedTokenizerBase | None = None


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a saved model's folder, or a file that a training program wrote.

    Args:
        source: folder with `config.json` and weights in safetensors; JoeyNMT's folder, with `config.yaml`,
            vocabularies and `.ckpt` files, of which `best.ckpt` or else `latest.ckpt` is read, or one of these files;
            or a file of `torch.save`, or a folder with one `.pt` file. Of such files nothing but tensors and plain
            values is read.

    Returns:
        The checkpoint.

    Raises:
        ValueError: if it is of no known kind, or holds what can't be read without running code.
        OSError: if something is missing.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    if source.is_dir() and (source / "config.json").is_file():
        config = _read_json(source / "config.json")
        # nanoGPT's sizes, which its weights in safetensors come with, have names of their own.
        kind = config.get("model_type") or ("nanogpt" if "block_size" in config else None)
        if not isinstance(kind, str):
            raise ValueError(f"{source / 'config.json'} names no model_type")
        return Checkpoint(kind, source, config, _read_safetensors(source))
    if source.is_dir():
        source = _file_in(source)
    return _read_joeynmt(source) if source.suffix == ".ckpt" else _read_training_file(source)


def build_model(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    weights: dict[str, Tensor],
    generation_from: Path | None = None,
    **options: Any,
) -> PreTrainedModel:
    """A model made of these weights, as they are, dtype included.

    Args:
        model_class: its class.
        config: its configuration.
        weights: all parameters and saved buffers by their names in the model, but those tied to another.
        generation_from: folder whose `generation_config.json`, if there is one, goes along.
        options: other arguments of the class.

    Returns:
        The model, in evaluation mode.

    Raises:
        ValueError: if a parameter is missing, unknown, or of another shape.
    """
    with torch.device("meta"):
        model = model_class(config, **options)
    expected = model.state_dict()
    for name, tensor in weights.items():
        if name not in expected:
            raise ValueError(f"{model_class.__name__} has no place for {name}")
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{name} must have the shape {tuple(expected[name].shape)}, got {tuple(tensor.shape)}: "
                f"weights and configuration don't belong together"
            )
    missing = expected.keys() - weights.keys() - model.all_tied_weights_keys.keys()
    if missing:
        raise ValueError(f"{model_class.__name__} lacks {', '.join(sorted(missing))}")
    # Rows of one matrix, and transposed ones, are copied: files have room for whole tensors alone.
    model.load_state_dict({name: tensor.contiguous() for name, tensor in weights.items()}, strict=False, assign=True)
    model.tie_weights()
    if generation_from is not None and (generation_from / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(generation_from)
    return model.eval()


def take_sinusoids(weights: Weights, name: str, size: int, layout: str = "interleaved") -> int:
    """Take a constant table of positions, which our models make for themselves.

    Args:
        weights: where it is.
        name: its name there; its last dimension is that of a vector.
        size: of a vector.
        layout: see `sinusoids`.

    Returns:
        How many positions it has.

    Raises:
        ValueError: if it is not there, or holds something else.
    """
    table = weights.take(name)
    if table.ndim < 2 or not table.is_floating_point():
        raise ValueError(f"{name} does not hold the sinusoids, and transformer has no place for it")
    rows = table.reshape(-1, table.shape[-1]).float()
    expected = sinusoids(rows.shape[0], size, layout).to(table.dtype).float()
    # Rounded to single precision, the angles are wrong in proportion to their size.
    tolerance = max(1e-5, 2 * torch.finfo(table.dtype).eps) + 2e-7 * torch.arange(len(rows))[:, None]
    if rows.shape != expected.shape or bool(((rows - expected).abs() > tolerance).any()):
        raise ValueError(f"{name} does not hold the sinusoids, and transformer has no place for it")
    return len(rows)


def carry_tokenizer(source: Path, target: Path) -> None:
    """Save the tokenizer of one folder, if it has one, in another.

    Args:
        source: where it may lie.
        target: a folder with the configuration of the model that it goes with.
    """
    if any((source / name).is_file() for name in _TOKENIZER_FILES):
        # Not copied: a folder may leave its class to the model's type, which is another one now.
        AutoTokenizer.from_pretrained(source).save_pretrained(target)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping, got {type(content).__name__}")
    return content


def _read_safetensors(folder: Path) -> Weights:
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        parts = _read_json(index).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(name, str) for name in parts.values()):
            raise ValueError(f"{index} must have a weight_map from parameters to names of files, got {parts!r:.100}")
        names = sorted(set(parts.values()))
    weights = Weights()
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{index} names {name!r}: parts must lie beside it")
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} is missing: weights are read from safetensors alone, never from a pickle"
            )
        weights.update(_read_tensors(folder / name))
    return weights


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} can't be read as safetensors: {error}") from error


def _read_training_file(path: Path) -> Checkpoint:
    content = _read_plain(path)
    if {"model", "model_args"} <= content.keys():
        config = content["model_args"]
        if not isinstance(config, dict):
            raise ValueError(f"{path}: model_args must be a mapping, got {type(config)}")
        return Checkpoint("nanogpt", path.parent, config, _tensors(path, "model", content["model"]))
    if {"opt", "vocab"} <= content.keys():
        return _read_opennmt(path, content)
    raise ValueError(f"{path} is of no known program: nanogpt, opennmt")


def _read_opennmt(path: Path, content: dict[str, Any]) -> Checkpoint:
    options, vocabulary = content["opt"], content["vocab"]
    if not isinstance(options, argparse.Namespace) or not isinstance(vocabulary, dict):
        raise ValueError(
            f"{path}: opt and vocab must be options and a mapping, got {type(options)} and {type(vocabulary)}"
        )
    if "model" in content:
        weights = _tensors(path, "model", content["model"])
        generator = _tensors(path, "generator", content.get("generator"))
        weights.update({f"generator.{name}": tensor for name, tensor in generator.items()})
    else:
        # It may have been saved beside the file, in one part or in several.
        parts = sorted({*path.parent.glob(f"{glob.escape(path.stem)}.*safetensors")})
        if not parts:
            raise FileNotFoundError(f"{path} holds no weights, and there is no {path.stem}.safetensors beside it")
        weights = Weights()
        for part in parts:
            weights.update(_read_tensors(part))
    return Checkpoint("opennmt", path.parent, {"opt": vars(options), "vocab": vocabulary}, weights)


def _read_joeynmt(path: Path) -> Checkpoint:
    folder = path.parent
    if not (folder / "config.yaml").is_file():
        raise FileNotFoundError(f"{folder / 'config.yaml'} is missing: JoeyNMT writes it beside its checkpoints")
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / 'config.yaml'} is not valid YAML of plain values: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{folder / 'config.yaml'} must hold a mapping, got {type(config).__name__}")
    content = _read_plain(path)
    if "model_state" not in content:
        raise ValueError(f"{path} has no model_state: it is no checkpoint of JoeyNMT")
    return Checkpoint("joeynmt", folder, config, _tensors(path, "model_state", content["model_state"]))


def _file_in(folder: Path) -> Path:
    # JoeyNMT keeps several, and says which is which.
    for name in ("best.ckpt", "latest.ckpt"):
        if (folder / name).is_file():
            return folder / name
    files = [*folder.glob("*.ckpt"), *folder.glob("*.pt")]
    if len(files) != 1:
        raise FileNotFoundError(
            f"{folder} has no config.json, no best.ckpt, and {len(files)} files .ckpt or .pt, of which one is wanted"
        )
    return files[0]


def _read_plain(path: Path) -> dict[str, Any]:
    try:
        # Options as OpenNMT-py has them: a name space that is filled with plain values, and runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{path} can't be read as tensors and plain values: {reason} Objects of other kinds could run code while "
            f"they are read. If you trust the file, write it anew without them, with the program that made it"
        ) from error
    return content if isinstance(content, dict) else {}


def _tensors(path: Path, name: str, content: Any) -> Weights:
    if not isinstance(content, dict):
        raise ValueError(f"{path}: {name} must be a mapping, got {type(content)}")
    if not all(isinstance(key, str) and torch.is_tensor(tensor) for key, tensor in content.items()):
        raise ValueError(f"{path}: {name} must hold tensors by their names, and holds something else too")
    return Weights(content)
