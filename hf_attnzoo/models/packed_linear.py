"""A linear layer made ready to be used many times in a row without a change, as generation uses the vocabulary's."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .stepping import StepGenerationMixin
from .wrapping import is_plain_linear


@dataclass
class PackedLinear:
    """A copy of a linear layer's weight in the layout that oneDNN computes with.

    A product of few rows with a large matrix spends most of its time on bringing the matrix into that layout. It is
    not a module and knows nothing of later changes to the layer: make one where a computation begins, let it go where
    it ends.

    Args:
        linear: the layer.
        weight: opaque to everything but oneDNN.
    """

    linear: nn.Linear
    weight: Tensor

    @classmethod
    def of(cls, linear: nn.Module, rows: int) -> "PackedLinear | None":
        """Pack a layer for inputs of so many rows; None where oneDNN isn't there, or the layer isn't a plain one."""
        if (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or not is_plain_linear(linear)
            or linear.weight.device.type != "cpu"
            or linear.weight.dtype != torch.float32
            or torch.is_autocast_enabled("cpu")
            or not torch.backends.mkldnn.is_available()
        ):
            return None
        return cls(linear, torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), rows))

    def __deepcopy__(self, memo: dict) -> None:
        # What copies the arguments of a generation gives them to another model, as assisted generation does: that has
        # a layer of its own.
        return None

    def __call__(self, inputs: Tensor) -> Tensor:
        """`(..., D)` to `(..., V)`."""
        if inputs.dtype != torch.float32:
            # What runs the model may have turned autocast on after the packing, as Accelerate does around `forward`.
            return self.linear(inputs)
        return torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.linear.bias, "none", [], "")


class PackedHeadGenerationMixin(StepGenerationMixin):
    """Generation with the output layer packed once, for a model that has `lm_head` and takes `packed_head`."""

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
        return input_ids, model_kwargs | self._make_ready(input_ids.shape[0])

    def _make_ready(self, rows: int) -> dict[str, Any]:
        """Arguments of `forward` that every step of a generation is given, which writes so many rows."""
        return {"packed_head": PackedLinear.of(self.lm_head, rows)}

    def prepare_inputs_for_generation(
        self, *args: Any, tokenizer: Any = None, assistant_tokenizer: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Inputs of the next step; see `GenerationMixin.prepare_inputs_for_generation`.

        Args:
            args: see there, as for `kwargs`.
            tokenizer: what finds stop strings. generate() passes it on to where it is no use.
            assistant_tokenizer: likewise.

        Returns:
            Keyword arguments of `forward`.
        """
        return super().prepare_inputs_for_generation(*args, **kwargs)
