"""What a run does about a loss or a gradient that is no number."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..models.tokenization_attnzoo import tokenizer_sides
from .reporting import say

if TYPE_CHECKING:
    from .trainer import ZooTrainer

# Entry of the trainer's history for a step that was left out: a run that is gone on with knows of it.
SKIPPED = "skipped_steps"

# Rows that a message names, texts that it quotes, and characters of each.
_ROWS, _TEXTS, _WIDTH = 10, 2, 60


class NonFiniteGuard(TrainerCallback):
    """Stops a run at a step whose loss or gradient is infinite or NaN, or leaves the step out.

    A step is what all its batches, of all processes, make together: if one of them is at fault, all processes do the
    same. Under fp16 autocast infinite gradients are the loss scaler's business, which leaves such steps out by itself:
    there only the loss counts.

    Args:
        trainer: which tells of every loss by `see`, and of the gradient's norm by `gradient_norm`.
        most_skipped: steps that are left out at most, those before a run was gone on with included. None: none is, the
            first one stops the run.
    """

    def __init__(self, trainer: "ZooTrainer", most_skipped: int | None = None):
        self.trainer = trainer
        self.most_skipped = most_skipped
        self.gradient_norm: Tensor | float = 0.0
        self._losses: list[Tensor] = []
        self._skipped: int | None = None

    def see(self, loss: Tensor) -> None:
        """Remember the loss of a batch of the step under way, a scalar."""
        self._losses.append(loss.detach())

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Look at a step before it is taken.

        Raises:
            ValueError: if it is at fault and isn't to be left out, naming the step and its rows.
        """
        losses, self._losses = torch.stack(self._losses), []
        mine = ~losses.isfinite()
        anywhere = mine.any()
        if args.world_size > 1:
            anywhere = self.trainer.accelerator.reduce(anywhere.float()) > 0
        norm = torch.as_tensor(self.gradient_norm)
        if not anywhere and (args.fp16 or norm.isfinite()):
            return
        message = self._message(losses, mine, bool(anywhere), norm)
        if self.most_skipped is None:
            raise ValueError(
                f"{message}. A lower training.learning_rate or training.max_grad_norm may help; "
                "training.on_nonfinite=skip leaves such steps out"
            )
        skipped = sum(SKIPPED in entry for entry in state.log_history) + 1
        if skipped > self.most_skipped:
            raise ValueError(
                f"{message}. training.max_skipped_steps={self.most_skipped} such steps have been left out before"
            )
        if not args.fp16:
            # An optimiser passes by what has no gradient: neither weights nor moments change.
            for parameter in self.trainer.model.parameters():
                parameter.grad = None
        self._skipped = skipped
        say(
            self.trainer.progress_report.console,
            f"{message}: the step is left out, {skipped} of at most {self.most_skipped}",
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put a step that was left out into the history, under its number."""
        if self._skipped is not None:
            skipped, self._skipped = self._skipped, None
            self.trainer.log({SKIPPED: skipped})

    def _message(self, losses: Tensor, mine: Tensor, anywhere: bool, norm: Tensor) -> str:
        step, places = self.trainer.state.global_step + 1, range(len(losses))
        if mine.any():
            places = mine.nonzero()[:, 0].tolist()
            fault = f"the loss is {losses[places[0]].item()}"
        elif anywhere:
            fault = "the loss of another process is not finite"
        else:
            fault = f"the gradient's norm is {norm.item()}"
        rows = [row for place in places for row in self.trainer.rows_of_batch(place)]
        if not rows:
            return f"step {step}: {fault}, some rows behind the first {self.trainer.rows_streamed:,} of the stream"
        more = f" and {len(rows) - _ROWS} more" if len(rows) > _ROWS else ""
        texts = "; ".join(self._text(row) for row in rows[:_TEXTS])
        # Pairs that were too long are counted too.
        named = ", ".join(str(self.trainer.train_dataset[row].get("row", row)) for row in rows[:_ROWS])
        return f"step {step}: {fault}, with the rows {named}{more} of the training data, which begin with {texts}"

    def _text(self, number: int) -> str:
        row, processor = self.trainer.train_dataset[number], self.trainer.processing_class
        if "caption" in row:
            return repr(row["caption"][:_WIDTH])
        sides = zip(("input_ids", "labels"), tokenizer_sides(processor), strict=True)
        # A label may be a class.
        ids = [(side, row[name]) for name, side in sides if isinstance(row.get(name), list)]
        texts = [side.decode(some, skip_special_tokens=True) for side, some in ids]
        return " → ".join(repr(text[:_WIDTH]) for text in dict.fromkeys(texts))
