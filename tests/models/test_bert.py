"""BERT keeps the contract, in every variant and with every head."""

import pytest
import torch

import hf_attnzoo
from hf_attnzoo import BERTConfig
from hf_attnzoo.testing import ENCODER_BASE_CONTRACT, ENCODER_CONTRACT, ENCODER_INTEGRATIONS, scattered

VARIANTS = {
    "paper": ("ForMaskedLM", {}),
    "roberta": ("ForMaskedLM", {"position_offset": 2, "type_vocab_size": 1}),
    "untied": ("ForMaskedLM", {"tie_word_embeddings": False, "type_vocab_size": 0, "hidden_act": "gelu_new"}),
    "pre-norm": ("ForMaskedLM", {"norm_first": True, "use_bias": False, "num_hidden_layers": 1}),
    "eager": ("ForMaskedLM", {"attention_dropout": 0.0}),
    "pre-training": ("ForPreTraining", {}),
    "next-sentence": ("ForNextSentencePrediction", {}),
    "classes": ("ForSequenceClassification", {"num_labels": 3}),
    "labels": ("ForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
    "numbers": ("ForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "tokens": ("ForTokenClassification", {"num_labels": 3, "classifier_dropout": 0.3}),
    "spans": ("ForQuestionAnswering", {}),
    "choices": ("ForMultipleChoice", {}),
}


def build(variant: str, **options):
    head, choices = VARIANTS.get(variant, ("Model", {}))
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 32}
    model = getattr(hf_attnzoo, f"BERT{head}")(BERTConfig(**(sizes | choices | options)))
    if variant == "eager":
        model.set_attn_implementation("eager")
    scattered(model, 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                # Where gains are small, biases say everything, and every position the same.
                parameter.add_(1)
    return model


@pytest.mark.parametrize("check", ENCODER_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", ENCODER_BASE_CONTRACT, ids=lambda check: check.__name__)
def test_contract_of_the_base_model(check):
    check(build("base"))


@pytest.mark.parametrize("check", ENCODER_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("paper"))
