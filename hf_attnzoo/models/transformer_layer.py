"""The layers that Transformers are made of (Vaswani et al. 2017, sections 3.1 to 3.3), and a stack of them.

A configuration says how they are: `hidden_size`, `num_attention_heads`, `intermediate_size`, `hidden_act` (a name of
transformers' activations), `norm_first`, `layer_norm_eps`, `use_bias`, and the rates `dropout`, `attention_dropout`
and `activation_dropout`. Encoders, decoders and decoders without an encoder are one layer with other parts in use.
Shapes: B texts, T positions, H hidden size, h heads, S source positions.
"""

from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .multi_head import MultiHeadAttention
from .pretrained import AttnZooPreTrainedModel
from .unpadding import NO_PADDING, Padding


def layer_norm(config: PreTrainedConfig) -> nn.LayerNorm:
    """Layer normalisation as the configuration has it."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.use_bias)


def activation(name: str) -> nn.Module:
    """An activation by the name that transformers has for it."""
    # The same function; one kernel, where the other name stands for eight and what they keep for the backward pass.
    return ACT2FN["gelu_pytorch_tanh" if name == "gelu_new" else name]


class FeedForward(nn.Module):
    """`FFN(x) = act(x W_1 + b_1) W_2 + b_2`, at every position (section 3.3)."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.use_bias)
        self.activation = activation(config.hidden_act)
        self.dropout = nn.Dropout(config.activation_dropout)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.use_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """`(B, T, H)` to `(B, T, H)`."""
        return self.down_proj(self.dropout(self.activation(self.up_proj(hidden))))


class TransformerLayer(GradientCheckpointingLayer):
    """Self-attention, attention to a source where there is one, and a feed-forward network.

    Each of them is a residual: `LayerNorm(x + Dropout(f(x)))` as in the paper (`norm_first=False`, post-LN), or
    `x + Dropout(f(LayerNorm(x)))` (`norm_first=True`, pre-LN; Xiong et al. 2020), whose stack ends in one more
    normalisation.

    Args:
        config: see the module's docstring.
        layer_idx: number of the layer in its stack.
        causal: whether self-attention reads nothing that comes later.
        cross_attention: whether there is a source to read.
        residual_scale: what x is multiplied by before something is added to it (Wang et al. 2022: alpha).
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        layer_idx: int,
        causal: bool = False,
        cross_attention: bool = False,
        residual_scale: float = 1.0,
    ):
        super().__init__()
        self.norm_first = config.norm_first
        self.residual_scale = residual_scale
        self.self_attn = MultiHeadAttention(config, layer_idx, causal=causal)
        self.self_attn_norm = layer_norm(config)
        if cross_attention:
            self.cross_attn = MultiHeadAttention(config, layer_idx, cross=True)
            self.cross_attn_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: Any = None,
        source: Tensor | None = None,
        source_mask: Any = None,
        cache: Cache | None = None,
        output_attentions: bool = False,
        padding: Padding = NO_PADDING,
        source_padding: Padding = NO_PADDING,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """One layer.

        Args:
            hidden: shape `(B, T, H)`.
            mask: of self-attention, from `causal_mask` or `bidirectional_mask`.
            source: what cross-attention reads, shape `(B, S, H)`; see `MultiHeadAttention`.
            source_mask: of cross-attention, from `cross_mask`.
            cache: keys and values of earlier calls.
            output_attentions: return attention weights.
            padding: what was taken out of the batch, see `MultiHeadAttention`, as for `source_padding`.
            kwargs: for the implementation of self-attention.

        Returns:
            Shape `(B, T, H)`, and the weights of self-attention `(B, h, T, T)` and of cross-attention `(B, h, T, S)`,
            or None.
        """
        cross_weights = None
        attended, weights = self.self_attn(
            self._before(self.self_attn_norm, hidden), mask, None, cache, output_attentions, padding, **kwargs
        )
        hidden = self._after(self.self_attn_norm, hidden, attended)
        if hasattr(self, "cross_attn"):
            attended, cross_weights = self.cross_attn(
                self._before(self.cross_attn_norm, hidden),
                source_mask,
                source,
                cache,
                output_attentions,
                padding,
                source_padding,
            )
            hidden = self._after(self.cross_attn_norm, hidden, attended)
        hidden = self._after(
            self.feed_forward_norm, hidden, self.feed_forward(self._before(self.feed_forward_norm, hidden))
        )
        return hidden, weights, cross_weights

    def _before(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        return norm(hidden) if self.norm_first else hidden

    def _after(self, norm: nn.Module, hidden: Tensor, added: Tensor) -> Tensor:
        if self.residual_scale != 1:
            hidden = self.residual_scale * hidden
        hidden = hidden + self.dropout(added)
        return hidden if self.norm_first else norm(hidden)


class StackOutput(NamedTuple):
    """What a stack of layers gives.

    Args:
        hidden: of the last layer, shape `(B, T, H)`.
        hidden_states: the stack's input and every layer's output, the last of them `hidden`, or None.
        attentions: weights of every layer's self-attention, `(B, h, T, T)` each, or None.
        cross_attentions: weights of every layer's cross-attention, `(B, h, T, S)` each, or None.
    """

    hidden: Tensor
    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...] | None
    cross_attentions: tuple[Tensor, ...] | None


class TransformerStack(nn.Module):
    """Layers on top of each other, with the final normalisation that pre-LN needs.

    Args:
        config: see the module's docstring.
        num_layers: layers.
        causal: see `TransformerLayer`, as for `residual_scale`.
        cross_attention: whether there is a source to read.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        num_layers: int,
        causal: bool = False,
        cross_attention: bool = False,
        residual_scale: float = 1.0,
    ):
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(config, index, causal, cross_attention, residual_scale) for index in range(num_layers)
        )
        if config.norm_first:
            self.norm = layer_norm(config)

    def forward(
        self,
        hidden: Tensor,
        mask: Any = None,
        source: Tensor | None = None,
        source_mask: Any = None,
        cache: Cache | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        depth: int | None = None,
        **kwargs: Any,
    ) -> StackOutput:
        """The layers, one after the other.

        Args:
            output_hidden_states: return what is between them, too.
            depth: how many of them, from the bottom. Default: `None`, all.

        The other arguments are those of `TransformerLayer.forward`.
        """
        states, weights, cross_weights = [hidden], [], []
        for layer in islice(self.layers, depth):
            # Checkpointing wants by position what a gradient goes through, and by name the cache it must not use.
            hidden, attention, cross_attention = layer(
                hidden, mask, source, source_mask, cache=cache, output_attentions=output_attentions, **kwargs
            )
            states.append(hidden)
            weights.append(attention)
            cross_weights.append(cross_attention)
        if hasattr(self, "norm"):
            hidden = states[-1] = self.norm(hidden)
        crossed = output_attentions and cross_weights[0] is not None
        return StackOutput(
            hidden,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(weights) if output_attentions else None,
            cross_attentions=tuple(cross_weights) if crossed else None,
        )


class AttentionPreTrainedModel(AttnZooPreTrainedModel):
    """Base of the model classes that are made of these layers."""

    _no_split_modules = ["TransformerLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
