"""Which checkpoint is the best one, and when to stop: by a score, and where that is the same by the loss."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..hub import Ending
from ..hub.card import model_words
from ..wording import counted
from .reporting import say
from .schema import Recipe


def is_better(args: TrainingArguments, state: TrainerState, metrics: Mapping[str, float]) -> bool:
    """Whether an evaluation is better than the best one before it.

    A score such as BLEU may be the same, 0 above all, while the model learns: the lower loss is the better one then.

    Args:
        args: which say what score counts, and whether a higher one is better.
        state: that knows the best evaluation so far, before this one takes its place.
        metrics: of the evaluation.
    """
    sign = 1 if args.greater_is_better else -1
    score = sign * metrics[args.metric_for_best_model]
    best = -math.inf if state.best_metric is None else sign * state.best_metric
    # One that is no number is never better.
    return score > best if score != best else _loss(metrics) < _best_loss(state)


def is_tied(args: TrainingArguments, state: TrainerState, metrics: Mapping[str, float]) -> bool:
    """Whether an evaluation has the score of the best one before it; see `is_better` for the arguments."""
    return metrics[args.metric_for_best_model] == state.best_metric


def _best_loss(state: TrainerState) -> float:
    # The log goes into every checkpoint, so that a run that goes on from one decides alike.
    logged = (entry for entry in state.log_history if entry["step"] == state.best_global_step)
    return next((_loss(entry) for entry in logged if "eval_loss" in entry), math.inf)


def _loss(metrics: Mapping[str, float]) -> float:
    loss = metrics.get("eval_loss", math.inf)
    return math.inf if math.isnan(loss) else loss


class Patience(TrainerCallback, ExportableState):
    """Stops a training after some evaluations in a row that are no better than the best one before them.

    Args:
        evaluations: how many.
    """

    def __init__(self, evaluations: int):
        self.evaluations = evaluations
        self.worse = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"args": {"evaluations": self.evaluations}, "attributes": {"worse": self.worse}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget what was scored before training."""
        if state.global_step == 0:
            self.worse = 0

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **kwargs: Any,
    ) -> None:
        """Count an evaluation, unless it is of another split."""
        if args.metric_for_best_model not in metrics:
            return
        self.worse = 0 if is_better(args, state, metrics) else self.worse + 1
        if self.worse >= self.evaluations:
            control.should_training_stop = True


def ending_of(recipe: Recipe, state: TrainerState) -> Ending:
    """How a training has ended, and which weights the model has.

    Args:
        recipe: of the run.
        state: of the trainer, at the end of training.

    Returns:
        That of the best checkpoint, where no mean of checkpoints is to take its place.
    """
    # Nothing else ends a training before its last step.
    patience = recipe.training.patience if state.global_step < state.max_steps else None
    best = None if recipe.training.average_last is not None else state.best_model_checkpoint
    return Ending(
        step=None if best is None else int(Path(best).name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")),
        planned=state.max_steps,
        patience=patience,
        ema_decay=recipe.training.ema_decay,
    )


def tell_ending(console: Console, recipe: Recipe, ending: Ending, steps: int) -> None:
    """Print whether training stopped early, and which weights the model has.

    Args:
        console: where to.
        recipe: of the run.
        ending: from `ending_of`.
        steps: that were taken.
    """
    metric = recipe.evaluation.best_metric
    if ending.patience is not None:
        evaluations = counted(ending.patience, "evaluation")
        say(console, f"stopped at step {steps} of {ending.planned}: no better {metric} for {evaluations}")
    # The mean of checkpoints tells of itself.
    if recipe.training.average_last is None:
        say(console, f"the model has {model_words(ending, metric)}")
