"""From a recipe to a model and its trainer."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from datasets import Dataset, IterableDataset
from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks

from ..data import EpochBatchSampler, ShiftedBlocks, StreamedBatches, TokenBudgetBatchSampler
from ..registry import FAMILIES, Family
from .catalog import recipes_of
from .choosing import Patience
from .energy import EnergyMeter
from .keys import BATCH_KEYS, told_by_keys
from .optimization import ADADELTA, EPOCH_DECAY, optimizer_class, own_schedule, scheduler_arguments
from .resume import CHECKPOINTS
from .scheduled_sampling import ScheduledSampling
from .schema import Recipe, TrainingSection, nearest, wrong_type
from .tasks.base import Processor, Task
from .trainer import ZooTrainer

LOGS = "logs"

# Field of a configuration -> the key of a recipe's tokenizer section that decides on it.
_FOLLOWS = {"vocab_size": "vocab_size", "source_vocab_size": "vocab_size", "num_copy_slots": "copy_slots"}


# Ends of the names of scores that fall as a model gets better.
_LOWER_IS_BETTER = ("error_rate", "cross_entropy", "perplexity", "bits_per_character", "bits_per_byte", "ter")


def model_settings(recipe: Recipe, family: Family) -> dict[str, Any]:
    """The `model` section of a recipe: fields of a configuration, and perhaps `preset`.

    Args:
        recipe: of the run.
        family: row of the registry.

    Raises:
        ValueError: if a field is unknown, or not the recipe's to set.
    """
    fields = dict(recipe.model)
    config_class = family.config_class
    known = [field.name for field in dataclasses.fields(config_class)]
    for name in fields:
        if name != "preset" and name not in known:
            raise ValueError(
                f"model.{name} is no field of {config_class.__name__}; {_what_instead(name, known, recipe, family)}"
            )
        if name in _FOLLOWS:
            raise ValueError(f"model.{name} follows from the tokenizer: set tokenizer.{_FOLLOWS[name]}")
    smoothing = recipe.training.label_smoothing
    if smoothing is not None and fields.setdefault("label_smoothing", smoothing) != smoothing:
        raise ValueError(
            f"training.label_smoothing={smoothing} and model.label_smoothing={fields['label_smoothing']} differ: "
            "set one of them"
        )
    return fields


def _what_instead(name: str, known: list[str], recipe: Recipe, family: Family) -> str:
    """What to do about a field that a configuration doesn't have, but maybe that of another family has."""
    others = [
        other.name
        for other in FAMILIES.values()
        if other is not family and name in {field.name for field in dataclasses.fields(other.config_class)}
    ]
    if not others or recipe.pretrained.model is not None:
        return f"did you mean {nearest(name, known)!r}?"
    config_class = family.config_class
    presets = f', or say model="{{preset: NAME}}", one of {", ".join(config_class.presets)}'
    return (
        f"it is one of {', '.join(others)}: for family={family.name} take one of its recipes, "
        f"{', '.join(recipes_of(family.name))}{presets if config_class.presets else ''}"
    )


def heed_launcher(recipe: Recipe) -> Recipe:
    """The recipe as it is trained, with the precision that `accelerate launch` asks for.

    Args:
        recipe: as it was read.

    Returns:
        The recipe, `training.precision` set where the launcher sets it.

    Raises:
        ValueError: if the launcher wants another precision than the recipe, or to shard a model on no accelerator.
    """
    for launcher in ("FSDP", "DEEPSPEED"):
        if not parse_flag_from_env(f"ACCELERATE_USE_{launcher}"):
            continue
        if not torch.accelerator.is_available():
            raise ValueError(
                f"ACCELERATE_USE_{launcher}=true: a model is sharded over accelerators, and there is none here"
            )
        if recipe.training.lora.rank is not None:
            raise ValueError(
                f"training.lora.rank={recipe.training.lora.rank} needs the whole model in every process, and "
                f"ACCELERATE_USE_{launcher}=true shards it: leave it out"
            )
        for name in ("ema_decay", "average_last"):
            value = getattr(recipe.training, name)
            if value is not None:
                raise ValueError(
                    f"training.{name}={value} needs the whole model in every process, and "
                    f"ACCELERATE_USE_{launcher}=true shards it: leave it out"
                )
    wanted = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if wanted in ("no", recipe.training.precision):
        return recipe
    if recipe.training.precision != TrainingSection.precision or wanted not in ("bf16", "fp16"):
        raise ValueError(
            f"training.precision={recipe.training.precision}, but accelerate launch has mixed_precision={wanted}: "
            "set one of them, to fp32, bf16 or fp16"
        )
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, precision=wanted))


def build_model(recipe: Recipe, family: Family, task: Task, processor: Processor) -> PreTrainedModel:
    """A fresh model of the recipe's family.

    Args:
        recipe: whose `model` section has fields of the configuration.
        family: row of the registry.
        task: of the recipe.
        processor: what some fields follow from.

    Returns:
        The model.

    Raises:
        ValueError: if a field is unknown, of the wrong type, or not the recipe's to set.
    """
    config_class = family.config_class
    fields = model_settings(recipe, family)
    fields |= task.model_fields(processor)
    preset = fields.pop("preset", None)
    keys = {name: f"model.{name}" for name in config_class.__dataclass_fields__} | {"name": "model.preset"}
    keys |= {name: f"tokenizer.{key}" for name, key in _FOLLOWS.items()}
    try:
        with told_by_keys(keys):
            config = config_class.from_preset(preset, **fields) if preset else config_class(**fields)
    except StrictDataclassError as error:
        raise ValueError(f"model.{wrong_type(error, config_class, fields)}") from error
    return family.model_class(task.head)(config)


def generation_config(recipe: Recipe, model: PreTrainedModel, longest: int) -> GenerationConfig:
    """The model's generation settings, those of the recipe among them.

    Args:
        recipe: whose `generation` section counts.
        model: whose special tokens count.
        longest: tokens of the longest training target; twice as many may be written if the recipe sets no limit.

    Returns:
        Settings for `model.generation_config`.

    Raises:
        ValueError: if the recipe sets something that transformers' generation doesn't have.
    """
    config = GenerationConfig.from_model_config(model.config)
    known = [name for name in vars(config) if not name.startswith("_")]
    settings = dict(recipe.generation)
    if settings.get("max_new_tokens") is None and settings.get("max_length") is None:
        settings["max_new_tokens"] = 2 * longest
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"generation.{name} is unknown; did you mean {nearest(name, known)!r}?")
        setattr(config, name, value)
    config.validate(strict=True)
    return config


def build_trainer(
    recipe: Recipe,
    task: Task,
    model: PreTrainedModel,
    processor: Processor,
    datasets: dict[str, Dataset | IterableDataset],
    validation: Dataset,
    console: Console | None = None,
) -> ZooTrainer:
    """The trainer of a recipe.

    Args:
        recipe: whose `output`, `training` and `evaluation` sections count.
        task: of the recipe.
        model: to train.
        processor: saved with every checkpoint.
        datasets: prepared `train` and `validation` splits; a streamed `train` as it is read.
        validation: the rows that the validation split was made of.
        console: where to report to. Default: `None`, standard output.

    Returns:
        The trainer, which chooses the best checkpoint by `evaluation.best_metric`.
    """
    section = recipe.training
    if section.torch_compile:
        # Inductor turns a scan over time into a loop that counts, and refuses without this, which fullgraph=True
        # implies and the Trainer's call of torch.compile doesn't.
        torch._dynamo.config.capture_scalar_outputs = True
    on_cpu = not torch.accelerator.is_available()
    if on_cpu and section.precision == "fp16":
        # It would be full precision, without a word.
        raise ValueError("training.precision='fp16' needs an accelerator: set bf16 or fp32 on a CPU")
    lower_is_better = recipe.evaluation.best_metric.endswith(_LOWER_IS_BETTER)
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(Path(recipe.output) / CHECKPOINTS),
        seed=recipe.seed,
        max_steps=section.max_steps,
        num_train_epochs=section.epochs,
        gradient_accumulation_steps=section.gradient_accumulation_steps,
        # The trainer is told of an optimiser that transformers lacks elsewhere.
        **({} if section.optimizer == ADADELTA else {"optim": section.optimizer}),
        learning_rate=section.learning_rate,
        **scheduler_arguments(section, lower_is_better),
        weight_decay=section.weight_decay,
        adam_beta1=section.adam_beta1,
        adam_beta2=section.adam_beta2,
        adam_epsilon=section.adam_epsilon,
        max_grad_norm=section.max_grad_norm,
        use_cpu=on_cpu,
        # Every parameter has a gradient in every step: there is nothing to look for.
        ddp_find_unused_parameters=False,
        bf16=section.precision == "bf16",
        fp16=section.precision == "fp16",
        activation_checkpointing=section.gradient_checkpointing,
        torch_compile=section.torch_compile,
        eval_strategy="steps",
        eval_steps=section.eval_steps,
        per_device_eval_batch_size=section.eval_batch_size,
        save_strategy="steps",
        save_steps=section.eval_steps,
        # The best one is among them, even where it is no longer one of the last.
        save_total_limit=max(section.save_total_limit, (section.average_last or 0) + 1),
        restore_callback_states_from_checkpoint=True,
        logging_steps=section.logging_steps,
        # It would hide what ends the run here; of a step that is left out it keeps the loss out of the mean.
        logging_nan_inf_filter=section.on_nonfinite == "skip",
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{recipe.evaluation.best_metric}",
        greater_is_better=not lower_is_better,
        predict_with_generate=task.writes,
        dataloader_num_workers=section.num_workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        # The trainer's default would turn the cache off in the model's own settings, for evaluation and for good.
        use_cache=True,
        # Those that the recipe names are among the callbacks.
        report_to=[],
        # A stream knows its place by itself.
        ignore_data_skip=recipe.data.streaming,
    )
    train = datasets["train"]
    rows, sampler_class = train, TokenBudgetBatchSampler
    if recipe.data.shift_blocks:
        if task.writes:
            raise ValueError("data.shift_blocks=True is for language models: leave it out")
        if not recipe.data.join_texts:
            raise ValueError("data.shift_blocks=True needs data.join_texts=true, texts that follow each other")
        if recipe.data.answers_after is not None:
            raise ValueError("data.shift_blocks=True is for a loss of all tokens: leave out data.answers_after")
        rows, sampler_class = ShiftedBlocks(train, processor, seed=recipe.seed), EpochBatchSampler
        # Which are full, as all shifted ones are.
        train = train.select(range(len(rows)))
    collator = task.collator(processor)
    budget = {"max_tokens": section.batch_tokens, "max_rows": section.batch_rows, "seed": recipe.seed}
    if recipe.data.streaming:
        rows = batches = StreamedBatches(
            train,
            lambda buffer: task.prepare_buffer(buffer, processor),
            lambda prepared: (task.source_lengths(prepared, model), task.target_lengths(prepared)),
            buffer_size=recipe.data.buffer_size,
            # Such as other masks in every pass
            on_pass=getattr(collator, "set_epoch", None),
            rank=arguments.process_index,
            world_size=arguments.world_size,
            **budget,
        )
    else:
        lengths = task.source_lengths(train, model), task.target_lengths(train)
        with told_by_keys(BATCH_KEYS):
            batches = sampler_class(*lengths, **budget, num_processes=arguments.world_size)
    _check_sense(recipe, task, model)
    sampling = section.scheduled_sampling
    # What is wrong with a schedule is told now, not when training begins.
    own_schedule(section, model.config.hidden_size, 1)
    return ZooTrainer(
        model=model,
        args=arguments,
        optimizer_cls_and_kwargs=optimizer_class(section, arguments),
        train_collator=task.dropout_collator(processor, model) if section.bpe_dropout else None,
        scheduled_sampling=ScheduledSampling(sampling) if sampling.schedule != "none" else None,
        ema_decay=section.ema_decay,
        most_skipped=section.max_skipped_steps if section.on_nonfinite == "skip" else None,
        schedule=lambda steps_per_epoch: own_schedule(section, model.config.hidden_size, steps_per_epoch),
        batch_sampler=batches,
        console=console,
        counted=task.counted,
        train_dataset=rows,
        eval_dataset=datasets["validation"],
        data_collator=collator,
        processing_class=processor,
        **task.trainer_options(processor, validation),
        callbacks=[
            *([Patience(section.patience)] if section.patience is not None else []),
            *reporters(section.report_to, Path(recipe.output) / LOGS),
            *([EnergyMeter(section.energy_country)] if section.energy else []),
        ],
    )


def _check_sense(recipe: Recipe, task: Task, model: PreTrainedModel) -> None:
    """Refuse what means nothing to a task or to its data."""
    section, sampling = recipe.training, recipe.training.scheduled_sampling
    if sampling.schedule != "none" and not task.generates:
        raise ValueError(
            f"training.scheduled_sampling.schedule={sampling.schedule!r} is for models that write: leave it out"
        )
    if model.config.label_smoothing and model.get_output_embeddings() is None:
        raise ValueError(
            f"label_smoothing={model.config.label_smoothing} is for models that predict words, and "
            f"{type(model).__name__} doesn't: set training.label_smoothing=0"
        )
    if recipe.data.streaming and section.bpe_dropout:
        raise ValueError(
            f"training.bpe_dropout={section.bpe_dropout} needs texts that are held: leave out data.streaming"
        )
    if recipe.data.streaming and section.scheduler == EPOCH_DECAY:
        raise ValueError(f"training.scheduler={EPOCH_DECAY!r} goes by epochs, and a stream has none")


def reporters(names: list[str], folder: Path) -> list[TrainerCallback]:
    """Callbacks that report to programs which show the course of a training.

    Args:
        names: of transformers' integrations, such as `tensorboard`.
        folder: for TensorBoard's files, unless the environment names another in `TENSORBOARD_LOGGING_DIR`.

    Returns:
        One callback for each name.

    Raises:
        ValueError: if transformers knows no such program, it isn't installed, or it is codecarbon.
    """
    if "codecarbon" in names:
        raise ValueError(
            f"training.report_to={names}: codecarbon would ask the network there where this machine is; "
            "set training.energy=true"
        )
    try:
        callbacks = [integration() for integration in get_reporting_integration_callbacks(names)]
    except (ValueError, RuntimeError, ImportError) as error:
        raise ValueError(f"training.report_to={names}: {error}") from error
    for callback in callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            # Its own place is among the checkpoints, which are removed in the end.
            callback.logging_dir = str(folder)
    return callbacks
