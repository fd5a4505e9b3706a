"""RNNsearch keeps the contract, in every variant."""

import pytest

from hf_attnzoo import RNNSearchConfig, RNNSearchForConditionalGeneration
from hf_attnzoo.testing import SEQ2SEQ_CONTRACT, SEQ2SEQ_INTEGRATIONS, scattered

VARIANTS = {
    "paper": {"reset_after": False, "source_vocab_size": 18},
    "shared": {},
    "deep": {"num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": 0.2, "source_vocab_size": 18},
    "forward": {"bidirectional": False, "attention_size": 6, "tie_word_embeddings": True, "maxout_size": 8},
    "rnnencdec": {"attention": "none", "tie_word_embeddings": True, "maxout_size": 8, "source_vocab_size": 18},
}


def build(variant: str) -> RNNSearchForConditionalGeneration:
    sizes = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 10, "maxout_size": 6}
    return scattered(RNNSearchForConditionalGeneration(RNNSearchConfig(**(sizes | VARIANTS[variant]))))


@pytest.mark.parametrize("check", SEQ2SEQ_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", SEQ2SEQ_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("deep"))
