"""Show, Attend and Tell keeps the contract, soft and hard, with its own convolutions and with a backbone."""

import pytest
from transformers import ConvNextConfig, ResNetConfig

from hf_attnzoo import ShowAttendTellConfig, ShowAttendTellForConditionalGeneration
from hf_attnzoo.testing import IMAGE_CONTRACT, IMAGE_INTEGRATIONS, scattered
from hf_attnzoo.testing.integrations import check_compile, check_export

CONVNEXT = {
    "num_channels": 3,
    "patch_size": 2,
    "num_stages": 2,
    "hidden_sizes": [6, 8],
    "depths": [1, 1],
    "out_features": ["stage2"],
}
RESNET = {
    "embedding_size": 6,
    "hidden_sizes": [6, 8],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage1"],
}

VARIANTS = {
    "soft": {"dropout": 0.2},
    "soft-plain": {"context_gate": False, "doubly_stochastic_weight": 0.0, "num_residual_layers": 0},
    "soft-tied": {"tie_word_embeddings": True, "position_embeddings": True, "num_channels": 1},
    "hard": {"attention": "hard"},
    "hard-expected": {"attention": "hard", "hard_evaluation": "expected", "dropout": 0.1, "entropy_weight": 0.5},
    "convnext": {"backbone_config": ConvNextConfig(**CONVNEXT), "position_embeddings": True},
    "resnet-frozen": {"backbone_config": ResNetConfig(**RESNET).to_dict(), "freeze_backbone": True},
}


def build(variant: str) -> ShowAttendTellForConditionalGeneration:
    options = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 10, "attention_size": 9, "image_size": 13}
    options |= VARIANTS[variant]
    if "backbone_config" not in options:
        options["encoder_channels"] = [4, 7]
    return scattered(ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(**options)))


@pytest.mark.parametrize("check", IMAGE_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", IMAGE_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("soft"))


@pytest.mark.parametrize("check", [check_compile, check_export])
def test_hard_attention_is_compiled(check):
    check(build("hard"))
