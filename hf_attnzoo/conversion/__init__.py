"""Checkpoints of other code made ours, and ours made transformers' own.

A conversion is a function in a module of this folder, and a row of `CONVERTERS`. It is given a `Checkpoint` and
returns the model that holds its weights; reading, accounting for every parameter, saving, and the tokenizer are done
here.
"""

import importlib
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError

from ..folders import check_new_folder, new_folder
from .checkpoints import Checkpoint, Weights, build_model, carry_tokenizer, read_checkpoint

__all__ = ["CONVERTERS", "Checkpoint", "Weights", "build_model", "convert", "read_checkpoint"]

# What a checkpoint is, its `model_type` if it has one -> module of this folder, and function there.
CONVERTERS: dict[str, tuple[str, str]] = {
    "gpt2": ("gpt2", "from_gpt2"),
    "nanogpt": ("gpt2", "from_nanogpt"),
    "attnzoo_gpt": ("gpt2", "to_gpt2"),
    "bert": ("bert", "from_bert"),
    "roberta": ("bert", "from_bert"),
    "attnzoo_bert": ("bert", "to_bert"),
    "marian": ("marian", "from_marian"),
    "bart": ("marian", "from_marian"),
    "attnzoo_transformer": ("marian", "to_marian"),
    "joeynmt": ("joeynmt", "from_joeynmt"),
    "opennmt": ("opennmt", "from_opennmt"),
}


def convert(source_dir: str | Path, target_dir: str | Path, to: str = "attnzoo") -> Path:
    """Turn a checkpoint of another kind into one of the zoo, or one of the zoo into transformers' own.

    Args:
        source_dir: folder of a saved model or of JoeyNMT, or a file that a training program wrote: nanoGPT's
            `ckpt.pt`, JoeyNMT's `best.ckpt`, OpenNMT-py's `model_step_10000.pt`.
        target_dir: folder to write model, configuration and tokenizer to, which doesn't exist or is empty; it appears
            whole or not at all.
        to: `"attnzoo"`, or `"transformers"` for the way back.

    Returns:
        The folder that was written.

    Raises:
        ValueError: if the checkpoint is of no known kind, is already what it is to become, or has a parameter or a
            setting, which is named, that the other side has no place for; or `target_dir` holds something, or has no
            name such as `.`.
        OSError: if there is no checkpoint, or the folder can't be written.
    """
    source, target = Path(source_dir), Path(target_dir)
    if to not in ("attnzoo", "transformers"):
        raise ValueError(f"to={to!r} is none of 'attnzoo', 'transformers'")
    if source.resolve() == target.resolve():
        raise ValueError(f"target_dir={target} is source_dir: take another folder")
    check_new_folder(target, "target_dir")
    checkpoint = read_checkpoint(source)
    if checkpoint.kind not in CONVERTERS:
        raise ValueError(f"{source} holds a {checkpoint.kind!r}; these can be converted: {', '.join(CONVERTERS)}")
    ours = checkpoint.kind.startswith("attnzoo_")
    if ours != (to == "transformers"):
        other = "transformers" if ours else "attnzoo"
        raise ValueError(f"{source} holds a {checkpoint.kind!r}, which converts to={other!r}, not to={to!r}")

    module, function = CONVERTERS[checkpoint.kind]
    try:
        model = getattr(importlib.import_module(f"{__name__}.{module}"), function)(checkpoint)
    except StrictDataclassError as error:
        raise ValueError(f"{source} has a setting of a wrong type: {error}") from error
    except (IndexError, RuntimeError) as error:
        # Of taking a parameter apart, or putting several together.
        raise ValueError(f"{source} has a parameter of another shape than its settings tell: {error}") from error
    checkpoint.weights.check_empty()
    with new_folder(target, "target_dir") as scratch:
        model.save_pretrained(scratch)
        if checkpoint.tokenizer is None:
            carry_tokenizer(checkpoint.folder, scratch)
        else:
            checkpoint.tokenizer.save_pretrained(scratch)
    return target
