"""RNNsearch: neural machine translation by jointly learning to align and translate (Bahdanau, Cho and Bengio 2015).

Reads top to bottom as the paper's appendix A does: encoder (A.2.1), one decoder step with its alignment model (A.1.2,
A.2.2), the loop over the target, the output layer. Shapes: B source sentences, R decoder rows (B times the beams), S
source length, T target length, H hidden size, D annotation size (2H, or H if the encoder reads one way).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .attention import AdditiveAttention
from .attentive_gru import additive_attentive_gru
from .configuration_rnnsearch import RNNSearchConfig
from .losses import label_lengths, token_cross_entropy
from .packed_linear import PackedLinear
from .pretrained import AttnZooPreTrainedModel, check_embeds, check_ids, check_labels, check_mask, exactly_one
from .recurrence import Carry, GRUCell, GRULayer, Packing, RecurrentCache, Stepped, scan, take_positions
from .seq2seq import (
    EncoderOutput,
    SharedSourceGenerationMixin,
    SharedVocabularyMixin,
    prepare_decoder_inputs,
    shift_tokens_right,
    source_mask,
)
from .wrapping import is_plain, is_plain_linear


class RNNSearchEncoderLayer(GradientCheckpointingLayer):
    """One layer of the encoder: a GRU in each direction, their states side by side."""

    def __init__(self, input_size: int, config: RNNSearchConfig):
        super().__init__()
        self.forward_rnn = GRULayer(input_size, config.hidden_size, config.reset_after)
        if config.bidirectional:
            self.backward_rnn = GRULayer(input_size, config.hidden_size, config.reset_after, reverse=True)

    def forward(self, hidden: Tensor, lengths: Tensor | None) -> Tensor:
        """States `(B, S, D)` of inputs `(B, S, input_size)` that are padded on the right."""
        states = self.forward_rnn(hidden, lengths)[0]
        if not hasattr(self, "backward_rnn"):
            return states
        return torch.cat([states, self.backward_rnn(hidden, lengths)[0]], dim=-1)


class RNNSearchEncoder(nn.Module):
    """Annotations `h_j = [forward h_j ; backward h_j]` of a source (appendix A.2.1)."""

    # generate() looks here for the name of the encoder's main input
    main_input_name = "input_ids"

    def __init__(self, config: RNNSearchConfig):
        super().__init__()
        self.config = config
        source_vocab_size = config.source_vocab_size or config.vocab_size
        self.embed_tokens = nn.Embedding(source_vocab_size, config.embedding_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            RNNSearchEncoderLayer(config.embedding_size if index == 0 else config.annotation_size, config)
            for index in range(config.num_encoder_layers)
        )
        self.dropout = nn.Dropout(config.dropout)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> EncoderOutput:
        """Read the source.

        Args:
            input_ids: source ids, shape `(B, S)`, padded on either side.
            attention_mask: 1 where a position is real, shape `(B, S)`. Default: `None`, inferred from the padding id.
            inputs_embeds: word vectors in place of ids, shape `(B, S, embedding_size)`.
            output_attentions: no matter, this encoder attends to nothing.
            output_hidden_states: also return the word vectors and every layer's states.

        Returns:
            Annotations `(B, S, D)`, 0 on padding, and the mask.

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
        all_hidden = [hidden]
        for layer in self.layers:
            hidden = layer(self.dropout(hidden), lengths)
            all_hidden.append(hidden)
        if order is not None:
            back = order.argsort(dim=1)
            all_hidden = [take_positions(states, back) for states in all_hidden]
        all_hidden = [states.masked_fill(~mask[:, :, None], 0.0) for states in all_hidden]
        return EncoderOutput(
            last_hidden_state=all_hidden[-1],
            hidden_states=tuple(all_hidden) if output_hidden_states else None,
            attention_mask=mask,
        )


def ragged_layout(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Lengths of the rows, and the order of positions that brings padding to the right.

    Args:
        mask: True where a position is real, shape `(B, S)`.

    Returns:
        `lengths` of shape `(B,)`, None if nothing is padded, and `order` of shape `(B, S)`, None if all padding stands
        on the right already.
    """
    lengths = mask.sum(dim=1)
    if torch.compiler.is_compiling():
        return lengths, (~mask).long().argsort(dim=1, stable=True)
    if bool(mask.all()):
        return None, None
    if bool((mask[:, 1:] <= mask[:, :-1]).all()):
        return lengths, None
    return lengths, (~mask).long().argsort(dim=1, stable=True)


class RNNSearchDecoderStep(GradientCheckpointingLayer):
    """One step of the decoder: look at the source, then move on (appendix A.2.2)."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__()
        size = config.hidden_size
        if config.attention == "additive":
            self.attention = AdditiveAttention(size, config.annotation_size, config.attention_size or size)
            self.context_proj = nn.Linear(config.annotation_size, 3 * size, bias=False)
        self.cells = nn.ModuleList(GRUCell(size, config.reset_after) for _ in range(config.num_decoder_layers))
        # What an upper layer reads is the state below it.
        self.upper_projs = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(config.num_decoder_layers - 1))

    def forward(
        self,
        gates: Tensor,
        noise: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        mask: Tensor | None,
        *states: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """From the states s_{i-1} of all layers to those of step i.

        Args:
            gates: what the previous word (and a fixed context) contribute to the first layer's gates, shape `(R, 3H)`.
            noise: factors on what the upper layers read, shape `(R, layers - 1, H)`, or None.
            keys: projected annotations, shape `(B, S, A)`; None without attention, as are `values` and `mask`.
            values: annotations, shape `(B, S, D)`.
            mask: True where a source position is real, shape `(B, S)`.
            states: one per layer, shape `(R, H)`.

        Returns:
            The context `(R, D)` and the weights `(R, S)`, None without attention, and the next states.
        """
        context = weights = None
        if keys is not None:
            # The rows of a sentence, its beams, are queries to one memory.
            query = states[-1].unflatten(0, (keys.shape[0], -1))
            context, weights = self.attention(query, keys, values, mask)
            context, weights = context.flatten(0, 1), weights.flatten(0, 1)
            gates = gates + self.context_proj(context)
        new_states = [self.cells[0](gates, states[0])]
        for index, (project, cell) in enumerate(zip(self.upper_projs, self.cells[1:], strict=True)):
            below = new_states[-1] if noise is None else new_states[-1] * noise[:, index]
            new_states.append(cell(project(below), states[index + 1]))
        return context, weights, *new_states

    def is_plain(self) -> bool:
        """Whether this is the step of `additive_attentive_gru`, and nobody has put anything on a part of it."""
        if self.gradient_checkpointing or not hasattr(self, "attention") or len(self.cells) > 1:
            return False
        cell = self.cells[0]
        return (
            cell.reset_after
            and is_plain(self, RNNSearchDecoderStep)
            and is_plain(self.attention, AdditiveAttention)
            and is_plain(cell, GRUCell)
            and all(map(is_plain_linear, (self.attention.query_proj, self.context_proj, cell.hidden_proj)))
        )


class RNNSearchDecoder(nn.Module):
    """The decoder: a GRU that reads a context vector beside each word, and a deep maxout output (appendix A.2.2)."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__()
        self.config = config
        size, word_size, context_size = config.hidden_size, config.embedding_size, config.annotation_size
        if config.source_vocab_size is not None:
            self.embed_tokens = nn.Embedding(config.vocab_size, word_size, config.pad_token_id)
        self.initial_proj = nn.Linear(size, config.num_decoder_layers * size)
        self.input_proj = nn.Linear(word_size, 3 * size)
        self.step = RNNSearchDecoderStep(config)
        if config.attention == "none":
            self.fixed_context_proj = nn.Linear(context_size, 3 * size, bias=False)
        # U_o, V_o and C_o
        self.state_readout = nn.Linear(size, 2 * config.maxout_size)
        self.word_readout = nn.Linear(word_size, 2 * config.maxout_size, bias=False)
        self.context_readout = nn.Linear(context_size, 2 * config.maxout_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        embeds: Tensor,
        attention_mask: Tensor | None,
        encoder_hidden_states: Tensor,
        encoder_attention_mask: Tensor,
        cache: RecurrentCache | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...] | None]:
        """Write the target, word by word.

        Args:
            embeds: vectors of the previous words, shape `(R, T, embedding_size)`.
            attention_mask: 1 where a target position is real, shape `(R, T)`; elsewhere the state stands still.
            encoder_hidden_states: annotations, shape `(B, S, D)`.
            encoder_attention_mask: True where a source position is real, shape `(B, S)`.
            cache: states to go on from, and to leave the new ones in.
            output_attentions: also return the attention weights.
            output_hidden_states: also return the states of all layers.
            lengths: leading positions of each target that matter, shape `(R,)`: leave the rest out, as zeros, where
                that is possible. Default: `None`, all of them.

        Returns:
            The maxout layer `(R, T, maxout_size)`, the attention weights `(R, T, S)` or None, and, or None, the word
            vectors followed by every layer's states `(R, T, H)`.
        """
        rows = embeds.shape[0]
        if cache is None or not cache.states:
            memory = self.remember(encoder_hidden_states, encoder_attention_mask)
            states = self.initial_states(encoder_hidden_states, encoder_attention_mask, rows)
        else:
            memory, states = cache.memory, tuple(cache.states.values())
            if states[0].shape[0] != rows:
                raise ValueError(f"decoder_input_ids has {rows} rows, but the cache holds {states[0].shape[0]}")

        embeds = self.dropout(embeds)
        extras = cache is not None or attention_mask is not None or output_attentions or output_hidden_states
        if lengths is not None and not extras and self._can_pack(embeds, memory):
            return self.dropout(self._packed(embeds, lengths, states[0], memory)), None, None

        gates = self.input_proj(embeds)
        keys, values, mask = memory.get("keys"), memory.get("values"), memory.get("mask")
        if keys is None:
            context = memory["context"].repeat_interleave(rows // memory["context"].shape[0], dim=0)[:, None]
            gates = gates + self.fixed_context_proj(context)

        noise = self.layer_noise(gates)

        def step(carry: Carry, inputs: Carry) -> Stepped:
            gates, *extra = inputs
            factors = None if noise is None else extra.pop(0)
            context, weights, *new_states = self.step(gates, factors, keys, values, mask, *carry)
            if attention_mask is not None:
                real = extra.pop(0)[:, None]
                new_states = [torch.where(real, new, old) for new, old in zip(new_states, carry, strict=True)]
            seen = () if context is None else (context, weights)
            return tuple(new_states), (carry[-1], *seen, *(new_states if output_hidden_states else ()))

        real = None if attention_mask is None else attention_mask.bool()
        steps = tuple(tensor for tensor in (gates, noise, real) if tensor is not None)
        states, (queries, *rest) = scan(step, states, steps)
        if cache is not None:
            cache.memory.update(memory)
            cache.store({f"layer_{index}": state for index, state in enumerate(states)}, embeds.shape[1])

        weights = None
        if keys is not None:
            context, weights, *rest = rest
        maxout = self.deep_output(queries, embeds, context)
        return (
            self.dropout(maxout),
            weights if output_attentions else None,
            (embeds, *rest) if output_hidden_states else None,
        )

    def deep_output(self, states: Tensor, embeds: Tensor, context: Tensor) -> Tensor:
        """Maxout layer t_i of s_{i-1}, E y_{i-1} and c_i (appendix A.2.2): none of it waits for the loop.

        Args:
            states: shape `(..., H)`.
            embeds: shape `(..., embedding_size)`.
            context: shape `(..., D)`.

        Returns:
            Shape `(..., maxout_size)`.
        """
        readout = self.word_readout(embeds) + self.state_readout(states) + self.context_readout(context)
        # The paper pairs neighbours; halves are the same up to the order of the rows, and contiguous.
        return torch.maximum(*readout.chunk(2, dim=-1))

    def _can_pack(self, embeds: Tensor, memory: dict[str, Tensor]) -> bool:
        # Without gradients there is little to gain; traced, the loop would be unrolled to one length.
        return (
            torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled(embeds.device.type)
            and self.step.is_plain()
            and memory["keys"].shape[0] == embeds.shape[0]
        )

    def _packed(self, embeds: Tensor, lengths: Tensor, state: Tensor, memory: dict[str, Tensor]) -> Tensor:
        packing = Packing.of(lengths, embeds)
        embeds = packing.pack(embeds)
        start, keys, values, mask = map(packing.sort, (state, memory["keys"], memory["values"], memory["mask"]))
        attention, recurrent = self.step.attention, self.step.cells[0].hidden_proj
        weights = (attention.query_proj.weight, attention.v, self.step.context_proj.weight)
        weights = (*weights, recurrent.weight, recurrent.bias)
        states, context = additive_attentive_gru(
            self.input_proj(embeds), start, keys, values, mask, weights, packing.batch_sizes
        )
        return packing.unpack(self.deep_output(states, embeds, context))

    def layer_noise(self, like: Tensor) -> Tensor | None:
        """Dropout between layers, drawn for all steps at once: what runs inside the loop has no chance in it.

        Args:
            like: tensor of shape `(R, T, ...)`.

        Returns:
            Factors of shape `(R, T, layers - 1, H)`, or None where nothing is dropped.
        """
        layers = self.config.num_decoder_layers
        if not self.training or self.config.dropout == 0 or layers == 1:
            return None
        return self.dropout(like.new_ones(*like.shape[:2], layers - 1, self.config.hidden_size))

    def remember(self, annotations: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What decoding reads of the source, made once per sentence and shared by its beams.

        Args:
            annotations: shape `(B, S, D)`.
            mask: True where a position is real, shape `(B, S)`.

        Returns:
            `keys` `(B, S, A)`, `values` `(B, S, D)` and `mask`; without attention `context` `(B, D)`, the last state
            in each direction.
        """
        if self.config.attention == "additive":
            return {"keys": self.step.attention.key_proj(annotations), "values": annotations, "mask": mask}
        ends = end_states(annotations, mask, self.config.hidden_size, self.config.bidirectional)
        return {"context": torch.cat(ends, dim=-1)}

    def initial_states(self, annotations: Tensor, mask: Tensor, rows: int) -> Carry:
        """`s_0 = tanh(W_s h)` from the state that ends the encoder's last reading (appendix A.2.2).

        Args:
            annotations: shape `(B, S, D)`.
            mask: True where a position is real, shape `(B, S)`.
            rows: decoder rows R, a multiple of B.

        Returns:
            One state `(R, H)` per layer.
        """
        end = end_states(annotations, mask, self.config.hidden_size, self.config.bidirectional)[-1]
        states = torch.tanh(self.initial_proj(end)).repeat_interleave(rows // end.shape[0], dim=0)
        return states.chunk(self.config.num_decoder_layers, dim=-1)


def end_states(annotations: Tensor, mask: Tensor, hidden_size: int, bidirectional: bool) -> tuple[Tensor, ...]:
    """The state in which each direction of the encoder ends: forward at the last word, backward at the first.

    Args:
        annotations: shape `(B, S, D)`, 0 on padding.
        mask: True where a position is real, shape `(B, S)`.
        hidden_size: size H of one direction's state.
        bidirectional: whether there is a backward direction.

    Returns:
        States of shape `(B, H)`, one per direction; 0 for an empty source.
    """
    rows = torch.arange(annotations.shape[0], device=annotations.device)
    last = annotations.shape[1] - 1 - mask.long().flip(1).argmax(dim=1)
    forward = annotations[rows, last, :hidden_size]
    if not bidirectional:
        return (forward,)
    return forward, annotations[rows, mask.long().argmax(dim=1), hidden_size:]


class RNNSearchPreTrainedModel(AttnZooPreTrainedModel):
    """Base of RNNsearch's classes."""

    config: RNNSearchConfig
    _no_split_modules = ["RNNSearchEncoderLayer", "RNNSearchDecoderStep"]  # noqa: RUF012


class RNNSearchModel(SharedVocabularyMixin, RNNSearchPreTrainedModel):
    """Encoder and decoder of RNNsearch up to the maxout layer, without the output layer."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__(config)
        self.encoder = RNNSearchEncoder(config)
        self.decoder = RNNSearchDecoder(config)
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
            `last_hidden_state` is the maxout layer, shape `(B, T, maxout_size)`.

        Raises:
            ValueError: if inputs are missing, given twice, of a wrong shape, or hold an id out of range.
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
        rows, length = decoder_inputs_embeds.shape[:2]
        if decoder_attention_mask is not None:
            decoder_attention_mask = decoder_attention_mask[:, -length:]
            check_mask("decoder_attention_mask", decoder_attention_mask, (rows, length))

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
        annotations = encoder_outputs[0]
        if rows % annotations.shape[0] != 0:
            raise ValueError(f"decoder_input_ids has {rows} rows, no multiple of the {annotations.shape[0]} sources")
        mask = source_mask(
            attention_mask if attention_mask is not None else getattr(encoder_outputs, "attention_mask", None),
            None,
            annotations,
            None,
        )

        if use_cache and cache is None:
            cache = RecurrentCache()
        hidden, weights, decoder_hidden_states = self.decoder(
            decoder_inputs_embeds,
            decoder_attention_mask,
            annotations,
            mask,
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
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
        )


class RNNSearchForConditionalGeneration(SharedVocabularyMixin, SharedSourceGenerationMixin, RNNSearchPreTrainedModel):
    """RNNsearch with its output layer: `p(y_i | y_<i, x) = softmax(W_o t_i)` (appendix A.2.2)."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__(config)
        self.model = RNNSearchModel(config)
        self.lm_head = nn.Linear(config.maxout_size, config.vocab_size, bias=False)
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

        The other arguments are those of `RNNSearchModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, and `logits` of shape `(B, T, vocab_size)`, None if skipped.

        Raises:
            ValueError: as `RNNSearchModel.forward`, and if labels and decoder inputs differ in shape.
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

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        # generate() comes by here once, before its first step, whatever it was given and however it will search.
        input_ids, model_kwargs = super()._expand_inputs_for_generation(
            expand_size, is_encoder_decoder, input_ids, **model_kwargs
        )
        return input_ids, {**model_kwargs, "packed_head": PackedLinear.of(self.lm_head, input_ids.shape[0])}

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs that predict `labels`, shape `(B, T)`, as data collators ask for them."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
