"""What recurrent encoder-decoders share: the encoder's frame, and the model and the head around encoder and decoder.

A family brings its encoder's layers and its decoder. Shapes: B source sentences, S source length, T target length, D
annotation size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .losses import label_lengths, token_cross_entropy
from .packed_linear import PackedHeadGenerationMixin, PackedLinear
from .pretrained import AttnZooPreTrainedModel, check_embeds, check_ids, check_labels, exactly_one
from .recurrence import RecurrentCache, ragged_layout, take_positions
from .seq2seq import (
    EncoderOutput,
    SharedSourceGenerationMixin,
    SharedVocabularyMixin,
    embed_target,
    prepare_decoder_inputs,
    shift_tokens_right,
    source_mask,
)


@dataclass
class RecurrentEncoderOutput(EncoderOutput):
    """Annotations, their mask, and the states in which the encoder ended.

    Args:
        final_states: last states of every layer, the directions side by side, shape `(B, layers, K, D)`: K is 1 for a
            GRU (h) and 2 for an LSTM (h and c).
    """

    final_states: Tensor | None = None


class RecurrentEncoder(nn.Module):
    """Annotations of a source by stacked recurrent layers.

    Args:
        config: of the family; `source_vocab_size`, `vocab_size`, `embedding_size`, `dropout` and `pad_token_id` count.
        layers: modules that map vectors `(B, S, ...)`, padded on the right, and lengths `(B,)` or None to states
            `(B, S, D)` and last states `(B, K, D)`.
    """

    # generate() looks here for the name of the encoder's main input
    main_input_name = "input_ids"

    def __init__(self, config: Any, layers: list[nn.Module]):
        super().__init__()
        self.config = config
        source_vocab_size = config.source_vocab_size or config.vocab_size
        self.embed_tokens = nn.Embedding(source_vocab_size, config.embedding_size, config.pad_token_id)
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(config.dropout)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> RecurrentEncoderOutput:
        """Read the source.

        Args:
            input_ids: source ids, shape `(B, S)`, padded on either side.
            attention_mask: 1 where a position is real, shape `(B, S)`. Default: `None`, inferred from the padding id.
            inputs_embeds: word vectors in place of ids, shape `(B, S, embedding_size)`.
            output_attentions: no matter, this encoder attends to nothing.
            output_hidden_states: also return the word vectors and every layer's states.

        Returns:
            Annotations `(B, S, D)`, 0 on padding, the mask, and the last states of every layer.

        Raises:
            ValueError: if both or neither of ids and vectors are given, or if a shape or an id is wrong.
        """
        exactly_one(input_ids=input_ids, inputs_embeds=inputs_embeds)
        if inputs_embeds is None:
            check_ids("input_ids", input_ids, self.embed_tokens.num_embeddings)
            inputs_embeds = self.embed_tokens(input_ids)
        check_embeds("inputs_embeds", inputs_embeds, self.config.embedding_size)
        mask = source_mask(attention_mask, input_ids, inputs_embeds, self.config.pad_token_id)

        lengths, order = ragged_layout(mask)
        hidden = inputs_embeds if order is None else take_positions(inputs_embeds, order)
        all_hidden, final_states = [hidden], []
        for layer in self.layers:
            hidden, final = layer(self.dropout(hidden), lengths)
            all_hidden.append(hidden)
            final_states.append(final)
        if order is not None:
            back = order.argsort(dim=1)
            all_hidden = [take_positions(states, back) for states in all_hidden]
        all_hidden = [states.masked_fill(~mask[:, :, None], 0.0) for states in all_hidden]
        return RecurrentEncoderOutput(
            last_hidden_state=all_hidden[-1],
            hidden_states=tuple(all_hidden) if output_hidden_states else None,
            attention_mask=mask,
            final_states=torch.stack(final_states, dim=1),
        )


class RecurrentSeq2SeqModel(SharedVocabularyMixin, AttnZooPreTrainedModel):
    """Encoder and decoder up to the layer that the vocabulary head reads.

    Args:
        config: of the family.
        encoder: a `RecurrentEncoder`.
        decoder: maps word vectors `(R, T, embedding_size)`, their mask or None, a `RecurrentEncoderOutput`, a cache or
            None, `output_attentions`, `output_hidden_states` and lengths that matter or None to the head's input
            `(R, T, ...)`, attention weights `(R, T, S)` or None, and hidden states or None.
    """

    def __init__(self, config: Any, encoder: RecurrentEncoder, decoder: nn.Module):
        super().__init__(config)
        self.encoder = encoder
        self.decoder = decoder
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: EncoderOutput | tuple[Tensor, ...] | None = None,
        cache: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        decoder_lengths: Tensor | None = None,
    ) -> Seq2SeqModelOutput:
        """Read a source and a target.

        Args:
            input_ids: source ids, shape `(B, S)`, padded on either side.
            attention_mask: 1 where a source position is real, shape `(B, S)`. Default: `None`, inferred from the
                padding id.
            decoder_input_ids: target ids, each one step before it is predicted, shape `(B, T)`. With `encoder_outputs`
                or a `cache`, several rows may share a source: `(B * k, T)`, those of a sentence next to each other.
            decoder_attention_mask: 1 where a target position is real, shape `(B, T)` or longer, of which the last T
                count. Padding on the left leaves a row as it would be alone.
            encoder_outputs: annotations, in place of a source.
            cache: what an earlier call returned: the states to go on from.
            inputs_embeds: source vectors in place of ids, shape `(B, S, embedding_size)`.
            decoder_inputs_embeds: target vectors in place of ids, shape `(B, T, embedding_size)`.
            use_cache: return a cache. Default: `None`, `config.use_cache` outside training.
            output_attentions: return `cross_attentions`, one tensor `(B, 1, T, S)`.
            output_hidden_states: return the word vectors and every layer's states, of both sides.
            decoder_lengths: leading target positions that matter, shape `(B,)`: the rest may be left out, as zeros,
                which is faster. Default: `None`, all of them.

        Returns:
            `last_hidden_state` is what the vocabulary head reads, shape `(B, T, ...)`.

        Raises:
            ValueError: if inputs are missing, given twice, of a wrong shape, or hold an id out of range.
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if use_cache is None:
            use_cache = config.use_cache and not self.training

        decoder_inputs_embeds, decoder_attention_mask = embed_target(
            self, decoder_input_ids, decoder_inputs_embeds, decoder_attention_mask
        )
        rows = decoder_inputs_embeds.shape[0]

        if encoder_outputs is not None and (input_ids is not None or inputs_embeds is not None):
            raise ValueError("pass a source, as input_ids or inputs_embeds, or its encoder_outputs, not both")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_hidden_states=output_hidden_states,
            )
            sources = encoder_outputs.last_hidden_state.shape[0]
            if rows != sources and cache is None:
                raise ValueError(f"decoder_input_ids has {rows} rows, but there are {sources} sources")
        if not isinstance(encoder_outputs, RecurrentEncoderOutput):
            encoder_outputs = RecurrentEncoderOutput(
                last_hidden_state=encoder_outputs[0],
                hidden_states=getattr(encoder_outputs, "hidden_states", None),
                attention_mask=getattr(encoder_outputs, "attention_mask", None),
            )
        annotations = encoder_outputs.last_hidden_state
        if rows % annotations.shape[0] != 0:
            raise ValueError(f"decoder_input_ids has {rows} rows, no multiple of the {annotations.shape[0]} sources")
        given = encoder_outputs.attention_mask if attention_mask is None else attention_mask
        source = RecurrentEncoderOutput(
            last_hidden_state=annotations,
            attention_mask=source_mask(given, None, annotations, None),
            final_states=encoder_outputs.final_states,
        )

        if use_cache and cache is None:
            cache = RecurrentCache()
        hidden, weights, decoder_hidden_states = self.decoder(
            decoder_inputs_embeds,
            decoder_attention_mask,
            source,
            cache,
            output_attentions,
            output_hidden_states,
            decoder_lengths,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=hidden,
            cache=cache,
            decoder_hidden_states=decoder_hidden_states,
            cross_attentions=None if weights is None else (weights[:, None],),
            encoder_last_hidden_state=annotations,
            encoder_hidden_states=encoder_outputs.hidden_states,
        )


class RecurrentSeq2SeqForConditionalGeneration(
    SharedVocabularyMixin, PackedHeadGenerationMixin, SharedSourceGenerationMixin, AttnZooPreTrainedModel
):
    """A recurrent encoder-decoder with a vocabulary head.

    Args:
        config: of the family.
        model: its `RecurrentSeq2SeqModel`.
        head_size: size of what the head reads.
    """

    def __init__(self, config: Any, model: RecurrentSeq2SeqModel, head_size: int):
        super().__init__(config)
        self.model = model
        self.lm_head = nn.Linear(head_size, config.vocab_size, bias=False)
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
        encoder_outputs: EncoderOutput | tuple[Tensor, ...] | None = None,
        cache: RecurrentCache | None = None,
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
    ) -> Seq2SeqLMOutput:
        """Predict a target.

        Args:
            labels: target ids, shape `(B, T)`, -100 where nothing is to be predicted. Without decoder inputs they are
                shifted to make them.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.
            logits_to_keep: compute the logits of the last so many positions, or of these positions. Default: `0`, all.
            skip_logits: compute the loss alone, and logits for none but the labelled positions, a part at a time.
                Default: `None`, when training with labels.
            packed_head: the output layer, made ready by `generate()`. Default: `None`, as it is.

        The other arguments are those of `RecurrentSeq2SeqModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, and `logits` of shape `(B, T, vocab_size)`, None if skipped.

        Raises:
            ValueError: as `RecurrentSeq2SeqModel.forward`, and if labels and decoder inputs differ in shape.
        """
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False if use_cache is None else use_cache
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=prepare_decoder_inputs(self, labels, decoder_input_ids, decoder_inputs_embeds),
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            decoder_lengths=label_lengths(labels) if skip_logits and labels is not None else None,
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            loss = token_cross_entropy(hidden, self.lm_head, labels, num_items_in_batch)
        head = self.lm_head if packed_head is None else packed_head
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return Seq2SeqLMOutput(
            loss=loss,
            logits=None if skip_logits else head(hidden[:, positions]),
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs that predict `labels`, shape `(B, T)`, as data collators ask for them."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
