"""What a killed run left, and whether it is ours to go on with."""

import dataclasses
import json
import logging
import shutil
import zlib
from collections.abc import Iterator
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

# In a checkpoint: its other files, their sizes and digests.
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
        some = ", ".join(sorted(path.name for path in model.iterdir())[:3])
        raise ValueError(
            f"output={recipe.output}: {model} holds something that no run has written, or not to its end, and would "
            f"be lost: {some}, and no {METRICS}; move or remove that folder, or choose another output"
        )
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
        raise ValueError(
            f"output={recipe.output}: {checkpoints} holds something that no run has written: it has no {_IDENTITY}; "
            "move or remove that folder, or choose another output"
        )
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
    # The first process has read all of them, and has left none that is newer than the one to go on from.
    return last_complete_checkpoint(
        checkpoints, main_process, average_last=recipe.training.average_last, read=main_process
    )


def steps_ended_at(output: Path) -> int | None:
    """The steps of a run that has ended and left its model, where none is under way since.

    Args:
        output: of the recipe.

    Returns:
        Their number; None without such a run, or where that can't be read.
    """
    if _holds_something(output / CHECKPOINTS):
        return None
    return (_read(output / MODEL / METRICS) or {}).get("steps")


def step_to_go_on_from(output: Path) -> int | None:
    """Where a run goes on when it is started again, by what can be told without reading weights.

    Args:
        output: of the recipe.

    Returns:
        The step; 0 without a checkpoint. None where no run is under way, or it can't go on.
    """
    identity = _read(output / CHECKPOINTS / _IDENTITY)
    if identity is None:
        return None
    try:
        found = last_complete_checkpoint(
            output / CHECKPOINTS, average_last=identity.get("training.average_last"), read=False
        )
    except ValueError:
        # What is wrong is told when it is started again
        return None
    return 0 if found is None else int(found.name.rpartition("-")[2])


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


def checkpoint_at(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is.

    Args:
        folder: where the checkpoints are.
        step: of the training.
    """
    return folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def list_files(checkpoint: Path) -> None:
    """Write down which files a checkpoint has and what is in them, when all but the trainer's state are there.

    Args:
        checkpoint: folder.
    """
    files = {name: [size, _digest(checkpoint / name)] for name, size in _sizes(checkpoint).items()}
    (checkpoint / _FILES).write_text(json.dumps(files), encoding="utf-8")


def _sizes(checkpoint: Path) -> dict[str, int]:
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name not in (_FILES, _STATE))
    return {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}


def _digest(file: Path) -> int:
    """A checksum, against damage and not against forgery: half a second for a gigabyte."""
    digest, buffer = 0, memoryview(bytearray(1 << 20))
    with file.open("rb", buffering=0) as stream:
        while size := stream.readinto(buffer):
            digest = zlib.crc32(buffer[:size], digest)
    return digest


def last_complete_checkpoint(
    folder: Path, remove_others: bool = False, average_last: int | None = None, read: bool = True
) -> Path | None:
    """The newest checkpoint that is whole, and with it the others that a run needs which goes on from it.

    The trainer writes the state of a checkpoint after everything else: if that can be read, the rest was there, and is
    looked for all the same, since a machine may have lost its power and files their ends, and a disk some of its bits.
    The others are the best one up to then, or those of `training.average_last`.

    Args:
        folder: where the checkpoints are.
        remove_others: remove the newer ones, which the run will write again.
        average_last: as in the recipe. Default: `None`, no average.
        read: compare what is in the files, not their sizes alone. Default: `True`.

    Returns:
        The checkpoint's folder. None if no checkpoint has been written to its end.

    Raises:
        ValueError: if some have, and none of them will do.
    """
    by_step = checkpoints_in(folder)
    lacks: dict[int, str | None] = {}

    def lack_of(step: int) -> str | None:
        if step not in lacks:
            lacks[step] = _lack(checkpoint_at(folder, step), step, read)
        return lacks[step]

    left_out: dict[int, str] = {}
    for step in reversed(by_step):
        lack = lack_of(step)
        if lack is not None:
            left_out[step] = f"it is not whole: {lack}"
            continue
        for other, role in _others(by_step[step], average_last):
            lack = lack_of(other)
            if lack is not None:
                left_out[step] = f"{checkpoint_at(folder, other).name}, {role}, is not whole: {lack}"
                break
        else:
            break
    found = next((step for step in reversed(by_step) if step not in left_out), None)
    told = {step: f"{by_step[step]} is left out, since {why}" for step, why in left_out.items()}
    if found is None and any(_read(by_step[step] / _STATE) for step in by_step):
        # To begin anew would cost more than a question.
        whole = [by_step[step] for step in left_out if lacks[step] is None]
        whole = [checkpoint for checkpoint in whole if (checkpoint / "config.json").is_file()]
        start = f", or begin another output with the weights of pretrained.model={whole[0]}" if whole else ""
        raise ValueError(
            f"no checkpoint can be gone on from: {'; '.join(told.values())}. Put back what is missing, remove "
            f"{folder} to train anew{start}"
        )
    for step, line in told.items():
        logger.warning("%s", line)
        if remove_others:
            shutil.rmtree(by_step[step])
    return None if found is None else by_step[found]


def _others(checkpoint: Path, average_last: int | None) -> Iterator[tuple[int, str]]:
    """Steps of the other checkpoints that a run from this one needs to end as it should, and what they are to it."""
    state = read_state(checkpoint)
    if average_last is None:
        if state.best_model_checkpoint is not None:
            yield int(Path(state.best_model_checkpoint).name.rpartition("-")[2]), "its best one so far"
    else:
        end = state.global_step if has_ended(state) else state.max_steps
        for step in averaged_steps(state.save_steps, end, average_last):
            if step < state.global_step:
                yield step, f"which training.average_last={average_last} needs"


def averaged_steps(every: int, end: int, number: int) -> list[int]:
    """Steps of the last checkpoints of a run, the earliest first.

    Args:
        every: steps from one checkpoint to the next.
        end: the last step, of which there is one in any case.
        number: of checkpoints; a short run may have fewer.
    """
    return [*range(every, end, every), end][-number:]


def check_whole(checkpoint: Path, role: str) -> None:
    """See that a checkpoint is as it was written.

    Args:
        checkpoint: folder.
        role: what it is to the run.

    Raises:
        ValueError: if it isn't.
    """
    lack = _lack(checkpoint, int(checkpoint.name.rpartition("-")[2]))
    if lack is not None:
        raise ValueError(
            f"{checkpoint}, {role}, is not whole: {lack}. Put it back, or start the run again: it goes on from a "
            "checkpoint before the damage if there is one"
        )


def _read(file: Path) -> dict[str, Any] | None:
    """What is in a file of JSON, None if that is no dict."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _lack(checkpoint: Path, step: int, read: bool = True) -> str | None:
    """What a checkpoint lacks, or None."""
    if not checkpoint.is_dir():
        return "the folder is missing"
    contents = {name: _read(checkpoint / name) for name in (_STATE, _FILES)}
    for name, content in contents.items():
        if content is None:
            return f"{name} is missing or cut off"
    if contents[_STATE].get("global_step") != step:
        return f"{_STATE} is of step {contents[_STATE].get('global_step')}"
    sizes = _sizes(checkpoint)
    for name, written in contents[_FILES].items():
        # Before there were digests, the sizes alone were written down.
        size, digest = written if isinstance(written, list) else (written, None)
        if sizes.get(name) != size:
            return f"{name} is missing or cut off"
        try:
            if read and digest is not None and _digest(checkpoint / name) != digest:
                return f"{name} is not what was written"
        except OSError as error:
            return f"{name} can't be read ({error})"
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
