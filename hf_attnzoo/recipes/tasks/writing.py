"""What the tasks have in common whose models write a text for every row, and are scored by it."""

from abc import abstractmethod
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from ...evaluation import generation_metrics
from ..scoring import score
from ..trainer import ZooTrainer, decode_rows, text_metrics
from .base import Outcome, Processor, Task


class WritingTask(Task):
    """See `Task`."""

    @abstractmethod
    def targets(self, rows: Dataset) -> list[str] | list[list[str]]:
        """What should be written for each row, or all that may be."""

    @abstractmethod
    def source_texts(self, rows: Dataset) -> list[str] | None:
        """The texts that words may be copied from; None where sources are no texts."""

    def more_scores(
        self, model: PreTrainedModel, processor: Processor, rows: Dataset
    ) -> tuple[dict[str, float | str], dict[str, tuple[float, float]]]:
        """Scores of the test split that need more than texts, and their intervals; none."""
        return {}, {}

    def trainer_options(self, processor: Processor, validation: Dataset) -> dict[str, Any]:
        return {
            "compute_metrics": text_metrics(
                processor, self.recipe.evaluation, self.targets(validation), self.source_texts(validation)
            )
        }

    def rehearse(self, trainer: ZooTrainer) -> None:
        if self.recipe.data.block_size is not None:
            raise ValueError(f"data.block_size={self.recipe.data.block_size} is for language models: leave it out")
        if not self.recipe.data.join_texts:
            raise ValueError("data.join_texts=False is for language models: leave it out")
        if self.recipe.data.answers_after is not None:
            raise ValueError(
                f"data.answers_after={self.recipe.data.answers_after!r} is for language models: leave it out"
            )
        evaluation = self.recipe.evaluation
        generation_metrics(["a"], ["a"], tokenize=evaluation.tokenize, names=evaluation.metrics, sources=["a"])
        model = trainer.model.eval()
        batch = trainer.data_collator([trainer.eval_dataset[0]])
        del batch["labels"]
        try:
            model.generate(**{name: value.to(model.device) for name, value in batch.items()})
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(f"generation: {error}") from error

    def measure(self, trainer: ZooTrainer, processor: Processor, prepared: Dataset, rows: Dataset) -> Outcome | None:
        # The texts are scored here, with intervals.
        trainer.compute_metrics = None
        predicted = trainer.predict(prepared)
        if not trainer.is_world_process_zero():
            return None
        outputs = decode_rows(processor, predicted.predictions, self.source_texts(rows))
        metrics, intervals = score(self.recipe, outputs, self.targets(rows), self.source_texts(rows))
        more_metrics, more_intervals = self.more_scores(trainer.whole_model, processor, rows)
        return Outcome(metrics | more_metrics, intervals | more_intervals, outputs)

    def read(self, processor: Processor, ids: torch.Tensor, rows: Dataset) -> list[str]:
        return decode_rows(processor, ids, self.source_texts(rows))
