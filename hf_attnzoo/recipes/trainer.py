"""`Seq2SeqTrainer` with batches by token budget, evaluation on generated text, and progress that a person can read."""

import copy
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
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
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalPrediction

from ..data import TokenBudgetBatchSampler
from ..evaluation import generation_metrics
from .schema import EvaluationSection

IGNORE_INDEX = -100


class ZooTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` on batches of a token budget.

    Args:
        batch_tokens: padded tokens of a training batch on one device, source and target together.
        kwargs: see `Seq2SeqTrainer`. The training dataset has the columns `input_ids` and `labels`.
    """

    def __init__(self, *args: Any, batch_tokens: int, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.target_tokens_seen = 0
        self.seconds_before, self.started = 0.0, time.perf_counter()
        self._batch_sampler = TokenBudgetBatchSampler.from_dataset(
            self.train_dataset, max_tokens=batch_tokens, seed=self.args.data_seed or self.args.seed
        )
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.add_callback(ProgressReport(self))

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

    def start_epoch(self, epoch: int) -> None:
        """Order the batches for an epoch, also where a wrapper stands between the loader and the sampler."""
        self._batch_sampler.set_epoch(epoch)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """One forward and backward pass; see `Trainer.training_step`."""
        self.target_tokens_seen += int((inputs["labels"] != IGNORE_INDEX).sum())
        return super().training_step(model, inputs, *args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        """Generate and score one batch; see `Seq2SeqTrainer.prediction_step`."""
        # The parent writes defaults, a max_length of 20 among them, into the model's own settings.
        settings = self.model.generation_config
        self.model.generation_config = copy.deepcopy(settings)
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            self.model.generation_config = settings


class ProgressReport(TrainerCallback):
    """Steps, loss, target tokens per second and time left: a live bar in a terminal, lines in a log."""

    def __init__(self, trainer: ZooTrainer):
        self.trainer = trainer
        self.console = Console()
        self.progress: Progress | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        trainer.started, trainer.target_tokens_seen = time.perf_counter(), 0
        trainer.seconds_before = max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)
        self.first_step = state.global_step
        if state.is_world_process_zero and self.console.is_terminal:
            self.progress = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[report]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.progress.add_task(
                "", total=state.max_steps, completed=state.global_step, report="loss ..."
            )
            self.progress.start()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.start_epoch(int(state.epoch or 0))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or logs is None:
            return
        seconds = self.trainer.seconds - self.trainer.seconds_before
        speed = self.trainer.target_tokens_seen / max(seconds, 1e-9)
        if "loss" in logs:
            report = f"loss {logs['loss']:.4f} · {speed:,.0f} target tokens/s"
            if self.progress is not None:
                self.progress.update(self.task, report=report)
            else:
                done = max(state.global_step - self.first_step, 1)
                left = (state.max_steps - state.global_step) * seconds / done
                self.console.print(f"step {state.global_step}/{state.max_steps} · {report} · {_clock(left)} left")
        elif "eval_loss" in logs:
            scores = " · ".join(
                f"{key.removeprefix('eval_')} {value:.4f}"
                for key, value in logs.items()
                if key.startswith("eval_") and not key.endswith(("runtime", "per_second"))
            )
            self.console.print(f"step {state.global_step}/{state.max_steps} · validation: {scores}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def decode_rows(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]] | np.ndarray) -> list[str]:
    """Texts of padded target ids.

    Args:
        tokenizer: whose target vocabulary the ids are of.
        rows: ids, -100 or padding where there are none, shape `(N, T)`.

    Returns:
        N texts, without special tokens.
    """
    rows = np.asarray(rows)
    return tokenizer.batch_decode(
        np.where(rows == IGNORE_INDEX, tokenizer.pad_token_id, rows), skip_special_tokens=True
    )


def text_metrics(
    tokenizer: PreTrainedTokenizerBase, evaluation: EvaluationSection
) -> Callable[[EvalPrediction], dict[str, float]]:
    """`compute_metrics` of a trainer: scores of what the model wrote by itself, never of teacher-forced output.

    Args:
        tokenizer: to read ids with.
        evaluation: which scores.

    Returns:
        Function from generated ids and labels to the scores.
    """

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        scores = generation_metrics(
            decode_rows(tokenizer, prediction.predictions),
            decode_rows(tokenizer, prediction.label_ids),
            lowercase=evaluation.lowercase,
            tokenize=evaluation.tokenize,
            names=evaluation.metrics,
        )
        return {name: value for name, value in scores.items() if not name.endswith("_signature")}

    return compute


def last_complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; half-written ones are removed.

    The trainer writes the state of a checkpoint after everything else: if that can be read, the rest is there.

    Args:
        folder: where the checkpoints are.

    Returns:
        The checkpoint's folder, or None.
    """
    by_step = {
        int(path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")): path
        for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-").isdigit()
    }
    for step in sorted(by_step, reverse=True):
        try:
            state = json.loads((by_step[step] / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(by_step[step])
            continue
        if state.get("global_step") == step:
            return by_step[step]
    return None
