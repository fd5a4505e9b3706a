"""The contracts that the models of the zoo keep, as checks anybody can call.

A family's test file is a few lines:

```python
import pytest
from hf_attnzoo.testing import SEQ2SEQ_CONTRACT, scattered

@pytest.mark.parametrize("check", SEQ2SEQ_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("options", VARIANTS)
def test_contract(check, options):
    check(scattered(RNNSearchForConditionalGeneration(RNNSearchConfig.from_preset("tiny", vocab_size=20, **options))))
```

A causal language model has `CAUSAL_CONTRACT` and `CAUSAL_INTEGRATIONS`, a model that writes about pictures
`IMAGE_CONTRACT` and `IMAGE_INTEGRATIONS`, an encoder `ENCODER_CONTRACT`, which is for its heads,
`ENCODER_BASE_CONTRACT` for the model without one, and `ENCODER_INTEGRATIONS`; most checks are the same.

Each check takes a small model in evaluation mode, of at least 16 words on either side, and raises AssertionError if
the model breaks the contract. It leaves the model as it found it.
"""

from collections.abc import Callable

from transformers import PreTrainedModel

from .batches import ragged_batch, scattered
from .contract import (
    check_accumulation,
    check_base_and_head,
    check_batch_equals_single,
    check_beam_scores,
    check_cache,
    check_cache_refusals,
    check_chunked_decoding,
    check_continuation,
    check_decoder_refusals,
    check_dropout,
    check_empty_text,
    check_encoder_decoder_outputs,
    check_encoder_outputs,
    check_forced_prefix,
    check_generation_batch,
    check_gradient_checkpointing,
    check_gradients,
    check_hidden_states,
    check_inputs_embeds,
    check_outputs,
    check_padding,
    check_precision,
    check_refusals,
    check_refuses_pickle,
    check_resize,
    check_round_trip,
    check_streaming,
)
from .encoders import (
    check_encoder_accumulation,
    check_encoder_answers,
    check_encoder_batch_equals_single,
    check_encoder_empty_text,
    check_encoder_inputs_embeds,
    check_encoder_padding,
    check_encoder_refusals,
    check_encoder_resize,
    check_half_the_work,
    check_packed_texts,
)
from .images import (
    check_image_encoder_outputs,
    check_image_outputs,
    check_image_refusals,
    check_training_objective,
)
from .integrations import (
    check_compile,
    check_export,
    check_int8,
    check_lora,
    check_remote_code,
    check_stop_strings,
    check_text_generation,
)

__all__ = [
    "SEQ2SEQ_CONTRACT",
    "SEQ2SEQ_INTEGRATIONS",
    "CAUSAL_CONTRACT",
    "CAUSAL_INTEGRATIONS",
    "ENCODER_CONTRACT",
    "ENCODER_BASE_CONTRACT",
    "ENCODER_INTEGRATIONS",
    "IMAGE_CONTRACT",
    "IMAGE_INTEGRATIONS",
    "scattered",
    "ragged_batch",
]

_CONTRACT = (
    check_batch_equals_single,
    check_padding,
    check_empty_text,
    check_generation_batch,
    check_streaming,
    check_cache,
    check_chunked_decoding,
    check_continuation,
    check_beam_scores,
    check_round_trip,
    check_base_and_head,
    check_refuses_pickle,
    check_accumulation,
    check_gradients,
    check_gradient_checkpointing,
    check_dropout,
    check_precision,
    check_resize,
    check_refusals,
    check_outputs,
)

SEQ2SEQ_CONTRACT: tuple[Callable[[PreTrainedModel], None], ...] = (
    *_CONTRACT,
    check_forced_prefix,
    check_encoder_outputs,
    check_decoder_refusals,
    check_encoder_decoder_outputs,
)
"""What holds for every variant of every encoder-decoder; each takes a moment."""

CAUSAL_CONTRACT: tuple[Callable[[PreTrainedModel], None], ...] = (
    *_CONTRACT,
    check_inputs_embeds,
    check_cache_refusals,
    check_hidden_states,
)
"""What holds for every variant of every causal language model; each takes a moment."""

ENCODER_BASE_CONTRACT: tuple[Callable[[PreTrainedModel], None], ...] = (
    check_encoder_batch_equals_single,
    check_encoder_padding,
    check_encoder_empty_text,
    check_encoder_inputs_embeds,
    check_packed_texts,
    check_encoder_resize,
    check_encoder_refusals,
    check_encoder_answers,
    check_round_trip,
    check_refuses_pickle,
)
"""What holds for every variant of every encoder that has no head; each takes a moment."""

ENCODER_CONTRACT: tuple[Callable[[PreTrainedModel], None], ...] = (
    *ENCODER_BASE_CONTRACT,
    check_base_and_head,
    check_encoder_accumulation,
    check_gradients,
    check_gradient_checkpointing,
    check_dropout,
    check_precision,
    check_half_the_work,
)
"""The same for every head of every encoder."""

_OF_TEXTS = (check_padding, check_empty_text, check_refusals)

IMAGE_CONTRACT: tuple[Callable[[PreTrainedModel], None], ...] = (
    *(check for check in _CONTRACT if check not in _OF_TEXTS),
    check_forced_prefix,
    check_decoder_refusals,
    check_image_encoder_outputs,
    check_image_outputs,
    check_image_refusals,
    check_training_objective,
)
"""What holds for every variant of every model that writes about pictures; each takes a moment."""

_INTEGRATIONS = (check_compile, check_export, check_remote_code, check_lora, check_int8, check_stop_strings)

SEQ2SEQ_INTEGRATIONS: tuple[Callable[[PreTrainedModel], None], ...] = _INTEGRATIONS
"""What needs a compiler, a process or another package: seconds each, for one or two variants of a family."""

IMAGE_INTEGRATIONS: tuple[Callable[[PreTrainedModel], None], ...] = _INTEGRATIONS
"""The same for models that write about pictures."""

CAUSAL_INTEGRATIONS: tuple[Callable[[PreTrainedModel], None], ...] = (*_INTEGRATIONS, check_text_generation)
"""The same for causal language models."""

ENCODER_INTEGRATIONS: tuple[Callable[[PreTrainedModel], None], ...] = tuple(
    check for check in _INTEGRATIONS if check is not check_stop_strings
)
"""The same for encoders with a head, which write nothing that could be stopped."""
