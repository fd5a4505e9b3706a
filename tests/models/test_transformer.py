"""The Transformer keeps the contract, in every variant of its positions, norms and vocabularies."""

import pytest

from hf_attnzoo import TransformerConfig, TransformerForConditionalGeneration
from hf_attnzoo.testing import SEQ2SEQ_CONTRACT, SEQ2SEQ_INTEGRATIONS, scattered

VARIANTS = {
    "paper": {"num_decoder_layers": 2},
    "pre-norm": {"norm_first": True, "num_encoder_layers": 2, "dropout": 0.2, "source_vocab_size": 18},
    "learned": {"position_embeddings": "learned", "embedding_norm": True, "head_bias": True, "attention_dropout": 0.1},
    "concat": {"position_combination": "concat", "tie_word_embeddings": False, "source_vocab_size": 18},
    "eager": {"position_layout": "halves", "hidden_act": "silu", "use_bias": False, "scale_embedding": False},
}


def build(variant: str, **options) -> TransformerForConditionalGeneration:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_position_embeddings": 32}
    model = TransformerForConditionalGeneration(TransformerConfig(**(sizes | VARIANTS[variant] | options)))
    if variant == "eager":
        model.set_attn_implementation("eager")
    return scattered(model)


@pytest.mark.parametrize("check", SEQ2SEQ_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", SEQ2SEQ_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("pre-norm"))
