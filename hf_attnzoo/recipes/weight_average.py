"""An exponential moving average of the weights, which evaluations and checkpoints are of."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from .trainer import ZooTrainer

# In a checkpoint, beside the average in `model.safetensors`: the weights that training goes on with.
TRAINED = "trained.safetensors"


class WeightAverage(TrainerCallback):
    """`a_t = d_t a_(t-1) + (1 - d_t) w_t` after step t, of every parameter that is trained.

    `d_t = min(decay, (1 + t) / (10 + t))`: what the first steps leave is soon forgotten. Buffers are as they are.

    Args:
        trainer: of the model.
        decay: largest d_t, in [0, 1).
    """

    def __init__(self, trainer: "ZooTrainer", decay: float):
        self.trainer, self.decay = trainer, decay
        self.averages: list[torch.Tensor] = []

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is averaged, by name; tied ones once."""
        return {name: item for name, item in self.trainer.model.named_parameters() if item.requires_grad}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start from the model's weights, or from what a checkpoint holds."""
        parameters = self.parameters
        # The trainer has loaded the average into the model.
        self.averages = [parameter.detach().clone() for parameter in parameters.values()]
        if self.trainer.resumed_from is not None:
            trained = load_file(Path(self.trainer.resumed_from) / TRAINED)
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(trained[name])

    @torch.no_grad()
    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take in the weights after a step."""
        step = state.global_step + 1
        average = get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))
        average(self.averages, [parameter.detach() for parameter in self.parameters.values()], step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the average in the model; the best checkpoint, if there is one, is an average already."""
        if state.best_model_checkpoint is None:
            self._swap()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def save_trained(self, folder: Path) -> None:
        """Write the weights that training goes on with, while the model has the averaged ones."""
        # They are where the averages were.
        trained = dict(zip(self.parameters, self.averages, strict=True))
        save_file({name: tensor.contiguous() for name, tensor in trained.items()}, folder / TRAINED)

    @torch.no_grad()
    def _swap(self) -> None:
        # In place: an optimiser, a compiled graph or another process's replica knows a parameter by where it is.
        for parameter, average in zip(self.parameters.values(), self.averages, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)
