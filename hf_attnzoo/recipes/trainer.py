"""`Seq2SeqTrainer` with batches by token budget, evaluation on generated text, and progress that a person can read."""

import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils.dataclasses import get_module_class_from_name
from rich.console import Console
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, EvalPrediction, TrainOutput

from ..data import StreamedBatches, TokenBudgetBatchSampler
from ..evaluation import generation_metrics
from .choosing import is_better, is_tied
from .disk import writing
from .energy import EnergyMeter
from .guarding import NonFiniteGuard
from .reporting import ProgressReport, make_console
from .resume import check_whole, list_files
from .scheduled_sampling import ScheduledSampling
from .schema import EvaluationSection
from .weight_average import WeightAverage

IGNORE_INDEX = -100


class ZooTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` on batches of a token budget.

    Args:
        batch_sampler: of the training data, on one device; a stream makes its batches itself, and is the dataset too.
        optimizer_cls_and_kwargs: see `Trainer`.
        schedule: from the optimiser steps of an epoch to a schedule that transformers lacks, or to None. Default:
            `None`, without one.
        train_collator: what makes a batch of training rows. Default: `None`, `data_collator`.
        scheduled_sampling: what changes a batch before it is learnt from. Default: `None`, nothing.
        ema_decay: of the moving average that evaluations and checkpoints are of. Default: `None`, they are of the
            weights as they are.
        most_skipped: steps with a loss or a gradient that isn't finite that are left out at most. Default: `None`, the
            first one stops the training.
        counted: what its speed is told in, `target tokens` or, of all that is read, `tokens`.
        console: where to report to. Default: `None`, standard output.
        kwargs: see `Seq2SeqTrainer`. Batches have `labels`.
    """

    def __init__(
        self,
        *args: Any,
        batch_sampler: TokenBudgetBatchSampler | StreamedBatches,
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None = None,
        schedule: Callable[[int], Callable[[int], float] | None] | None = None,
        train_collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]] | None = None,
        scheduled_sampling: ScheduledSampling | None = None,
        ema_decay: float | None = None,
        most_skipped: int | None = None,
        console: Console | None = None,
        counted: str = "target tokens",
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.counted = counted
        self._model_class = type(self.model)
        self._whole_model: PreTrainedModel | None = None
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            # They work on every weight where it is, and there it is only in parts.
            options = {"ema_decay": ema_decay, "scheduled_sampling": scheduled_sampling, "on_nonfinite": most_skipped}
            for name, value in options.items():
                if value is not None:
                    raise ValueError(f"training.{name} is not for models that are sharded: leave it out")
        if self.is_fsdp_enabled:
            self._choose_shards()
        self._evaluated: _SharedLoss | None = None
        self.target_tokens_seen = 0
        self.seconds_before, self.started = 0.0, time.perf_counter()
        # Seq2SeqTrainer doesn't pass it on.
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._batch_sampler = batch_sampler
        self._schedule = schedule
        self._train_collator = train_collator or self.data_collator
        self._scheduled_sampling = scheduled_sampling
        self.resumed_from: str | None = None
        # A stream is about to be gone on with.
        self._goes_on = False
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.progress_report = ProgressReport(self, console or make_console())
        self.add_callback(_Hooks(self))
        self.add_callback(self.progress_report)
        self.guard = NonFiniteGuard(self, most_skipped)
        self.add_callback(self.guard)
        self.weight_average = None if ema_decay is None else WeightAverage(self, ema_decay)
        if self.weight_average is not None:
            self.add_callback(self.weight_average)

    def _choose_shards(self) -> None:
        plugin = self.accelerator.state.fsdp_plugin
        if plugin.transformer_cls_names_to_wrap is None:
            # A recurrent decoder takes a step for every token, and uses parts of it outside of it: its weights stay
            # together from the first step to the last.
            plugin.transformer_cls_names_to_wrap = [
                name
                for name in self.model._no_split_modules or ()
                if not name.endswith(("Decoder", "DecoderStep")) and get_module_class_from_name(self.model, name)
            ]

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> TrainOutput:
        """See `Trainer.train`."""
        self.resumed_from = resume_from_checkpoint
        if resume_from_checkpoint:
            self.find_place(Path(resume_from_checkpoint))
            self._goes_on = self._streams
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.progress_report.close()
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, EnergyMeter):
                    callback.close()

    def find_place(self, checkpoint: Path) -> None:
        """Let a stream go on, or have ended, where it was at a checkpoint; there is nothing to find in other data."""
        if self._streams:
            state = (checkpoint / self._stream_file).read_text(encoding="utf-8")
            self._batch_sampler.load_state_dict(json.loads(state))

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the training data, shared out over the processes: by Accelerate, or by the stream itself."""
        if self._streams:
            pin_memory = self.args.dataloader_pin_memory
            return DataLoader(
                self._batch_sampler, batch_size=None, collate_fn=self._train_collator, pin_memory=pin_memory
            )
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self._batch_sampler,
            collate_fn=self._train_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Batches of a step; see `Trainer.get_batch_samples`."""
        samples = super().get_batch_samples(*args, **kwargs)
        if self._goes_on:
            # The loader has drawn a number to begin with, as it had in the run that is gone on with, long before.
            self._load_rng_state(self.resumed_from)
            self._goes_on = False
        return samples

    @property
    def rows_streamed(self) -> int | None:
        """Rows that all processes have read for the steps so far; None where nothing is streamed."""
        return self._batch_sampler.rows_read(self._batches_done) * self.args.world_size if self._streams else None

    @property
    def _streams(self) -> bool:
        return isinstance(self._batch_sampler, StreamedBatches)

    @property
    def _batches_done(self) -> int:
        return self.state.global_step * self.args.gradient_accumulation_steps

    @property
    def _stream_file(self) -> str:
        return f"stream-{self.args.process_index}.json"

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of an epoch; of a stream, whose epochs nobody counts, all steps."""
        if self._streams:
            return self.args.max_steps
        batches = -(-len(self._batch_sampler) // self.args.world_size)
        return -(-batches // self.args.gradient_accumulation_steps)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole training."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        return math.ceil(self.args.num_train_epochs * self.steps_per_epoch)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """The recipe's schedule; see `Trainer.create_scheduler`."""
        own = None if self._schedule is None else self._schedule(self.steps_per_epoch)
        if self.lr_scheduler is None and own is not None:
            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, own)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Names of the parameters that decay: all but vectors and numbers."""
        return [name for name, parameter in model.named_parameters() if parameter.ndim > 1]

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
        if not self._streams:
            self._batch_sampler.set_epoch(epoch)
        if hasattr(self._train_collator, "set_epoch"):
            # Masks, and what dropout does to words, differ from epoch to epoch.
            self._train_collator.set_epoch(epoch)

    def rows_of_batch(self, place: int) -> list[int]:
        """Numbers in `train_dataset` of the rows of this process's batches of the step under way, the first at 0.

        Rows of a stream have no numbers.
        """
        if self._streams:
            return []
        number = self.state.global_step % self.steps_per_epoch * self.args.gradient_accumulation_steps + place
        batches = list(self._batch_sampler)
        return batches[(number * self.args.world_size + self.args.process_index) % len(batches)]

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """One forward and backward pass; see `Trainer.training_step`."""
        counted = inputs["attention_mask"] if self.counted == "tokens" else inputs["labels"] != IGNORE_INDEX
        self.target_tokens_seen += int(counted.sum())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.guard.see(loss)
        return loss

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loss of a batch; see `Trainer.compute_loss`."""
        if self._scheduled_sampling is not None and self.model.training:
            inputs = self._scheduled_sampling(self.model, inputs, self.state.global_step)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the averaged weights where there are some, those that are trained beside them; see `Trainer`."""
        if self.weight_average is None or not self.is_in_train:
            super().save_model(output_dir, _internal_call)
            return
        output_dir = output_dir or self.args.output_dir
        with self.weight_average.in_place():
            super().save_model(output_dir, _internal_call)
            if self.args.should_save:
                self.weight_average.save_trained(Path(output_dir))

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> torch.Tensor | float:
        # The one place where the norm of a whole step is to be had.
        self.guard.gradient_norm = super()._get_grad_norm(*args, **kwargs)
        return self.guard.gradient_norm

    @property
    def whole_model(self) -> PreTrainedModel:
        """The model in one piece, as `gather_model` has left it."""
        return self.model if self._whole_model is None else self._whole_model

    def gather_model(self) -> None:
        """Put the model together in the first process where training keeps a part of it in each.

        For all processes to call, when training has ended.
        """
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled) or self.model_wrapped is None:
            return
        weights = self.accelerator.get_state_dict(self.model_wrapped)
        if self.is_world_process_zero():
            self._whole_model = self._model_class(self.model.config)
            self._whole_model.load_state_dict(weights)
            if self.model.can_generate():
                self._whole_model.generation_config = self.model.generation_config
            self._whole_model.to(self.args.device)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        better = is_better(self.args, self.state, metrics)
        # Which remembers the score, and the step only where the score itself is better.
        super()._determine_best_metric(metrics, trial)
        if better:
            self.state.best_global_step = self.state.global_step
        return better

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with writing(folder):
            super()._save_checkpoint(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._streams:
            state = json.dumps(self._batch_sampler.state_dict(self._batches_done))
            Path(output_dir, self._stream_file).write_text(state, encoding="utf-8")
        # What the parent does next calls the checkpoint complete and removes older ones: not before every process has
        # written its part.
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            list_files(Path(output_dir))

    def _load_best_model(self) -> None:
        # Where there is nothing to load, the parent keeps the last weights, and a warning is all that it says.
        if not self.args.save_only_model:
            role = f"the best one by {self.args.metric_for_best_model.removeprefix('eval_')}"
            check_whole(Path(self.state.best_model_checkpoint), role)
        super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Tied weights are saved once, under one of their names.
        missing = [name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Every row once and in order, however many processes there are; see `Trainer.evaluation_loop`."""
        # Seq2SeqTrainer gathers the copies too that fill up the last batches of several processes.
        self.gather_function = self.accelerator.gather_for_metrics
        self._evaluated = _SharedLoss(len(dataloader.dataset))
        averaged = self.weight_average is not None and self.is_in_train
        with self.weight_average.in_place() if averaged else nullcontext():
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        shared, self._evaluated = self._evaluated, None
        if self.args.world_size > 1:
            sums = torch.tensor([shared.loss, shared.rows], dtype=torch.float64, device=self.args.device)
            loss, rows = self.accelerator.reduce(sums).tolist()
            name = next((name for name in output.metrics if name.endswith("_loss")), None)
            if name is not None and rows:
                output.metrics[name] = loss / rows
        return output

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Score one batch, and let the model write for it; see `Seq2SeqTrainer.prediction_step`."""
        loss, outputs, labels = self._prediction_step(model, inputs, *args, **kwargs)
        if self._evaluated is not None and self.args.world_size > 1 and loss is not None:
            self._share_loss(model, inputs, loss)
        return loss, outputs, labels

    def _share_loss(self, model: torch.nn.Module, inputs: dict[str, Any], loss: torch.Tensor) -> None:
        """Count the loss of a batch by its rows, without the copies that fill up the last batches."""
        size, processes = self.args.eval_batch_size, self.args.world_size
        first = (self._evaluated.batches * processes + self.args.process_index) * size
        rows = min(max(self._evaluated.total - first, 0), size)
        self._evaluated.batches += 1
        if self._evaluated.batches * processes * size > self._evaluated.total:
            # All of them do it, for where a model is shared out none can without the others.
            inputs = {name: value[: max(rows, 1)] for name, value in self._prepare_inputs(inputs).items()}
            with torch.no_grad(), self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs).detach()
        value = loss.mean().item()
        if rows and (np.isfinite(value) or not self.args.logging_nan_inf_filter):
            self._evaluated.loss += value * rows
            self._evaluated.rows += rows

    def _get_num_items_in_batch(self, *args: Any) -> torch.Tensor | int | None:
        # In training a batch counts by its tokens among those of all processes. In an evaluation its loss is the mean
        # over its own, which the model knows better than a count of labels: nothing foretells the first of a row.
        return None if self._evaluated is not None else super()._get_num_items_in_batch(*args)

    def _prediction_step(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        if not self.args.predict_with_generate:
            return super().prediction_step(*args, **kwargs)
        # The parent writes defaults, a max_length of 20 among them, into the model's own settings.
        settings = self.model.generation_config
        self.model.generation_config = copy.deepcopy(settings)
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            self.model.generation_config = settings


@dataclass
class _SharedLoss:
    """The loss of an evaluation that several processes share out: its sum over this one's rows, and their number.

    Args:
        total: rows of all processes.
        loss: sum so far.
        rows: counted so far.
        batches: that this process has scored.
    """

    total: int
    loss: float = 0.0
    rows: int = 0
    batches: int = 0


class _Hooks(TrainerCallback):
    """What a `ZooTrainer` does at moments of which `Trainer` tells its callbacks alone."""

    def __init__(self, trainer: ZooTrainer):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.start_clock(state)
        if state.global_step == 0 and args.world_size > 1:
            # They begin with the same weights; what they drop and draw is not to be the same.
            torch.manual_seed(args.seed + args.process_index)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.start_epoch(int(state.epoch or 0))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        scheduler = self.trainer.lr_scheduler
        if not isinstance(scheduler, ReduceLROnPlateau) or args.metric_for_best_model not in metrics:
            return
        if is_tied(args, state, metrics) and is_better(args, state, metrics):
            # It is about to count the score as one that is no better: that makes none.
            scheduler.num_bad_epochs = -1


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
        sources: the sources as texts, which copied words are taken from, see `decode_rows`, and which GLEU compares
            with.

    Returns:
        Function from generated ids to the scores.

    Raises:
        ValueError: if GLEU is asked for without sources.
    """
    if "gleu" in evaluation.metrics and sources is None:
        raise ValueError("evaluation.metrics has 'gleu', which is for corrections of texts")

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        scores = generation_metrics(
            decode_rows(tokenizer, prediction.predictions, sources),
            references,
            lowercase=evaluation.lowercase,
            tokenize=evaluation.tokenize,
            names=evaluation.metrics,
            sources=sources,
        )
        return {name: value for name, value in scores.items() if not name.endswith("_signature")}

    return compute
