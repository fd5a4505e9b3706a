"""What a run would take, told beforehand: nothing is downloaded, and no more than two small steps are trained."""

import copy
import dataclasses
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from transformers import PreTrainedModel, Seq2SeqTrainingArguments, Trainer

from ..data import CAPTION_SOURCES, SOURCES, token_lengths
from ..models.losses import IGNORE_INDEX
from .building import build_model
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
from .optimization import ADADELTA, optimizer_class, own_schedule, scheduler_arguments
from .reading import read_yaml
from .run import find_family
from .schema import Recipe
from .tasks import make_task
from .tasks.base import Task

# This machine, in place of a kind of device.
CPU = "cpu"

# Tokens of a text whose length nothing tells.
_LENGTH = 30
# Rows of a built-in source that are drawn to see their lengths and vocabulary.
_SAMPLE, _PICTURES = 500, 50
# The two steps: a larger model is cut down to this, and a longer text.
_STEP_PARAMETERS, _STEP_LENGTH, _STEP_WORDS = 15_000_000, 64, 1000
_DEPTHS = ("num_hidden_layers", "num_encoder_layers", "num_decoder_layers", "num_layers")
# Auto class of a task's models -> what their batches are made of.
_KINDS = {
    "AutoModelForSeq2SeqLM": "pairs",
    "AutoModelForCausalLM": "blocks",
    "AutoModelForMaskedLM": "masked",
    "AutoModelForImageTextToText": "pictures",
    "AutoModelForSequenceClassification": "classes",
    "AutoModelForQuestionAnswering": "answers",
}
# Share of a device's peak: what is usual of attention alone, and of loops of small steps.
_UTILIZATION = {True: 0.35, False: 0.1}
_RECURRENT = ("rnnsearch", "luong", "rnnlm", "show_attend_tell")


_Size = tuple[int, ...]


def _product(total: _Size, left: _Size, right: _Size, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(left) * right[-1]


def _vector_product(matrix: _Size, vector: _Size, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(matrix)


def _added_vector_product(total: _Size, matrix: _Size, vector: _Size, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(matrix)


def _attention(query: _Size, key: _Size, value: _Size, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(grad: _Size, query: _Size, key: _Size, value: _Size, *args: Any, **kwargs: Any) -> int:
    # Scores are computed once more; the same operations count twice nowhere else.
    return 2 * sdpa_flop_count(query, key, value)


def _lstm(inputs: _Size, input_weight: _Size, weight: _Size, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(inputs[:2]) * (math.prod(input_weight) + math.prod(weight))


def _lstm_backward(inputs: _Size, input_weight: _Size, weight: _Size, *args: Any, **kwargs: Any) -> int:
    return 2 * _lstm(inputs, input_weight, weight)


# What torch doesn't count by itself: products in place, products with a vector, and what is one operation on a
# processor.
_MORE_PRODUCTS = {
    torch.ops.aten.addmm_: _product,
    torch.ops.aten.baddbmm_: _product,
    torch.ops.aten.mv: _vector_product,
    torch.ops.aten.addmv: _added_vector_product,
    torch.ops.aten.addmv_: _added_vector_product,
    torch.ops.aten.mkldnn_rnn_layer: _lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


@dataclass(frozen=True)
class Steps:
    """Two steps that were trained, on random words.

    Args:
        shape: of their batch.
        parameters: of the model that was trained.
        layers: of its layers, how many; None if all.
        losses: nats per word.
        flops: operations of one step as the formulas have it; None where there is no formula.
        counted: the same as torch has counted them.
        seconds: wall time of the second one, on this machine.
        optimizer_bytes: that the optimiser keeps for each parameter.
    """

    shape: BatchShape
    parameters: int
    layers: int | None
    losses: tuple[float, float]
    flops: int | None
    counted: int
    seconds: float
    optimizer_bytes: float


@dataclass(frozen=True)
class DryRun:
    """What a run would take.

    Args:
        name: of the recipe.
        model: its class.
        parameters: that are trained.
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
        content = dataclasses.asdict(self) | {"tokens": self.tokens, "flops": self.flops}
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
    """Build what a recipe asks for, without its data, and reckon what training it takes.

    Args:
        recipe: what to do.
        devices: how many. Default: `None`, as many as the configuration of Accelerate says, or 1.
        device_kind: a key of `costs.DEVICES`, or `cpu`, this machine, at the speed of the steps that are trained.
        strategy: a key of `costs.STRATEGIES`. Default: `None`, what the configuration of Accelerate says, or `ddp`.
        accelerate: a configuration of Accelerate, as in `training/accelerate`; its precision goes before the recipe's.
        utilization: share of the peak that training reaches. Default: `None`, 0.35 of attention alone, 0.1 of
            recurrent models.
        source_length: tokens of a source, on average. Default: `None`, what a built-in source has, or the recipe's
            limit, or 30.
        target_length: likewise.

    Returns:
        The figures.

    Raises:
        ValueError: if the recipe asks for something that doesn't exist, or an argument is out of range.
    """
    family = find_family(recipe)
    task = make_task(recipe.task or family.task, recipe)
    task.check()
    if task.head not in _KINDS:
        raise ValueError(f"a dry run knows no {task.card.task_name.lower()}: train it with training.max_steps=2")
    kind = _KINDS[task.head]
    if recipe.pretrained.model is not None:
        raise ValueError(
            f"pretrained.model={recipe.pretrained.model!r}: a dry run builds what a recipe says, and loads nothing: "
            "leave it out, and say in the model section what the checkpoint has, such as preset"
        )
    launched = {} if accelerate is None else _launched(accelerate)
    devices = devices or launched.get("devices", 1)
    strategy = strategy or launched.get("strategy", "ddp")
    precision = launched.get("precision", recipe.training.precision)
    if device_kind != CPU and device_kind not in DEVICES:
        raise ValueError(f"device_kind={device_kind!r} is none of {', '.join((*DEVICES, CPU))}")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r} is none of {', '.join(STRATEGIES)}")
    for name, value in (("devices", devices), ("source_length", source_length), ("target_length", target_length)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if device_kind != CPU:
        peak = DEVICES[device_kind].peak(precision)

    assumed: list[str] = []
    processor, lengths = _vocabulary(recipe, task, assumed)
    if kind == "classes":
        task.labels = ("one", "other")
        assumed.append("two classes")
    with torch.device("meta"):
        model = build_model(recipe, family, task, processor)
    shape = _shape(recipe, kind, model, lengths, (source_length, target_length), assumed)
    trained, activations, note = _train(recipe, kind, model, shape, precision)
    assumed += note
    section = recipe.training
    try:
        flops = float(training_flops(model, shape))
    except ValueError:
        flops = trained.counted / trained.shape.rows * shape.rows
        assumed.append("operations are those that torch has counted, for so many more rows")
    per_step = section.gradient_accumulation_steps * devices
    flops *= per_step
    if section.gradient_checkpointing:
        flops *= 4 / 3
        assumed.append("gradient checkpointing repeats the forward pass: a third more operations")
    steps = _steps(recipe, shape, per_step, assumed)

    memory = device_memory = None
    if device_kind == CPU:
        utilization, rate = 1.0, trained.counted / trained.seconds
        assumed.append(
            f"this machine goes on at the speed of the second step, {rate / 1e9:,.1f} GFLOP/s; a batch of more rows is "
            "faster"
        )
    else:
        rate, device_memory = peak, DEVICES[device_kind].memory * 2**30
        utilization = _UTILIZATION[family.name not in _RECURRENT] if utilization is None else utilization
        memory = memory_per_device(
            parameter_count(model),
            trained.optimizer_bytes,
            activations,
            model.config.vocab_size,
            precision=precision,
            strategy=strategy,
            devices=devices,
            largest_layer=_largest_layer(model),
        )
        assumed.append(
            f"{utilization:.0%} of the peak of a {device_kind}, {rate / 1e12:,.1f} TFLOP/s in {precision}; "
            "evaluations, checkpoints and waiting for data or other devices beyond that are not in it"
        )
    hours = None if steps is None else training_hours(flops * steps, devices, rate, utilization)
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
    )


def _launched(path: Path) -> dict[str, Any]:
    """Devices, strategy and precision of a configuration of Accelerate."""
    content = read_yaml(path.read_text(encoding="utf-8"), str(path))
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
    launched = {"devices": content.get("num_processes", 1), "strategy": strategy}
    mixed = content.get("mixed_precision")
    return launched | ({"precision": mixed} if mixed in ("bf16", "fp16") else {})


def _vocabulary(recipe: Recipe, task: Task, assumed: list[str]) -> tuple[Any, tuple[float, float] | None]:
    """What fields of the model follow from, and mean lengths of source and target where rows can be drawn."""
    data, section = recipe.data, recipe.tokenizer
    source = {"source": data.source, **data.options, **data.train}["source"]
    if source in SOURCES or source in CAPTION_SOURCES:
        options = {**data.options, **data.train}
        options = {name: value for name, value in options.items() if name not in ("source", "skip", "take")}
        most = _SAMPLE if source in SOURCES else _PICTURES
        options["size"] = min(options.get("size", most), most)
        rows = task.load(source, training=True, **{"split": "train", **options})
        processor = task.build_processor(rows)
        prepared, _ = task.prepare(rows, processor)
        targets = token_lengths(prepared, "labels").mean()
        sources = token_lengths(prepared, "input_ids").mean() if "input_ids" in prepared.column_names else 0.0
        assumed.append(f"vocabulary and lengths of {len(rows)} rows that were drawn")
        return processor, (float(sources), float(targets))
    sizes = section.vocab_size if isinstance(section.vocab_size, list) else [section.vocab_size] * 2
    assumed.append(f"a vocabulary as large as tokenizer.vocab_size={section.vocab_size} allows")
    slots = section.copy_slots or 0
    return _Vocabulary(sizes[0], sizes[1] + slots), None


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
            predicted = length - 1 if kind == "blocks" else 1
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
            assumed.append(f"sources of {lengths[0]} and targets of {lengths[1]} tokens on average")
        shape = BatchShape(1, *lengths)
    rows = training.batch_tokens // shape.tokens
    if rows == 0:
        raise ValueError(f"training.batch_tokens={training.batch_tokens} holds no row of {shape.tokens} tokens")
    return dataclasses.replace(shape, rows=min(rows, training.batch_rows or rows))


def _steps(recipe: Recipe, shape: BatchShape, per_step: int, assumed: list[str]) -> int | None:
    training = recipe.training
    if training.max_steps != -1:
        return training.max_steps
    rows = {**recipe.data.options, **recipe.data.train}.get("size")
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


def _train(
    recipe: Recipe, kind: str, model: PreTrainedModel, shape: BatchShape, precision: str
) -> tuple[Steps, int, list[str]]:
    """Two steps of the model, or of one with its widths and less of everything else.

    Returns:
        The steps; bytes of activations of the whole batch; and what was left out, in words.
    """
    config, depth, notes = model.config, _depth(model.config), []
    small, layers = config, None
    if parameter_count(model) > _STEP_PARAMETERS:
        small, layers = _cut(config, 1), 1
        notes.append("two steps are trained of a model with a single layer and a thousand words, of the same widths")
    step_shape = BatchShape(
        min(shape.rows, 2),
        min(shape.source, _STEP_LENGTH) if kind != "pictures" else shape.source,
        min(shape.target, _STEP_LENGTH),
    )
    if shape.predicted is not None:
        predicted = round(shape.predicted / shape.target * step_shape.target)
        step_shape = dataclasses.replace(step_shape, predicted=max(1, min(predicted, step_shape.target - 1)))
    torch.manual_seed(recipe.seed)
    built = _built(type(model), small)
    steps = _two_steps(recipe, kind, built, step_shape, precision)
    steps = dataclasses.replace(steps, layers=layers)

    stored = _stored(kind, built, step_shape, precision)
    if layers is not None and depth > 1:
        deeper = _stored(kind, _built(type(model), _cut(config, 2)), step_shape, precision)
        stored += (deeper - stored) * (depth - 1)
    if kind == "pictures":
        factor = shape.rows / step_shape.rows
    else:
        factor = shape.tokens / step_shape.tokens
    notes.append("activations are those of the steps, for so many more tokens and layers")
    return steps, round(stored * factor), notes


def _depth(config: Any) -> int:
    return max((getattr(config, name) for name in _DEPTHS if name in _fields(config)), default=1)


def _fields(config: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def _cut(config: Any, layers: int) -> Any:
    """The same configuration with fewer layers and words."""
    changes = {name: layers for name in _DEPTHS if name in _fields(config)}
    for name in ("vocab_size", "source_vocab_size"):
        size = getattr(config, name, None)
        if size is not None:
            changes[name] = min(size, _STEP_WORDS + getattr(config, "num_copy_slots", 0))
    return type(config).from_dict(config.to_dict() | changes)


def _built(model_class: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    config = copy.deepcopy(config)
    if "attention_dropout" in _fields(config):
        # On a processor dropout would keep the attention weights, which no accelerator does.
        config.attention_dropout = 0.0
    return model_class(config).train()


def _batch(kind: str, config: Any, shape: BatchShape) -> dict[str, Tensor]:
    """Random words, or pictures, without padding."""

    def words(length: int, size: int) -> Tensor:
        return torch.randint(min(4, size - 1), size, (shape.rows, length))

    if kind == "pictures":
        pictures = torch.rand(shape.rows, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": pictures, "labels": words(shape.target, config.vocab_size)}
    if kind == "pairs":
        source = words(shape.source, config.source_vocab_size or config.vocab_size)
        batch = {"input_ids": source, "labels": words(shape.target, config.vocab_size)}
        if getattr(config, "copy", False):
            batch["copy_ids"] = words(shape.source, config.vocab_size)
    elif kind == "classes":
        batch = {"input_ids": words(shape.target, config.vocab_size)}
        batch["labels"] = torch.randint(config.num_labels, (shape.rows,))
    elif kind == "answers":
        batch = {"input_ids": words(shape.target, config.vocab_size)}
        batch |= {name: torch.zeros(shape.rows, dtype=torch.long) for name in ("start_positions", "end_positions")}
    else:
        ids = words(shape.target, config.vocab_size)
        batch = {"input_ids": ids, "labels": ids.clone()}
        if kind == "masked":
            batch["labels"][:, shape.predicted :] = IGNORE_INDEX
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def _two_steps(recipe: Recipe, kind: str, model: PreTrainedModel, shape: BatchShape, precision: str) -> Steps:
    section = recipe.training
    arguments = Seq2SeqTrainingArguments(
        output_dir=recipe.output,
        **({} if section.optimizer == ADADELTA else {"optim": section.optimizer}),
        learning_rate=section.learning_rate,
        use_cpu=True,
        report_to=[],
    )
    cls, options = optimizer_class(section, arguments) or Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    optimizer = cls(model.parameters(), **options)
    # What is wrong with a schedule is told now; and its first step is small where the recipe's is.
    schedule = own_schedule(section, model.config.hidden_size, section.max_steps)
    scheduler_arguments(section, lower_is_better=True)
    if schedule is not None:
        LambdaLR(optimizer, schedule)
    losses, counter = [], FlopCounterMode(display=False, custom_mapping=_MORE_PRODUCTS)
    for counting in (counter, nullcontext()):
        batch = _batch(kind, model.config, shape)
        started = time.perf_counter()
        with counting:
            with _autocast(precision):
                loss = model(**batch).loss
            loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - started
        optimizer.zero_grad()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise ValueError(f"the loss of a step on random words is {losses[-1]}: lower training.learning_rate")
    kept = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.ndim > 0
    )
    try:
        flops = training_flops(model, shape)
    except ValueError:
        flops = None
    parameters = parameter_count(model)
    return Steps(shape, parameters, None, tuple(losses), flops, counter.get_total_flops(), seconds, kept / parameters)


def _autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32")


def _stored(kind: str, model: PreTrainedModel, shape: BatchShape, precision: str) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the weights and their copies."""
    weights = {tuple(sorted(parameter.shape)) for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tuple(sorted(tensor.shape)) not in weights:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), _autocast(precision):
        loss = model(**_batch(kind, model.config, shape)).loss
    del loss
    return sum(sizes.values())
