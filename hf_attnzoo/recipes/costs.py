"""What training costs before any of it is done: parameters, operations, memory, hours.

Operations are counted as they are for the utilisation of a device (Chowdhery et al. 2022, appendix B): multiplications
and additions of matrices, two for each weight that a position meets, and those of attention; three times those of the
forward pass in all. Nothing is taken off for the half of a causal attention that is masked.
"""

import re
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .lora import LoRAPlan

# Bytes of a number
_FP32, _HALF = 4, 2
# Backward, the gradient of what is read and the gradient of the weight are as much as forward each.
_PASSES = 3
# Positions whose logits exist at a time, once in the compute precision and twice in 32 bits; see `models.losses`.
_LOGITS_CHUNK = 256
_GIB = 2**30


@dataclass(frozen=True)
class BatchShape:
    """What one device reads at a time.

    Args:
        rows: B.
        source: tokens S of every source; 0 where there is none; the cells of a picture's grid.
        target: tokens T of every target, or of every text.
        predicted: how many of the T are predicted. Default: `None`, all.
    """

    rows: int
    source: int
    target: int
    predicted: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens of both sides."""
        return self.rows * (self.source + self.target)


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Args:
        name: as the command line has it.
        memory: GiB.
        fp32: dense operations per second without tensor cores, in units of 10^12.
        fp16: the same in 16-bit floating point.
        bf16: the same in bfloat16; None where there is no hardware for it.
    """

    name: str
    memory: int
    fp32: float
    fp16: float
    bf16: float | None = None

    def peak(self, precision: str) -> float:
        """Operations per second at a recipe's precision.

        Raises:
            ValueError: if the device has no hardware for it.
        """
        rate = getattr(self, precision)
        if rate is None:
            raise ValueError(f"training.precision={precision}: {self.name} has no hardware for it, set fp16 or fp32")
        return rate * 1e12


# Makers' data sheets: boards with NVLink or SXM where there are several, without sparsity.
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("h200", 141, 67, 989, 989),
        Device("h100", 80, 67, 989, 989),
        Device("a100-80gb", 80, 19.5, 312, 312),
        Device("a100-40gb", 40, 19.5, 312, 312),
        Device("l4", 24, 30.3, 121, 121),
        Device("rtx-4090", 24, 82.6, 165.2, 165.2),
        Device("v100", 32, 15.7, 125),
        Device("t4", 16, 8.1, 65),
        Device("p100", 16, 10.6, 21.2),
    )
}

# How the weights of a run are kept on several devices: what each holds a share of alone.
STRATEGIES: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "zero1": ("optimizer",),
    "zero2": ("optimizer", "gradients"),
    "zero3": ("optimizer", "gradients", "weights"),
    "fsdp": ("optimizer", "gradients", "weights"),
}


def parameter_count(model: nn.Module) -> int:
    """Numbers that are trained; a tied weight counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def training_flops(model: PreTrainedModel, shape: BatchShape, lora: LoRAPlan | None = None) -> int:
    """Operations of the forward and the backward pass over one batch.

    Args:
        model: on any device, the meta device too.
        shape: of the batch, without padding.
        lora: what of it is trained. Default: `None`, all.

    Returns:
        Their number.

    Raises:
        ValueError: if the model's layers are not only linear ones that a position meets, as in an image encoder.
    """
    return _weight_flops(model, shape, lora) + _PASSES * _attention_flops(model.config, shape)


def _weight_flops(model: PreTrainedModel, shape: BatchShape, lora: LoRAPlan | None) -> int:
    """Two for each weight and each position that it is applied to, in each pass; a frozen one has no gradient."""
    total = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        if isinstance(module, nn.modules.conv._ConvNd):
            raise ValueError(f"{name} is a convolution, whose operations are not known from its weights")
        weights = sum(weight.numel() for weight in module.parameters(recurse=False) if weight.ndim > 1)
        passes = _PASSES
        if lora is not None and not any(name == whole or name.startswith(f"{whole}.") for whole in lora.whole):
            passes -= 1
        operations = passes * weights
        if lora is not None and name in lora.targets:
            operations += _PASSES * lora.rank * (module.in_features + module.out_features)
        total += 2 * operations * _positions(name, model.config, shape)
    return total


def _positions(name: str, config: Any, shape: BatchShape) -> int:
    """How often a batch meets the weights of a module."""
    predicted = shape.target if shape.predicted is None else shape.predicted
    if re.search(r"(^|\.)(lm_head|transform\.dense|pooler(\..*)?|classifier|score)$", name):
        return shape.rows * predicted
    # What begins a decoder is there once a sentence, and so is the one vector for the whole source.
    fixed = "|context_readout" if getattr(config, "attention", None) == "none" else ""
    if re.search(rf"\.(initial_proj|fixed_context_proj|bridge(\..*)?{fixed})$", name):
        return shape.rows
    if re.search(r"(^|\.)encoder\.|cross_attn\.kv_proj$|attention\.key_proj$", name):
        return shape.rows * shape.source
    return shape.rows * shape.target


def _attention_flops(config: Any, shape: BatchShape) -> int:
    """Scores and weighted sums, forward."""
    rows, source, target = shape.rows, shape.source, shape.target
    kind = config.model_type.removeprefix("attnzoo_")
    if kind in ("gpt", "bert"):
        return 4 * rows * target * target * config.hidden_size * config.num_hidden_layers
    if kind == "transformer":
        encoder = source * source * config.num_encoder_layers
        decoder = target * (target + source) * config.num_decoder_layers
        return 4 * rows * (encoder + decoder) * config.hidden_size
    if getattr(config, "attention", "none") == "none":
        return 0
    score = config.annotation_size
    if kind == "rnnsearch":
        score = config.attention_size or config.hidden_size
    elif config.score == "concat":
        score = config.hidden_size
    elif config.score == "location":
        score = 0
    return 2 * rows * target * source * (score + config.annotation_size)


@dataclass(frozen=True)
class Memory:
    """What one device holds at the worst moment of a step, in bytes.

    Args:
        weights: in 32 bits, and under autocast a 16-bit copy.
        gradients: in 32 bits, and the buffers in which DDP exchanges them.
        optimizer: moments and the like.
        activations: what the backward pass needs, for one batch; estimated.
        logits: of the chunk of positions whose loss is being computed.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """Bytes in all; what the libraries themselves hold is not in it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def memory_per_device(
    parameters: int,
    optimizer_bytes: float,
    activations: int,
    vocabulary: int,
    *,
    precision: str,
    strategy: str,
    devices: int,
    largest_layer: int,
    lora: LoRAPlan | None = None,
) -> Memory:
    """Memory of a step.

    Args:
        parameters: of the model.
        optimizer_bytes: that the optimiser keeps for each that is trained.
        activations: bytes for one batch on one device.
        vocabulary: rows of the output layer.
        precision: `fp32`, `bf16` or `fp16`.
        strategy: a key of `STRATEGIES`.
        devices: how many.
        largest_layer: parameters that are gathered at a time where weights are shared out.
        lora: what of them is trained, and lies beside them. Default: `None`, all are.

    Returns:
        Bytes on one device.

    Raises:
        ValueError: if the strategy is unknown, or there is less than one device.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r} is none of {', '.join(STRATEGIES)}")
    if devices < 1:
        raise ValueError(f"devices={devices} must be at least 1")
    shared = STRATEGIES[strategy]
    trained = parameters
    if lora is not None:
        trained = lora.trained
        parameters += trained

    def share(part: str, size: float) -> int:
        return round(size / devices if part in shared else size)

    weights = share("weights", parameters * _FP32)
    if precision != "fp32":
        weights += (largest_layer if "weights" in shared else parameters) * _HALF
    elif "weights" in shared:
        weights += largest_layer * _FP32
    gradients = share("gradients", trained * _FP32)
    if strategy == "ddp" and devices > 1:
        gradients += trained * _FP32
    logits = _LOGITS_CHUNK * vocabulary * (2 * _FP32 + (_FP32 if precision == "fp32" else _HALF))
    return Memory(weights, gradients, share("optimizer", trained * optimizer_bytes), activations, logits)


def training_hours(flops: float, devices: int, peak: float, utilization: float) -> float:
    """Wall time of so many operations.

    Args:
        flops: operations in all.
        devices: how many share them.
        peak: operations per second of one.
        utilization: share of the peak that training reaches, above 0 and up to 1.

    Raises:
        ValueError: if the utilisation is out of range.
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization={utilization} must be above 0 and up to 1")
    return flops / (devices * peak * utilization) / 3600
