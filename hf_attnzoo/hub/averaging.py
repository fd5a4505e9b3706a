"""One model from several checkpoints of a run: the mean of their weights."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..folders import check_new_folder, new_folder
from ..registry import FAMILIES
from .starters import find_model

_METRICS = "metrics.json"
# What the trainer keeps in a checkpoint for itself; a shared model has none of it.
_TRAINER_FILES = ("trainer_state", "training_args", "optimizer", "scheduler", "scaler", "rng_state", "global_step")
# What is said or drawn of the one checkpoint doesn't hold for the mean.
_LEFT_BEHIND = (*_TRAINER_FILES, "README.md", _METRICS, "attention", "curve", "shots", "pytorch_model", "model")
# What a run keeps in its checkpoints beside that.
_LEFT_BEHIND += ("files.json", "trained", "stream-")


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of checkpoints, as Vaswani et al. (2017, section 6.1) take it.

    Args:
        folders: of checkpoints with the same weights in safetensors, whole or in shards.

    Returns:
        Tensors by name, in the type they are stored in. The sum is taken in double precision.

    Raises:
        FileNotFoundError: if a folder has no safetensors.
        ValueError: if there is no folder, or a tensor is missing in one, or of another shape or type, or no number
            with a fraction and not the same in all.
    """
    if not folders:
        raise ValueError("folders=[]: an average needs at least one checkpoint")
    files = [_tensor_files(Path(folder)) for folder in folders]
    first, names = folders[0], files[0].keys()
    for folder, found in zip(folders, files, strict=True):
        if found.keys() != names:
            odd = sorted(found.keys() ^ names)[0]
            raise ValueError(f"{folder} and {first} have other weights: {odd!r} is in one of them alone")
    average = {}
    for name in names:
        tensor = _read(files[0][name], name)
        total = tensor.double() if tensor.is_floating_point() else None
        for folder, found in zip(folders[1:], files[1:], strict=True):
            other = _read(found[name], name)
            if other.shape != tensor.shape or other.dtype != tensor.dtype:
                raise ValueError(
                    f"{folder}: {name} is {other.dtype} of shape {tuple(other.shape)}, and in {first} "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                )
            if total is not None:
                total += other
            elif not other.equal(tensor):
                raise ValueError(f"{folder}: {name} holds {tensor.dtype} numbers that are others than in {first}")
        average[name] = tensor if total is None else (total / len(folders)).to(tensor.dtype)
    return average


def load_average(model: PreTrainedModel, folders: Sequence[Path]) -> None:
    """Give a model the mean of the weights of checkpoints of its own.

    Args:
        model: to fill; tied weights stay tied.
        folders: see `average_weights`.

    Raises:
        ValueError: if the checkpoints are of another model; see `average_weights`.
    """
    _fill(model, average_weights(folders), folders[0])


def _fill(model: PreTrainedModel, average: Mapping[str, Tensor], folder: Path) -> None:
    tied = set(model.all_tied_weights_keys)
    missing, unexpected = model.load_state_dict(average, strict=False)
    odd = [name for name in missing if name not in tied] + list(unexpected)
    if odd:
        raise ValueError(f"{folder}: {odd[0]!r} is in the checkpoint or in {type(model).__name__} alone")


def average_checkpoints(folders: Sequence[str | os.PathLike], output: str | os.PathLike) -> Path:
    """Write an ordinary model folder whose weights are the mean of those of checkpoints.

    Configuration, generation settings, tokenizer and code are those of the last folder.

    Args:
        folders: of checkpoints of one run, or of models fine-tuned from one; or names of `STARTERS`.
        output: folder to write, which doesn't exist or is empty; it appears whole or not at all.

    Returns:
        `output`.

    Raises:
        FileNotFoundError: if a folder has no safetensors or no configuration.
        ValueError: if `output` holds something, has no name such as `.`, or lies in the last folder; or the weights
            don't match, see `average_weights`.
    """
    folders, output = [Path(find_model(folder)) for folder in folders], Path(output)
    if not folders:
        raise ValueError("folders=[]: an average needs at least one checkpoint")
    last = folders[-1]
    if not (last / "config.json").is_file():
        raise FileNotFoundError(f"{last}: no config.json, so no checkpoint of a model")
    check_new_folder(output, "output", last)
    # Read before the model is loaded, since transformers tells less of what it can't read
    average = average_weights(folders)
    model = _load(last)
    _fill(model, average, folders[0])
    with new_folder(output, "output") as scratch:
        shutil.copytree(last, scratch, ignore=_left_behind, dirs_exist_ok=True)
        if (last / _METRICS).is_file():
            # The scores are those of one; how it reads is how the mean does.
            reading = json.loads((last / _METRICS).read_text(encoding="utf-8")).get("reading")
            if reading:
                (scratch / _METRICS).write_text(json.dumps({"reading": reading}, indent=2) + "\n", encoding="utf-8")
        model.save_pretrained(scratch)
    return output


def _load(folder: Path) -> PreTrainedModel:
    """The model of a folder by the class that saved it, head and all."""
    try:
        config = AutoConfig.from_pretrained(folder)
    except StrictDataclassError as error:
        raise ValueError(f"{folder / 'config.json'}: no configuration of a model ({error})") from error
    for family in FAMILIES.values():
        for auto_class, name in family.config_class.auto_classes.items():
            if isinstance(config, family.config_class) and name in (config.architectures or []):
                return family.model_class(auto_class).from_pretrained(folder)
    names = ", ".join(FAMILIES)
    raise ValueError(f"{folder}: a {config.model_type} of architecture {config.architectures}, and none of {names}")


def _left_behind(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name.startswith(_LEFT_BEHIND)}


def _tensor_files(folder: Path) -> dict[str, Path]:
    index, single = folder / SAFE_WEIGHTS_INDEX_NAME, folder / SAFE_WEIGHTS_NAME
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        for shard in set(shards.values()):
            if Path(shard).name != shard:
                raise ValueError(f"{index}: the shard {shard!r} is not a file of that folder")
        return {name: folder / shard for name, shard in shards.items()}
    if not single.is_file():
        raise FileNotFoundError(f"{folder}: no {SAFE_WEIGHTS_NAME}, so no checkpoint that can be averaged")
    try:
        with safe_open(single, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), single)
    except SafetensorError as error:
        raise ValueError(f"{single}: not a whole file of safetensors ({error})") from error


def _read(file: Path, name: str) -> Tensor:
    try:
        with safe_open(file, framework="pt") as tensors:
            return tensors.get_tensor(name)
    except SafetensorError as error:
        raise ValueError(f"{file}: not a whole file of safetensors ({error})") from error
