"""Luong's models keep the contract, in every variant of score, scope, feeding, cell and encoder."""

import pytest

from hf_attnzoo import LuongConfig, LuongForConditionalGeneration
from hf_attnzoo.testing import SEQ2SEQ_CONTRACT, SEQ2SEQ_INTEGRATIONS, scattered
from hf_attnzoo.testing.integrations import check_compile, check_export

VARIANTS = {
    "global-dot": {"score": "dot", "source_vocab_size": 18},
    "global-general-fed": {"input_feeding": True, "num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": 0.2},
    "global-dot-fed": {"score": "dot", "input_feeding": True, "num_encoder_layers": 2, "num_decoder_layers": 2},
    "global-concat-gru": {"score": "concat", "cell": "gru", "bidirectional": True, "input_feeding": True},
    "global-location": {"score": "location", "max_source_length": 12, "reverse_source": True},
    "local-m-fed": {"attention": "local-m", "window": 1, "score": "dot", "input_feeding": True},
    "local-p": {"attention": "local-p", "window": 2, "tie_word_embeddings": True, "embedding_size": 10},
    "local-p-fed-gru": {"attention": "local-p", "window": 2, "cell": "gru", "input_feeding": True, "residual": True},
    "bridged": {
        "bridge": "linear",
        "encoder_hidden_size": 6,
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "residual": True,
        "dropout": 0.1,
        "bidirectional": True,
    },
    "bridged-top": {
        "bridge": "top",
        "bridge_act": "relu",
        "score": "concat",
        "encoder_hidden_size": 6,
        "num_decoder_layers": 2,
        "bidirectional": True,
        "input_feeding": True,
        "attention_bias": True,
        "attentional_act": "linear",
        "head_bias": True,
    },
    "zeros": {"bridge": "zeros", "encoder_hidden_size": 6, "num_decoder_layers": 2},
    "sutskever": {"attention": "none", "reverse_source": True, "num_encoder_layers": 2, "num_decoder_layers": 2},
    "sutskever-gru": {"attention": "none", "cell": "gru", "source_vocab_size": 18},
    "coverage": {
        "score": "concat",
        "coverage": True,
        "dropout": 0.1,
        "num_decoder_layers": 2,
        "num_encoder_layers": 2,
    },
    "copy": {"copy": True, "attention": "local-p", "window": 2, "residual": True},
    "copy-fed-gru": {"copy": True, "input_feeding": True, "cell": "gru", "score": "dot"},
    "coverage-copy": {"score": "concat", "coverage": True, "copy": True},
    "coverage-copy-fed": {
        "score": "concat",
        "coverage": True,
        "copy": True,
        "input_feeding": True,
        "attention": "local-m",
        "window": 1,
        "coverage_loss_weight": 0.5,
    },
}


def build(variant: str) -> LuongForConditionalGeneration:
    sizes = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 10}
    return scattered(LuongForConditionalGeneration(LuongConfig(**(sizes | VARIANTS[variant]))))


@pytest.mark.parametrize("check", SEQ2SEQ_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", SEQ2SEQ_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("global-dot-fed"))


@pytest.mark.parametrize("check", [check_compile, check_export], ids=lambda check: check.__name__)
def test_coverage_and_copying_as_a_graph(check):
    check(build("coverage-copy"))
