"""The Transformer: attention is all you need (Vaswani et al. 2017).

Reads as section 3 does, from the bottom of figure 1 to its top: words and their positions (3.4, 3.5), encoder and
decoder (3.1) out of layers that all families share (3.2, 3.3: `transformer_layer.py`, `multi_head.py`), the output
layer. Shapes: B sources, R decoder rows (B times the hypotheses per source), S source length, T target length, H the
hidden size, h heads.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers import initialization as init
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .attention import source_positions
from .configuration_transformer import TransformerConfig
from .losses import label_lengths, smoothed_cross_entropy
from .multi_head import bidirectional_mask, causal_mask, cross_mask
from .packed_linear import PackedHeadGenerationMixin, PackedLinear
from .plain_stack import PlainStack
from .positions import LearnedPositions, SinusoidalPositions, read_positions
from .pretrained import check_embeds, check_ids, check_labels, exactly_one
from .seq2seq import (
    EncoderOutput,
    SharedSourceGenerationMixin,
    SharedVocabularyMixin,
    prepare_decoder_inputs,
    shift_tokens_right,
    source_mask,
)
from .transformer_layer import AttentionPreTrainedModel, StackOutput, TransformerStack, check_rows, layer_norm
from .unpadding import NO_PADDING, Padding


class TransformerInputs(nn.Module):
    """What enters the bottom layer: word vectors times the root of their size, and position vectors (3.4, 3.5)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.scale = math.sqrt(config.embedding_size) if config.scale_embedding else 1.0
        self.concatenate = config.position_combination == "concat"
        length, size = config.max_position_embeddings, config.position_vector_size
        if config.position_embeddings == "learned":
            self.positions = LearnedPositions(length, size)
        else:
            self.positions = SinusoidalPositions(length, size, config.position_layout)
        if config.embedding_norm:
            self.norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embeds: Tensor, position_ids: Tensor) -> Tensor:
        """Word vectors `(B, T, embedding_size)` and their positions' numbers `(B or 1, T)` to `(B, T, H)`."""
        words, positions = embeds * self.scale, self.positions(position_ids)
        if self.concatenate:
            hidden = torch.cat([words, positions.to(words.dtype).expand(*words.shape[:2], -1)], dim=-1)
        else:
            hidden = words + positions.to(words.dtype)
        if hasattr(self, "norm"):
            hidden = self.norm(hidden)
        return self.dropout(hidden)


@dataclass
class TransformerEncoderOutput(EncoderOutput):
    """Annotations, their mask, and which document each of them belongs to.

    Args:
        documents: number of the document in its row, shape `(B, S)`; None if every row is one.
    """

    documents: Tensor | None = None


class TransformerEncoder(nn.Module):
    """Self-attention over the source, layer upon layer (3.1, left half of figure 1)."""

    # generate() looks here for the name of the encoder's main input
    main_input_name = "input_ids"

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        source_vocab_size = config.source_vocab_size or config.vocab_size
        self.embed_tokens = nn.Embedding(source_vocab_size, config.embedding_size, config.pad_token_id)
        self.inputs = TransformerInputs(config)
        self.stack = TransformerStack(config, config.num_encoder_layers, residual_scale=config.encoder_residual_scale)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> TransformerEncoderOutput:
        """Read the source.

        Args:
            input_ids: source ids, shape `(B, S)`, padded on either side.
            attention_mask: 1 where a position is real, shape `(B, S)`. Default: `None`, inferred from the padding id.
            inputs_embeds: word vectors in place of ids, before they are scaled, shape `(B, S, embedding_size)`.
            position_ids: shape `(B, S)`; where they start anew within a row, another source begins. Default: `None`,
                real positions are counted.
            output_attentions: also return every layer's weights, `(B, h, S, S)`.
            output_hidden_states: also return what enters the bottom layer and what leaves each, `(B, S, H)`.

        Returns:
            Annotations `(B, S, H)`, 0 on padding, and the mask.

        Raises:
            ValueError: if both or neither of ids and vectors are given, a shape or an id is wrong, or the source is
                longer than there are positions.
        """
        exactly_one(input_ids=input_ids, inputs_embeds=inputs_embeds)
        if inputs_embeds is None:
            check_ids("input_ids", input_ids, self.embed_tokens.num_embeddings)
            inputs_embeds = self.embed_tokens(input_ids)
        check_embeds("inputs_embeds", inputs_embeds, self.config.embedding_size)
        real = source_mask(attention_mask, input_ids, inputs_embeds, self.config.pad_token_id)
        position_ids, documents = read_positions(inputs_embeds, real, position_ids)

        mask = bidirectional_mask(self.config, inputs_embeds, real, documents, bool(output_attentions))
        packed = {} if documents is None else {"position_ids": position_ids}
        padding = Padding.of(real)
        output = self.stack(
            self.inputs(padding.remove(inputs_embeds), padding.remove(position_ids.expand(real.shape))),
            mask,
            output_attentions=bool(output_attentions),
            output_hidden_states=bool(output_hidden_states),
            padding=padding,
            **packed,
        )
        annotations, states = padding.clear(output.hidden), output.hidden_states
        return TransformerEncoderOutput(
            last_hidden_state=annotations,
            hidden_states=None if states is None else (*map(padding.clear, states[:-1]), annotations),
            attentions=output.attentions,
            attention_mask=real,
            documents=documents,
        )


class TransformerDecoder(nn.Module):
    """Self-attention over the target so far, and attention to the source, layer upon layer (3.1, figure 1)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        if config.source_vocab_size is not None:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.inputs = TransformerInputs(config)
        self.stack = TransformerStack(
            config,
            config.num_decoder_layers,
            causal=True,
            cross_attention=True,
            residual_scale=config.decoder_residual_scale,
        )

    def forward(
        self,
        embeds: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        source: TransformerEncoderOutput,
        cache: EncoderDecoderCache | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        lengths: Tensor | None = None,
        plain_stack: PlainStack | None = None,
    ) -> StackOutput:
        """Write the target.

        Args:
            embeds: vectors of the previous words, before they are scaled, shape `(R, T, embedding_size)`.
            attention_mask: 1 where a target position is real, those in the cache included, shape `(R, seen + T)`.
            position_ids: shape `(R, T)`, or None: real positions are counted.
            source: annotations `(B, S, H)` and the mask of the real ones `(B, S)`.
            cache: keys and values of what came before; those of `embeds` are added.
            output_attentions: also return attention weights.
            output_hidden_states: also return the states between layers.
            lengths: leading positions that matter, shape `(R,)`, see `TransformerModel.forward`, as for `plain_stack`.

        Returns:
            What the layers give, states 0 on padding.

        Raises:
            ValueError: if the target is longer than there are positions, or only one side is packed.
        """
        seen = 0 if cache is None else cache.get_seq_length()
        position_ids, documents = read_positions(embeds, attention_mask, position_ids, seen, "decoder_")
        if (documents is None) != (source.documents is None):
            raise ValueError(
                "decoder_position_ids and position_ids must both start anew within a row, or neither: "
                "a packed target reads a packed source"
            )
        packed, pairs = {}, None
        if documents is not None:
            packed, pairs = {"position_ids": position_ids}, (documents, source.documents)
        annotations = source.last_hidden_state
        padding = Padding.of(self._real(embeds, attention_mask, lengths))
        # Once in a cache, keys and values of the source are not made again.
        kept = cache is not None and any(cache.is_updated.values())
        source_padding = NO_PADDING if kept else Padding.of(source.attention_mask)
        # A graph has no use for it: it has no calls.
        stack = self.stack if plain_stack is None or torch.compiler.is_compiling() else plain_stack
        output = stack(
            self.inputs(padding.remove(embeds), padding.remove(position_ids.expand(embeds.shape[:2]))),
            causal_mask(self.config, embeds, attention_mask, cache, documents, output_attentions, loose=True),
            source_padding.remove(annotations),
            cross_mask(self.config, embeds, annotations, source.attention_mask, pairs, output_attentions),
            cache=cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            # generate() sets it to fewer while a model that leaves early assists itself.
            depth=self.config.num_decoder_layers,
            padding=padding,
            source_padding=source_padding,
            **packed,
        )
        hidden, states = padding.clear(output.hidden), output.hidden_states
        return output._replace(
            hidden=hidden, hidden_states=None if states is None else (*map(padding.clear, states[:-1]), hidden)
        )

    def _real(self, embeds: Tensor, attention_mask: Tensor | None, lengths: Tensor | None) -> Tensor | None:
        """Which positions have to be computed, shape `(R, T)`, or None: all of them."""
        length = embeds.shape[1]
        known = attention_mask is not None and attention_mask.ndim == 2 and length > 1
        real = attention_mask[:, -length:].bool() if known else None
        if lengths is not None:
            leading = torch.arange(length, device=embeds.device) < lengths[:, None]
            real = leading if real is None else leading & real
        return real


class SharedSourceCache(EncoderDecoderCache):
    """Keys and values of a decoder, of which those of the source are the same for all hypotheses of a sentence.

    The self-attention's have one row per hypothesis, the cross-attention's one per source: beam search, which moves
    hypotheses between the rows of their own sentence, leaves them where they are.
    """

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let each hypothesis go on from row `beam_idx` of its own sentence."""
        self.self_attention_cache.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every hypothesis; the repeats share their source."""
        self.check_dynamic_cache("batch_repeat_interleave")
        self.self_attention_cache.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`, of whatever sentences, each with a source of its own."""
        self.check_dynamic_cache("batch_select_indices")
        for hypotheses, source in zip(
            self.self_attention_cache.layers, self.cross_attention_cache.layers, strict=True
        ):
            beams = hypotheses.keys.shape[0] // source.keys.shape[0]
            source.batch_select_indices(indices // beams)
        self.self_attention_cache.batch_select_indices(indices)


class TransformerPreTrainedModel(AttentionPreTrainedModel):
    """Base of the family's classes."""

    config: TransformerConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if self.config.initializer_range is not None or not isinstance(module, nn.Linear | nn.Embedding):
            super()._init_weights(module)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        else:
            init.normal_(module.weight, std=self.config.hidden_size**-0.5)
            self._init_padding(module)


class TransformerModel(SharedVocabularyMixin, TransformerPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.encoder = TransformerEncoder(config)
        self.decoder = TransformerDecoder(config)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: EncoderOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        decoder_lengths: Tensor | None = None,
        plain_stack: PlainStack | None = None,
    ) -> Seq2SeqModelOutput:
        """Read a source and a target.

        Args:
            input_ids: source ids, shape `(B, S)`, padded on either side.
            attention_mask: 1 where a source position is real, shape `(B, S)`. Default: `None`, inferred from the
                padding id.
            decoder_input_ids: target ids, each one step before it is predicted, shape `(B, T)`. With `encoder_outputs`
                or a `cache`, several rows may share a source: `(B * k, T)`, those of a sentence next to each other.
            decoder_attention_mask: 1 where a target position is real, those in the cache included, shape
                `(B, seen + T)`. Padding on the left leaves a row as it would be alone. Default: `None`, all are.
            position_ids: numbers of the source's positions, shape `(B, S)`. Default: `None`, real ones are counted.
                Where they start anew within a row, another source begins; then the `decoder_position_ids` do so too,
                and document i of a target reads document i of its source alone.
            decoder_position_ids: the same of the target, shape `(B, T)`.
            encoder_outputs: annotations, in place of a source.
            cache: an `EncoderDecoderCache` that an earlier call returned, or an empty one. It is updated.
            inputs_embeds: source vectors in place of ids, before they are scaled, shape `(B, S, embedding_size)`.
            decoder_inputs_embeds: target vectors in place of ids, shape `(B, T, embedding_size)`.
            use_cache: return a cache. Default: `None`, `config.use_cache` outside training.
            output_attentions: return every layer's weights: `encoder_attentions` `(B, h, S, S)`, `decoder_attentions`
                `(B, h, T, T)` and `cross_attentions` `(B, h, T, S)`.
            output_hidden_states: return what enters the bottom layer and what leaves each, of both sides.
            decoder_lengths: leading target positions that matter, shape `(R,)`: the rest may be left out, as zeros,
                which is faster. Default: `None`, all of them.
            plain_stack: the decoder's layers, made ready by `generate()`. Default: `None`, as they are.

        Returns:
            `last_hidden_state` is what the vocabulary head reads, shape `(B, T, H)`.

        Raises:
            ValueError: if inputs are missing, given twice, of a wrong shape, too long, or hold an id out of range.
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if use_cache is None:
            use_cache = config.use_cache and not self.training

        exactly_one(decoder_input_ids=decoder_input_ids, decoder_inputs_embeds=decoder_inputs_embeds)
        if decoder_inputs_embeds is None:
            check_ids("decoder_input_ids", decoder_input_ids, config.vocab_size)
            decoder_inputs_embeds = self.get_decoder_input_embeddings()(decoder_input_ids)
        check_embeds("decoder_inputs_embeds", decoder_inputs_embeds, config.embedding_size)
        rows = decoder_inputs_embeds.shape[0]
        check_cache(cache, rows)

        if encoder_outputs is not None and (input_ids is not None or inputs_embeds is not None):
            raise ValueError("pass a source, as input_ids or inputs_embeds, or its encoder_outputs, not both")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                position_ids=position_ids,
                output_attentions=output_attentions,
                output_hidden_states=output_hidden_states,
            )
            sources = encoder_outputs.last_hidden_state.shape[0]
            if rows != sources and cache is None:
                raise ValueError(f"decoder_input_ids has {rows} rows, but there are {sources} sources")
        annotations = encoder_outputs[0]
        if rows % annotations.shape[0] != 0:
            raise ValueError(f"decoder_input_ids has {rows} rows, no multiple of the {annotations.shape[0]} sources")
        given = getattr(encoder_outputs, "attention_mask", None) if attention_mask is None else attention_mask
        source = TransformerEncoderOutput(
            last_hidden_state=annotations,
            attention_mask=source_mask(given, None, annotations, None),
            documents=getattr(encoder_outputs, "documents", None),
        )

        # What is packed has no cache, and the decoder says so if it is given one.
        if use_cache and cache is None and source.documents is None:
            cache = SharedSourceCache(DynamicCache(config=config), DynamicCache(config=config))
        output = self.decoder(
            decoder_inputs_embeds,
            decoder_attention_mask,
            decoder_position_ids,
            source,
            cache,
            output_attentions,
            output_hidden_states,
            decoder_lengths,
            plain_stack,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=output.hidden,
            cache=cache,
            decoder_hidden_states=output.hidden_states,
            decoder_attentions=output.attentions,
            cross_attentions=output.cross_attentions,
            encoder_last_hidden_state=annotations,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )


class TransformerForConditionalGeneration(
    SharedVocabularyMixin, PackedHeadGenerationMixin, SharedSourceGenerationMixin, TransformerPreTrainedModel
):
    """The Transformer with its output layer: a linear map to the vocabulary, and a softmax (3.4)."""

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.model = TransformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        side = "encoder" if config.source_vocab_size is None else "decoder"
        self._tied_weights_keys = {"lm_head.weight": f"model.{side}.embed_tokens.weight"}
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: EncoderOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        packed_head: PackedLinear | None = None,
        plain_stack: PlainStack | None = None,
    ) -> Seq2SeqLMOutput:
        """Predict a target.

        Args:
            labels: target ids, shape `(B, T)`, -100 where nothing is to be predicted. Without decoder inputs they are
                shifted to make them; packed ones come with decoder inputs.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.
            logits_to_keep: compute the logits of the last so many positions, or of these positions. Default: `0`, all.
            skip_logits: compute the loss alone, and logits for none but the labelled positions, a part at a time.
                Default: `None`, when training with labels.
            packed_head: the output layer, made ready by `generate()`. Default: `None`, as it is.

        The other arguments are those of `TransformerModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, smoothed as the configuration says while training, and
            `logits` of shape `(B, T, vocab_size)`, None if skipped.

        Raises:
            ValueError: as `TransformerModel.forward`, and if labels and decoder inputs differ in shape.
        """
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False if use_cache is None else use_cache
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        # Nothing that is wanted depends on what comes after the last label.
        cut = skip_logits and labels is not None and cache is None and not use_cache
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=prepare_decoder_inputs(self, labels, decoder_input_ids, decoder_inputs_embeds),
            decoder_attention_mask=decoder_attention_mask,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            decoder_lengths=label_lengths(labels) if cut else None,
            plain_stack=plain_stack,
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = smoothed_cross_entropy(hidden, self.lm_head, labels, smoothing, num_items_in_batch)
        head = self.lm_head if packed_head is None else packed_head
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return Seq2SeqLMOutput(
            loss=loss,
            logits=None if skip_logits else head(hidden[:, positions]),
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs that predict `labels`, shape `(B, T)`, as data collators ask for them."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, decoder_attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Inputs of the next step; see `SharedSourceGenerationMixin.prepare_inputs_for_generation`.

        Args:
            input_ids: the whole of the target so far, shape `(B * beams, T)`.
            decoder_attention_mask: 1 where a position of it is real, shape `(B * beams, T)`, or None.
            kwargs: see there.

        Returns:
            Keyword arguments of `forward`.
        """
        if decoder_attention_mask is not None and decoder_attention_mask.ndim == 2:
            # A static cache makes a mask of four dimensions of it, from which positions can't be told.
            kwargs.setdefault("decoder_position_ids", source_positions(decoder_attention_mask).clamp(min=0))
        return super().prepare_inputs_for_generation(
            input_ids, decoder_attention_mask=decoder_attention_mask, **kwargs
        )

    def _make_ready(self, rows: int) -> dict[str, Any]:
        return super()._make_ready(rows) | {"plain_stack": PlainStack.of(self.model.decoder.stack)}

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        cache = model_kwargs.get("cache")
        if type(cache) is EncoderDecoderCache:
            shared = SharedSourceCache(cache.self_attention_cache, cache.cross_attention_cache)
            shared._is_user_defined = getattr(cache, "_is_user_defined", False)
            model_kwargs["cache"] = shared

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return True


def check_cache(cache: Cache | None, rows: int) -> None:
    """Refuse a cache of another kind, or of other texts.

    Args:
        cache: as given, or None.
        rows: of the target.

    Raises:
        ValueError: if it isn't an `EncoderDecoderCache`, or holds another number of rows.
    """
    if cache is None:
        return
    if not isinstance(cache, EncoderDecoderCache):
        raise ValueError(f"cache must be an EncoderDecoderCache, got {type(cache).__name__}")
    check_rows("decoder_input_ids", rows, cache.self_attention_cache)
