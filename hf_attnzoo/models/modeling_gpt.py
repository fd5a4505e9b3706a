"""GPT: a decoder without an encoder, made of multi-head attention (Radford et al. 2018 and 2019, Brown et al. 2020).

`h^0 = E x + P`, `h^l = layer(h^(l-1))` and `p(x_(t+1) | x_1 .. x_t) = softmax(E h_t^N)` (Radford et al. 2018,
equation 2): word and position are added up, every layer lets a position read itself and those before it, and the
embedding is the output layer too. GPT-2 and GPT-3 normalise what a sub-layer reads, and what leaves the last layer.
Shapes: B texts, T positions, H hidden size, h heads, L classes.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from .attention import source_positions
from .causal_lm import CausalGenerationMixin, following_labels, infer_mask
from .classification import classification_loss
from .configuration_gpt import GPTConfig
from .losses import smoothed_cross_entropy
from .multi_head import causal_mask
from .packed_linear import PackedLinear
from .plain_stack import PlainStack
from .positions import LearnedPositions, documents_of, read_positions
from .pretrained import check_embeds, check_ids, check_labels, check_mask, exactly_one
from .transformer_layer import AttentionPreTrainedModel, TransformerLayer, TransformerStack, check_rows
from .unpadding import Padding


class GPTPreTrainedModel(AttentionPreTrainedModel):
    """Base of the family's classes."""

    config: GPTConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # After its children: modules are initialised from the leaves up.
        if isinstance(module, TransformerLayer) and self.config.norm_first:
            # What the layers add to the residual shall not grow with their number (Radford et al. 2019, section 2.3).
            std = self.config.initializer_range * (2 * self.config.num_hidden_layers) ** -0.5
            init.normal_(module.self_attn.out_proj.weight, std=std)
            init.normal_(module.feed_forward.down_proj.weight, std=std)


class GPTModel(GPTPreTrainedModel):
    """Embedding, positions and layers, without the output layer."""

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = LearnedPositions(config.max_position_embeddings, config.hidden_size)
        rate = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.dropout = nn.Dropout(rate)
        self.stack = TransformerStack(config, config.num_hidden_layers, causal=True)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        plain_stack: PlainStack | None = None,
    ) -> BaseModelOutputWithPast:
        """Read texts, or what follows on those in the cache.

        Args:
            input_ids: ids, shape `(B, T)`, padded on either side.
            attention_mask: 1 where a position is real, those in the cache included, shape `(B, seen + T)`. Default:
                `None`, inferred from the padding id where a text begins, unless that also ends a text; all ones
                otherwise.
            position_ids: numbers of the positions, shape `(B, T)`. Where they start anew within a row, another
                document begins, which reads nothing of those before; not so with a cache, which is refused, or under
                `torch.compile`, where nothing can look, taken for one document. Default: `None`, real positions are
                counted.
            inputs_embeds: word vectors in place of ids, shape `(B, T, H)`.
            cache: keys and values of what came before, of any kind that `generate()` makes. It is updated.
            use_cache: return a cache. Default: `None`, `config.use_cache` outside training.
            output_attentions: return every layer's weights, `(B, h, T, seen + T)`.
            output_hidden_states: return what enters the bottom layer and what leaves each, `(B, T, H)`.
            plain_stack: the layers, made ready by `generate()`. Default: `None`, as they are.

        Returns:
            `last_hidden_state` of shape `(B, T, H)`. On padding it repeats what stands before it, so that the last
            position always speaks for the whole text.

        Raises:
            ValueError: if inputs are missing, given twice, of a wrong shape, too long, or hold an id out of range.
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if use_cache is None:
            use_cache = config.use_cache and not self.training

        exactly_one(input_ids=input_ids, inputs_embeds=inputs_embeds)
        if inputs_embeds is None:
            check_ids("input_ids", input_ids, config.vocab_size)
            inputs_embeds = self.embed_tokens(input_ids)
        check_embeds("inputs_embeds", inputs_embeds, config.hidden_size)
        check_rows("input_ids", inputs_embeds.shape[0], cache)
        if attention_mask is None and not has_begun(cache):
            attention_mask = infer_mask(input_ids, config)

        seen = 0 if cache is None else cache.get_seq_length()
        position_ids, documents = read_positions(inputs_embeds, attention_mask, position_ids, seen)
        if cache is not None and torch.compiler.is_compiling():
            # A graph can't look whether texts are packed, and those that are have no cache.
            documents = None
        mask = causal_mask(config, inputs_embeds, attention_mask, cache, documents, output_attentions, loose=True)
        real = real_positions(attention_mask, inputs_embeds.shape[1], seen)
        # What is packed has no cache, and flash kernels tell it by its numbers.
        packed = {} if documents is None else {"position_ids": position_ids}
        if use_cache and cache is None and documents is None:
            cache = DynamicCache(config=config)
        padding = Padding.of(real)
        positions = position_ids if real is None else position_ids.expand(real.shape)
        # A graph has no use for it: it has no calls.
        stack = self.stack if plain_stack is None or torch.compiler.is_compiling() else plain_stack
        output = stack(
            self.dropout(padding.remove(inputs_embeds) + self.positions(padding.remove(positions))),
            mask,
            cache=cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            # generate() sets it to fewer while a model that leaves early assists itself.
            depth=config.num_hidden_layers,
            padding=padding,
            **packed,
        )
        hidden = padding.clear(output.hidden)
        hidden = hidden if padding.real is None else repeat_on_padding(hidden, padding.real)
        states = output.hidden_states
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            cache=cache,
            hidden_states=None if states is None else (*map(padding.clear, states[:-1]), hidden),
            attentions=output.attentions,
        )


class GPTForCausalLM(CausalGenerationMixin, GPTPreTrainedModel):
    """The language model: layers and the output layer."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.model = GPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        packed_head: PackedLinear | None = None,
        plain_stack: PlainStack | None = None,
    ) -> CausalLMOutputWithPast:
        """Predict the next word at every position.

        Args:
            labels: the ids themselves, shape `(B, T)`, -100 where nothing is to be predicted. They are shifted here:
                position t predicts `labels[:, t + 1]`. The first real word of a text, or of a document packed into
                it, has nothing to be predicted from and never counts.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.
            logits_to_keep: compute the logits of the last so many positions, or of these positions. Default: `0`, all.
            skip_logits: compute the loss alone, and logits for none but the labelled positions, a part at a time.
                Default: `None`, when training with labels.
            packed_head: the output layer, made ready by `generate()`. Default: `None`, as it is.

        The other arguments are those of `GPTModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, and `logits` of shape `(B, T, vocab_size)`, None if skipped.

        Raises:
            ValueError: as `GPTModel.forward`, and if labels and inputs differ in shape.
        """
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False if use_cache is None else use_cache
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        begun = has_begun(cache)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            plain_stack=plain_stack,
        )
        hidden = outputs.last_hidden_state
        loss = None
        if labels is not None:
            check_mask("labels", labels, hidden.shape[:2])
            mask, documents = None, None
            if not begun:
                given = infer_mask(input_ids, self.config) if attention_mask is None else attention_mask
                mask = real_positions(given, labels.shape[1])
                documents = None if position_ids is None else documents_of(position_ids.expand_as(labels), mask)
            following = following_labels(labels, mask, documents)
            smoothing = self.config.label_smoothing if self.training else 0.0
            loss = smoothed_cross_entropy(hidden[:, :-1], self.lm_head, following, smoothing, num_items_in_batch)
        head = self.lm_head if packed_head is None else packed_head
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(
            loss=loss,
            logits=None if skip_logits else head(hidden[:, positions]),
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _make_ready(self, rows: int) -> dict[str, Any]:
        return super()._make_ready(rows) | {"plain_stack": PlainStack.of(self.model.stack)}

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        mask = model_kwargs.get("attention_mask")
        if mask is None:
            return super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        # generate() counts on from the last of them, which may stand for padding: it has the number of what precedes.
        return source_positions(mask).clamp(min=0)


class GPTForSequenceClassification(GPTPreTrainedModel):
    """Tells classes of texts by what the last position has read (Radford et al. 2018, equation 3)."""

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.model = GPTModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> SequenceClassifierOutputWithPast:
        """Classify texts, one a row.

        Args:
            labels: shape `(B,)`, or `(B, L)` for a share of every class; see `classification_loss`.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the labels that count.

        The other arguments are those of `GPTModel.forward`.

        Returns:
            `logits` of shape `(B, L)`, and `loss` if there are labels.

        Raises:
            ValueError: as `GPTModel.forward`, and if labels have a wrong shape or name no class.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.score(outputs.last_hidden_state[:, -1])
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class GPTForTokenClassification(GPTPreTrainedModel):
    """Tells the class of every position by what it and those before it say."""

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.model = GPTModel(config)
        rate = config.dropout if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> TokenClassifierOutput:
        """Classify every position.

        Args:
            labels: shape `(B, T)`, -100 where there is none; see `classification_loss`.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the labels that count.

        The other arguments are those of `GPTModel.forward`.

        Returns:
            `logits` of shape `(B, T, L)`, and `loss` if there are labels.

        Raises:
            ValueError: as `GPTModel.forward`, and if labels have a wrong shape or name no class.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def has_begun(cache: Cache | None) -> bool:
    """Whether a cache holds anything."""
    # A static cache counts in a tensor once it has begun, and a graph must not look into it.
    seen = 0 if cache is None else cache.get_seq_length()
    return not isinstance(seen, int) or seen > 0


def real_positions(attention_mask: Tensor | None, length: int, seen: int | Tensor = 0) -> Tensor | None:
    """Which of the last positions are real.

    Args:
        attention_mask: shape `(B, seen + T)`, 1 where a position is real; or of four dimensions, as `generate()` makes
            it for a cache of fixed size, `(B, 1, T, K)`, in which padding doesn't read itself. Default: `None`.
        length: T.
        seen: positions in the cache.

    Returns:
        Boolean mask of shape `(B, T)`; None if there is no telling, or a single position.
    """
    if attention_mask is None or length == 1:
        return None
    if attention_mask.ndim == 2:
        real = attention_mask[:, -length:].bool()
    else:
        allowed = attention_mask[:, 0]
        if allowed.dtype != torch.bool:
            allowed = allowed > torch.finfo(allowed.dtype).min
        real = allowed.diagonal(offset=int(seen), dim1=1, dim2=2)
    return real


def repeat_on_padding(vectors: Tensor, real: Tensor) -> Tensor:
    """Vectors in which padding has that of the last real position before it.

    Args:
        vectors: shape `(B, T, H)`.
        real: True where a position is real, shape `(B, T)`.

    Returns:
        Shape `(B, T, H)`; in front of the first real position, what stands in front of all of them.
    """
    places = torch.arange(real.shape[1], device=real.device).expand_as(real)
    last = places.masked_fill(~real, 0).cummax(dim=1).values
    return vectors.gather(1, last[:, :, None].expand_as(vectors))
