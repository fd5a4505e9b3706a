"""Two steps of a recipe's model, or of one with its widths and less of all else: what they keep, what they count."""

import copy
import dataclasses
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from transformers import PreTrainedModel, Seq2SeqTrainingArguments, Trainer

from ..models.losses import IGNORE_INDEX
from .costs import BatchShape, parameter_count, training_flops
from .optimization import ADADELTA, optimizer_class, own_schedule, scheduler_arguments
from .schema import Recipe

# The two steps: a larger model is cut down to this, and a longer text.
_STEP_PARAMETERS, _STEP_LENGTH, _STEP_WORDS = 15_000_000, 64, 1000
# Bytes of a number
_FP32 = 4
_DEPTHS = ("num_hidden_layers", "num_encoder_layers", "num_decoder_layers", "num_layers")

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


def try_steps(
    recipe: Recipe, kind: str, model: PreTrainedModel, shape: BatchShape, precision: str
) -> tuple[Steps, int, list[str]]:
    """Train two steps.

    Args:
        recipe: whose `training` section counts.
        kind: what batches are made of: `pairs`, `blocks`, `masked`, `pictures`, `classes`, `tags` or `answers`.
        model: on the meta device; nothing is done with it.
        shape: of the batch that a device would read.
        precision: `fp32`, `bf16` or `fp16`.

    Returns:
        The steps; bytes of activations of the whole batch; and what was left out, in words.

    Raises:
        ValueError: if a loss isn't finite, or the optimiser or the schedule is not as the recipe has it.
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
        most = step_shape.target if kind == "tags" else step_shape.target - 1
        step_shape = dataclasses.replace(step_shape, predicted=max(1, min(predicted, most)))
    torch.manual_seed(recipe.seed)
    built = _built(type(model), small)
    steps = _two_steps(recipe, kind, built, step_shape, precision)
    steps = dataclasses.replace(steps, layers=layers)

    stored = _stored(kind, built, step_shape, precision)
    if recipe.training.gradient_checkpointing:
        if layers is None:
            stored = _stored(kind, _built(type(model), _cut(config, 1)), step_shape, precision)
        stored += (depth - 1) * step_shape.tokens * config.hidden_size * _FP32
        notes.append("gradient checkpointing keeps what layers read, and all of one layer at a time")
    elif layers is not None and depth > 1:
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
    elif kind in ("classes", "tags"):
        batch = {"input_ids": words(shape.target, config.vocab_size)}
        size = (shape.rows,) if kind == "classes" else (shape.rows, shape.target)
        batch["labels"] = torch.randint(config.num_labels, size)
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
