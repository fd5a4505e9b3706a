"""RNNsearch keeps the contract, in every variant."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_attnzoo import RNNSearchConfig, RNNSearchForConditionalGeneration
from hf_attnzoo.testing import SEQ2SEQ_CONTRACT, SEQ2SEQ_INTEGRATIONS, scattered
from hf_attnzoo.testing.integrations import check_compile, check_export

VARIANTS = {
    "paper": {"reset_after": False, "source_vocab_size": 18},
    "shared": {},
    "deep": {"num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": 0.2, "source_vocab_size": 18},
    "forward": {"bidirectional": False, "attention_size": 6, "tie_word_embeddings": True, "maxout_size": 8},
    "rnnencdec": {"attention": "none", "tie_word_embeddings": True, "maxout_size": 8, "source_vocab_size": 18},
    "coverage": {"coverage": True, "source_vocab_size": 18},
    "copy": {"copy": True, "dropout": 0.1},
    "coverage-copy": {"coverage": True, "copy": True, "reset_after": False, "coverage_loss_weight": 0.5},
    "coverage-copy-deep": {"coverage": True, "copy": True, "num_encoder_layers": 2, "num_decoder_layers": 2},
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


@pytest.mark.parametrize("check", [check_compile, check_export], ids=lambda check: check.__name__)
def test_coverage_and_copying_as_a_graph(check):
    check(build("coverage-copy"))


RECURRENT = ("hidden_proj.weight", "gate_proj.weight", "candidate_proj.weight")


def small(**choices) -> RNNSearchForConditionalGeneration:
    sizes = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 16, "maxout_size": 8}
    return RNNSearchForConditionalGeneration(RNNSearchConfig(**sizes | choices))


@pytest.mark.parametrize("reset_after", [True, False])
def test_recurrent_matrices_of_a_model_are_orthogonal_gate_by_gate(reset_after):
    model = small(reset_after=reset_after, num_encoder_layers=2, num_decoder_layers=2)
    matrices = {name: value for name, value in model.named_parameters() if name.endswith(RECURRENT)}
    assert len(matrices) == (6 if reset_after else 12)
    for name, value in matrices.items():
        for block in value.split(16):
            assert (block @ block.T - torch.eye(16)).abs().max() < 1e-5, name


def test_what_a_checkpoint_lacks_is_drawn_from_its_own_law(tmp_path):
    model = small(hidden_size=64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3.0)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    alignment, recurrent = (
        "model.decoder.step.attention.query_proj.weight",
        "model.decoder.step.cells.0.hidden_proj.weight",
    )
    del weights[alignment], weights[recurrent]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = dict(RNNSearchForConditionalGeneration.from_pretrained(tmp_path).named_parameters())
    assert loaded[alignment].std().item() == pytest.approx(0.001, rel=0.1)
    for block in loaded[recurrent].split(64):
        assert (block @ block.T - torch.eye(64)).abs().max() < 1e-5
    for name, value in loaded.items():
        assert name in (alignment, recurrent) or (value == 3).all(), name


def test_unusable_special_ids_are_refused():
    with pytest.raises(ValueError, match="pad_token_id"):
        small(pad_token_id=20)
    with pytest.raises(ValueError, match="pad_token_id"):
        small(source_vocab_size=1)


def test_a_negative_spread_of_weights_is_refused():
    with pytest.raises(ValueError, match="initializer_range=-1"):
        small(initializer_range=-1)


def test_labels_need_a_start_and_a_padding_id():
    source, labels = torch.tensor([[4, 5]]), torch.tensor([[4, -100]])
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        small(decoder_start_token_id=None)(input_ids=source, labels=labels)
    with pytest.raises(ValueError, match="pad_token_id"):
        small(pad_token_id=None)(input_ids=source, labels=torch.tensor([[4, -100, 5]]))
