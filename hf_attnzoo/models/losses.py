"""Losses shared by the families that predict a vocabulary."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .wrapping import is_plain_linear

IGNORE_INDEX = -100


def label_lengths(labels: Tensor) -> Tensor:
    """Positions up to the last label that counts, shape `(B,)`, of labels `(B, T)`; 0 in a row without one."""
    positions = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    return (positions * (labels != IGNORE_INDEX)).amax(dim=1)


def token_cross_entropy(
    hidden: Tensor,
    head: nn.Linear,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    chunk_size: int = 256,
) -> Tensor:
    """Cross-entropy of a vocabulary head, computed only where there is something to predict.

    Positions labelled -100 never reach the head, and the logits of the others never exist all at once: they are made
    and used up, gradient included, in chunks of `chunk_size` positions.

    Args:
        hidden: what the head reads, shape `(..., D)`.
        head: the projection to `V` words.
        labels: word ids, or -100 where a position does not count, shape `(...)`. Already aligned with `hidden`.
        num_items_in_batch: what the summed loss is divided by, as `Trainer` passes it under gradient accumulation.
            Default: `None`, the number of positions that count here.
        chunk_size: positions per chunk.

    Returns:
        The loss in nats, a scalar of 32-bit precision or better; 0 where no position counts.
    """
    hidden, labels = hidden.flatten(0, -2), labels.flatten().to(hidden.device)
    if torch.compiler.is_compiling() or not is_plain_linear(head):
        # A selection has a size that depends on data, which a compiled graph cannot have; and a head that somebody has
        # wrapped (an adapter, an offloading hook, a quantised layer) must be called, not looked into.
        logits = head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
        count = (labels != IGNORE_INDEX).sum()
    else:
        kept = labels != IGNORE_INDEX
        hidden, labels = hidden[kept], labels[kept]
        with_grad = torch.is_grad_enabled()
        total = _ChunkedLinearCrossEntropy.apply(hidden, head.weight, head.bias, labels, chunk_size, with_grad)
        count = labels.numel()
    if num_items_in_batch is not None:
        count = num_items_in_batch.to(total.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch
    return total / (count.clamp(min=1) if torch.is_tensor(count) else max(count, 1))


class _ChunkedLinearCrossEntropy(torch.autograd.Function):
    """`sum_n -log softmax(W x_n + b)[y_n]`, whose gradients are made chunk by chunk in the forward pass.

    The gradient of a sum of losses with respect to the logits, `softmax - onehot`, is known as soon as the logits are,
    so the logits never have to be kept: the backward pass only scales what was accumulated.
    """

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        chunk_size: int,
        with_grad: bool,
    ) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        exact = torch.promote_types(dtype, torch.float32)
        need_hidden, need_weight, need_bias = (with_grad and needed for needed in ctx.needs_input_grad[:3])
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        grad_bias = torch.zeros_like(bias) if need_bias else None
        total = torch.zeros((), dtype=exact, device=hidden.device)
        cast_weight = weight.to(dtype)
        cast_bias = None if bias is None else bias.to(dtype)
        with torch.autocast(device, enabled=False):
            for start in range(0, hidden.shape[0], chunk_size):
                rows = slice(start, start + chunk_size)
                inputs = hidden[rows].to(dtype)
                targets = labels[rows, None]
                log_probs = nn.functional.linear(inputs, cast_weight, cast_bias).to(exact).log_softmax(dim=-1)
                total -= log_probs.gather(1, targets).sum()
                if not (need_hidden or need_weight or need_bias):
                    continue
                ones = torch.ones_like(targets, dtype=exact)
                grad_logits = log_probs.exp_().scatter_add_(1, targets, -ones).to(dtype)
                if need_hidden:
                    grad_hidden[rows] = grad_logits @ cast_weight
                if need_weight:
                    _add_product(grad_weight, grad_logits.T, inputs)
                if need_bias:
                    grad_bias += grad_logits.sum(dim=0)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if tensor is None else tensor * grad.to(tensor.dtype) for tensor in ctx.saved_tensors]
        return (*scaled, None, None, None)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    # In place there is no second matrix of the head's size, unless autocast has made the product's type another one.
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def smoothed_cross_entropy(
    hidden: Tensor,
    head: nn.Linear,
    labels: Tensor,
    smoothing: float,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Cross-entropy with a target of which every word has a share: `-(1 - e) log p(y) - e / V sum_v log p(v)`.

    Args:
        hidden: as in `token_cross_entropy`, like the arguments that aren't named here.
        smoothing: e, the share that is spread over all V words (Szegedy et al. 2016, section 7), in [0, 1).

    Returns:
        The loss in nats, a scalar.
    """
    loss = token_cross_entropy(hidden, head, labels, num_items_in_batch)
    if smoothing == 0:
        return loss
    kept = labels != IGNORE_INDEX
    # With log p(v) = z_v - log sum exp(z), it is `-log p(y) + e (z_y - mean_v z_v)`: what is added is linear in z.
    if torch.compiler.is_compiling() or not is_plain_linear(head):
        logits = head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        excess = logits.gather(-1, labels.masked_fill(~kept, 0)[..., None])[..., 0] - logits.mean(dim=-1)
        total = excess.masked_fill(~kept, 0.0).sum()
    else:
        rows, words = hidden[kept], labels[kept]
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        total = (rows * (head.weight[words] - head.weight.mean(dim=0))).sum()
        if head.bias is not None:
            total = total + (head.bias[words] - head.bias.mean()).sum()
    count = kept.sum() if num_items_in_batch is None else num_items_in_batch
    count = count.to(total.device).clamp(min=1) if torch.is_tensor(count) else max(count, 1)
    return loss + smoothing * total / count
