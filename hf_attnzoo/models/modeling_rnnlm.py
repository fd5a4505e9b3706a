"""A recurrent language model: stacked LSTM or GRU layers that predict the next word.

`h_t^l = RNN(D(h_t^(l-1)), h_(t-1)^l)` with `h_t^0 = E x_t`, and `p(x_(t+1) | x_1 .. x_t) = softmax(W D(h_t^L))`, where
D is dropout, which no state passes through on its way in time (Zaremba, Sutskever and Vinyals 2014, section 3.2).
Shapes: B texts, T words, H hidden size.
"""

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .causal_lm import CausalGenerationMixin, following_labels, infer_mask
from .configuration_rnnlm import RNNLMConfig
from .losses import smoothed_cross_entropy
from .packed_linear import PackedLinear
from .pretrained import AttnZooPreTrainedModel, check_embeds, check_ids, check_labels, check_mask, exactly_one
from .recurrence import Carry, RecurrentCache, ragged_layout, take_positions
from .recurrent_layer import RecurrentLayer


class RNNLMLayer(GradientCheckpointingLayer, RecurrentLayer):
    """One layer of the stack."""

    def __init__(self, config: RNNLMConfig, input_size: int, residual: bool):
        super().__init__(config.cell, input_size, config.hidden_size)
        self.residual = residual

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, start: Carry | None = None
    ) -> tuple[Tensor, Carry]:
        """Outputs `(B, T, H)` and last states `(B, H)` each of inputs `(B, T, ...)` padded on the right."""
        outputs, final = super().forward(inputs, lengths, start)
        return (outputs + inputs if self.residual else outputs), final


class RNNLMPreTrainedModel(AttnZooPreTrainedModel):
    """Base of the family's classes."""

    config: RNNLMConfig
    _no_split_modules = ["RNNLMLayer"]  # noqa: RUF012
    # A state can't be taken back, which assisted generation would have to do.
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Section 4.1: parameters are uniform.
        self._init_uniform(module)


class RNNLMModel(RNNLMPreTrainedModel):
    """Embedding and stacked layers, without the output layer."""

    def __init__(self, config: RNNLMConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        sizes = [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
        self.layers = nn.ModuleList(
            RNNLMLayer(config, size, config.residual and index > 0) for index, size in enumerate(sizes)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: RecurrentCache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Read texts, or what follows on those in the cache.

        Args:
            input_ids: ids, shape `(B, T)`, padded on either side.
            attention_mask: 1 where a position is real, shape `(B, T)` or longer, of which the last T count. Elsewhere
                the states stand still, and the output is that of the last real position before. Default: `None`,
                inferred from the padding id, unless that also ends a text; all ones for vectors.
            inputs_embeds: word vectors in place of ids, shape `(B, T, embedding_size)`.
            cache: what an earlier call returned: the states to go on from. It is updated.
            use_cache: return a cache. Default: `None`, `config.use_cache` outside training.
            output_attentions: no matter, this model attends to nothing.
            output_hidden_states: also return the word vectors and every layer's outputs.

        Returns:
            `last_hidden_state` of shape `(B, T, H)`; 0 on padding that nothing real stands before.

        Raises:
            ValueError: if inputs are missing, given twice, of a wrong shape, or hold an id out of range.
        """
        config = self.config
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if use_cache is None:
            use_cache = config.use_cache and not self.training

        exactly_one(input_ids=input_ids, inputs_embeds=inputs_embeds)
        if inputs_embeds is None:
            check_ids("input_ids", input_ids, config.vocab_size)
            inputs_embeds = self.embed_tokens(input_ids)
        check_embeds("inputs_embeds", inputs_embeds, config.embedding_size)
        mask = text_mask(attention_mask, input_ids, inputs_embeds, config)
        if use_cache and cache is None:
            cache = RecurrentCache()
        states = {} if cache is None else cache.states
        rows = inputs_embeds.shape[0]
        if states and states["output"].shape[0] != rows:
            raise ValueError(f"input_ids has {rows} rows, but the cache holds {states['output'].shape[0]}")

        # Padding is brought to the right, where the layers know it by the lengths.
        lengths, order = (None, None) if mask is None else ragged_layout(mask)
        hidden = inputs_embeds if order is None else take_positions(inputs_embeds, order)
        all_hidden, new_states = [inputs_embeds], {}
        for index, layer in enumerate(self.layers):
            names = [f"{index}.{kind}" for kind in range(config.num_states)]
            start = tuple(states[name] for name in names) if states else None
            hidden, final = layer(self.dropout(hidden), lengths, start)
            new_states |= zip(names, final, strict=True)
            if output_hidden_states and index + 1 < len(self.layers):
                all_hidden.append(spread(hidden, None, mask, lengths))
        hidden = spread(hidden, states.get("output"), mask, lengths)
        if cache is not None:
            # The output isn't the state where layers add their input to it, and padding may be all that follows.
            cache.store({"output": hidden[:, -1], **new_states}, hidden.shape[1])
        hidden = self.dropout(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            cache=cache,
            hidden_states=(*all_hidden, hidden) if output_hidden_states else None,
        )


class RNNLMForCausalLM(CausalGenerationMixin, RNNLMPreTrainedModel):
    """The language model: layers and the output layer."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: RNNLMConfig):
        super().__init__(config)
        self.model = RNNLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: RecurrentCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        packed_head: PackedLinear | None = None,
    ) -> CausalLMOutputWithPast:
        """Predict the next word at every position.

        Args:
            labels: the ids themselves, shape `(B, T)`, -100 where nothing is to be predicted. They are shifted here:
                position t predicts `labels[:, t + 1]`. The first real word of a text has nothing to be predicted from
                and never counts, wherever padding stands.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.
            logits_to_keep: compute the logits of the last so many positions, or of these positions. Default: `0`, all.
            skip_logits: compute the loss alone, and logits for none but the labelled positions, a part at a time.
                Default: `None`, when training with labels.
            packed_head: the output layer, made ready by `generate()`. Default: `None`, as it is.

        The other arguments are those of `RNNLMModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, and `logits` of shape `(B, T, vocab_size)`, None if skipped.

        Raises:
            ValueError: as `RNNLMModel.forward`, and if labels and inputs differ in shape.
        """
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False if use_cache is None else use_cache
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        begun = cache is not None and bool(cache.states)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            check_mask("labels", labels, hidden.shape[:2])
            mask = text_mask(attention_mask, input_ids, hidden, self.config)
            following = following_labels(labels, None if begun else mask)
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = smoothed_cross_entropy(hidden[:, :-1], self.lm_head, following, smoothing, num_items_in_batch)
        head = self.lm_head if packed_head is None else packed_head
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(
            loss=loss,
            logits=None if skip_logits else head(hidden[:, positions]),
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # Keys and values are not what a recurrence remembers: the model makes its own cache.
        return False


def text_mask(
    attention_mask: Tensor | None, input_ids: Tensor | None, vectors: Tensor, config: RNNLMConfig
) -> Tensor | None:
    """Mask of a text: as given, else from the padding id, unless that also ends a text.

    Args:
        attention_mask: 1 where a position is real, shape `(B, T)` or longer, of which the last T count, or None.
        input_ids: ids, shape `(B, T)`, or None.
        vectors: anything of shape `(B, T, ...)`.
        config: which names the padding id.

    Returns:
        Boolean mask of shape `(B, T)`, or None: everything is real.
    """
    if attention_mask is not None:
        if attention_mask.ndim == 2:
            attention_mask = attention_mask[:, -vectors.shape[1] :]
        check_mask("attention_mask", attention_mask, vectors.shape[:2])
        return attention_mask.bool()
    return infer_mask(input_ids, config)


def spread(outputs: Tensor, before: Tensor | None, mask: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Outputs of the real positions, brought back to where these stand; padding repeats the one before.

    Args:
        outputs: of the real positions first, then whatever, shape `(B, T, H)`.
        before: what stands before the first real position, shape `(B, H)`. Default: `None`, zeros.
        mask: True where a position is real, shape `(B, T)`; None if all are.
        lengths: real positions of every row, shape `(B,)`; None if all are.

    Returns:
        Outputs of all positions, shape `(B, T, H)`.
    """
    if mask is None or lengths is None:
        return outputs
    before = torch.zeros_like(outputs[:, 0]) if before is None else before.to(outputs.dtype)
    return take_positions(torch.cat([before[:, None], outputs], dim=1), mask.long().cumsum(dim=1))
