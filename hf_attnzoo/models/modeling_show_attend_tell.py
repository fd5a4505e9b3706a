"""Show, Attend and Tell: neural image caption generation with visual attention (Xu et al. 2015).

Reads as the paper's sections 3 and 4 do: attention, one step of the decoder, the loop over the caption, the objective.
Shapes: B pictures, R captions (B times the beams), L locations of a picture, T caption length, n hidden size, m size
of a word vector, D size of an annotation.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .attention import AdditiveAttention, additive_scores, attend, masked_softmax
from .configuration_show_attend_tell import ShowAttendTellConfig
from .image_encoder import ImageEncoder
from .losses import label_lengths, per_item, smoothed_cross_entropy, token_log_likelihoods
from .lstm import LSTMCell
from .packed_linear import PackedHeadGenerationMixin, PackedLinear
from .pretrained import AttnZooPreTrainedModel, check_labels
from .recurrence import Carry, RecurrentCache, Stepped, scan
from .seq2seq import SharedSourceGenerationMixin, embed_target, prepare_decoder_inputs, shift_tokens_right


@dataclass
class ShowAttendTellModelOutput(Seq2SeqModelOutput):
    """What a model returns, with the locations that hard attention looked at.

    Args:
        locations: shape `(R, T)`: from 0 to `L - 1` where one location was read, -1 where the expected annotation was.
    """

    locations: Tensor | None = None


@dataclass
class ShowAttendTellOutput(Seq2SeqLMOutput):
    """The same with a vocabulary head.

    Args:
        locations: shape `(R, T)`: from 0 to `L - 1` where one location was read, -1 where the expected annotation was.
    """

    locations: Tensor | None = None


def location_noise(rows: int, steps: int, like: Tensor) -> Tensor:
    """Chance for the locations of `rows` captions of `steps` words: uniform in [0, 1), drawn before the loop."""
    return torch.rand(rows, steps, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))


def sample_locations(weights: Tensor, noise: Tensor) -> Tensor:
    """`s_t ~ Multinoulli(alpha_t)` (equation 8), by the inverse of the distribution function.

    Args:
        weights: alpha, shape `(..., L)`.
        noise: uniform in [0, 1), shape `(...)`.

    Returns:
        Locations from 0 to `L - 1`, shape `(...)`, none of a weight of 0.
    """
    reached = weights.to(noise.dtype).cumsum(dim=-1)
    # Times the total, which rounding may keep from being 1
    threshold = noise[..., None] * reached[..., -1:]
    return (reached <= threshold).sum(dim=-1).clamp(max=weights.shape[-1] - 1)


class ShowAttendTellAttention(AdditiveAttention):
    """Which annotation to read: the expected one, or one that is picked (section 4).

    Args:
        config: of the family.
        key_size: size D of an annotation.
    """

    def __init__(self, config: ShowAttendTellConfig, key_size: int):
        super().__init__(config.hidden_size, key_size, config.attention_size or config.hidden_size)
        self.hard, self.hard_evaluation = config.attention == "hard", config.hard_evaluation

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, noise: Tensor | None = None, expected: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Attend from every query to every location of its picture.

        Args:
            query: states h_{t-1}, shape `(B, Q, n)`.
            keys: `key_proj(values)`, shape `(B, L, attention_size)`.
            values: annotations, shape `(B, L, D)`.
            noise: uniform in [0, 1), shape `(B, Q)`, to sample hard attention with. Default: `None`, by
                `hard_evaluation`.
            expected: True where the expected annotation is to be read all the same, shape `(B, Q)`.

        Returns:
            Contexts `(B, Q, D)`, weights alpha `(B, Q, L)`, and for hard attention the locations `(B, Q)`.
        """
        weights = masked_softmax(additive_scores(self.query_proj(query), keys, self.v), None)
        read, locations = weights, None
        if self.hard and noise is None and self.hard_evaluation == "expected":
            locations = torch.full_like(weights[..., 0], -1, dtype=torch.long)
        elif self.hard:
            locations = weights.argmax(dim=-1) if noise is None else sample_locations(weights, noise)
            read = nn.functional.one_hot(locations, weights.shape[-1]).to(weights.dtype)
            if expected is not None:
                read = torch.where(expected[..., None], weights, read)
                locations = locations.masked_fill(expected, -1)
        return attend(read.to(values.dtype), values), weights, locations


class ShowAttendTellDecoderStep(GradientCheckpointingLayer):
    """One step of the decoder: look at the picture, then move on (equations 1 to 5)."""

    def __init__(self, config: ShowAttendTellConfig, annotation_size: int):
        super().__init__()
        self.attention = ShowAttendTellAttention(config, annotation_size)
        if config.context_gate:
            self.context_gate = nn.Linear(config.hidden_size, 1)
        self.context_proj = nn.Linear(annotation_size, 4 * config.hidden_size, bias=False)
        self.cell = LSTMCell(config.hidden_size)

    def forward(
        self,
        gates: Tensor,
        noise: Tensor | None,
        expected: Tensor | None,
        keys: Tensor,
        values: Tensor,
        hidden: Tensor,
        memory: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """From h_{t-1} and c_{t-1} to h_t and c_t.

        Args:
            gates: what the previous word contributes to the gates, shape `(R, 4n)`.
            noise: see `ShowAttendTellAttention.forward`, shape `(R,)`, or None.
            expected: likewise.
            keys: projected annotations, shape `(B, L, attention_size)`.
            values: annotations, shape `(B, L, D)`.
            hidden: h_{t-1}, shape `(R, n)`.
            memory: c_{t-1}, shape `(R, n)`.

        Returns:
            h_t and c_t `(R, n)`, the context z_t `(R, D)`, the weights `(R, L)`, and locations `(R,)` or None.
        """
        # The captions of a picture, its beams, are queries to one memory.
        grouped = (keys.shape[0], -1)
        query, *chances = (
            None if tensor is None else tensor.unflatten(0, grouped) for tensor in (hidden, noise, expected)
        )
        context, weights, locations = self.attention(query, keys, values, *chances)
        context, weights = context.flatten(0, 1), weights.flatten(0, 1)
        if hasattr(self, "context_gate"):
            # beta_t of section 4.2.1
            context = context * torch.sigmoid(self.context_gate(hidden))
        hidden, memory = self.cell(gates + self.context_proj(context), (hidden, memory))
        return hidden, memory, context, weights, None if locations is None else locations.flatten(0, 1)


class ShowAttendTellDecoder(nn.Module):
    """An LSTM that reads a context vector beside each word, and a deep output layer (section 3.1.2)."""

    def __init__(self, config: ShowAttendTellConfig, annotation_size: int):
        super().__init__()
        self.config = config
        size, word_size = config.hidden_size, config.embedding_size
        # f_init,h and f_init,c side by side
        self.initial_proj = nn.Linear(annotation_size, 2 * size)
        self.input_proj = nn.Linear(word_size, 4 * size)
        self.step = ShowAttendTellDecoderStep(config, annotation_size)
        # L_h and L_z
        self.state_readout = nn.Linear(size, word_size, bias=False)
        self.context_readout = nn.Linear(annotation_size, word_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        embeds: Tensor,
        attention_mask: Tensor | None,
        annotations: Tensor,
        cache: RecurrentCache | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Write the caption, word by word.

        Args:
            embeds: vectors E y_{t-1} of the previous words, shape `(R, T, m)`.
            attention_mask: 1 where a position of the caption is real, shape `(R, T)`; elsewhere states stand still.
            annotations: shape `(B, L, D)`.
            cache: states to go on from, and to leave the new ones in.

        Returns:
            The deep output layer `(R, T, m)`, states h_t `(R, T, n)`, weights alpha `(R, T, L)`, and for hard
            attention locations `(R, T)`, else None.
        """
        rows, length = embeds.shape[:2]
        if cache is None or not cache.states:
            memory = {"keys": self.step.attention.key_proj(annotations), "values": annotations}
            states = self.initial_states(annotations, rows)
        else:
            memory, states = cache.memory, tuple(cache.states.values())
            if states[0].shape[0] != rows:
                raise ValueError(f"decoder_input_ids has {rows} rows, but the cache holds {states[0].shape[0]}")

        gates = self.input_proj(embeds)
        noise = expected = None
        if self.config.attention == "hard" and self.training:
            noise = location_noise(rows, length, gates)
            expected = torch.rand(rows, device=gates.device) < self.config.expected_attention_rate

        def step(carry: Carry, inputs: Carry) -> Stepped:
            gates, *extra = inputs
            chance = None if noise is None else extra.pop(0)
            *new_states, context, weights, locations = self.step(gates, chance, expected, *memory.values(), *carry)
            if attention_mask is not None:
                real = extra.pop(0)[:, None]
                new_states = [torch.where(real, new, old) for new, old in zip(new_states, carry, strict=True)]
            seen = (new_states[0], context, weights)
            # A compiler that differentiates the loop wants all that it returns to be floating-point.
            return tuple(new_states), seen if locations is None else (*seen, locations.to(torch.float32))

        real = None if attention_mask is None else attention_mask.bool()
        steps = tuple(tensor for tensor in (gates, noise, real) if tensor is not None)
        # Under autocast the states take the dtype that a step returns them in.
        carry = tuple(state.to(gates.dtype) for state in states)
        states, (hidden, context, weights, *locations) = scan(step, carry, steps)
        if cache is not None:
            cache.memory.update(memory)
            cache.store(dict(zip(("hidden", "memory"), states, strict=True)), length)
        deep = self.dropout(embeds + self.state_readout(hidden) + self.context_readout(context))
        return deep, hidden, weights, locations[0].long() if locations else None

    def initial_states(self, annotations: Tensor, rows: int) -> Carry:
        """h_0 and c_0, each a perceptron of the mean annotation (section 3.1.2), shape `(rows, n)`."""
        states = torch.tanh(self.initial_proj(annotations.mean(dim=1)))
        return states.repeat_interleave(rows // states.shape[0], dim=0).chunk(2, dim=-1)


class RewardBaseline(nn.Module):
    """The moving average b of the rewards, `b_k = decay b_{k-1} + (1 - decay) log p(y | s_k, a)` (section 4.1).

    It is a buffer, saved with the weights. What a batch is measured by is the average before that batch, so that it
    depends on no sample it is subtracted from: the gradient's expectation stays what it is. Under gradient
    accumulation every part counts as a batch. `DistributedDataParallel` hands the first process's average to all.

    Args:
        decay: how much of the average a batch leaves standing.
    """

    def __init__(self, decay: float):
        super().__init__()
        self.decay = decay
        self.register_buffer("average", torch.zeros(()))

    @torch.no_grad()
    def forward(self, rewards: Tensor, counted: Tensor) -> Tensor:
        """What the rewards are above the average, `(B,)`, of rewards `(B,)`; the average moves on where they count."""
        advantages = rewards - self.average
        mean = (rewards * counted).sum() / counted.sum().clamp(min=1)
        moved = torch.lerp(mean, self.average.to(mean.dtype), self.decay)
        self.average.copy_(torch.where(counted.any(), moved, self.average))
        return advantages

    def initialize(self) -> None:
        """Nothing has been seen."""
        init.zeros_(self.average)


def doubly_stochastic_penalty(weights: Tensor, real: Tensor) -> Tensor:
    """`sum_i (1 - sum_t alpha_ti)^2` over the real steps (equation 14), summed over the captions that have any.

    Args:
        weights: alpha, shape `(B, T, L)`.
        real: True where a step belongs to the caption, shape `(B, T)`.

    Returns:
        A scalar.
    """
    received = (weights * real[:, :, None]).sum(dim=1)
    return ((1 - received).square().sum(dim=1) * real.any(dim=1)).sum()


class ShowAttendTellPreTrainedModel(AttnZooPreTrainedModel):
    """Base of the family's classes."""

    config: ShowAttendTellConfig
    main_input_name = "pixel_values"
    input_modalities = ("image", "text")
    _no_split_modules = ["ConvolutionStage", "ShowAttendTellDecoderStep"]  # noqa: RUF012

    @classmethod
    def from_backbone(cls, backbone: PreTrainedModel, **options: Any) -> "ShowAttendTellPreTrainedModel":
        """New decoder on annotations that a trained backbone makes.

        Example:
            `ShowAttendTellForConditionalGeneration.from_backbone(AutoBackbone.from_pretrained("microsoft/resnet-18"),
            freeze_backbone=True, image_size=224, vocab_size=5000)`; with timm installed, the name of a model of timm's
            does as well.

        Args:
            backbone: a model of `AutoBackbone` with one feature map among its `out_features`. Its weights are copied.
            options: fields of the configuration, other than `backbone_config`.

        Returns:
            The model, in evaluation mode.

        Raises:
            ValueError: if the configuration refuses the options, or if there are several feature maps.
        """
        model = cls(cls.config_class(backbone_config=copy.deepcopy(backbone.config), **options))
        model.get_encoder().backbone.load_state_dict(backbone.state_dict())
        return model.eval()

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the pictures' locations; see `ShowAttendTellConfig.grid_size`."""
        return self.config.grid_size

    def get_decoder_input_embeddings(self) -> nn.Embedding:
        """Embedding of the caption's words, which is the only one."""
        return self.get_input_embeddings()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.GroupNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear | nn.Embedding | ShowAttendTellAttention):
            # The attention's own initialisation, which is RNNsearch's, would begin too near to nothing for a picture's
            # many locations: it takes several times as long to leave it.
            self._init_uniform(module)
        else:
            super()._init_weights(module)


class ShowAttendTellModel(ShowAttendTellPreTrainedModel):
    """Encoder and decoder up to the deep output layer, without the vocabulary."""

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__(config)
        self.encoder = ImageEncoder(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.decoder = ShowAttendTellDecoder(config, self.encoder.annotation_size)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        pixel_values: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: RecurrentCache | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> ShowAttendTellModelOutput:
        """Look at pictures and read captions.

        Args:
            pixel_values: shape `(B, num_channels, image_size, image_size)`, as the image processor scales them.
            decoder_input_ids: the captions' ids, each one step before it is predicted, shape `(B, T)`. With
                `encoder_outputs` or a `cache`, several rows may share a picture: `(B * k, T)`, those of a picture next
                to each other.
            decoder_attention_mask: 1 where a position of the caption is real, shape `(B, T)` or longer, of which the
                last T count. Padding on the left leaves a row as it would be alone.
            encoder_outputs: annotations `(B, L, D)`, in place of pictures.
            cache: what an earlier call returned: the states to go on from.
            decoder_inputs_embeds: word vectors in place of ids, shape `(B, T, embedding_size)`.
            use_cache: return a cache. Default: `None`, `config.use_cache` outside training.
            output_attentions: return `cross_attentions`, one tensor `(B, 1, T, L)` of the weights alpha, soft or hard;
                `config.grid_size` says how L locations are laid out.
            output_hidden_states: return the word vectors and the decoder's states, and what the encoder has of them.

        Returns:
            `last_hidden_state` is what the vocabulary head reads, shape `(B, T, embedding_size)`.

        Raises:
            ValueError: if inputs are missing, given twice, of a wrong shape, or hold an id out of range.
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if use_cache is None:
            use_cache = config.use_cache and not self.training

        embeds, decoder_attention_mask = embed_target(
            self, decoder_input_ids, decoder_inputs_embeds, decoder_attention_mask
        )
        if (pixel_values is None) == (encoder_outputs is None):
            raise ValueError("pass pixel_values, or the encoder_outputs made of them: one of the two, not both")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(pixel_values, output_hidden_states=output_hidden_states)
            if embeds.shape[0] != pixel_values.shape[0] and cache is None:
                raise ValueError(
                    f"decoder_input_ids has {embeds.shape[0]} rows, but pixel_values has {pixel_values.shape[0]}"
                )
        annotations = encoder_outputs[0]
        if embeds.shape[0] % annotations.shape[0] != 0:
            raise ValueError(
                f"decoder_input_ids has {embeds.shape[0]} rows, no multiple of the {annotations.shape[0]} pictures"
            )
        if use_cache and cache is None:
            cache = RecurrentCache()
        deep, hidden, weights, locations = self.decoder(embeds, decoder_attention_mask, annotations, cache)
        return ShowAttendTellModelOutput(
            last_hidden_state=deep,
            cache=cache,
            decoder_hidden_states=(embeds, hidden) if output_hidden_states else None,
            cross_attentions=(weights[:, None],) if output_attentions else None,
            encoder_last_hidden_state=annotations,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            locations=locations,
        )


class ShowAttendTellForConditionalGeneration(
    PackedHeadGenerationMixin, SharedSourceGenerationMixin, ShowAttendTellPreTrainedModel
):
    """The captioning model: `p(y_t | a, y_<t) ~ exp(L_o (E y_{t-1} + L_h h_t + L_z z_t))` (equation 7).

    Its loss in evaluation is the cross-entropy of the caption. In training the terms of the paper's objective are
    added, each weighed as by the paper against the log-likelihood of a whole caption: the doubly stochastic penalty
    (equation 14) and, for hard attention, the entropy of the locations. The reinforcement of sampled locations
    (section 4.1) is in the gradient alone, not in the loss's value. Everything is a sum over captions divided by one
    number of labels, `num_items_in_batch`, so that the parts of a batch add up to the whole.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__(config)
        self.model = ShowAttendTellModel(config)
        self.lm_head = nn.Linear(config.embedding_size, config.vocab_size, bias=False)
        if config.attention == "hard":
            self.reward_baseline = RewardBaseline(config.baseline_decay)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        pixel_values: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: RecurrentCache | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        packed_head: PackedLinear | None = None,
    ) -> ShowAttendTellOutput:
        """Predict captions.

        Args:
            labels: ids of the captions, shape `(B, T)`, -100 where nothing is to be predicted. Without decoder inputs
                they are shifted to make them.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.
            logits_to_keep: compute the logits of the last so many positions, or of these positions. Default: `0`, all.
            skip_logits: compute the loss alone, and logits for none but the labelled positions, a part at a time.
                Default: `None`, when training with labels.
            packed_head: the output layer, made ready by `generate()`. Default: `None`, as it is.

        The other arguments are those of `ShowAttendTellModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, and `logits` of shape `(B, T, vocab_size)`, None if skipped.

        Raises:
            ValueError: as `ShowAttendTellModel.forward`, and if labels and decoder inputs differ in shape.
        """
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False if use_cache is None else use_cache
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        outputs = self.model(
            pixel_values=pixel_values,
            decoder_input_ids=prepare_decoder_inputs(self, labels, decoder_input_ids, decoder_inputs_embeds),
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_attentions=True,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = smoothed_cross_entropy(hidden, self.lm_head, labels, smoothing, num_items_in_batch)
            if self.training:
                terms = self.attention_terms(outputs, labels, decoder_attention_mask)
                loss = loss + per_item(terms, labels, num_items_in_batch)
        head = self.lm_head if packed_head is None else packed_head
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return ShowAttendTellOutput(
            loss=loss,
            logits=None if skip_logits else head(hidden[:, positions]),
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            cross_attentions=outputs.cross_attentions if output_attentions else None,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            locations=outputs.locations,
        )

    def attention_terms(
        self, outputs: ShowAttendTellModelOutput, labels: Tensor, decoder_attention_mask: Tensor | None
    ) -> Tensor:
        """What training adds to the summed cross-entropy (sections 4.1 and 4.2.1).

        Args:
            outputs: of the model, with its attention.
            labels: shape `(B, T)`.
            decoder_attention_mask: shape `(B, T)` or longer, or None.

        Returns:
            A scalar, summed over the captions.
        """
        config, (weights,) = self.config, outputs.cross_attentions
        weights = weights[:, 0].to(torch.promote_types(weights.dtype, torch.float32))
        # A caption goes on up to its last label, whether or not all before it count.
        real = torch.arange(labels.shape[1], device=labels.device) < label_lengths(labels)[:, None]
        if decoder_attention_mask is not None:
            real = real & decoder_attention_mask[:, -labels.shape[1] :].bool()
        total = weights.new_zeros(())
        if config.doubly_stochastic_weight:
            total = config.doubly_stochastic_weight * doubly_stochastic_penalty(weights, real)
        if config.attention == "soft":
            return total

        log_weights = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        entropy = -((weights * log_weights).sum(dim=-1) * real).sum()
        sampled = real & (outputs.locations >= 0)
        picked = log_weights.gather(2, outputs.locations.clamp(min=0)[:, :, None])[:, :, 0]
        log_likelihood = token_log_likelihoods(outputs.last_hidden_state, self.lm_head, labels).sum(dim=1)
        advantages = self.reward_baseline(log_likelihood, real.any(dim=1))
        # (log p(y | s, a) - b) d log p(s | a) / dW, summed over the captions that were sampled
        reinforcement = config.reward_weight * (advantages * (picked * sampled).sum(dim=1)).sum()
        return total - config.entropy_weight * entropy - (reinforcement - reinforcement.detach())

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs that predict `labels`, shape `(B, T)`, as data collators ask for them."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
