"""The pointer-generator of See, Liu and Manning (2017): an output word is generated, or copied from the source.

With the gate p_gen, the attention weights alpha and the source words w_i (equation 9):

    P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} alpha_i

Weight that is nowhere to be copied from, since a position has no word to give, the source is empty, or local attention
has taken something from its weights, goes to the vocabulary: `P` always sums to 1. Everything is in logarithms, and
finite: what is impossible has the logarithm of the smallest normal number of 32 bits, about -87. Shapes: R decoder
rows, S source length, T target length, V size of the target's vocabulary.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

TINY = torch.finfo(torch.float32).tiny


def repeated_attention(weights: Tensor, coverage: Tensor) -> Tensor:
    """`sum_i min(alpha_i, c_i)`, attention that falls where it has fallen before (See et al. 2017, equation 12).

    Args:
        weights: alpha of a step, shape `(R, S)`.
        coverage: c, the sum of the weights of the steps before, shape `(R, S)`.

    Returns:
        Shape `(R,)`, from 0 to 1.
    """
    return torch.minimum(weights.to(coverage.dtype), coverage).sum(dim=-1)


def mixture_log_probs(logits: Tensor, gate: Tensor, weights: Tensor, copy_ids: Tensor, num_words: int) -> Tensor:
    """log P of the whole target vocabulary.

    Args:
        logits: of the output layer, shape `(R, T, V)`.
        gate: logit of p_gen, shape `(R, T)`.
        weights: alpha, shape `(R, T, S)`.
        copy_ids: target word that copying a position writes, below 0 where there is none, shape `(R, S)`.
        num_words: leading words that the output layer may write; the rest can only be copied.

    Returns:
        Shape `(R, T, V)`, in 32-bit precision or better.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    share, copying, weights = _shares(gate, weights, copy_ids, exact)
    by_head = share[:, :, None] + logits[:, :, :num_words].to(exact).log_softmax(dim=-1)
    by_head = pad(by_head, (0, logits.shape[2] - num_words), value=float("-inf"))
    index = copy_ids.clamp(min=0)[:, None].expand_as(weights)
    copied = torch.zeros_like(by_head).scatter_add(2, index, weights)
    return torch.logaddexp(by_head, copying[:, :, None] + copied.clamp(min=TINY).log())


def label_mixture(gate: Tensor, weights: Tensor, copy_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What `token_cross_entropy` wants as a mixture: no matrix of the vocabulary's size is made.

    Args:
        gate: logit of p_gen, shape `(R, T)`.
        weights: alpha, shape `(R, T, S)`.
        copy_ids: target word that copying a position writes, below 0 where there is none, shape `(R, S)`.
        labels: target words, shape `(R, T)`, below 0 where there is none.

    Returns:
        The logarithms of the output layer's share, and of what copying gives to each label, shape `(R, T)` each.
    """
    exact = torch.promote_types(weights.dtype, torch.float32)
    share, copying, weights = _shares(gate, weights, copy_ids, exact)
    copied = (weights * (copy_ids[:, None] == labels[:, :, None])).sum(dim=-1)
    return share, copying + copied.clamp(min=TINY).log()


def _shares(gate: Tensor, weights: Tensor, copy_ids: Tensor, exact: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    # log p_gen with what can't be copied, log(1 - p_gen), and the weights that can be copied
    gate = gate.to(exact)
    weights = weights.to(exact).masked_fill((copy_ids < 0)[:, None], 0.0)
    copying = logsigmoid(-gate)
    rest = (1 - weights.sum(dim=-1)).clamp(min=TINY)
    return torch.logaddexp(logsigmoid(gate), copying + rest.log()), copying, weights
