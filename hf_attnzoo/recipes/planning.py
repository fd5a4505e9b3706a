"""A dry run in words: the rows of its table, and what was taken for granted."""

from ..wording import counted
from .rehearsing import CPU, DryRun

_GIB = 2**30


def figures(told: DryRun) -> list[tuple[str, str, str]]:
    """What a run would take, a row for each figure.

    Args:
        told: of a dry run.

    Returns:
        Name, value and particulars.
    """
    shape, trained = told.shape, told.trained
    rows_of = counted(shape.rows, "row")
    devices = f"{told.devices} x {told.device}"
    if told.device == CPU and told.devices > 1:
        devices = f"{told.devices} processes of this machine"
    sides = f"{rows_of} of {counted(shape.target, 'token')}"
    if shape.source:
        sides = f"{rows_of} of {shape.source} + {counted(shape.target, 'token')}"
    per_token = _flop(told.flops_per_step / told.tokens_per_step)
    rows = [
        ("parameters", f"{told.parameters:,}", f"{told.model}, {counted(told.vocabulary, 'word')}"),
        *_trained(told),
        ("batch of one device", counted(shape.tokens, "token"), sides),
        ("tokens per step", f"{told.tokens_per_step:,}", devices),
        ("steps", _number(told.steps), ""),
        ("tokens", _number(told.tokens), ""),
        (
            "operations per step",
            _flop(told.flops_per_step),
            f"{per_token} a token",
        ),
        ("operations", _flop(told.flops), ""),
    ]
    if told.memory is not None and told.device_memory is not None:
        memory = told.memory
        parts = ", ".join(
            f"{name} {getattr(memory, name) / _GIB:.2f}"
            for name in ("weights", "gradients", "optimizer", "activations", "logits")
        )
        fits = "fits" if memory.total <= told.device_memory else "DOES NOT FIT"
        rows.append(
            (
                f"memory of one device ({told.strategy})",
                f"{memory.total / _GIB:.2f} GiB",
                f"{parts}: {fits} into {told.device_memory / _GIB:.0f}",
            )
        )
    hours = "not known" if told.hours is None else f"{told.hours:,.2f} h"
    share = "measured" if told.device == CPU else f"at {told.utilization:.0%} of the peak in {told.precision}, assumed"
    rows.append(("time", hours, share))
    if trained.flops is None:
        check = f"{_flop(trained.counted)} counted"
    else:
        check = f"{_flop(trained.flops)} by formula, {_flop(trained.counted)} counted"
    first, second = trained.losses
    rows.append(("two steps", f"loss {first:.3f}, {second:.3f}", f"{trained.parameters:,} parameters; {check}"))
    return rows


def notes(told: DryRun) -> list[str]:
    """What the figures rest on, a line each."""
    return [f"note: {sentence}" for sentence in told.assumed]


def _trained(told: DryRun) -> list[tuple[str, str, str]]:
    """Of how many parameters the rest of the figures is, where it is not of all."""
    if told.lora is None:
        return []
    layers = counted(len(told.lora.targets), "linear layer")
    full = f"; in full {', '.join(told.lora.whole)}" if told.lora.whole else ""
    return [("trained parameters", f"{told.lora.trained:,}", f"LoRA of rank {told.lora.rank} on {layers}{full}")]


def _number(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def _flop(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g} FLOP"
