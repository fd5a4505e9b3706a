"""What recurrent encoder-decoders share: the encoder's frame, and the model and the head around encoder and decoder.

A family brings its encoder's layers and its decoder. Shapes: B source sentences, S source length, T target length, D
annotation size.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .losses import IGNORE_INDEX, label_lengths, per_item, smoothed_cross_entropy
from .packed_linear import PackedHeadGenerationMixin, PackedLinear
from .pointer import label_mixture, mixture_log_probs
from .pretrained import AttnZooPreTrainedModel, check_embeds, check_ids, check_labels, check_mask, exactly_one
from .recurrence import Carry, RecurrentCache, ragged_layout, take_positions
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
        input_ids: the source itself, shape `(B, S)`, for a model that copies from it.
    """

    final_states: Tensor | None = None
    input_ids: Tensor | None = None


@dataclass
class RecurrentModelOutput(Seq2SeqModelOutput):
    """What a vocabulary head reads, and what it needs beside that to copy and to weigh repetition.

    Args:
        copy_gate: logit of p_gen, shape `(R, T)`.
        copy_weights: attention weights, shape `(R, T, S)`.
        repeated_attention: coverage loss of every step, shape `(R, T)`.
    """

    copy_gate: Tensor | None = None
    copy_weights: Tensor | None = None
    repeated_attention: Tensor | None = None


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
            input_ids=input_ids if self.config.copy else None,
        )


class DecoderOutput(NamedTuple):
    """What a decoder makes of a target.

    Args:
        hidden: what the vocabulary head reads, shape `(R, T, ...)`.
        weights: attention weights, shape `(R, T, S)`, or None.
        hidden_states: the word vectors and every layer's states, or None.
        copy_gate: logit of p_gen, shape `(R, T)`; None in a model that doesn't copy.
        repeated_attention: coverage loss of every step, shape `(R, T)`; None without coverage.
    """

    hidden: Tensor
    weights: Tensor | None
    hidden_states: tuple[Tensor, ...] | None
    copy_gate: Tensor | None = None
    repeated_attention: Tensor | None = None


class RecurrentDecoder(nn.Module):
    """How the families' decoders begin and end: word vectors, the cache, coverage as a state, the gate of a copier.

    A family has `forward`, which makes a `DecoderOutput`, `remember(source)`, what decoding reads of a source, and
    `initial_states(source, rows)`, what the loop starts from.

    Args:
        config: of the family.
    """

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        if config.source_vocab_size is not None:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)

    def _make_copy_gate(self) -> None:
        # Made last, so that what the other layers draw at the start doesn't depend on it.
        if self.config.copy:
            size = self.config.annotation_size + self.config.hidden_size + self.config.embedding_size
            self.copy_gate = nn.Linear(size, 1)

    def begin(
        self, source: RecurrentEncoderOutput, cache: RecurrentCache | None, rows: int
    ) -> tuple[dict[str, Tensor], Carry]:
        """What the loop reads and what it starts from: of the cache, if that has begun already.

        Args:
            source: annotations `(B, S, D)`, the mask of the real ones, and the encoder's last states.
            cache: states to go on from, or None.
            rows: decoder rows R, a multiple of B.

        Returns:
            The memory, and states of R rows each; the last of them is the coverage `(R, S)` if there is one.

        Raises:
            ValueError: if the cache holds other rows.
        """
        if cache is not None and cache.states:
            carry = tuple(cache.states.values())
            if carry[0].shape[0] != rows:
                raise ValueError(f"decoder_input_ids has {rows} rows, but the cache holds {carry[0].shape[0]}")
            return cache.memory, carry
        carry = self.initial_states(source, rows)
        if self.config.coverage:
            # A sum of many small numbers: half precision would lose them.
            annotations = source.last_hidden_state
            exact = torch.promote_types(annotations.dtype, torch.float32)
            carry = (*carry, annotations.new_zeros(rows, annotations.shape[1], dtype=exact))
        return self.remember(source), carry

    def leave(self, cache: RecurrentCache | None, memory: dict[str, Tensor], carry: Carry, length: int) -> None:
        """Put memory and states into the cache, if there is one, after `length` more words."""
        if cache is not None:
            cache.memory.update(memory)
            cache.store({str(index): state for index, state in enumerate(carry)}, length)

    def gate(self, context: Tensor, states: Tensor, embeds: Tensor) -> Tensor | None:
        """Logit of `p_gen = sigmoid(w_h h*_t + w_s s_t + w_x x_t + b)` (See et al. 2017, equation 8).

        Args:
            context: h*_t, shape `(R, T, D)`.
            states: s_t, shape `(R, T, H)`.
            embeds: x_t, shape `(R, T, embedding_size)`.

        Returns:
            Shape `(R, T)`; None in a model that doesn't copy.
        """
        if not self.config.copy:
            return None
        return self.copy_gate(torch.cat([context, states, embeds], dim=-1))[:, :, 0]


class RecurrentSeq2SeqModel(SharedVocabularyMixin, AttnZooPreTrainedModel):
    """Encoder and decoder up to the layer that the vocabulary head reads.

    Args:
        config: of the family.
        encoder: a `RecurrentEncoder`.
        decoder: maps word vectors `(R, T, embedding_size)`, their mask or None, a `RecurrentEncoderOutput`, a cache or
            None, `output_attentions`, `output_hidden_states` and lengths that matter or None to a `DecoderOutput`.
    """

    def __init__(self, config: Any, encoder: RecurrentEncoder, decoder: RecurrentDecoder):
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
    ) -> RecurrentModelOutput:
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

        if config.num_copy_slots and decoder_input_ids is not None:
            # A slot stands for another word in every example.
            first, past = config.vocab_size - config.num_copy_slots, config.vocab_size
            is_slot = (decoder_input_ids >= first) & (decoder_input_ids < past)
            decoder_input_ids = decoder_input_ids.masked_fill(is_slot, config.unk_token_id)
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
        decoded = self.decoder(
            decoder_inputs_embeds,
            decoder_attention_mask,
            source,
            cache,
            output_attentions,
            output_hidden_states,
            decoder_lengths,
        )
        seen = output_attentions and decoded.weights is not None
        return RecurrentModelOutput(
            last_hidden_state=decoded.hidden,
            cache=cache,
            decoder_hidden_states=decoded.hidden_states,
            cross_attentions=(decoded.weights[:, None],) if seen else None,
            encoder_last_hidden_state=annotations,
            encoder_hidden_states=encoder_outputs.hidden_states,
            copy_gate=decoded.copy_gate,
            copy_weights=decoded.weights if config.copy else None,
            repeated_attention=decoded.repeated_attention,
        )


class RecurrentSeq2SeqForConditionalGeneration(
    SharedVocabularyMixin, PackedHeadGenerationMixin, SharedSourceGenerationMixin, AttnZooPreTrainedModel
):
    """A recurrent encoder-decoder with a vocabulary head.

    Args:
        config: of the family.
        model: its `RecurrentSeq2SeqModel`.
    """

    def __init__(self, config: Any, model: RecurrentSeq2SeqModel):
        super().__init__(config)
        self.model = model
        self.lm_head = nn.Linear(config.head_size, config.vocab_size, bias=config.head_bias)
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
        copy_ids: Tensor | None = None,
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
            copy_ids: for a model that copies, the target id that copying a source position writes: a word's, or that
                of the slot which stands for it here; -100 where nothing can be copied, shape `(B, S)`. Tokenizers with
                `copy_slots` make them. Default: `None`, `input_ids`, if both languages share their words and there are
                no slots.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.
            logits_to_keep: compute the logits of the last so many positions, or of these positions. Default: `0`, all.
            skip_logits: compute the loss alone, and logits for none but the labelled positions, a part at a time.
                Default: `None`, when training with labels.
            packed_head: the output layer, made ready by `generate()`. Default: `None`, as it is.

        The other arguments are those of `RecurrentSeq2SeqModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, that of coverage included, and `logits` of shape
            `(B, T, vocab_size)`, None if skipped; of a model that copies they are log-probabilities.

        Raises:
            ValueError: as `RecurrentSeq2SeqModel.forward`, and if labels and decoder inputs differ in shape, or
                `copy_ids` are missing, useless, of a wrong shape or out of range.
        """
        config = self.config
        if labels is not None:
            check_labels(labels, config.vocab_size)
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
        if copy_ids is None and input_ids is None:
            input_ids = getattr(encoder_outputs, "input_ids", None)
        copy_ids = self._copy_ids(copy_ids, input_ids, outputs)
        loss = logits = None
        if labels is not None:
            loss = self._loss(outputs, copy_ids, labels, num_items_in_batch)
        if not skip_logits:
            positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = (self.lm_head if packed_head is None else packed_head)(outputs.last_hidden_state[:, positions])
            if config.copy:
                gate, weights = outputs.copy_gate[:, positions], outputs.copy_weights[:, positions]
                logits = mixture_log_probs(logits, gate, weights, copy_ids, config.vocab_size - config.num_copy_slots)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
        )

    def _copy_ids(
        self, copy_ids: Tensor | None, input_ids: Tensor | None, outputs: RecurrentModelOutput
    ) -> Tensor | None:
        """The target ids that can be copied, of every decoder row, shape `(R, S)`; None if the model doesn't copy."""
        config, annotations = self.config, outputs.encoder_last_hidden_state
        if not config.copy:
            if copy_ids is not None:
                raise ValueError("copy_ids are of no use to a model with config.copy=False: leave them out")
            return None
        if copy_ids is None:
            if config.num_copy_slots or config.source_vocab_size is not None or input_ids is None:
                raise ValueError(
                    f"copy_ids is missing: with num_copy_slots={config.num_copy_slots}, "
                    f"source_vocab_size={config.source_vocab_size} and input_ids "
                    f"{'not given' if input_ids is None else 'given'}, what copying a source position writes "
                    f"can't be told. Pass what a tokenizer of train_tokenizer(..., copy_slots=N) makes of a text"
                )
            copy_ids = input_ids
        check_labels(copy_ids, config.vocab_size, "copy_ids")
        check_mask("copy_ids", copy_ids, annotations.shape[:2])
        return copy_ids.repeat_interleave(outputs.copy_gate.shape[0] // copy_ids.shape[0], dim=0)

    def _loss(
        self,
        outputs: RecurrentModelOutput,
        copy_ids: Tensor | None,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None,
    ) -> Tensor:
        """Cross-entropy, and the coverage loss of the same positions (See et al. 2017, equation 13)."""
        config, mixture = self.config, None
        if config.copy:
            mixture = label_mixture(outputs.copy_gate, outputs.copy_weights, copy_ids, labels)
        loss = smoothed_cross_entropy(
            outputs.last_hidden_state,
            self.lm_head,
            labels,
            config.label_smoothing if self.training else 0.0,
            num_items_in_batch,
            mixture=mixture,
            num_words=config.vocab_size - config.num_copy_slots,
        )
        if config.coverage and config.coverage_loss_weight:
            repeated = outputs.repeated_attention.masked_fill(labels == IGNORE_INDEX, 0.0).sum()
            loss = loss + config.coverage_loss_weight * per_item(repeated, labels, num_items_in_batch)
        return loss

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs that predict `labels`, shape `(B, T)`, as data collators ask for them."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
