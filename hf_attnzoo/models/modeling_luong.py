"""Effective approaches to attention-based neural machine translation (Luong, Pham and Manning 2015).

Stacked recurrences on both sides; the decoder's state asks the source, and what comes back makes the attentional state
h~ that predicts the next word. Without attention this is Sutskever, Vinyals and Le (2014). Shapes: B source sentences,
R decoder rows (B times the beams), S source length, T target length, H hidden size, D annotation size.
"""

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import additive_scores, attend, dot_scores, gaussian, masked_softmax, source_positions, window_mask
from .configuration_luong import LuongConfig
from .pointer import repeated_attention
from .pretrained import AttnZooPreTrainedModel
from .recurrence import Carry, RecurrentCache, Stepped, layer_noise, scan
from .recurrent_layer import RecurrentLayer
from .recurrent_seq2seq import (
    DecoderOutput,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentEncoderOutput,
    RecurrentSeq2SeqForConditionalGeneration,
    RecurrentSeq2SeqModel,
)


class LuongEncoderLayer(GradientCheckpointingLayer):
    """One layer of the encoder: a recurrence in one direction, or half of one in each."""

    def __init__(self, input_size: int, config: LuongConfig, residual: bool):
        super().__init__()
        size = config.annotation_size
        self.residual = residual
        if config.bidirectional:
            self.forward_rnn = RecurrentLayer(config.cell, input_size, size // 2)
            self.backward_rnn = RecurrentLayer(config.cell, input_size, size // 2, reverse=True)
        else:
            self.forward_rnn = RecurrentLayer(config.cell, input_size, size, reverse=config.reverse_source)

    def forward(self, hidden: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs `(B, S, D)` and last states `(B, K, D)` of inputs `(B, S, input_size)` padded on the right."""
        outputs, final = self.forward_rnn(hidden, lengths)
        final = torch.stack(final, dim=1)
        if hasattr(self, "backward_rnn"):
            backward_outputs, backward_final = self.backward_rnn(hidden, lengths)
            outputs = torch.cat([outputs, backward_outputs], dim=-1)
            final = torch.cat([final, torch.stack(backward_final, dim=1)], dim=-1)
        return (outputs + hidden if self.residual else outputs), final


class LuongEncoder(RecurrentEncoder):
    """Annotations and last states of a source (Luong et al. 2015, section 2)."""

    def __init__(self, config: LuongConfig):
        sizes = [config.embedding_size] + [config.annotation_size] * (config.num_encoder_layers - 1)
        layers = [LuongEncoderLayer(size, config, config.residual and index > 0) for index, size in enumerate(sizes)]
        super().__init__(config, layers)


class LuongAttention(nn.Module):
    """Global and local attention with the scores of Luong et al. (2015), sections 3.1 and 3.2."""

    def __init__(self, config: LuongConfig):
        super().__init__()
        self.score, self.scope, self.window = config.score, config.attention, config.window
        size, annotation_size = config.hidden_size, config.annotation_size
        if self.score == "general":
            self.key_proj = nn.Linear(annotation_size, size, bias=False)
        elif self.score == "concat":
            # W_a [h_t; h_s] in its two halves: the one for the source doesn't depend on the step.
            self.query_proj = nn.Linear(size, size, bias=config.attention_bias)
            self.key_proj = nn.Linear(annotation_size, size, bias=False)
            self.v = nn.Parameter(torch.zeros(size))
            if config.coverage:
                self.coverage_weight = nn.Parameter(torch.zeros(size))
                self.coverage_bias = nn.Parameter(torch.zeros(size))
        elif self.score == "location":
            self.location_proj = nn.Linear(size, config.max_source_length, bias=False)
        if self.scope == "local-p":
            self.position_proj = nn.Linear(size, size, bias=False)
            self.position_out = nn.Linear(size, 1, bias=False)

    def forward(
        self,
        query: Tensor,
        steps: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        coverage: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend from every query to its source.

        Args:
            query: decoder states h_t, shape `(B, Q, H)`.
            steps: t of every query, from 0, shape `(B, Q)`; where local-m looks.
            keys: what the score compares with: `key_proj(values)`, or the values, shape `(B, S, ...)`.
            values: annotations, shape `(B, S, D)`.
            mask: True where a source position is real, shape `(B, S)`.
            coverage: sum of the weights of the steps before, shape `(B, Q, S)`. Default: `None`, without coverage.

        Returns:
            Contexts `(B, Q, D)` and weights `(B, Q, S)`.
        """
        positions = source_positions(mask)
        scores = self.scores(query, keys, positions, coverage)
        if self.scope == "global":
            weights = masked_softmax(scores, mask)
        else:
            lengths = mask.sum(dim=1, keepdim=True)
            if self.scope == "local-m":
                # Past the source's end the window stays at its last word.
                center = torch.minimum(steps, (lengths - 1).clamp(min=0))
            else:
                predicted = self.position_out(torch.tanh(self.position_proj(query)))[:, :, 0]
                # Half precision has no numbers between the positions of a long source.
                center = lengths * predicted.to(torch.promote_types(predicted.dtype, torch.float32)).sigmoid()
            weights = masked_softmax(scores, window_mask(positions, center, self.window, mask))
            if self.scope == "local-p":
                weights = weights * gaussian(positions, center, self.window).to(weights.dtype)
        return attend(weights.to(values.dtype), values), weights

    def scores(self, query: Tensor, keys: Tensor, positions: Tensor, coverage: Tensor | None = None) -> Tensor:
        """Energies `(B, Q, S)` (equation 8, and the location-based score below it)."""
        if self.score == "location":
            by_position = self.location_proj(query)
            index = positions.clamp(min=0, max=by_position.shape[-1] - 1)
            return by_position.gather(2, index[:, None].expand(-1, query.shape[1], -1))
        if coverage is not None:
            query = self.query_proj(query)
            query = query + self.coverage_bias.to(query.dtype)
            return additive_scores(query, keys, self.v, coverage, self.coverage_weight)
        if self.score == "concat":
            return additive_scores(self.query_proj(query), keys, self.v)
        return dot_scores(query, keys)


class LuongDecoder(RecurrentDecoder):
    """Stacked recurrence, attention, and the attentional state `h~_t = tanh(W_c [c_t; h_t])` (equation 5).

    Without input feeding the states don't wait for the attention: the whole target is one run of the recurrence and
    one batched attention. With it (section 3.3), and with coverage, where the attention waits for that of the step
    before, everything that the previous word decides is made before the loop.
    """

    def __init__(self, config: LuongConfig):
        super().__init__(config)
        size, layers = config.hidden_size, config.num_decoder_layers
        sizes = [config.embedding_size] + [size] * (layers - 1)
        self.layers = nn.ModuleList(RecurrentLayer(config.cell, input_size, size) for input_size in sizes)
        if config.bridge == "linear":
            self.bridge = nn.ModuleList(
                nn.Linear(config.num_encoder_layers * config.annotation_size, layers * size)
                for _ in range(config.num_states)
            )
        elif config.bridge == "top":
            self.bridge = nn.Linear(config.annotation_size, size)
        if config.attention != "none":
            self.attention = LuongAttention(config)
            self.context_proj = nn.Linear(config.annotation_size, size, bias=False)
            self.state_proj = nn.Linear(size, size, bias=config.attention_bias)
        if config.input_feeding:
            self.feed_proj = nn.Linear(size, self.layers[0].rnn.input_proj.out_features, bias=False)
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
        """Write the target.

        Args:
            embeds: vectors of the previous words, shape `(R, T, embedding_size)`.
            attention_mask: 1 where a target position is real, shape `(R, T)`; elsewhere the states stand still.
            source: annotations `(B, S, D)`, the mask of the real ones `(B, S)`, and the encoder's last states.
            cache: states to go on from, and to leave the new ones in.
            output_attentions: also return the attention weights.
            output_hidden_states: also return the states of all layers.
            lengths: leading positions that matter; all are computed.

        Returns:
            Attentional states `(R, T, H)`, and what else there is.
        """
        rows, length = embeds.shape[:2]
        memory, carry = self.begin(source, cache, rows)
        embeds = self.dropout(embeds)
        loop = self.config.input_feeding or self.config.coverage or attention_mask is not None
        run = self._stepwise if loop else self._at_once
        made, hidden, carry = run(embeds, attention_mask, memory, carry)
        self.leave(cache, memory, carry, length)
        return DecoderOutput(
            self.dropout(made["attentional"]),
            made.get("weights"),
            (embeds, *hidden) if output_hidden_states else None,
            self.gate(made["context"], hidden[-1], embeds) if self.config.copy else None,
            made.get("repeated"),
        )

    def _at_once(
        self, embeds: Tensor, attention_mask: None, memory: dict[str, Tensor], carry: Carry
    ) -> tuple[dict[str, Tensor], tuple[Tensor, ...], Carry]:
        count, (step, *states) = self.config.num_states, carry
        hidden, outputs, new_states = embeds, [], []
        for index, layer in enumerate(self.layers):
            below = hidden if index == 0 else self.dropout(hidden)
            hidden, final = layer(below, None, tuple(states[index * count : (index + 1) * count]))
            if self.config.residual and index > 0:
                hidden = hidden + below
            outputs.append(hidden)
            new_states.extend(final)
        steps = step[:, None] + torch.arange(embeds.shape[1], device=embeds.device)
        made = self.attentional(hidden, steps, memory)
        return made, tuple(outputs), (step + embeds.shape[1], *new_states)

    def _stepwise(
        self, embeds: Tensor, attention_mask: Tensor | None, memory: dict[str, Tensor], carry: Carry
    ) -> tuple[dict[str, Tensor], tuple[Tensor, ...], Carry]:
        config, count = self.config, self.config.num_states
        feeding, has_coverage = config.input_feeding, config.coverage
        number, *states = carry
        # In the loop's carry h~ stands behind the layers' states, and the coverage comes last.
        fed = count * config.num_decoder_layers
        coverage = states[fed + feeding :]
        gates = self.layers[0].rnn.input_proj(embeds)
        # Under autocast the states take the dtype that a step returns them in.
        states = [state.to(gates.dtype) for state in states[: fed + feeding]] + coverage
        noise = layer_noise(self.dropout, gates, config)
        real = torch.ones(gates.shape[:2], dtype=torch.bool, device=gates.device)
        if attention_mask is not None:
            real = attention_mask.bool()
        numbers = number[:, None] + real.long().cumsum(dim=1)
        wanted = {"context": config.copy, "weights": hasattr(self, "attention"), "repeated": has_coverage}
        names = ["attentional", *(name for name, is_wanted in wanted.items() if is_wanted)]

        def step(carry: Carry, inputs: Carry) -> Stepped:
            gates, real, number, *factors = inputs
            if feeding:
                gates = gates + self.feed_proj(carry[fed])
            outputs, new_states = [], []
            for index, layer in enumerate(self.layers):
                if index > 0:
                    below = outputs[-1] * factors[0][:, index - 1] if factors else outputs[-1]
                    gates = layer.rnn.input_proj(below)
                new_states.extend(layer.step(gates, tuple(carry[index * count : (index + 1) * count])))
                output = new_states[-count]
                outputs.append(output + below if config.residual and index > 0 else output)
            coverage = carry[-1] if has_coverage else None
            made = self.attentional(outputs[-1][:, None], number[:, None], memory, coverage)
            made = {name: tensor[:, 0] for name, tensor in made.items()}
            new_states.extend([made["attentional"]] if feeding else [])
            if has_coverage:
                new_states.append(coverage + made["weights"])
                made["repeated"] = repeated_attention(made["weights"], coverage)
            if attention_mask is not None:
                keep = real[:, None]
                new_states = [torch.where(keep, new, old) for new, old in zip(new_states, carry, strict=True)]
            return tuple(new_states), (*(made[name] for name in names), *outputs)

        # The first word that counts has the number 0.
        steps = (gates, real, numbers - 1, *([] if noise is None else [noise]))
        states, outputs = scan(step, tuple(states), steps)
        made = dict(zip(names, outputs, strict=False))
        return made, outputs[len(names) :], (numbers[:, -1], *states)

    def attentional(
        self, hidden: Tensor, steps: Tensor, memory: dict[str, Tensor], coverage: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`h~_t = tanh(W_c [c_t; h_t])`, W_c in its two halves (equation 5).

        Args:
            hidden: states h_t of the upper layer, shape `(R, T, H)`.
            steps: t, shape `(R, T)`.
            memory: see `remember`.
            coverage: of a single step, shape `(R, S)`, or None.

        Returns:
            `attentional`, the states h~ `(R, T, H)`, with `context` `(R, T, D)` and `weights` `(R, T, S)`; without
            attention the states themselves, and nothing else.
        """
        if not hasattr(self, "attention"):
            return {"attentional": hidden}
        sources = memory["values"].shape[0]
        # The rows of a sentence, its beams, and all their steps are queries to one memory.
        query = hidden.reshape(sources, -1, hidden.shape[-1])
        covered = None if coverage is None else coverage.reshape(sources, -1, coverage.shape[-1])
        context, weights = self.attention(query, steps.reshape(sources, -1), **memory, coverage=covered)
        context, weights = (tensor.view(*hidden.shape[:2], -1) for tensor in (context, weights))
        attentional = self.context_proj(context) + self.state_proj(hidden)
        if self.config.attentional_act == "tanh":
            attentional = torch.tanh(attentional)
        return {"attentional": attentional, "context": context, "weights": weights}

    def remember(self, source: RecurrentEncoderOutput) -> dict[str, Tensor]:
        """What decoding reads of the source, made once per sentence and shared by its beams.

        Args:
            source: annotations and their mask.

        Returns:
            `keys`, `values` and `mask`; nothing without attention.

        Raises:
            ValueError: if a source is longer than a location-based score has weights for.
        """
        if not hasattr(self, "attention"):
            return {}
        values, mask = source.last_hidden_state, source.attention_mask
        if self.config.score == "location" and not torch.compiler.is_compiling():
            longest = int(mask.sum(dim=1).max())
            if longest > self.config.max_source_length:
                raise ValueError(
                    f'input_ids has a source of {longest} words, but score="location" has weights for '
                    f"max_source_length={self.config.max_source_length}"
                )
        project = getattr(self.attention, "key_proj", None)
        return {"keys": values if project is None else project(values), "values": values, "mask": mask}

    def initial_states(self, source: RecurrentEncoderOutput, rows: int) -> Carry:
        """What the loop starts from, of every decoder row.

        Args:
            source: with the encoder's last states, shape `(B, layers, K, D)`.
            rows: decoder rows R, a multiple of B.

        Returns:
            The step 0 `(R,)`, the states `(R, H)` of every layer, and with input feeding a zero in place of h~.

        Raises:
            ValueError: if the encoder's last states were not passed on.
        """
        final = source.final_states
        if final is None:
            raise ValueError(
                "encoder_outputs must be the encoder's own output: its final_states are where decoding begins"
            )
        final = self._bridged(final).repeat_interleave(rows // final.shape[0], dim=0)
        step = torch.zeros(rows, dtype=torch.long, device=final.device)
        states = final.flatten(1, 2).unbind(dim=1)
        return (step, *states, *((torch.zeros_like(states[0]),) if self.config.input_feeding else ()))

    def _bridged(self, final: Tensor) -> Tensor:
        # From the encoder's last states (B, encoder layers, K, D) to the decoder's first (B, decoder layers, K, H).
        config = self.config
        activation = torch.tanh if config.bridge_act == "tanh" else torch.relu
        if config.bridge == "linear":
            side_by_side = final.transpose(1, 2).flatten(2)
            bridged = [activation(project(side_by_side[:, kind])) for kind, project in enumerate(self.bridge)]
            return torch.stack(bridged, dim=1).unflatten(2, (config.num_decoder_layers, -1)).transpose(1, 2)
        if config.bridge == "copy":
            return final
        shape = (-1, config.num_decoder_layers, config.num_states, -1)
        if config.bridge == "top":
            return activation(self.bridge(final[:, -1, 0]))[:, None, None].expand(shape)
        return final.new_zeros(final.shape[0], 1, 1, config.hidden_size).expand(shape)


class LuongPreTrainedModel(AttnZooPreTrainedModel):
    """Base of the family's classes."""

    config: LuongConfig
    _no_split_modules = ["LuongEncoderLayer", "LuongDecoder"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Section 4.1: parameters are uniform in [-0.1, 0.1].
        self._init_uniform(module)


class LuongModel(LuongPreTrainedModel, RecurrentSeq2SeqModel):
    """Encoder and decoder up to the attentional state, without the output layer."""

    def __init__(self, config: LuongConfig):
        super().__init__(config, LuongEncoder(config), LuongDecoder(config))


class LuongForConditionalGeneration(LuongPreTrainedModel, RecurrentSeq2SeqForConditionalGeneration):
    """The translation model: `p(y_t | y_<t, x) = softmax(W_s h~_t)` (equation 6)."""

    def __init__(self, config: LuongConfig):
        super().__init__(config, LuongModel(config))
