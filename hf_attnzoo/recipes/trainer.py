"""`Seq2SeqTrainer` with batches by token budget, evaluation on generated text, and progress that a person can read."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedTokenizerBase,
    ProgressCallback,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, TrainOutput

from ..data import TokenBudgetBatchSampler
from ..evaluation import generation_metrics
from .reporting import ProgressReport, make_console
from .schema import EvaluationSection

IGNORE_INDEX = -100


class ZooTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` on batches of a token budget.

    Args:
        batch_sampler: of the training data, on one device.
        counted: what its speed is told in, `target tokens` or, of all that is read, `tokens`.
        console: where to report to. Default: `None`, standard output.
        kwargs: see `Seq2SeqTrainer`. Batches have `labels`.
    """

    def __init__(
        self,
        *args: Any,
        batch_sampler: TokenBudgetBatchSampler,
        console: Console | None = None,
        counted: str = "target tokens",
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.counted = counted
        self.target_tokens_seen = 0
        self.seconds_before, self.started = 0.0, time.perf_counter()
        self._batch_sampler = batch_sampler
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.progress_report = ProgressReport(self, console or make_console())
        self.add_callback(_Hooks(self))
        self.add_callback(self.progress_report)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """See `Trainer.train`."""
        try:
            return super().train(*args, **kwargs)
        finally:
            self.progress_report.close()

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the training data, shared out over the processes by Accelerate."""
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self._batch_sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    @property
    def seconds(self) -> float:
        """Wall time of training so far, that of the runs it goes on from included."""
        return self.seconds_before + time.perf_counter() - self.started

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Report and remember, the wall time too, for a run that goes on from here; see `Trainer.log`."""
        super().log({**logs, "seconds": round(self.seconds, 1)}, *args, **kwargs)

    def start_clock(self, state: TrainerState) -> None:
        """Count wall time from here on, and add that of the runs it goes on from."""
        self.seconds_before = max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)
        self.started = time.perf_counter()
        self.target_tokens_seen = 0

    def start_epoch(self, epoch: int) -> None:
        """Order the batches for an epoch, also where a wrapper stands between the loader and the sampler."""
        self._batch_sampler.set_epoch(epoch)
        if hasattr(self.data_collator, "set_epoch"):
            # Masks differ from epoch to epoch.
            self.data_collator.set_epoch(epoch)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """One forward and backward pass; see `Trainer.training_step`."""
        counted = inputs["attention_mask"] if self.counted == "tokens" else inputs["labels"] != IGNORE_INDEX
        self.target_tokens_seen += int(counted.sum())
        return super().training_step(model, inputs, *args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Every row once and in order, however many processes there are; see `Trainer.evaluation_loop`."""
        # Seq2SeqTrainer gathers the copies too that fill up the last batches of several processes.
        self.gather_function = self.accelerator.gather_for_metrics
        return super().evaluation_loop(*args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        """Generate and score one batch; see `Seq2SeqTrainer.prediction_step`."""
        if not self.args.predict_with_generate:
            return super().prediction_step(*args, **kwargs)
        # The parent writes defaults, a max_length of 20 among them, into the model's own settings.
        settings = self.model.generation_config
        self.model.generation_config = copy.deepcopy(settings)
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            self.model.generation_config = settings


class _Hooks(TrainerCallback):
    """What a `ZooTrainer` does at moments of which `Trainer` tells its callbacks alone."""

    def __init__(self, trainer: ZooTrainer):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.start_clock(state)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.start_epoch(int(state.epoch or 0))


def decode_rows(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Sequence[int]] | np.ndarray,
    sources: Sequence[str] | None = None,
) -> list[str]:
    """Texts of padded target ids.

    Args:
        tokenizer: whose target vocabulary the ids are of, or the processor that has it.
        rows: ids, -100 or padding where there are none, shape `(N, T)`.
        sources: N texts that the ids were written from, for a tokenizer with slots for copied words. Default: `None`,
            a copied word remains a slot.

    Returns:
        N texts, without special tokens.
    """
    rows = np.asarray(rows)
    # A processor has its tokenizer inside.
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    copied = {"sources": sources} if sources is not None and getattr(tokenizer, "copy_slots", None) else {}
    return tokenizer.batch_decode(
        np.where(rows == IGNORE_INDEX, tokenizer.pad_token_id, rows), skip_special_tokens=True, **copied
    )


def text_metrics(
    tokenizer: PreTrainedTokenizerBase,
    evaluation: EvaluationSection,
    references: Sequence[str] | Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
) -> Callable[[EvalPrediction], dict[str, float]]:
    """`compute_metrics` of a trainer: scores of what the model wrote by itself, never of teacher-forced output.

    Args:
        tokenizer: to read ids with.
        evaluation: which scores.
        references: the targets, or lists of accepted ones, as texts. The labels wouldn't do: a rare word is `<unk>`
            there.
        sources: the sources as texts, which copied words are taken from; see `decode_rows`.

    Returns:
        Function from generated ids to the scores.
    """

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        scores = generation_metrics(
            decode_rows(tokenizer, prediction.predictions, sources),
            references,
            lowercase=evaluation.lowercase,
            tokenize=evaluation.tokenize,
            names=evaluation.metrics,
        )
        return {name: value for name, value in scores.items() if not name.endswith("_signature")}

    return compute
