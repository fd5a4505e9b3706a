"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2), and the masks it reads.

There is one attention here, for all families that are made of it: `MultiHeadAttention`, whose computation is
`scaled_dot_product_attention`. transformers' attention interface may put a fused kernel in the place of that function
(`attn_implementation="sdpa"`, `"flash_attention_2"`, ...), which computes the same and returns no weights.
Shapes: B texts, Q queries, K keys, H hidden size, h heads, d = H / h.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig
from transformers.cache_utils import EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import masked_softmax
from .unpadding import NO_PADDING, Padding

# Attention weights exist in no other implementation, so whoever asks for them gets masks of this one's kind.
_EAGER = SimpleNamespace(_attn_implementation="eager")


def scaled_dot_product_attention(
    module: nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """`softmax(Q K^T / sqrt(d)) V` (Vaswani et al. 2017, equation 1), with its weights.

    This is what `attn_implementation="eager"` runs, in the signature of transformers' attention interface.

    Args:
        module: the attention that calls; only the fused implementations ask it for anything.
        query: shape `(B, h, Q, d)`.
        key: shape `(B, h, K, d)`.
        value: shape `(B, h, K, d)`.
        attention_mask: shape `(B or 1, h or 1, Q or 1, K)`: True where a key may be read; or numbers to add to the
            scores, of which the lowest of their type forbids. Default: `None`, every key may be read.
        dropout: rate on the weights.
        scaling: factor of the scores. Default: `None`, `1 / sqrt(d)`.
        kwargs: what other implementations take, and this one has no use for.

    Returns:
        Averages of the values, shape `(B, Q, h, d)`, and the weights before dropout, shape `(B, h, Q, K)`: exactly 0
        where the mask forbids, and a row of zeros, no NaN, where it forbids everything.
    """
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    allowed = attention_mask
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        scores = scores + attention_mask
        allowed = attention_mask > torch.finfo(attention_mask.dtype).min
    weights = masked_softmax(scores, allowed)
    average = nn.functional.dropout(weights, dropout).to(value.dtype) @ value
    return average.transpose(1, 2), weights


class MultiHeadAttention(nn.Module):
    """`MultiHead(Q, K, V) = Concat(head_1, .., head_h) W^O` (Vaswani et al. 2017, section 3.2.2).

    Self-attention projects its input to queries, keys and values at once (`qkv_proj`, in this order); cross-attention
    has `q_proj` for its input and `kv_proj` for the source. Head i is rows `i d` to `(i + 1) d - 1` of each of them.

    Args:
        config: `hidden_size`, `num_attention_heads`, `attention_dropout` and `use_bias` count.
        layer_idx: number of the layer, by which a cache knows it. Default: `None`, there will be no cache.
        causal: whether a position reads none after it. The mask says so too; a fused kernel wants to know.
        cross: whether keys and values come from a source.
    """

    def __init__(
        self, config: PreTrainedConfig, layer_idx: int | None = None, causal: bool = False, cross: bool = False
    ):
        super().__init__()
        size = config.hidden_size
        # The attribute names are those that implementations of the interface look for.
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = causal
        self.num_heads = config.num_attention_heads
        self.head_dim = size // self.num_heads
        self.scaling = self.head_dim**-0.5
        self.cross = cross
        if cross:
            self.q_proj = nn.Linear(size, size, bias=config.use_bias)
            self.kv_proj = nn.Linear(size, 2 * size, bias=config.use_bias)
        else:
            self.qkv_proj = nn.Linear(size, 3 * size, bias=config.use_bias)
        self.out_proj = nn.Linear(size, size, bias=config.use_bias)
        self.dropout = nn.Dropout(config.attention_dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: Any = None,
        source: Tensor | None = None,
        cache: Cache | None = None,
        output_attentions: bool = False,
        padding: Padding = NO_PADDING,
        source_padding: Padding = NO_PADDING,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Let every position look at all that the mask lets it see.

        Args:
            hidden: what asks, shape `(B, Q, H)`; in cross-attention `(B k, Q, H)`: k hypotheses per source, those of a
                source next to each other, read one copy of it.
            mask: of `causal_mask`, `bidirectional_mask` or `cross_mask`.
            source: what is asked in cross-attention, shape `(B, K, H)`. Not read any more once it is in the cache.
            cache: keys and values of earlier calls, which those of this one are added to; an `EncoderDecoderCache`
                for both kinds of attention of a decoder. Default: `None`, there were none.
            output_attentions: return the weights, and so compute as `"eager"` does.
            padding: what was taken out of the batch: `hidden` is then its N real positions, `(1, N, H)`, and the mask
                still that of the batch, which is put together again for the attention itself. Default: nothing was.
            source_padding: the same of the source.
            kwargs: for the implementation, such as `position_ids` of packed texts.

        Returns:
            Shape of `hidden`, and the weights `(B, h, Q, K)`, or None if the implementation doesn't have them.
        """
        project = self.q_proj if self.cross else self.qkv_proj
        heads, weights = self.attend(
            padding.restore(project(hidden)), mask, source, cache, output_attentions, source_padding, **kwargs
        )
        return self.out_proj(padding.remove(heads)), weights

    def attend(
        self,
        projected: Tensor,
        mask: Any = None,
        source: Tensor | None = None,
        cache: Cache | None = None,
        output_attentions: bool = False,
        source_padding: Padding = NO_PADDING,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """What is between the projection at the entrance and the one at the exit.

        Args:
            projected: queries, keys and values side by side, shape `(B, Q, 3 H)`; in cross-attention queries alone,
                `(B k, Q, H)`.

        The other arguments are those of `forward`.

        Returns:
            Averages of the values, the heads' side by side, shape `(B, Q, H)` or `(B k, Q, H)`; and the weights.
        """
        if self.cross:
            (query,) = self._split(projected, 1)
            key, value = self._memory(source, cache, query.device, source_padding)
        else:
            query, key, value = self._split(projected, 3)
            if isinstance(cache, EncoderDecoderCache):
                cache = cache.self_attention_cache
            if cache is not None:
                key, value = cache.update(key, value, self.layer_idx)
        hypotheses = query.shape[0] // key.shape[0]
        whole = query.shape[0], query.shape[2]
        if hypotheses > 1:
            # The hypotheses of a source are more queries to it: (B k, h, Q, d) -> (B, h, k Q, d)
            query = query.unflatten(0, (-1, hypotheses)).transpose(1, 2).flatten(2, 3)

        attend = scaled_dot_product_attention
        if not output_attentions:
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, attend)
        dropout = self.dropout.p if self.training else 0.0
        heads, weights = attend(self, query, key, value, mask, dropout=dropout, scaling=self.scaling, **kwargs)

        if hypotheses > 1 and weights is not None:
            weights = weights.unflatten(2, (hypotheses, -1)).transpose(1, 2).flatten(0, 1)
        return heads.reshape(*whole, -1), weights

    def _split(self, vectors: Tensor, parts: int) -> tuple[Tensor, ...]:
        """`(B, T, parts H)` to so many of shape `(B, h, T, d)`."""
        rows, length = vectors.shape[:2]
        return vectors.view(rows, length, parts, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind()

    def _memory(
        self, source: Tensor | None, cache: EncoderDecoderCache | None, device: torch.device, padding: Padding
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of a source, `(B, h, K, d)` each, made once and then kept in the cache."""
        if cache is not None and cache.is_updated.get(self.layer_idx):
            kept = cache.cross_attention_cache.layers[self.layer_idx]
            # An offloading cache keeps them somewhere else.
            return kept.keys.to(device), kept.values.to(device)
        key, value = self._split(padding.restore(self.kv_proj(source)), 2)
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key, value


def causal_mask(
    config: PreTrainedConfig,
    hidden: Tensor,
    attention_mask: Tensor | None = None,
    cache: Cache | None = None,
    documents: Tensor | None = None,
    output_attentions: bool = False,
    loose: bool = False,
) -> Any:
    """Mask of self-attention in which a position reads itself and those before it, in its own text.

    Args:
        config: whose `_attn_implementation` says what kind of mask is wanted.
        hidden: what will attend, shape `(B, Q, H)`; only shape, type and device count.
        attention_mask: 1 or True where a position is real, shape `(B, K)`, cached positions included. A mask of four
            dimensions is taken as it is. Default: `None`, all are real.
        cache: what the keys will be added to, before they are.
        documents: number of the document that a position belongs to, shape `(B, Q)`; without a cache only.
        output_attentions: whether weights are wanted, which `"eager"` alone has.
        loose: padding may read padding, as nobody looks at what it makes of it.

    Returns:
        The mask in the implementation's own form; None where it needs none.

    Raises:
        ValueError: if there are documents, and a cache or more than one row for a flash kernel.
    """
    _check_documents(config, documents, cache)
    if loose and cache is None and not output_attentions and _trails(attention_mask):
        # What comes later is not read anyway, and without a mask there are faster kernels.
        attention_mask = None
    fixed = cache is not None and cache.is_compileable
    if hidden.shape[1] == 1 and not fixed and _is_plain(config, attention_mask, documents, output_attentions):
        return _of_keys(attention_mask)
    return create_causal_mask(
        config=_EAGER if output_attentions else config,
        inputs_embeds=hidden,
        attention_mask=attention_mask,
        cache=cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache,
        and_mask_function=_same_document(documents, documents),
    )


def bidirectional_mask(
    config: PreTrainedConfig,
    hidden: Tensor,
    attention_mask: Tensor | None = None,
    documents: Tensor | None = None,
    output_attentions: bool = False,
) -> Any:
    """Mask of self-attention in which a position reads all of its own text. Arguments as of `causal_mask`."""
    _check_documents(config, documents, None)
    if _is_plain(config, attention_mask, documents, output_attentions):
        return _of_keys(attention_mask)
    return create_bidirectional_mask(
        config=_EAGER if output_attentions else config,
        inputs_embeds=hidden,
        attention_mask=attention_mask,
        and_mask_function=_same_document(documents, documents),
    )


def cross_mask(
    config: PreTrainedConfig,
    hidden: Tensor,
    source: Tensor,
    source_mask: Tensor | None = None,
    documents: tuple[Tensor, Tensor] | None = None,
    output_attentions: bool = False,
) -> Any:
    """Mask of attention from every target position to all of its source.

    Args:
        config: whose `_attn_implementation` says what kind of mask is wanted.
        hidden: what will ask, shape `(B k, Q, H)`.
        source: what will be asked, shape `(B, K, H)`.
        source_mask: 1 or True where a source position is real, shape `(B, K)`. Default: `None`, all are.
        documents: numbers of the documents that target and source positions belong to, shapes `(B, Q)` and `(B, K)`.
        output_attentions: whether weights are wanted.

    Returns:
        The mask in the implementation's own form, for k Q queries per source; None where it needs none.

    Raises:
        ValueError: if there are documents, for a flash kernel.
    """
    target_documents, source_documents = (None, None) if documents is None else documents
    if documents is not None and _is_flash(config):
        raise ValueError(
            f"position_ids start anew within a row: {config._attn_implementation} can't keep packed pairs apart"
        )
    if _is_plain(config, source_mask, documents, output_attentions):
        return _of_keys(source_mask)
    return create_bidirectional_mask(
        config=_EAGER if output_attentions else config,
        inputs_embeds=hidden.reshape(source.shape[0], -1, hidden.shape[-1]),
        attention_mask=source_mask,
        encoder_hidden_states=source,
        and_mask_function=_same_document(target_documents, source_documents),
    )


def _is_plain(config: PreTrainedConfig, mask: Tensor | None, documents: Any, output_attentions: bool) -> bool:
    """Whether nothing but padding `(B, K)` is to be hidden, from an implementation that takes a mask of keys.

    transformers would make the same of it, for every query and at greater length.
    """
    if torch.compiler.is_compiling() or documents is not None or (mask is not None and mask.ndim != 2):
        return False
    return output_attentions or config._attn_implementation in ("eager", "sdpa")


def _of_keys(mask: Tensor | None) -> Tensor | None:
    """Mask `(B, K)` as one of all heads and queries, `(B, 1, 1, K)`; None where it hides nothing."""
    if mask is None or mask.all():
        return None
    return mask.bool()[:, None, None]


def _trails(attention_mask: Tensor | None) -> bool:
    """Whether what a mask `(B, K)` forbids stands after all that it allows; False where that can't be known."""
    if attention_mask is None or attention_mask.ndim != 2 or torch.compiler.is_compiling():
        return False
    return bool((attention_mask[:, 1:].bool() <= attention_mask[:, :-1].bool()).all())


def _same_document(of_queries: Tensor | None, of_keys: Tensor | None) -> Any:
    if of_queries is None or of_keys is None:
        return None

    def same(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return of_queries[batch, query] == of_keys[batch, key]

    return same


def _is_flash(config: PreTrainedConfig) -> bool:
    return "flash" in (config._attn_implementation or "")


def _check_documents(config: PreTrainedConfig, documents: Tensor | None, cache: Cache | None) -> None:
    if documents is None:
        return
    if cache is not None:
        raise ValueError("position_ids start anew within a row: texts packed into one can't have a cache")
    if _is_flash(config) and documents.shape[0] > 1:
        raise ValueError(
            f"position_ids start anew within a row, and there are {documents.shape[0]} rows: "
            f"{config._attn_implementation} takes packed texts in one row alone"
        )
