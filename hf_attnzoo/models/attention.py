"""Attention as functions of explicit state: scores, a masked softmax, and the weighted average they lead to.

Every function takes a block of queries `(B, Q, ...)` against the memory of a source `(B, S, ...)`. `Q` is 1 inside a
recurrent training loop, the number of beams in beam search (the beams of a sentence share its memory, which is
therefore never copied), and the target length where a whole target is attended at once.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import initialization as init


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last dimension that gives masked positions a weight of exactly 0.

    Args:
        scores: energies, shape `(B, Q, S)`, or `(B, h, Q, S)` of several heads.
        mask: True or 1 where a position may be read, shape `(B, S)`, or what broadcasts to that of the scores if it
            depends on the query. Default: `None`, all of them.

    Returns:
        Weights of the scores' shape. They sum to 1, or to 0 in a row whose mask is empty: no NaN in value or gradient.
    """
    if mask is None:
        return scores.softmax(dim=-1)
    masked = ~mask.bool()
    if masked.ndim == 2:
        masked = masked[:, None]
    # The dtype's own minimum survives half precision, where a constant such as -1e9 is infinite.
    weights = scores.masked_fill(masked, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(masked, 0.0)


def attend(weights: Tensor, values: Tensor) -> Tensor:
    """Context vectors `c_i = sum_j alpha_ij h_j` (Bahdanau et al. 2015, equation 5).

    Args:
        weights: attention weights alpha, shape `(B, Q, S)`.
        values: annotations h, shape `(B, S, D)`.

    Returns:
        Contexts of shape `(B, Q, D)`.
    """
    return torch.bmm(weights, values)


def additive_scores(
    query: Tensor,
    keys: Tensor,
    v: Tensor,
    coverage: Tensor | None = None,
    coverage_weight: Tensor | None = None,
) -> Tensor:
    """Alignment energies of Bahdanau et al. (2015), appendix A.1.2: `e_ij = v^T tanh(W_a s_{i-1} + U_a h_j)`.

    With a coverage vector c, those of See et al. (2017), equation 11: `e_ij = v^T tanh(W_a s + U_a h_j + w_c c_ij)`.

    Args:
        query: decoder states after `W_a`, shape `(B, Q, A)`.
        keys: annotations after `U_a`, shape `(B, S, A)`. Project them once per source sentence.
        v: weight vector, shape `(A,)`.
        coverage: c, the weight that each position has had so far, shape `(B, Q, S)`. Default: `None`, not looked at.
        coverage_weight: w_c, shape `(A,)`, if there is a coverage.

    Returns:
        Energies of shape `(B, Q, S)`.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _AdditiveScores.apply(query, keys, v, coverage, coverage_weight)
    return _additive_scores(query, keys, v, coverage, coverage_weight)


def dot_scores(query: Tensor, keys: Tensor) -> Tensor:
    """Multiplicative energies `h_t^T k_s` (Luong et al. 2015, equation 8: dot, and general with `k_s = W_a h_s`).

    Args:
        query: decoder states, shape `(B, Q, H)`.
        keys: shape `(B, S, H)`.

    Returns:
        Energies of shape `(B, Q, S)`.
    """
    # Not `.mT`: a tracer takes it out of a decoder's loop, which then gets annotations that are keys too in two views.
    return torch.bmm(query, keys.transpose(1, 2))


def source_positions(mask: Tensor) -> Tensor:
    """Number of each real position among the real ones, from 0, wherever the padding stands.

    Args:
        mask: True where a position is real, shape `(B, S)`.

    Returns:
        Positions of shape `(B, S)`; on padding, whatever.
    """
    return mask.long().cumsum(dim=1) - 1


def window_mask(positions: Tensor, center: Tensor, window: int, mask: Tensor) -> Tensor:
    """Positions within `[p_t - D, p_t + D]` (Luong et al. 2015, section 3.2).

    Args:
        positions: of the source, shape `(B, S)`.
        center: p_t, shape `(B, Q)`.
        window: D.
        mask: True where a position is real, shape `(B, S)`.

    Returns:
        Mask of shape `(B, Q, S)`.
    """
    return ((positions[:, None] - center[:, :, None]).abs() <= window) & mask[:, None]


def gaussian(positions: Tensor, center: Tensor, window: int) -> Tensor:
    """`exp(-(s - p_t)^2 / (2 sigma^2))` with `sigma = D / 2` (Luong et al. 2015, equation 10).

    Args:
        positions: of the source, shape `(B, S)`.
        center: p_t, shape `(B, Q)`, through which the gradient goes.
        window: D.

    Returns:
        Factors of shape `(B, Q, S)`.
    """
    distance = positions[:, None] - center[:, :, None]
    return torch.exp(-2 * (distance / window) ** 2)


def _tanh_as_sigmoid(query: Tensor) -> bool:
    # A sigmoid is over three times as fast as a tanh on a CPU, and tanh(x) = 2 sigmoid(2x) - 1. Half precision keeps
    # the tanh: there the subtraction of the constant would cost digits.
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)


def activation_of(
    query: Tensor, keys: Tensor, coverage: Tensor | None = None, coverage_weight: Tensor | None = None
) -> tuple[Tensor, int]:
    """An activation `a` and a number `c` such that `tanh(q + k + w_c coverage) = c a - (c - 1)`.

    Args:
        query: shape `(B, Q, A)`.
        keys: shape `(B, S, A)`.
        coverage: shape `(B, Q, S)`, or None.
        coverage_weight: w_c, shape `(A,)`, or None.

    Returns:
        `a` of shape `(B, Q, S, A)`, and `c`: `sigmoid(2q + 2k + ...)` and 2, or the tanh itself and 1.
    """
    if _tanh_as_sigmoid(query):
        # 2q + 2k is one pass over the (B, Q, S, A) block
        total, c = torch.add(2 * query[:, :, None], keys[:, None], alpha=2), 2
    else:
        total, c = query[:, :, None] + keys[:, None], 1
    if coverage is not None:
        total = total.addcmul_(coverage[..., None], coverage_weight, value=c)
    return (total.sigmoid_() if c == 2 else total.tanh_()), c


def slope_of(activation: Tensor, c: int) -> Tensor:
    """The slope of the tanh divided by `c^2`, from what `activation_of` returned: shape `(B, Q, S, A)`."""
    if c == 2:
        # d tanh(x) = 4 sigmoid(2x) (1 - sigmoid(2x))
        return torch.addcmul(activation, activation, activation, value=-1)
    return 1 - activation * activation


def _additive_scores(
    query: Tensor, keys: Tensor, v: Tensor, coverage: Tensor | None, coverage_weight: Tensor | None
) -> Tensor:
    if coverage is not None:
        # A sum of many steps, it is kept in a finer dtype than the scores may be in.
        coverage, coverage_weight = coverage.to(query.dtype), coverage_weight.to(query.dtype)
    activation, c = activation_of(query, keys, coverage, coverage_weight)
    scores = activation @ v
    return scores if c == 1 else c * scores - v.sum()


class _AdditiveScores(torch.autograd.Function):
    """`_additive_scores` that makes its `(B, Q, S, A)` block a second time in the backward pass instead of keeping it.

    One such block per decoding step is most of the memory of a training step, and a cheap thing to compute again.
    """

    @staticmethod
    def forward(
        ctx, query: Tensor, keys: Tensor, v: Tensor, coverage: Tensor | None, coverage_weight: Tensor | None
    ) -> Tensor:
        # autocast may have given the projections another dtype than the parameters
        weight, *covered = (
            None if tensor is None else tensor.to(query.dtype) for tensor in (v, coverage, coverage_weight)
        )
        ctx.save_for_backward(query, keys, weight, *covered)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (v, coverage, coverage_weight)]
        return _additive_scores(query, keys, weight, *covered)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, v, coverage, coverage_weight = ctx.saved_tensors
        grad = grad.to(query.dtype)
        activation, c = activation_of(query, keys, coverage, coverage_weight)
        grad_v = c * torch.einsum("bqs,bqsa->a", grad, activation) - (c - 1) * grad.sum()
        # v is a factor of every row, so it can wait until there is no (B, Q, S, A) block any more.
        slope, factor = slope_of(activation, c), c * c * v
        grad_query = torch.einsum("bqs,bqsa->bqa", grad, slope) * factor
        grad_covered = None, None
        if coverage is not None:
            grad_coverage = grad * (slope @ (factor * coverage_weight))
            grad_weight = torch.einsum("bqs,bqsa->a", grad * coverage, slope) * factor
            grad_covered = grad_coverage.to(ctx.dtypes[1]), grad_weight.to(ctx.dtypes[2])
        # In place, as the last use: to find memory for another such block takes longer than what is done to it.
        weighted = slope.mul_(grad[..., None])
        grad_keys = (weighted[:, 0] if weighted.shape[1] == 1 else weighted.sum(dim=1)).mul_(factor)
        return grad_query, grad_keys, grad_v.to(ctx.dtypes[0]), *grad_covered


class AdditiveAttention(nn.Module):
    """The alignment model and context of Bahdanau et al. (2015), section 3.1 and appendix A.1.2.

    `key_proj` (`U_a`) is called by the owner, once per source, since it does not depend on the step.

    Args:
        query_size: size of the decoder state `s_{i-1}`.
        key_size: size of an annotation `h_j`.
        attention_size: size n' of the alignment model's hidden layer.
        coverage: add `w_c c_ij + b_attn` inside the score (See et al. 2017, equation 11).
    """

    def __init__(self, query_size: int, key_size: int, attention_size: int, coverage: bool = False):
        super().__init__()
        self.query_proj = nn.Linear(query_size, attention_size, bias=False)
        self.key_proj = nn.Linear(key_size, attention_size, bias=False)
        self.v = nn.Parameter(torch.zeros(attention_size))
        if coverage:
            self.coverage_weight = nn.Parameter(torch.zeros(attention_size))
            self.coverage_bias = nn.Parameter(torch.zeros(attention_size))

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, coverage: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend from every query to every position of its source.

        Args:
            query: decoder states, shape `(B, Q, query_size)`.
            keys: `key_proj(values)`, shape `(B, S, attention_size)`.
            values: annotations, shape `(B, S, key_size)`.
            mask: 1 where a position may be read, shape `(B, S)`.
            coverage: weight that each position has had so far, shape `(B, Q, S)`, for a module made with coverage.

        Returns:
            Contexts `(B, Q, key_size)` and weights `(B, Q, S)`.
        """
        query = self.query_proj(query)
        if coverage is None:
            scores = additive_scores(query, keys, self.v)
        else:
            query = query + self.coverage_bias.to(query.dtype)
            scores = additive_scores(query, keys, self.v, coverage, self.coverage_weight)
        weights = masked_softmax(scores, mask)
        return attend(weights.to(values.dtype), values), weights

    def initialize(self) -> None:
        """`W_a, U_a ~ N(0, 0.001^2)` and `v = 0` (Bahdanau et al. 2015, appendix B.1): attention starts uniform."""
        init.normal_(self.query_proj.weight, std=0.001)
        init.normal_(self.key_proj.weight, std=0.001)
        init.zeros_(self.v)
        if hasattr(self, "coverage_weight"):
            init.normal_(self.coverage_weight, std=0.001)
            init.zeros_(self.coverage_bias)
