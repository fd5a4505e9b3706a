"""A stack of layers for the steps of generation: what its modules compute, without the calls of modules.

To call a module is to ask for hooks, for the mode it is in and for its parts. For a single position in a small model
that takes longer than what is computed. The equations are those of `transformer_layer.py`, which is the one to read.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from .multi_head import MultiHeadAttention
from .transformer_layer import FeedForward, StackOutput, TransformerLayer, TransformerStack
from .unpadding import NO_PADDING, Padding
from .wrapping import is_plain, is_plain_linear

_KINDS = TransformerStack, nn.ModuleList, TransformerLayer, MultiHeadAttention, FeedForward, nn.LayerNorm, nn.Dropout
# A class may be given another `forward`, too.
_FORWARDS = {kind: kind.forward for kind in (*_KINDS, nn.Linear)}


class PlainStack:
    """The functions of a stack, which stand in for it at a step.

    It is not a module, and knows nothing of hooks, adapters or weights that the modules are given later: make one
    where a computation begins, let it go where it ends. The weights are the modules' own, not copies.

    Args:
        stack: the modules, see `of`.
    """

    def __init__(self, stack: TransformerStack):
        self.stack = stack
        self.layers = [PlainLayer(layer) for layer in stack.layers]
        self.norm = _norm(stack.norm) if hasattr(stack, "norm") else None

    @classmethod
    def of(cls, stack: nn.Module) -> "PlainStack | None":
        """The functions of a stack; None where a module in it drops something out, or is more than its class says."""
        activations = {id(module.activation) for module in stack.modules() if type(module) is FeedForward}
        for module in stack.modules():
            kind = type(module)
            plain = is_plain_linear(module) if kind is nn.Linear else is_plain(module, kind)
            known = id(module) in activations or kind.forward is _FORWARDS.get(kind)
            if module.training or not plain or not known:
                return None
        return cls(stack)

    def __deepcopy__(self, memo: dict) -> None:
        # As with a `PackedLinear`: a copy would go to another model, which has a stack of its own.
        return None

    def __call__(
        self,
        hidden: Tensor,
        mask: Any = None,
        source: Tensor | None = None,
        source_mask: Any = None,
        cache: Cache | None = None,
        depth: int | None = None,
        **kwargs: Any,
    ) -> StackOutput:
        """What `TransformerStack.forward` gives, see there. More than a step is left to it."""
        if hidden.shape[1] > 1 or _wants_more(**kwargs):
            return self.stack(hidden, mask, source, source_mask, cache=cache, depth=depth, **kwargs)
        for layer in islice(self.layers, depth):
            hidden = layer(hidden, mask, source, source_mask, cache)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return StackOutput(hidden, hidden_states=None, attentions=None, cross_attentions=None)


class PlainLayer:
    """The functions of a `TransformerLayer`.

    Args:
        layer: the module.
    """

    def __init__(self, layer: TransformerLayer):
        self.norm_first = layer.norm_first
        self.residual_scale = layer.residual_scale
        self.self_attn, self.self_attn_norm = _attention(layer.self_attn), _norm(layer.self_attn_norm)
        self.cross_attn = None
        if hasattr(layer, "cross_attn"):
            self.cross_attn, self.cross_attn_norm = _attention(layer.cross_attn), _norm(layer.cross_attn_norm)
        self.feed_forward, self.feed_forward_norm = _feed_forward(layer.feed_forward), _norm(layer.feed_forward_norm)

    def __call__(
        self, hidden: Tensor, mask: Any, source: Tensor | None, source_mask: Any, cache: Cache | None
    ) -> Tensor:
        """`(B, 1, H)` to `(B, 1, H)`; see `TransformerLayer.forward`."""
        hidden = self._residual(self.self_attn, self.self_attn_norm, hidden, mask, None, cache)
        if self.cross_attn is not None:
            hidden = self._residual(self.cross_attn, self.cross_attn_norm, hidden, source_mask, source, cache)
        return self._residual(self.feed_forward, self.feed_forward_norm, hidden)

    def _residual(self, function: Callable, norm: Callable, hidden: Tensor, *inputs: Any) -> Tensor:
        added = function(norm(hidden) if self.norm_first else hidden, *inputs)
        if self.residual_scale != 1:
            hidden = self.residual_scale * hidden
        hidden = hidden + added
        return hidden if self.norm_first else norm(hidden)


def _wants_more(
    output_attentions: bool = False,
    output_hidden_states: bool = False,
    padding: Padding = NO_PADDING,
    source_padding: Padding = NO_PADDING,
    **kwargs: Any,
) -> bool:
    """Whether there is more to give than hidden states, or padding was taken out, or packed texts have positions."""
    removed = padding.places is not None or source_padding.places is not None
    return bool(output_attentions or output_hidden_states or removed or kwargs)


def _linear(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight, bias = linear.weight, linear.bias
    return lambda inputs: nn.functional.linear(inputs, weight, bias)


def _norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda hidden: torch.layer_norm(hidden, shape, weight, bias, eps)


def _attention(attention: MultiHeadAttention) -> Callable[..., Tensor]:
    project = _linear(attention.q_proj if attention.cross else attention.qkv_proj)
    attend, out = attention.attend, _linear(attention.out_proj)
    return lambda hidden, mask, source, cache: out(attend(project(hidden), mask, source, cache)[0])


def _feed_forward(feed_forward: FeedForward) -> Callable[[Tensor], Tensor]:
    up, down = _linear(feed_forward.up_proj), _linear(feed_forward.down_proj)
    activation = feed_forward.activation.forward
    return lambda hidden: down(activation(up(hidden)))
