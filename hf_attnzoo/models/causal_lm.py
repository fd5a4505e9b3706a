"""What the causal language models share: where their texts are padded, what their labels predict, how they go on.

Shapes: B texts, T positions.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig

from .losses import IGNORE_INDEX
from .packed_linear import PackedHeadGenerationMixin


def infer_mask(input_ids: Tensor | None, config: PreTrainedConfig) -> Tensor | None:
    """Mask of a text that came without one: what isn't the padding id is real, unless that also ends a text.

    Args:
        input_ids: ids, shape `(B, T)`, or None.
        config: which names the padding id.

    Returns:
        Boolean mask of shape `(B, T)`, or None: everything is real.
    """
    pad, end = config.pad_token_id, config.eos_token_id
    if input_ids is None or pad is None or pad in (end if isinstance(end, list) else [end]):
        return None
    return input_ids != pad


def following_labels(labels: Tensor, mask: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
    """What each position but the last has to predict.

    Args:
        labels: the ids themselves, shape `(B, T)`, -100 where nothing is to be predicted.
        mask: True where a position is real, shape `(B, T)`, of texts that begin here. Default: `None`, all are, or
            the texts have begun before.
        documents: number of the document that a position belongs to, shape `(B, T)`. Default: `None`, a row is one.

    Returns:
        Labels of shape `(B, T - 1)`, -100 where nothing is to be predicted, as at the first real word of every text,
        wherever padding stands: nothing comes before it.
    """
    following = labels[:, 1:]
    if mask is not None:
        following = following.masked_fill(mask[:, :-1].cumsum(dim=1) == 0, IGNORE_INDEX)
    if documents is not None:
        following = following.masked_fill(documents[:, 1:] != documents[:, :-1], IGNORE_INDEX)
    return following


class CausalGenerationMixin(PackedHeadGenerationMixin):
    """Generation of a language model, which goes on with a text, be it in a cache already or not."""

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Inputs of the next step.

        Args:
            input_ids: the whole of the texts so far, shape `(B * beams, T)`.
            next_sequence_length: how many of the last ids to feed. Default: `None`, all.
            cache: what the model remembers of them, if there is something already.
            inputs_embeds: vectors in place of the prompt's ids. `generate()` looks for the name of this argument.
            kwargs: see `GenerationMixin.prepare_inputs_for_generation`.

        Returns:
            Keyword arguments of `forward`.

        Raises:
            ValueError: if the cache has seen as much as there is, or more.
        """
        if next_sequence_length is not None and next_sequence_length < 1:
            given = input_ids if inputs_embeds is None else inputs_embeds
            raise ValueError(
                f"input_ids has {given.shape[1]} ids, but the cache has already seen {cache.get_seq_length()}: "
                f"pass the whole text so far and its attention_mask, and at least one id that is new"
            )
        inputs = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            cache=cache,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        fed = inputs.get("input_ids")
        if inputs.get("attention_mask") is None and fed is not None:
            # generate() drops a mask of ones, and a padding id that the model has chosen is a word like any other.
            seen = 0 if cache is None else cache.get_seq_length()
            inputs["attention_mask"] = torch.ones(
                fed.shape[0], int(seen) + fed.shape[1], dtype=torch.long, device=fed.device
            )
        return inputs
