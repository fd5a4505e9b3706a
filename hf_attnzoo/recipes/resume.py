"""What a killed run left, and whether it is ours to go on with."""

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..hub import load_average
from .disk import tidy, writing
from .schema import Recipe

logger = logging.getLogger(__name__)

CHECKPOINTS, MODEL, METRICS = "checkpoints", "model", "metrics.json"

# Beside the checkpoints: which run they are of.
_IDENTITY = "run.json"
_STATE = "trainer_state.json"

# In a checkpoint: its other files and their sizes.
_FILES = "files.json"

# What may change while a run is under way, since the weights don't hang on it.
_FREE = ("name", "output", "license", "data.license", "training.threads", "training.num_workers")
_FREE += ("training.eval_batch_size", "training.logging_steps", "training.save_total_limit", "training.report_to")
_FREE += ("evaluation.samples", "evaluation.maps")


def claim_output(
    recipe: Recipe, digests: dict[str, str], main_process: bool = True, processes: int = 1
) -> Path | None:
    """Make the folder of checkpoints, or see that those in it are of this very run.

    Args:
        recipe: of the run.
        digests: what differs where the data of a split does, by split.
        main_process: whether this is the one process that writes and removes files.
        processes: how many share out the batches.

    Returns:
        The last complete checkpoint, or None.

    Raises:
        ValueError: if the folders hold something else, which the run would mix with or remove; or if they aren't on a
            disk that all processes share. The main process has to come first.
    """
    output = Path(recipe.output)
    model, checkpoints = output / MODEL, output / CHECKPOINTS
    if _holds_something(model) and not (model / METRICS).is_file():
        raise ValueError(f"output={recipe.output}: {model} holds something that no run has written, and would be lost")
    facts = {"digest of the data": digests, "number of processes": processes}
    identity = json.loads(json.dumps({**_flat(dataclasses.asdict(recipe)), **facts}))
    file = checkpoints / _IDENTITY
    if main_process:
        tidy(model)
        tidy(checkpoints)
    if not _holds_something(checkpoints):
        if not main_process:
            raise ValueError(
                f"output={recipe.output}: {file}, which the first process has written, is not to be seen here: "
                "it must be on a disk that all processes share"
            )
        with writing(checkpoints):
            checkpoints.mkdir(parents=True, exist_ok=True)
            scratch = output / f".{_IDENTITY}"
            scratch.write_text(json.dumps(identity), encoding="utf-8")
            scratch.replace(file)
        return None
    if not file.is_file():
        raise ValueError(f"output={recipe.output}: {checkpoints} holds something that no run has written")
    # A run that was begun before there was some key has gone by its default.
    defaults = _flat(dataclasses.asdict(Recipe(name="", family="", output="")))
    before = defaults | json.loads(file.read_text(encoding="utf-8"))
    for key in [*before, *identity]:
        was, now = before.get(key), identity.get(key)
        if was != now and key not in _FREE:
            raise ValueError(
                f"{checkpoints} is of a run with {key}={was!r}, not {now!r}: undo the change to go on with that run; "
                "to start afresh, remove the folder or choose another output"
            )
    return last_complete_checkpoint(checkpoints, remove_others=main_process)


def _holds_something(path: Path) -> bool:
    # A file in place of a folder fails here, as an OSError that names it.
    return path.exists() and any(path.iterdir())


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Checkpoints of a folder by their step, the earliest first, half-written ones among them.

    Args:
        folder: where the checkpoints are.
    """
    prefix = f"{PREFIX_CHECKPOINT_DIR}-"
    steps = {path.name.removeprefix(prefix): path for path in folder.glob(f"{prefix}*")}
    return {int(step): steps[step] for step in sorted((step for step in steps if step.isdigit()), key=int)}


def list_files(checkpoint: Path) -> None:
    """Write down which files a checkpoint has, when all but the trainer's state are there.

    Args:
        checkpoint: folder.
    """
    (checkpoint / _FILES).write_text(json.dumps(_sizes(checkpoint)), encoding="utf-8")


def _sizes(checkpoint: Path) -> dict[str, int]:
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name not in (_FILES, _STATE))
    return {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}


def last_complete_checkpoint(folder: Path, remove_others: bool = False) -> Path | None:
    """The newest checkpoint that was written to its end.

    The trainer writes the state of a checkpoint after everything else: if that can be read, the rest was there, and is
    looked for all the same, since a machine may have lost its power and files their ends.

    Args:
        folder: where the checkpoints are.
        remove_others: remove the newer ones, half-written as they are.

    Returns:
        The checkpoint's folder, or None.
    """
    by_step = checkpoints_in(folder)
    for step in reversed(by_step):
        lack = _lack(by_step[step], step)
        if lack is None:
            return by_step[step]
        logger.warning("%s is left out, since it was not written to its end: %s", by_step[step], lack)
        if remove_others:
            shutil.rmtree(by_step[step])
    return None


def _lack(checkpoint: Path, step: int) -> str | None:
    """What a checkpoint lacks, or None."""
    contents = {}
    for name in (_STATE, _FILES):
        try:
            contents[name] = json.loads((checkpoint / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            contents[name] = None
        if not isinstance(contents[name], dict):
            return f"{name} is missing or cut off"
    if contents[_STATE].get("global_step") != step:
        return f"{_STATE} is of step {contents[_STATE].get('global_step')}"
    sizes = _sizes(checkpoint)
    for name, size in contents[_FILES].items():
        if sizes.get(name) != size:
            return f"{name} is missing or cut off"
    return None


def read_state(checkpoint: Path) -> TrainerState:
    """The trainer's state at a checkpoint; where the folder has been moved, its best checkpoint has moved along.

    Args:
        checkpoint: folder.
    """
    state = TrainerState.load_from_json(str(checkpoint / _STATE))
    if state.best_model_checkpoint is not None:
        state.best_model_checkpoint = str(checkpoint.parent / Path(state.best_model_checkpoint).name)
    return state


def has_ended(state: TrainerState) -> bool:
    """Whether nothing is left to train, by the number of steps or by patience."""
    control = state.stateful_callbacks.get("TrainerControl", {}).get("args", {})
    return state.global_step >= state.max_steps or control.get("should_training_stop", False)


def load_best(model: PreTrainedModel, state: TrainerState, checkpoint: Path) -> None:
    """Give a model the weights of the best checkpoint.

    Args:
        model: to fill.
        state: from `read_state`.
        checkpoint: what counts where no evaluation has chosen a best one.
    """
    load_average(model, [Path(state.best_model_checkpoint or checkpoint)])
