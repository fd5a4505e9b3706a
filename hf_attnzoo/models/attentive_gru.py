"""The loop of RNNsearch's decoder, packed, with its gradient written out: what training runs where it may.

It computes what `RNNSearchDecoderStep` computes step by step; `additive_attentive_gru` says in which order, and
`_AttentiveGRU.backward` is the same order read backwards. Next to autograd it saves the additions of one gradient per
step of each weight, of the keys and of the annotations, and the memory of everything that is quickly computed again.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .attention import activation_of, additive_scores, attend, masked_softmax, slope_of
from .recurrence import backwards, gru_step, gru_step_backward


def additive_attentive_gru(
    gates: Tensor,
    start: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    weights: tuple[Tensor, ...],
    batch_sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """States, contexts and weights of a packed batch of targets (Bahdanau et al. 2015, appendix A.2.2).

    Args:
        gates: what the words contribute to the gates, packed, shape `(N, 3H)`.
        start: initial states, the longest target first, shape `(B, H)`, as are the rows of what follows.
        keys: projected annotations, shape `(B, S, A)`.
        values: annotations, shape `(B, S, D)`.
        mask: True where a source position is real, shape `(B, S)`.
        weights: `W_a` `(A, H)`, `v` `(A,)`, the context's part of the gates `(3H, D)`, and the recurrent weight
            `(3H, H)` and bias `(3H,)` of a cell with `reset_after`.
        batch_sizes: how many targets run at each step.

    Returns:
        The states s_{i-1} that each step starts from, shape `(N, H)`, its contexts c_i, shape `(N, D)`, and its
        attention weights, shape `(N, S)`.
    """
    return _AttentiveGRU.apply(gates, start, keys, values, mask, *weights, batch_sizes)


class _AttentiveGRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        gates: Tensor,
        start: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        query_weight: Tensor,
        v: Tensor,
        context_weight: Tensor,
        weight: Tensor,
        bias: Tensor,
        batch_sizes: list[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Mostly nobody asks for the gradient of the weights.
        ctx.set_materialize_grads(False)
        state, kept = start, []
        for words in gates.split(batch_sizes):
            rows = words.shape[0]
            before = state[:rows]
            query = before @ query_weight.T
            alpha = masked_softmax(additive_scores(query[:, None], keys[:rows], v), mask[:rows])
            context = attend(alpha, values[:rows])[:, 0]
            state, inner, candidate = gru_step(torch.addmm(words, context, context_weight.T), before, weight, bias)
            kept.append((before, context, alpha, inner, candidate))
        states, contexts, alphas, *rest = (torch.cat(tensors) for tensors in zip(*kept, strict=True))
        ctx.save_for_backward(states, contexts, alphas, *rest, keys, values, query_weight, v, context_weight, weight)
        ctx.batch_sizes = batch_sizes
        return states, contexts, alphas[:, 0]

    @staticmethod
    @once_differentiable
    def backward(
        ctx, grad_states: Tensor | None, grad_contexts: Tensor | None, grad_alphas: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        states, contexts, alphas, inner, candidates, keys, values, *weights = ctx.saved_tensors
        query_weight, v, context_weight, weight = weights
        size = states.shape[1]
        grad_states = torch.zeros_like(states) if grad_states is None else grad_states
        grad_contexts = torch.zeros_like(contexts) if grad_contexts is None else grad_contexts
        grad_inner, grad_n = torch.empty_like(inner), torch.empty_like(candidates)
        grad_queries = states.new_empty(states.shape[0], keys.shape[2])
        grad_keys, grad_values, grad_v = (torch.zeros_like(tensor) for tensor in (keys, values, v))
        # Of the state between two steps. A row that has ended gets nothing from what comes later.
        carried = states.new_zeros(keys.shape[0], size)
        for at in backwards(ctx.batch_sizes):
            rows = at.stop - at.start
            running, alpha, key = carried[:rows], alphas[at], keys[:rows]
            direct = gru_step_backward(running, states[at], inner[at], candidates[at], grad_inner[at], grad_n[at])

            grad_gates = torch.cat([grad_inner[at, : 2 * size], grad_n[at]], dim=1)
            grad_context = torch.addmm(grad_contexts[at], grad_gates, context_weight)[:, None]
            grad_alpha = grad_context @ values[:rows].mT
            if grad_alphas is not None:
                grad_alpha += grad_alphas[at, None]
            grad_values[:rows].baddbmm_(alpha.mT, grad_context)
            # of the softmax; masked positions have an alpha of 0
            grad_scores = alpha * (grad_alpha - (alpha * grad_alpha).sum(dim=-1, keepdim=True))

            activation, c = activation_of((states[at] @ query_weight.T)[:, None], key)
            # The constant in tanh = c a - (c - 1) has no share: what the softmax sends back sums to 0.
            grad_v.addmv_(activation.flatten(0, 2).T, grad_scores.flatten())
            slope = slope_of(activation, c)[:, 0]
            grad_queries[at] = torch.bmm(grad_scores, slope)[:, 0] * (c * c * v)
            grad_keys[:rows].addcmul_(slope, grad_scores.mT)

            direct.addmm_(grad_queries[at], query_weight).addmm_(grad_inner[at], weight)
            torch.add(direct, grad_states[at], out=running)
        grad_weight, grad_bias = grad_inner.T @ states, grad_inner.sum(dim=0)
        # What is left is the gradient of the gates, but for n, which the reset gate is not a factor of.
        grad_inner[:, 2 * size :] = grad_n
        return (
            grad_inner,
            carried,
            # v is a factor of every row, and c of the activation: both can wait for the end.
            grad_keys.mul_(c * c * v),
            grad_values,
            None,
            grad_queries.T @ states,
            c * grad_v,
            grad_inner.T @ contexts,
            grad_weight,
            grad_bias,
            None,
        )
