"""GPT keeps the contract, in every variant of its norms, positions and caches."""

import pytest

from hf_attnzoo import GPTConfig, GPTForCausalLM
from hf_attnzoo.testing import CAUSAL_CONTRACT, CAUSAL_INTEGRATIONS, scattered

VARIANTS = {
    "gpt2": {"num_hidden_layers": 2},
    "gpt": {"norm_first": False, "hidden_act": "gelu", "dropout": 0.2, "attention_dropout": 0.2},
    "nanogpt": {"use_bias": False, "hidden_act": "gelu", "num_hidden_layers": 2, "embedding_dropout": 0.0},
    "untied-eager": {"tie_word_embeddings": False, "hidden_act": "relu", "intermediate_size": 12},
}


def build(variant: str, seed: int = 0, **options) -> GPTForCausalLM:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    sizes |= {"max_position_embeddings": 32, "dropout": 0.1, "attention_dropout": 0.0}
    model = GPTForCausalLM(GPTConfig(**(sizes | VARIANTS[variant] | options)))
    if variant == "untied-eager":
        model.set_attn_implementation("eager")
    return scattered(model, seed)


@pytest.mark.parametrize("check", CAUSAL_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", CAUSAL_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("gpt2"))
