"""The loss of a head that tells classes apart, of texts or of tokens."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from .losses import IGNORE_INDEX


def classification_loss(
    logits: Tensor, labels: Tensor, config: PreTrainedConfig, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Loss of one of the problems that transformers' classifiers solve.

    Args:
        logits: shape `(..., L)`, of L classes.
        labels: class numbers, shape `(...)`, -100 where there is none; with floating point numbers, each class's share
            in [0, 1], shape `(..., L)`, or with L = 1 the number itself, shape `(...)`.
        config: whose `problem_type` says what the problem is. If it is None it is told by the labels, and set, as
            transformers' classifiers do it: a pipeline asks there what it should make of the logits.
        num_items_in_batch: what the summed loss is divided by. Default: `None`, the labels that count.

    Returns:
        Cross-entropy, binary cross-entropy or squared error, a scalar of 32-bit precision or better; 0 if none counts.

    Raises:
        ValueError: if the labels have a wrong shape, or name no class.
    """
    size = logits.shape[-1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if config.problem_type is None:
        whole = not labels.is_floating_point()
        single = "single_label_classification" if whole else "multi_label_classification"
        config.problem_type = "regression" if size == 1 else single
    if config.problem_type == "single_label_classification":
        return class_cross_entropy("labels", logits, labels, num_items_in_batch)
    if labels.numel() != logits.numel():
        raise ValueError(f"labels must have the shape {tuple(logits.shape)}, got {tuple(labels.shape)}")
    labels = labels.view_as(logits).to(logits)
    if config.problem_type == "regression":
        total = nn.functional.mse_loss(logits, labels, reduction="sum")
    else:
        total = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return _divided(total, labels.numel() if num_items_in_batch is None else num_items_in_batch)


def class_cross_entropy(
    name: str, logits: Tensor, classes: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Cross-entropy of one class each.

    Args:
        name: argument that the classes came in by.
        logits: shape `(..., L)`.
        classes: numbers, shape `(...)`, -100 where there is none.
        num_items_in_batch: what the summed loss is divided by. Default: `None`, the classes that there are.

    Returns:
        Nats per class, a scalar of 32-bit precision or better; 0 if there is none.

    Raises:
        ValueError: if the classes have another shape, or one is no number of a class.
    """
    _check_classes(name, classes, logits.shape[:-1], logits.shape[-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    classes = classes.to(logits.device, torch.long)
    total = nn.functional.cross_entropy(
        logits.flatten(0, -2), classes.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    return _divided(total, (classes != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch)


def _divided(total: Tensor, count: Tensor | int) -> Tensor:
    return total / (count.to(total.device).clamp(min=1) if torch.is_tensor(count) else max(count, 1))


def _check_classes(name: str, labels: Tensor, shape: torch.Size, size: int) -> None:
    if labels.shape != shape:
        raise ValueError(f"{name} must have the shape {tuple(shape)}, got {tuple(labels.shape)}")
    if torch.compiler.is_compiling() or labels.numel() == 0:
        return
    high = labels.max().item()
    if high >= size or ((labels < 0) & (labels != IGNORE_INDEX)).any():
        raise ValueError(
            f"{name} must be -100 or from 0 to {size - 1}, got up to {high}, down to {labels.min().item()}"
        )
