"""What generation asks of a model before it begins and before each step, answered in few words."""

import functools
import inspect
from typing import Any

from torch import Tensor
from transformers import Cache, GenerationMixin, LogitsProcessorList
from transformers.utils import ModelOutput

from .key_value_cache import give_room, take_room


class StepGenerationMixin(GenerationMixin):
    """Generation that takes a short way to the inputs of a step, once a text has begun.

    transformers looks at each step for what no model of the zoo has. For a small model that is a good part of a step.
    """

    @functools.wraps(GenerationMixin.generate)
    def generate(self, *args: Any, **kwargs: Any) -> ModelOutput | Tensor:
        output = super().generate(*args, **kwargs)
        if isinstance(output, ModelOutput):
            take_room(output.get("cache"))
        return output

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Inputs of the next step; see `GenerationMixin.prepare_inputs_for_generation`.

        Args:
            input_ids: what was written so far, shape `(B * beams, T)`.
            next_sequence_length: how many of the last ids to feed. Default: `None`, all.
            cache: what the model remembers, if there is something already.
            attention_mask: 1 where a position of the text, or of the source, is real.
            inputs_embeds: vectors in place of the prompt's ids, used in the first step.
            is_first_iteration: whether this is the first step.
            kwargs: passed on.

        Returns:
            Keyword arguments of `forward`.
        """
        if is_first_iteration or next_sequence_length is None or cache is None or cache.is_compileable:
            return super().prepare_inputs_for_generation(
                input_ids,
                next_sequence_length=next_sequence_length,
                cache=cache,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                is_first_iteration=is_first_iteration,
                **kwargs,
            )
        # A trainer that scores what is written hands the labels on.
        kwargs.pop("labels", None)
        side = "decoder_" if self.config.is_encoder_decoder else ""
        # A prompt that was read in pieces leaves None for them, also with a model that has no positions.
        positions = kwargs.pop(f"{side}position_ids", None)
        inputs = {**kwargs, f"{side}input_ids": input_ids[:, -next_sequence_length:], "cache": cache}
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask
        if positions is not None:
            inputs[f"{side}position_ids"] = positions[:, -next_sequence_length:]
        return inputs

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> LogitsProcessorList:
        return StepProcessorList(super()._get_logits_processor(*args, **kwargs))

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        kind = generation_config.cache_implementation
        if kind is not None and kind.startswith("offloaded") and self.device.type == "cpu":
            raise ValueError(
                f"cache_implementation={kind!r} keeps keys and values in the host's memory, where those of a model on "
                f"{self.device.type!r} are anyway: leave it out"
            )
        given = model_kwargs.get("cache") is not None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        # Beam search brings all keys and values to another place at every step in any case.
        if not given and generation_config.num_beams == 1:
            give_room(model_kwargs.get("cache"))


class StepProcessorList(LogitsProcessorList):
    """A list of processors that looks at their signatures once, and not at every step."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Scores `(B, V)` of the next word after `(B, T)`, as every processor in turn leaves them."""
        if kwargs or any(_wants_more(type(processor)) for processor in self):
            return super().__call__(input_ids, scores, **kwargs)
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


@functools.lru_cache
def _wants_more(kind: type) -> bool:
    """Whether a processor is called with more than itself, ids and scores."""
    return len(inspect.signature(kind.__call__).parameters) > 3
