"""The short ways of generation against the long ones."""

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, MinLengthLogitsProcessor, TopKLogitsWarper

from hf_attnzoo.models.configuration_gpt import GPTConfig
from hf_attnzoo.models.modeling_gpt import GPTForCausalLM
from hf_attnzoo.models.stepping import StepProcessorList


def test_processors_are_called_one_after_the_other():
    scores = torch.tensor([[1.0, 5.0, 4.0, 3.0]])
    processors = StepProcessorList([MinLengthLogitsProcessor(4, 1), lambda ids, scores: -scores, TopKLogitsWarper(1)])
    low = float("-inf")
    assert processors(torch.ones(1, 2, dtype=torch.long), scores).tolist() == [[low, float("inf"), low, low]]


def test_a_processor_that_wants_more_is_given_it_or_refused():
    class Shift(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor, by: float) -> Tensor:
            return scores + by

    ids, scores = torch.ones(1, 2, dtype=torch.long), torch.zeros(1, 3)
    assert StepProcessorList([Shift()])(ids, scores, by=2.0).tolist() == [[2.0] * 3]
    with pytest.raises(ValueError, match=r"required parameters.*by"):
        StepProcessorList([Shift()])(ids, scores)


def test_generation_calls_what_it_is_given():
    class Only(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            word = torch.arange(scores.shape[1]) == input_ids.shape[1] + 5
            return scores.masked_fill(~word, float("-inf"))

    config = GPTConfig(vocab_size=20, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16)
    written = (
        GPTForCausalLM(config)
        .eval()
        .generate(torch.tensor([[4, 9]]), logits_processor=[Only()], max_new_tokens=3, top_k=5, do_sample=True)
    )
    assert written.tolist() == [[4, 9, 7, 8, 9]]
