"""The plumbing that encoder-decoders share: shifted labels, source masks, two vocabularies, and generation in which
the hypotheses of a sentence share one source."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from .losses import IGNORE_INDEX
from .pretrained import AttnZooPreTrainedModel, check_embeds, check_ids, check_mask, exactly_one
from .stepping import StepGenerationMixin


@dataclass
class EncoderOutput(BaseModelOutput):
    """An encoder's annotations together with the mask that says which of them are real.

    Args:
        last_hidden_state: annotations, shape `(B, S, D)`, 0 on padding.
        attention_mask: True where a source position is real, shape `(B, S)`. It travels with the annotations because
            it may have been inferred from the ids, which later calls don't see.
    """

    attention_mask: Tensor | None = None


def source_mask(attention_mask: Tensor | None, input_ids: Tensor | None, embeds: Tensor, pad: int | None) -> Tensor:
    """Mask of a source: as given, else from the padding id, else all ones.

    Args:
        attention_mask: 1 or True where a position is real, shape `(B, S)`, or None.
        input_ids: source ids, shape `(B, S)`, or None.
        embeds: source vectors, shape `(B, S, D)`.
        pad: id of padding, or None.

    Returns:
        Boolean mask of shape `(B, S)`.
    """
    if attention_mask is not None:
        check_mask("attention_mask", attention_mask, embeds.shape[:2])
        return attention_mask.bool()
    if input_ids is not None and pad is not None:
        return input_ids != pad
    return torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device)


def shift_tokens_right(labels: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    """Decoder inputs that predict `labels`: the start token in front, the last label dropped.

    Args:
        labels: target ids, shape `(B, T)`, -100 where there is none.
        pad_token_id: what stands for -100 in an input.
        decoder_start_token_id: what every target starts from.

    Returns:
        Decoder input ids of shape `(B, T)`.
    """
    start = labels.new_full((labels.shape[0], 1), decoder_start_token_id)
    return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE_INDEX, pad_token_id)], dim=1)


class SharedVocabularyMixin:
    """Access to, and resizing of, one embedding for both languages or one for each.

    For a model that has `encoder.embed_tokens`, and `decoder.embed_tokens` where `config.source_vocab_size` says that
    the source has a vocabulary of its own.
    """

    def get_input_embeddings(self) -> nn.Embedding:
        """Embedding of the source."""
        return self.get_encoder().embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding of the source."""
        self.get_encoder().embed_tokens = value

    def get_decoder_input_embeddings(self) -> nn.Embedding:
        """Embedding of the target; the source's own where they share a vocabulary."""
        return (self.get_encoder() if self.config.source_vocab_size is None else self.get_decoder()).embed_tokens

    def set_decoder_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding of the target."""
        (self.get_encoder() if self.config.source_vocab_size is None else self.get_decoder()).embed_tokens = value

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        # `resize_token_embeddings` sets config.vocab_size, which is the target's size: so it's the target that changes
        # here, with its head. transformers' own version would resize the source.
        embeddings = self._get_resized_embeddings(
            self.get_decoder_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        slots, size = getattr(self.config, "num_copy_slots", 0), embeddings.weight.shape[0]
        if slots and size != self.config.vocab_size:
            raise ValueError(
                f"new_num_tokens={size}: the last num_copy_slots={slots} of vocab_size={self.config.vocab_size} words "
                f"are slots for copied words, and must stay the last"
            )
        self.set_decoder_input_embeddings(embeddings)
        head = self.get_output_embeddings()
        if head is not None:
            head = self._get_resized_lm_head(head, embeddings.weight.shape[0], mean_resizing=mean_resizing)
            self.set_output_embeddings(head)
        return embeddings

    def resize_source_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the source's vocabulary where it is separate; `resize_token_embeddings` resizes the target's.

        Args:
            new_num_tokens: rows the source embedding shall have.
            pad_to_multiple_of: round the rows up to a multiple of this. Default: `None`, as they are.
            mean_resizing: draw new rows around the mean of the old ones.

        Returns:
            The new embedding.

        Raises:
            ValueError: if source and target share their vocabulary.
        """
        if self.config.source_vocab_size is None:
            raise ValueError(
                "source and target share one vocabulary (source_vocab_size=None): call resize_token_embeddings"
            )
        embeddings = self._get_resized_embeddings(
            self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.set_input_embeddings(embeddings)
        self.config.source_vocab_size = embeddings.weight.shape[0]
        return embeddings


class SharedSourceGenerationMixin(StepGenerationMixin):
    """Generation in which all hypotheses of a sentence read one copy of its source.

    transformers copies the encoder's output once per beam and per returned sequence. Here it stays as it is, shape
    `(B, S, ...)`, and the decoder is given `B * beams` rows, those of a sentence next to each other.
    """

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        of_source = ("encoder_outputs", "attention_mask", "copy_ids")
        shared = {key: model_kwargs.pop(key) for key in of_source if key in model_kwargs}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        return input_ids, model_kwargs | shared

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, next_sequence_length: int | None = None, cache: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Inputs of the next step; a cache that was passed in is fed only what it hasn't seen.

        Args:
            input_ids: the whole of the target so far, shape `(B * beams, T)`.
            next_sequence_length: how many of the last ids to feed. Default: `None`, all that the cache hasn't seen.
            cache: the decoder's state, if there is one already.
            kwargs: see `GenerationMixin.prepare_inputs_for_generation`.

        Returns:
            Keyword arguments of `forward`.

        Raises:
            ValueError: if the cache has seen as much as there is, or more.
        """
        if next_sequence_length is None and cache is not None:
            seen = cache.get_seq_length()
            next_sequence_length = input_ids.shape[1] - seen
            if next_sequence_length < 1:
                raise ValueError(
                    f"decoder_input_ids has {input_ids.shape[1]} ids, start token included, but the cache has already "
                    f"seen {seen}: pass the whole target so far, and at least one id that is new"
                )
        return super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, cache=cache, **kwargs
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # Keys and values are not what a recurrent decoder remembers: it makes its own cache.
        return False


def prepare_decoder_inputs(
    model: AttnZooPreTrainedModel,
    labels: Tensor | None,
    decoder_input_ids: Tensor | None,
    decoder_embeds: Tensor | None,
) -> Tensor | None:
    """Decoder input ids from the labels, where nothing else was given.

    Args:
        model: whose `config` has the padding and the start id.
        labels: target ids, shape `(B, T)`, or None.
        decoder_input_ids: as given, shape `(B, T)`, or None.
        decoder_embeds: as given, shape `(B, T, D)`, or None.

    Returns:
        `decoder_input_ids`, or the labels shifted to the right.

    Raises:
        ValueError: if labels and decoder inputs differ in shape, or if the configuration lacks an id to shift with.
    """
    if labels is None:
        return decoder_input_ids
    if decoder_input_ids is None and decoder_embeds is None:
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(model.config, name) is None:
                raise ValueError(f"config.{name} is None: labels can't be shifted without it, pass decoder_input_ids")
        return shift_tokens_right(labels, model.config.pad_token_id, model.config.decoder_start_token_id)
    given = decoder_input_ids if decoder_input_ids is not None else decoder_embeds
    check_mask("labels", labels, given.shape[:2])
    return decoder_input_ids


def embed_target(
    model: AttnZooPreTrainedModel,
    decoder_input_ids: Tensor | None,
    decoder_inputs_embeds: Tensor | None,
    decoder_attention_mask: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Vectors of a target, and the part of its mask that belongs to them.

    Args:
        model: whose `get_decoder_input_embeddings()` is looked up.
        decoder_input_ids: shape `(B, T)`, or None.
        decoder_inputs_embeds: in place of ids, shape `(B, T, embedding_size)`, or None.
        decoder_attention_mask: shape `(B, T)` or longer, of which the last T count, or None.

    Returns:
        Vectors `(B, T, embedding_size)`, and the mask `(B, T)` or None.

    Raises:
        ValueError: if both or neither of ids and vectors are given, or if a shape or an id is wrong.
    """
    exactly_one(decoder_input_ids=decoder_input_ids, decoder_inputs_embeds=decoder_inputs_embeds)
    if decoder_inputs_embeds is None:
        check_ids("decoder_input_ids", decoder_input_ids, model.config.vocab_size)
        decoder_inputs_embeds = model.get_decoder_input_embeddings()(decoder_input_ids)
    check_embeds("decoder_inputs_embeds", decoder_inputs_embeds, model.config.embedding_size)
    rows, length = decoder_inputs_embeds.shape[:2]
    if decoder_attention_mask is not None:
        decoder_attention_mask = decoder_attention_mask[:, -length:]
        check_mask("decoder_attention_mask", decoder_attention_mask, (rows, length))
    return decoder_inputs_embeds, decoder_attention_mask
