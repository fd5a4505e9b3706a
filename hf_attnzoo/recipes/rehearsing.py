"""What a run would take, told beforehand: nothing is downloaded, and no more than two small steps are trained."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from transformers import PreTrainedModel

from ..data import CAPTION_SOURCES, SOURCES, TEXT_SOURCES, token_lengths
from ..data.formats import read_text
from ..wording import counted
from .building import build_model, model_settings
from .costs import (
    DEVICES,
    STRATEGIES,
    BatchShape,
    Memory,
    memory_per_device,
    parameter_count,
    training_flops,
    training_hours,
)
from .keys import LENGTH_KEYS, TOKENIZER_KEYS, data_keys, told_by_keys
from .lora import LoRAPlan, plan_lora
from .reading import read_yaml
from .run import find_family, load_splits
from .schema import Recipe
from .starting import StartingPoint, checkpoint_here, missing_weights, starting_config, starting_processor
from .tasks import make_task
from .tasks.base import Task
from .trial import Steps, try_steps

# This machine, in place of a kind of device.
CPU = "cpu"

# Bytes of a number
_FP32 = 4
# Tokens of a text whose length nothing tells.
_LENGTH = 30
# Rows of a built-in source that are drawn to see their lengths and vocabulary.
_SAMPLE, _PICTURES = 500, 50
# Pairs of a person's own that are looked at, if there are more.
_OWN = 10_000
# Auto class of a task's models -> what their batches are made of.
_KINDS = {
    "AutoModelForSeq2SeqLM": "pairs",
    "AutoModelForCausalLM": "blocks",
    "AutoModelForMaskedLM": "masked",
    "AutoModelForImageTextToText": "pictures",
    "AutoModelForSequenceClassification": "classes",
    "AutoModelForTokenClassification": "tags",
    "AutoModelForQuestionAnswering": "answers",
}
# Share of a device's peak: what is usual of attention alone, and of loops of small steps.
_UTILIZATION = {True: 0.35, False: 0.1}
_RECURRENT = ("rnnsearch", "luong", "rnnlm", "show_attend_tell")


@dataclass(frozen=True)
class DryRun:
    """What a run would take.

    Args:
        name: of the recipe.
        model: its class.
        parameters: of the model.
        vocabulary: rows of the output layer.
        shape: of the batch of one device.
        steps: optimiser steps; None if that depends on data that a dry run doesn't look at.
        tokens_per_step: of all devices, accumulation included.
        flops_per_step: operations for these.
        devices: how many.
        device: their kind.
        strategy: how weights are kept on several.
        precision: `fp32`, `bf16` or `fp16`.
        utilization: assumed share of the device's peak.
        memory: of one device; None on this machine.
        device_memory: bytes that one device has; None on this machine.
        hours: wall time of all steps, evaluations left out; None where the number of steps is.
        trained: the two steps.
        assumed: what was taken for granted, a sentence each.
        lora: what is trained of the model, with LoRA; None if all is.
    """

    name: str
    model: str
    parameters: int
    vocabulary: int
    shape: BatchShape
    steps: int | None
    tokens_per_step: int
    flops_per_step: float
    devices: int
    device: str
    strategy: str
    precision: str
    utilization: float
    memory: Memory | None
    device_memory: int | None
    hours: float | None
    trained: Steps
    assumed: tuple[str, ...]
    lora: LoRAPlan | None = None

    @property
    def trained_parameters(self) -> int:
        """Numbers that are trained: all, or with LoRA its factors and what the checkpoint has no weights for."""
        return self.parameters if self.lora is None else self.lora.trained

    @property
    def tokens(self) -> int | None:
        """Tokens of all steps."""
        return None if self.steps is None else self.steps * self.tokens_per_step

    @property
    def flops(self) -> float | None:
        """Operations of all steps."""
        return None if self.steps is None else self.steps * self.flops_per_step

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        more = {"tokens": self.tokens, "flops": self.flops, "trained_parameters": self.trained_parameters}
        content = dataclasses.asdict(self) | more
        if self.memory is not None:
            content["memory"]["total"] = self.memory.total
        return content


class _Vocabulary:
    """Stands for a tokenizer or processor that is still to be trained: all it knows is how many entries it has."""

    def __init__(self, source: int, target: int):
        self.sizes = (source, target)

    @property
    def source_tokenizer(self) -> range:
        return range(self.sizes[0])

    @property
    def target_tokenizer(self) -> range:
        return range(self.sizes[1])

    @property
    def tokenizer(self) -> range:
        return self.target_tokenizer

    def __len__(self) -> int:
        return self.sizes[1]


def dry_run(
    recipe: Recipe,
    *,
    devices: int | None = None,
    device_kind: str = "a100-80gb",
    strategy: str | None = None,
    accelerate: Path | None = None,
    utilization: float | None = None,
    source_length: int | None = None,
    target_length: int | None = None,
) -> DryRun:
    """Build what a recipe asks for, and reckon what training it takes. Of its data, pairs of texts that lie here are
    read, and no others.

    Args:
        recipe: what to do.
        devices: how many; of `cpu`, processes that share this machine. Default: `None`, as many as the configuration
            of Accelerate says, or 1.
        device_kind: a key of `costs.DEVICES`, or `cpu`, this machine, at the speed of the steps that are trained.
        strategy: a key of `costs.STRATEGIES`. Default: `None`, what the configuration of Accelerate says, or `ddp`.
        accelerate: a configuration of Accelerate, as in `training/accelerate`; its precision goes before the recipe's.
        utilization: share of the peak that training reaches. Default: `None`, 0.35 of attention alone, 0.1 of
            recurrent models.
        source_length: tokens of a source, on average. Default: `None`, what a built-in source or pairs in files have,
            or the recipe's limit, or 30.
        target_length: likewise.

    Returns:
        The figures.

    Raises:
        ValueError: if the recipe asks for something that doesn't exist, or an argument is out of range.
    """
    family = find_family(recipe)
    task = make_task(recipe.task or family.task, recipe)
    task.check()
    model_settings(recipe, family)
    if task.head not in _KINDS:
        raise ValueError(f"a dry run knows no {task.card.task_name.lower()}: train it with training.max_steps=2")
    kind = _KINDS[task.head]
    section = recipe.training
    adapting = section.lora.rank is not None
    if recipe.pretrained.model is not None and not adapting:
        raise ValueError(
            f"pretrained.model={recipe.pretrained.model!r}: a dry run builds what a recipe says, and loads nothing: "
            "leave it out, and say in the model section what the checkpoint has, such as preset"
        )
    start = checkpoint_here(recipe, family) if adapting else None
    launched = {} if accelerate is None else _launched(accelerate)
    devices = devices or launched.get("devices", 1)
    strategy = strategy or launched.get("strategy", "ddp")
    precision = launched.get("precision", recipe.training.precision)
    if device_kind != CPU and device_kind not in DEVICES:
        raise ValueError(f"device_kind={device_kind!r} is none of {', '.join((*DEVICES, CPU))}")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r} is none of {', '.join(STRATEGIES)}")
    if adapting and strategy != "ddp":
        raise ValueError(
            f"strategy={strategy!r} shards what is trained, and training.lora.rank={section.lora.rank} needs the "
            "whole model in every process: take ddp"
        )
    for name, value in (("devices", devices), ("source_length", source_length), ("target_length", target_length)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if source_length is not None and kind != "pairs":
        raise ValueError(f"source_length={source_length} is for pairs of texts, and family={recipe.family!r} has none")
    block = recipe.data.block_size
    if target_length is not None and kind != "pairs" and block is not None:
        raise ValueError(f"target_length={target_length}: data.block_size={block} says it, leave it out")
    if device_kind != CPU:
        peak = DEVICES[device_kind].peak(precision)
    elif utilization is not None:
        raise ValueError(f"utilization={utilization} is measured with device_kind={CPU!r}: leave it out")

    assumed: list[str] = []
    processor, lengths, rows = _vocabulary(recipe, task, assumed, start)
    if kind in ("classes", "tags"):
        task.labels = ("one", "other")
        assumed.append("two classes")
    lora = None
    with torch.device("meta"):
        if start is None:
            model = build_model(recipe, family, task, processor)
        else:
            model = family.model_class(task.head)(starting_config(start, recipe, family, task))
    if start is not None:
        lora = plan_lora(model, missing_weights(start, model), section.lora)
    shape = _shape(recipe, kind, model, lengths, (source_length, target_length), assumed)
    trained, activations, note = try_steps(recipe, kind, model, shape, precision)
    assumed += note
    if lora is not None:
        assumed.append("the two steps train all weights, without LoRA's factors, and activations are theirs")
    try:
        flops = float(training_flops(model, shape, lora))
    except ValueError:
        flops = trained.counted / trained.shape.rows * shape.rows
        assumed.append("operations are those that torch has counted, for so many more rows")
    per_step = section.gradient_accumulation_steps * devices
    flops *= per_step
    if section.gradient_checkpointing:
        flops *= 4 / 3
        assumed.append("gradient checkpointing repeats the forward pass: a third more operations")
    steps = _steps(recipe, rows, shape, per_step, assumed)

    memory = device_memory = None
    together = devices
    if device_kind == CPU:
        # All processes of a machine have what one of them would have.
        together = min(devices, launched.get("machines", 1))
        if devices > together:
            assumed.append(f"{devices} processes share the processors of {counted(together, 'machine')} like this one")
        utilization, rate = 1.0, trained.counted / trained.seconds
        assumed.append(
            f"this machine goes on at the speed of the second step, {rate / 1e9:,.1f} GFLOP/s; "
            "more rows at a time are faster"
        )
    else:
        rate, device_memory = peak, DEVICES[device_kind].memory * 2**30
        utilization = _UTILIZATION[family.name not in _RECURRENT] if utilization is None else utilization
        average = _FP32 if section.ema_decay is not None else 0
        memory = memory_per_device(
            parameter_count(model),
            trained.optimizer_bytes + average,
            activations,
            model.config.vocab_size,
            precision=precision,
            strategy=strategy,
            devices=devices,
            largest_layer=_largest_layer(model),
            lora=lora,
        )
        assumed.append(
            f"{utilization:.0%} of the peak of one {device_kind}, {rate / 1e12:,.1f} TFLOP/s in {precision}; "
            "evaluations, checkpoints and waiting for data or other devices beyond that are not in it"
        )
    hours = None if steps is None else training_hours(flops * steps, together, rate, utilization)
    return DryRun(
        name=recipe.name,
        model=type(model).__name__,
        parameters=parameter_count(model),
        vocabulary=model.config.vocab_size,
        shape=shape,
        steps=steps,
        tokens_per_step=shape.tokens * per_step,
        flops_per_step=flops,
        devices=devices,
        device=device_kind,
        strategy=strategy,
        precision=precision,
        utilization=utilization,
        memory=memory,
        device_memory=device_memory,
        hours=hours,
        trained=trained,
        assumed=tuple(assumed),
        lora=lora,
    )


def _launched(path: Path) -> dict[str, Any]:
    """Devices, machines, strategy and precision of a configuration of Accelerate."""
    content = read_yaml(read_text(path), str(path))
    kind = content.get("distributed_type") if isinstance(content, dict) else None
    if kind is None:
        raise ValueError(f"{path}: a configuration of Accelerate has the key distributed_type")
    strategies = {"NO": "ddp", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "FSDP": "fsdp", "DEEPSPEED": "zero"}
    # An unquoted NO is false in YAML 1.1, and a text here.
    if str(kind) not in strategies:
        raise ValueError(f"{path}: distributed_type={kind!r} is none of {', '.join(strategies)}")
    strategy = strategies[str(kind)]
    if strategy == "zero":
        stage = (content.get("deepspeed_config") or {}).get("zero_stage", 2)
        strategy = f"zero{stage}" if stage else "ddp"
    launched = {"devices": content.get("num_processes", 1), "machines": content.get("num_machines", 1)}
    launched["strategy"] = strategy
    mixed = content.get("mixed_precision")
    return launched | ({"precision": mixed} if mixed in ("bf16", "fp16") else {})


def _vocabulary(
    recipe: Recipe, task: Task, assumed: list[str], start: StartingPoint | None
) -> tuple[Any, tuple[float, float] | None, int | None]:
    """What fields of the model follow from; mean lengths of source and target, and how many rows there are, where rows
    can be drawn or read here."""
    data, section = recipe.data, recipe.tokenizer
    source = {"source": data.source, **data.options, **data.train}["source"]
    sources = source if isinstance(source, list) else [source]
    if sources[0] in SOURCES or sources[0] in CAPTION_SOURCES or sources[0] in TEXT_SOURCES:
        source = sources[0]
        options = {**data.options, **data.train}
        options = {name: value for name, value in options.items() if name not in ("source", "skip", "take")}
        most = _PICTURES if source in CAPTION_SOURCES else _SAMPLE
        options["size"] = min(options.get("size", most), most)
        with told_by_keys(data_keys(recipe, "train")):
            rows = task.load(source, training=True, **{"split": "train", **options})
        processor, lengths, _ = _lengths(recipe, task, rows, start)
        drawn = "row that was drawn" if len(rows) == 1 else "rows that were drawn"
        assumed.append(f"vocabulary and lengths of {len(rows)} {drawn}")
        return processor, lengths, {**data.options, **data.train}.get("size")
    lengths = kept = None
    pairs = _KINDS[task.head] == "pairs" and not data.streaming
    if pairs and None not in sources and all(Path(item).expanduser().exists() for item in sources):
        rows = load_splits(recipe, task, ("train",))["train"]
        some = rows.select(range(0, len(rows), math.ceil(len(rows) / _OWN)))
        processor, lengths, share = _lengths(recipe, task, some, start)
        kept = round(share * len(rows))
        if len(some) == len(rows):
            assumed.append(f"vocabulary and lengths of {counted(kept, 'pair')} for training, which were read")
            return processor, lengths, kept
        assumed.append(f"lengths of {len(some):,} of {counted(len(rows), 'pair')} for training, which were read")
    if start is not None:
        # Sizes are the checkpoint's
        return None, lengths, kept
    sizes = section.vocab_size if isinstance(section.vocab_size, list) else [section.vocab_size] * 2
    assumed.append(f"a vocabulary as large as tokenizer.vocab_size={section.vocab_size} allows")
    slots = section.copy_slots or 0
    return _Vocabulary(sizes[0], sizes[1] + slots), lengths, kept


def _lengths(
    recipe: Recipe, task: Task, rows: Dataset, start: StartingPoint | None
) -> tuple[Any, tuple[float, float], float]:
    """A tokenizer or processor of rows; mean lengths of sources and targets; the share of rows that isn't too long."""
    if start is None:
        with told_by_keys(TOKENIZER_KEYS):
            processor = task.build_processor(rows)
    else:
        processor = starting_processor(start, recipe, task, rows, Console(quiet=True))
    with told_by_keys(LENGTH_KEYS):
        prepared, kept = task.prepare(rows, processor)
    targets = token_lengths(prepared, "labels").mean()
    sources = token_lengths(prepared, "input_ids").mean() if "input_ids" in prepared.column_names else 0.0
    return processor, (float(sources), float(targets)), len(kept) / len(rows)


def _shape(
    recipe: Recipe,
    kind: str,
    model: PreTrainedModel,
    drawn: tuple[float, float] | None,
    given: tuple[int | None, int | None],
    assumed: list[str],
) -> BatchShape:
    """The batch of one device."""
    data, training = recipe.data, recipe.training
    if kind not in ("pairs", "pictures"):
        length = data.block_size or given[1] or data.max_source_length or _LENGTH
        if kind == "masked":
            predicted = max(1, round(recipe.masking.probability * length))
        else:
            # Nothing is predicted for the first one of a text that is read from left to right.
            predicted = {"blocks": length - 1, "tags": length}.get(kind, 1)
        shape = BatchShape(1, 0, length, predicted)
    else:
        limits = data.max_source_length, data.max_target_length
        lengths = []
        for side in (0, 1):
            usual = min(limits[side] or _LENGTH, _LENGTH) if drawn is None else max(1, round(drawn[side]))
            lengths.append(given[side] or usual)
        if kind == "pictures":
            lengths[0] = math.prod(model.config.grid_size)
        elif drawn is None:
            hint = ": --source-length and --target-length say otherwise" if None in given else ""
            assumed.append(f"sources of {lengths[0]} and targets of {lengths[1]} tokens on average{hint}")
        shape = BatchShape(1, *lengths)
    rows = training.batch_tokens // shape.tokens
    if rows == 0:
        raise ValueError(f"training.batch_tokens={training.batch_tokens} holds no row of {shape.tokens} tokens")
    return dataclasses.replace(shape, rows=min(rows, training.batch_rows or rows))


def _steps(recipe: Recipe, rows: int | None, shape: BatchShape, per_step: int, assumed: list[str]) -> int | None:
    training = recipe.training
    if training.max_steps != -1:
        return training.max_steps
    if rows is None:
        assumed.append(f"training.epochs={training.epochs} of data whose size isn't known: say training.max_steps")
        return None
    return math.ceil(training.epochs * math.ceil(rows / (shape.rows * per_step)))


def _largest_layer(model: PreTrainedModel) -> int:
    """Parameters of the largest part that sharding gathers at a time: an embedding, or a layer of a stack."""
    sizes = [module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    for name, module in model.named_modules():
        if name.rpartition(".")[2].isdigit():
            sizes.append(parameter_count(module))
    return max(sizes, default=parameter_count(model))
