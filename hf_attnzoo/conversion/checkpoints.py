"""Checkpoints as they lie on a disk: read without running anything, every parameter accounted for."""

import json
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedModel

# Files that training programs write, by what they hold besides other things.
_TRAINING_FILES: dict[str, set[str]] = {"nanogpt": {"model", "model_args"}}

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
    """

    kind: str
    folder: Path
    config: dict[str, Any]
    weights: Weights


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a saved model's folder, or a file that a training program wrote.

    Args:
        source: folder with `config.json` and weights in safetensors; or a file of `torch.save`, or a folder with one
            `.pt` file, of which nothing but tensors and plain values is read.

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
        files = sorted(source.glob("*.pt"))
        if len(files) != 1:
            raise FileNotFoundError(f"{source} has no config.json, and {len(files)} files .pt, of which one is wanted")
        source = files[0]
    return _read_training_file(source)


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
        try:
            weights.update(load_file(folder / name))
        except SafetensorError as error:
            raise ValueError(f"{folder / name} can't be read as safetensors: {error}") from error
    return weights


def _read_training_file(path: Path) -> Checkpoint:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{path} can't be read as tensors and plain values: {reason}") from error
    for kind, keys in _TRAINING_FILES.items():
        if isinstance(content, dict) and keys <= content.keys():
            config, weights = content["model_args"], content["model"]
            if not isinstance(config, dict) or not isinstance(weights, dict):
                raise ValueError(f"{path}: model_args and model must be mappings, got {type(config)}, {type(weights)}")
            if not all(isinstance(name, str) and torch.is_tensor(tensor) for name, tensor in weights.items()):
                raise ValueError(f"{path}: model must hold tensors by their names, and holds something else too")
            return Checkpoint(kind, path.parent, config, Weights(weights))
    raise ValueError(f"{path} is of no known program: {', '.join(_TRAINING_FILES)}")
