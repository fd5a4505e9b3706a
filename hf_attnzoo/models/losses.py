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


def per_item(total: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """A sum over labelled positions as a mean over them.

    Args:
        total: the sum, a scalar.
        labels: word ids, or -100 where a position does not count, of any shape.
        num_items_in_batch: what to divide by, as `Trainer` passes it under gradient accumulation. Default: `None`, the
            number of labels that count.

    Returns:
        The mean, a scalar; 0 where no position counts.
    """
    count = (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
    if torch.is_tensor(count):
        return total / count.to(total.device).clamp(min=1)
    return total / max(count, 1)


def token_cross_entropy(
    hidden: Tensor,
    head: nn.Linear,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    chunk_size: int = 256,
    mixture: tuple[Tensor, Tensor] | None = None,
    num_words: int | None = None,
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
        mixture: where a label has another source of probability beside the head, `log a` and `log b`, shape `(...)`
            each: its probability is `a softmax(head)[label] + b`. Default: `None`, the head alone.
        num_words: leading rows of the head that the softmax is over; with a mixture, labels beyond them get nothing
            from the head. Default: `None`, all.

    Returns:
        The loss in nats, a scalar of 32-bit precision or better; 0 where no position counts.
    """
    counted = labels
    hidden, labels = hidden.flatten(0, -2), labels.flatten().to(hidden.device)
    mixed = () if mixture is None else tuple(part.flatten() for part in mixture)
    if torch.compiler.is_compiling() or not is_plain_linear(head):
        # A selection has a size that depends on data, which a compiled graph cannot have; and a head that somebody has
        # wrapped (an adapter, an offloading hook, a quantised layer) must be called, not looked into.
        logits = head(hidden)[:, :num_words]
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        kept = labels != IGNORE_INDEX
        if mixed:
            of_labels = _mixed_log_probs(log_probs, labels.masked_fill(~kept, 0), *mixed)[1]
            total = -of_labels.masked_fill(~kept, 0.0).sum()
        else:
            total = nn.functional.nll_loss(log_probs, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    else:
        kept = labels != IGNORE_INDEX
        hidden, labels, mixed = hidden[kept], labels[kept], [part[kept] for part in mixed]
        weight, bias = head.weight, head.bias
        if num_words is not None and num_words < weight.shape[0]:
            weight, bias = weight[:num_words], None if bias is None else bias[:num_words]
        with_grad = torch.is_grad_enabled()
        total = _ChunkedLinearCrossEntropy.apply(hidden, weight, bias, labels, chunk_size, with_grad, *mixed)
    return per_item(total, counted, num_items_in_batch)


def _mixed_log_probs(log_probs: Tensor, labels: Tensor, share: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities `(N,)` of labels in a mixture: the head's part, and the whole.

    Args:
        log_probs: of the head, shape `(N, V)`.
        labels: word ids, shape `(N,)`; the head has nothing for those beyond V.
        share: logarithm of the head's share, shape `(N,)`.
        other: logarithm of what else the label has, shape `(N,)`.
    """
    beyond = labels >= log_probs.shape[1]
    of_label = log_probs.gather(1, labels.masked_fill(beyond, 0)[:, None])[:, 0]
    by_head = (share + of_label).masked_fill(beyond, float("-inf"))
    return by_head, torch.logaddexp(by_head, other)


@torch.no_grad()
def token_log_likelihoods(hidden: Tensor, head: nn.Module, labels: Tensor, chunk_size: int = 256) -> Tensor:
    """Log-probability of every label, as a number to reckon with: no gradient goes through it.

    Args:
        hidden: what the head reads, shape `(B, T, D)`.
        head: the projection to `V` words.
        labels: word ids, or -100 where a position does not count, shape `(B, T)`. Already aligned with `hidden`.
        chunk_size: positions per chunk of logits.

    Returns:
        Shape `(B, T)`, in nats, of 32-bit precision or better; 0 where a position doesn't count.
    """
    picked = []
    targets = labels.flatten().to(hidden.device)
    for rows, words in zip(hidden.flatten(0, 1).split(chunk_size), targets.split(chunk_size), strict=True):
        logits = head(rows)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        picked.append(-nn.functional.cross_entropy(logits, words, ignore_index=IGNORE_INDEX, reduction="none"))
    return torch.cat(picked).view_as(labels)


class _ChunkedLinearCrossEntropy(torch.autograd.Function):
    """`sum_n -log p_n`, of `p_n = softmax(W x_n + b)[y_n]`, or of a mixture of it and something else.

    Its gradients are made chunk by chunk in the forward pass. That of a sum of losses with respect to the logits,
    `softmax - onehot`, is known as soon as the logits are, so the logits never have to be kept: the backward pass only
    scales what was accumulated. In a mixture it counts as much as the head's part has in the probability of the label.
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
        *mixed: Tensor,
    ) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        exact = torch.promote_types(dtype, torch.float32)
        need_hidden, need_weight, need_bias = (with_grad and needed for needed in ctx.needs_input_grad[:3])
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        grad_bias = torch.zeros_like(bias) if need_bias else None
        grad_mixed = [torch.empty_like(part) for part in mixed]
        total = torch.zeros((), dtype=exact, device=hidden.device)
        cast_weight = weight.to(dtype)
        cast_bias = None if bias is None else bias.to(dtype)
        with torch.autocast(device, enabled=False):
            for start in range(0, hidden.shape[0], chunk_size):
                rows = slice(start, start + chunk_size)
                inputs, parts = hidden[rows].to(dtype), [part[rows].to(exact) for part in mixed]
                log_probs = nn.functional.linear(inputs, cast_weight, cast_bias).to(exact).log_softmax(dim=-1)
                targets = labels[rows, None]
                head_part = torch.ones_like(targets, dtype=exact)
                if mixed:
                    by_head, of_labels = _mixed_log_probs(log_probs, labels[rows], *parts)
                    total -= of_labels.sum()
                    head_part = (by_head - of_labels).exp()[:, None]
                    grad_mixed[0][rows] = -head_part[:, 0]
                    grad_mixed[1][rows] = -(parts[1] - of_labels).exp()
                    targets = targets.clamp(max=log_probs.shape[1] - 1)
                else:
                    total -= log_probs.gather(1, targets).sum()
                if not (need_hidden or need_weight or need_bias):
                    continue
                grad_logits = log_probs.exp_()
                if mixed:
                    grad_logits *= head_part
                grad_logits = grad_logits.scatter_add_(1, targets, -head_part).to(dtype)
                if need_hidden:
                    grad_hidden[rows] = grad_logits @ cast_weight
                if need_weight:
                    _add_product(grad_weight, grad_logits.T, inputs)
                if need_bias:
                    grad_bias += grad_logits.sum(dim=0)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias, *grad_mixed)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if tensor is None else tensor * grad.to(tensor.dtype) for tensor in ctx.saved_tensors]
        return (*scaled[:3], None, None, None, *scaled[3:])


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
    mixture: tuple[Tensor, Tensor] | None = None,
    num_words: int | None = None,
) -> Tensor:
    """Cross-entropy with a target of which every word has a share: `-(1 - e) log p(y) - e / V sum_v log p(v)`.

    Args:
        hidden: as in `token_cross_entropy`, like the arguments that aren't named here.
        smoothing: e, the share that is spread over all V words (Szegedy et al. 2016, section 7), in [0, 1); 0 with a
            mixture.

    Returns:
        The loss in nats, a scalar.
    """
    loss = token_cross_entropy(hidden, head, labels, num_items_in_batch, mixture=mixture, num_words=num_words)
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
    return loss + smoothing * per_item(total, labels, num_items_in_batch)
