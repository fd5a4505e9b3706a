"""What generation asks of a model before it begins and before each step, answered in few words."""

from typing import Any

from torch import Tensor
from transformers import Cache, GenerationMixin


class StepGenerationMixin(GenerationMixin):
    """Generation that takes a short way to the inputs of a step, once a text has begun.

    transformers looks at each step for what no model of the zoo has. For a small model that is a good part of a step.
    """

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

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        kind = generation_config.cache_implementation
        if kind is not None and kind.startswith("offloaded") and self.device.type == "cpu":
            raise ValueError(
                f"cache_implementation={kind!r} keeps keys and values in the host's memory, where those of a model on "
                f"{self.device.type!r} are anyway: leave it out"
            )
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
