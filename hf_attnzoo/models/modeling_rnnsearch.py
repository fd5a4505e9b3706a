"""RNNsearch: neural machine translation by jointly learning to align and translate (Bahdanau, Cho and Bengio 2015).

Reads top to bottom as the paper's appendix A does: encoder (A.2.1), one decoder step with its alignment model (A.1.2,
A.2.2), the loop over the target, the output layer. Shapes: B source sentences, R decoder rows (B times the beams), S
source length, T target length, H hidden size, D annotation size (2H, or H if the encoder reads one way).
"""

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import AdditiveAttention
from .attentive_gru import additive_attentive_gru
from .configuration_rnnsearch import RNNSearchConfig
from .pointer import repeated_attention
from .pretrained import AttnZooPreTrainedModel
from .recurrence import Carry, GRUCell, GRULayer, Packing, RecurrentCache, Stepped, layer_noise, scan
from .recurrent_seq2seq import (
    DecoderOutput,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentEncoderOutput,
    RecurrentSeq2SeqForConditionalGeneration,
    RecurrentSeq2SeqModel,
)
from .wrapping import is_plain, is_plain_linear


class RNNSearchEncoderLayer(GradientCheckpointingLayer):
    """One layer of the encoder: a GRU in each direction, their states side by side."""

    def __init__(self, input_size: int, config: RNNSearchConfig):
        super().__init__()
        self.forward_rnn = GRULayer(input_size, config.hidden_size, config.reset_after)
        if config.bidirectional:
            self.backward_rnn = GRULayer(input_size, config.hidden_size, config.reset_after, reverse=True)

    def forward(self, hidden: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """States `(B, S, D)` and last states `(B, 1, D)` of inputs `(B, S, input_size)` padded on the right."""
        states, final = self.forward_rnn(hidden, lengths)
        if hasattr(self, "backward_rnn"):
            backward_states, backward_final = self.backward_rnn(hidden, lengths)
            states = torch.cat([states, backward_states], dim=-1)
            final = torch.cat([final, backward_final], dim=-1)
        return states, final[:, None]


class RNNSearchEncoder(RecurrentEncoder):
    """Annotations `h_j = [forward h_j ; backward h_j]` of a source (appendix A.2.1)."""

    def __init__(self, config: RNNSearchConfig):
        sizes = [config.embedding_size] + [config.annotation_size] * (config.num_encoder_layers - 1)
        super().__init__(config, [RNNSearchEncoderLayer(size, config) for size in sizes])


class RNNSearchDecoderStep(GradientCheckpointingLayer):
    """One step of the decoder: look at the source, then move on (appendix A.2.2)."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__()
        size = config.hidden_size
        if config.attention == "additive":
            attention_size = config.attention_size or size
            self.attention = AdditiveAttention(size, config.annotation_size, attention_size, config.coverage)
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
        coverage: Tensor | None,
        *states: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """From the states s_{i-1} of all layers to those of step i.

        Args:
            gates: what the previous word (and a fixed context) contribute to the first layer's gates, shape `(R, 3H)`.
            noise: factors on what the upper layers read, shape `(R, layers - 1, H)`, or None.
            keys: projected annotations, shape `(B, S, A)`; None without attention, as are `values` and `mask`.
            values: annotations, shape `(B, S, D)`.
            mask: True where a source position is real, shape `(B, S)`.
            coverage: sum of the weights so far, shape `(R, S)`, or None.
            states: one per layer, shape `(R, H)`.

        Returns:
            The context `(R, D)` and the weights `(R, S)`, None without attention, and the next states.
        """
        context = weights = None
        if keys is not None:
            # The rows of a sentence, its beams, are queries to one memory.
            query = states[-1].unflatten(0, (keys.shape[0], -1))
            covered = None if coverage is None else coverage.unflatten(0, (keys.shape[0], -1))
            context, weights = self.attention(query, keys, values, mask, covered)
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
            and not hasattr(self.attention, "coverage_weight")
            and is_plain(self, RNNSearchDecoderStep)
            and is_plain(self.attention, AdditiveAttention)
            and is_plain(cell, GRUCell)
            and all(map(is_plain_linear, (self.attention.query_proj, self.context_proj, cell.hidden_proj)))
        )


class RNNSearchDecoder(RecurrentDecoder):
    """The decoder: a GRU that reads a context vector beside each word, and a deep maxout output (appendix A.2.2)."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__(config)
        size, word_size, context_size = config.hidden_size, config.embedding_size, config.annotation_size
        self.initial_proj = nn.Linear(size, config.num_decoder_layers * size)
        self.input_proj = nn.Linear(word_size, 3 * size)
        self.step = RNNSearchDecoderStep(config)
        if config.attention == "none":
            self.fixed_context_proj = nn.Linear(context_size, 3 * size, bias=False)
        # U_o, V_o and C_o
        self.state_readout = nn.Linear(size, 2 * config.maxout_size)
        self.word_readout = nn.Linear(word_size, 2 * config.maxout_size, bias=False)
        self.context_readout = nn.Linear(context_size, 2 * config.maxout_size, bias=False)
        self._make_copy_gate()

    def forward(
        self,
        embeds: Tensor,
        attention_mask: Tensor | None,
        source: RecurrentEncoderOutput,
        cache: RecurrentCache | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        lengths: Tensor | None = None,
    ) -> DecoderOutput:
        """Write the target, word by word.

        Args:
            embeds: vectors of the previous words, shape `(R, T, embedding_size)`.
            attention_mask: 1 where a target position is real, shape `(R, T)`; elsewhere the state stands still.
            source: annotations `(B, S, D)` and the mask of the real ones `(B, S)`.
            cache: states to go on from, and to leave the new ones in.
            output_attentions: also return the attention weights.
            output_hidden_states: also return the states of all layers.
            lengths: leading positions of each target that matter, shape `(R,)`: leave the rest out, as zeros, where
                that is possible. Default: `None`, all of them.

        Returns:
            The maxout layer `(R, T, maxout_size)`, and what else there is.
        """
        rows = embeds.shape[0]
        memory, carry = self.begin(source, cache, rows)
        embeds = self.dropout(embeds)
        extras = cache is not None or attention_mask is not None or output_attentions or output_hidden_states
        if lengths is not None and not extras and self._can_pack(embeds, memory):
            return self._packed(embeds, lengths, carry[0], memory)

        gates = self.input_proj(embeds)
        keys, values, mask = memory.get("keys"), memory.get("values"), memory.get("mask")
        if keys is None:
            context = memory["context"].repeat_interleave(rows // memory["context"].shape[0], dim=0)[:, None]
            gates = gates + self.fixed_context_proj(context)

        noise = layer_noise(self.dropout, gates, self.config)
        layers, has_coverage = self.config.num_decoder_layers, self.config.coverage

        def step(carry: Carry, inputs: Carry) -> Stepped:
            gates, *extra = inputs
            factors = None if noise is None else extra.pop(0)
            states, coverage = carry[:layers], carry[-1] if has_coverage else None
            context, weights, *new_states = self.step(gates, factors, keys, values, mask, coverage, *states)
            seen = () if context is None else (context, weights)
            if has_coverage:
                seen = (*seen, repeated_attention(weights, coverage))
                new_states.append(coverage + weights)
            if attention_mask is not None:
                real = extra.pop(0)[:, None]
                new_states = [torch.where(real, new, old) for new, old in zip(new_states, carry, strict=True)]
            return tuple(new_states), (states[-1], *seen, *(new_states[:layers] if output_hidden_states else ()))

        real = None if attention_mask is None else attention_mask.bool()
        steps = tuple(tensor for tensor in (gates, noise, real) if tensor is not None)
        carry, (queries, *rest) = scan(step, carry, steps)
        self.leave(cache, memory, carry, embeds.shape[1])

        weights = None
        if keys is not None:
            context, weights, *rest = rest
        repeated = rest.pop(0) if has_coverage else None
        return DecoderOutput(
            self.dropout(self.deep_output(queries, embeds, context)),
            weights,
            (embeds, *rest) if output_hidden_states else None,
            self.gate(context, queries, embeds),
            repeated,
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

    def _packed(self, embeds: Tensor, lengths: Tensor, state: Tensor, memory: dict[str, Tensor]) -> DecoderOutput:
        packing = Packing.of(lengths, embeds)
        packed = packing.pack(embeds)
        start, keys, values, mask = map(packing.sort, (state, memory["keys"], memory["values"], memory["mask"]))
        attention, recurrent = self.step.attention, self.step.cells[0].hidden_proj
        weights = (attention.query_proj.weight, attention.v, self.step.context_proj.weight)
        weights = (*weights, recurrent.weight, recurrent.bias)
        states, context, alpha = additive_attentive_gru(
            self.input_proj(packed), start, keys, values, mask, weights, packing.batch_sizes
        )
        hidden = self.dropout(packing.unpack(self.deep_output(states, packed, context)))
        if not self.config.copy:
            return DecoderOutput(hidden, None, None)
        states, context, alpha = map(packing.unpack, (states, context, alpha))
        return DecoderOutput(hidden, alpha, None, self.gate(context, states, embeds))

    def remember(self, source: RecurrentEncoderOutput) -> dict[str, Tensor]:
        """What decoding reads of the source, made once per sentence and shared by its beams.

        Args:
            source: annotations `(B, S, D)` and the mask of the real ones.

        Returns:
            `keys` `(B, S, A)`, `values` `(B, S, D)` and `mask`; without attention `context` `(B, D)`, the last state
            in each direction.
        """
        annotations, mask = source.last_hidden_state, source.attention_mask
        if self.config.attention == "additive":
            return {"keys": self.step.attention.key_proj(annotations), "values": annotations, "mask": mask}
        ends = end_states(annotations, mask, self.config.hidden_size, self.config.bidirectional)
        return {"context": torch.cat(ends, dim=-1)}

    def initial_states(self, source: RecurrentEncoderOutput, rows: int) -> Carry:
        """`s_0 = tanh(W_s h)` from the state that ends the encoder's last reading (appendix A.2.2).

        Args:
            source: annotations `(B, S, D)` and the mask of the real ones.
            rows: decoder rows R, a multiple of B.

        Returns:
            One state `(R, H)` per layer.
        """
        annotations, mask = source.last_hidden_state, source.attention_mask
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


class RNNSearchModel(RNNSearchPreTrainedModel, RecurrentSeq2SeqModel):
    """Encoder and decoder of RNNsearch up to the maxout layer, without the output layer."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__(config, RNNSearchEncoder(config), RNNSearchDecoder(config))


class RNNSearchForConditionalGeneration(RNNSearchPreTrainedModel, RecurrentSeq2SeqForConditionalGeneration):
    """RNNsearch with its output layer: `p(y_i | y_<i, x) = softmax(W_o t_i)` (appendix A.2.2)."""

    def __init__(self, config: RNNSearchConfig):
        super().__init__(config, RNNSearchModel(config))
