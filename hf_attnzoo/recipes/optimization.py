"""Optimisers and learning-rate schedules: transformers' own, and what the papers used beside them."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Adadelta, Optimizer
from transformers import Trainer, TrainingArguments, get_scheduler

from .schema import TrainingSection, nearest

ADADELTA, NOAM, EPOCH_DECAY = "adadelta", "noam", "epoch_decay"

_WARMUP_STEPS = 100

# A run that is long enough for any schedule, to try one out with.
_MANY_STEPS = 10**9

# Beside Adadelta, transformers' names of optimisers whose own arguments `training.optimizer_options` can set.
_WITH_OPTIONS = ("adafactor", "adagrad", "adamw_torch", "adamw_torch_fused", "rmsprop", "sgd")

# Argument of an optimiser -> the key that sets it.
_KEYS = {
    "lr": "training.learning_rate",
    "weight_decay": "training.weight_decay",
    "betas": "training.adam_beta1 and training.adam_beta2",
}

# They begin at the highest rate.
_WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy", EPOCH_DECAY)
_WITHOUT_OPTIONS = ("constant", "constant_with_warmup")
# They go by the scores of evaluations.
_BY_SCORE = ("reduce_lr_on_plateau", "greedy")


@dataclass(frozen=True)
class Noam:
    """`d^-0.5 min(s^-0.5, s w^-1.5)` at step s (Vaswani et al. 2017, equation 3).

    Args:
        size: d, the model's.
        warmup_steps: w, the steps that lead up to the highest rate, `(d w)^-0.5`.
    """

    size: int
    warmup_steps: int

    def __call__(self, step: int) -> float:
        """Factor on the learning rate of the step that comes after `step` others."""
        number = step + 1
        return self.size**-0.5 * min(number**-0.5, number * self.warmup_steps**-1.5)


@dataclass(frozen=True)
class EpochDecay:
    """A constant rate for some epochs, which then is made smaller again and again.

    Luong, Pham and Manning (2015, section 4.1) halve it every epoch after 5 epochs, Sutskever, Vinyals and Le (2014)
    every half epoch; Zaremba, Sutskever and Vinyals (2014) divide it by 1.2 every epoch after 6.

    Args:
        steps_per_epoch: optimiser steps of an epoch.
        start_epoch: epochs at the full rate.
        every: epochs, or parts of one, from one reduction to the next.
        factor: of a reduction.
    """

    steps_per_epoch: int
    start_epoch: float
    every: float = 1.0
    factor: float = 0.5

    def __call__(self, step: int) -> float:
        """Factor on the learning rate of the step that comes after `step` others."""
        late = step - self.start_epoch * self.steps_per_epoch
        if late < 0:
            return 1.0
        return self.factor ** (math.floor(late / (self.every * self.steps_per_epoch)) + 1)


def warmup_steps(section: TrainingSection) -> int:
    """Steps that lead up to the highest rate.

    Raises:
        ValueError: if a schedule without any is given some, or Noam's none.
    """
    given = section.warmup_steps
    if section.scheduler in _WITHOUT_WARMUP:
        if given:
            raise ValueError(
                f"training.warmup_steps={given}: training.scheduler={section.scheduler!r} has no warm-up: leave it out"
            )
        return 0
    if section.scheduler == NOAM and given == 0:
        raise ValueError(f"training.warmup_steps=0 must be at least 1 for training.scheduler={NOAM!r}")
    return _WARMUP_STEPS if given is None else given


def optimizer_class(section: TrainingSection, arguments: TrainingArguments) -> tuple[type[Optimizer], dict] | None:
    """Class and arguments of an optimiser that `arguments.optim` alone doesn't describe.

    Args:
        section: of a recipe.
        arguments: with its learning rate, and its optimiser if transformers has it.

    Returns:
        For `optimizer_cls_and_kwargs` of a trainer; None where transformers' own are right as they are.

    Raises:
        ValueError: if an option is unknown, not for this optimiser, or out of its range.
    """
    options = section.optimizer_options
    if section.optimizer == ADADELTA:
        # As Bahdanau et al. (2015) had it, appendix B.2
        cls, settings = Adadelta, {"lr": section.learning_rate, "rho": 0.95, "eps": 1e-6}
    elif not options:
        return None
    elif section.optimizer in _WITH_OPTIONS:
        cls, settings = Trainer.get_optimizer_cls_and_kwargs(arguments)
    else:
        names = ", ".join(sorted((ADADELTA, *_WITH_OPTIONS)))
        raise ValueError(
            f"training.optimizer_options={options} are for {names}, not for training.optimizer={section.optimizer!r}"
        )
    known = [name for name in inspect.signature(cls).parameters if name not in ("params", *_KEYS)]
    for name in options:
        if name in _KEYS:
            raise ValueError(f"training.optimizer_options.{name}: set {_KEYS[name]}")
        if name not in known:
            raise ValueError(
                f"training.optimizer_options.{name} is unknown to {cls.__name__}; "
                f"did you mean {nearest(name, known)!r}?"
            )
    settings |= {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    try:
        cls([torch.nn.Parameter(torch.zeros(1))], **settings)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"training.optimizer_options={options}: {error}") from error
    return cls, settings


def scheduler_arguments(section: TrainingSection, lower_is_better: bool) -> dict[str, Any]:
    """What `TrainingArguments` is told of the schedule.

    Args:
        section: of a recipe.
        lower_is_better: whether the score that chooses the best checkpoint falls as the model gets better.

    Returns:
        `lr_scheduler_type`, `lr_scheduler_kwargs` and `warmup_steps`; of a schedule of ours, the last alone.

    Raises:
        ValueError: if an option is not one of the schedule's.
    """
    name, options, warmup = section.scheduler, dict(section.scheduler_options), warmup_steps(section)
    if name in (NOAM, EPOCH_DECAY):
        return {"warmup_steps": warmup}
    if name in _BY_SCORE:
        if "mode" in options:
            raise ValueError(
                f"training.scheduler_options.mode={options['mode']!r} follows from evaluation.best_metric: "
                "leave it out"
            )
        options["mode"] = "min" if lower_is_better else "max"
    if name in _WITHOUT_OPTIONS and options:
        raise ValueError(f"training.scheduler_options={options}: training.scheduler={name!r} has none, leave them out")
    rehearsed = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=section.learning_rate)
    try:
        get_scheduler(name, rehearsed, warmup, _MANY_STEPS, options)
    except (TypeError, ValueError) as error:
        if not section.scheduler_options:
            raise ValueError(f"training.scheduler={name!r}: {error}; ours are {NOAM!r} and {EPOCH_DECAY!r}") from error
        raise ValueError(f"training.scheduler_options={section.scheduler_options}: {error}") from error
    return {"lr_scheduler_type": name, "lr_scheduler_kwargs": options, "warmup_steps": warmup}


def own_schedule(section: TrainingSection, model_size: int, steps_per_epoch: int) -> Callable[[int], float] | None:
    """A schedule that transformers lacks.

    Args:
        section: of a recipe.
        model_size: of its model, `config.hidden_size`.
        steps_per_epoch: optimiser steps of an epoch.

    Returns:
        From the number of steps that have been taken to the factor on the learning rate of the next one; None for
        transformers' own schedules.

    Raises:
        ValueError: if an option is missing, unknown or out of its range.
    """
    name, options = section.scheduler, section.scheduler_options
    known = {NOAM: ("size",), EPOCH_DECAY: ("start_epoch", "every", "factor")}.get(name)
    if known is None:
        return None
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"training.scheduler_options.{option} is unknown to {name!r}; did you mean {nearest(option, known)!r}?"
            )
        limit, fits = {
            "start_epoch": ("of at least 0", lambda number: number >= 0),
            "factor": ("between 0 and 1", lambda number: 0 < number < 1),
        }.get(option, ("above 0", lambda number: number > 0))
        if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
            raise ValueError(f"training.scheduler_options.{option}={value!r} must be a number {limit}")
    if name == NOAM:
        return Noam(options.get("size", model_size), warmup_steps(section))
    if "start_epoch" not in options:
        raise ValueError(
            f"training.scheduler_options.start_epoch is missing: after how many epochs {name!r} begins to cut the rate"
        )
    return EpochDecay(steps_per_epoch, **options)
