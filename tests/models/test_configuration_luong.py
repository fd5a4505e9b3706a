"""Luong's configuration: what it refuses and how it says so, what it keeps, and the sizes of its presets."""

import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig

import hf_attnzoo
from hf_attnzoo.models.configuration_luong import LuongConfig
from hf_attnzoo.models.modeling_luong import LuongForConditionalGeneration


def parameters(config):
    """Number of parameters, of a model that is nowhere."""
    with torch.device("meta"):
        model = LuongForConditionalGeneration(config)
    return sum(parameter.numel() for parameter in model.parameters())


# Arguments, and what the message must name: arguments, values and the reason.
REFUSED = {
    "cell": ({"cell": "gruu"}, ["cell='gruu'", "'lstm', 'gru'", "did you mean 'gru'"]),
    "attention": ({"attention": "local_p"}, ["attention='local_p'", "'global'", "did you mean 'local-p'"]),
    "score": ({"score": "bilinear"}, ["score='bilinear'", "'dot', 'general', 'concat', 'location'"]),
    "bridge": ({"bridge": "lineal"}, ["bridge='lineal'", "'copy', 'linear'", "did you mean 'linear'"]),
    "dropout-high": ({"dropout": 1.0}, ["dropout=1.0", "below 1"]),
    "dropout-low": ({"dropout": -0.1}, ["dropout=-0.1", "at least 0"]),
    "initializer_range": ({"initializer_range": -0.1}, ["initializer_range=-0.1", "at least 0"]),
    "pad_token_id": ({"pad_token_id": 1000}, ["pad_token_id=1000", "1000 has the ids 0 to 999"]),
    "pad_token_id-source": (
        {"pad_token_id": 9, "source_vocab_size": 9},
        ["pad_token_id=9", "9 has the ids 0 to 8"],
    ),
    "bos_token_id": ({"bos_token_id": -1}, ["bos_token_id=-1", "0 to 999"]),
    "eos_token_id": ({"eos_token_id": [3, 1000]}, ["eos_token_id=[3, 1000]", "0 to 999"]),
    "decoder_start_token_id": ({"decoder_start_token_id": 1000}, ["decoder_start_token_id=1000", "0 to 999"]),
    "odd": ({"bidirectional": True, "hidden_size": 5}, ["bidirectional=True", "hidden_size=5", "even"]),
    "odd-encoder": (
        {"bidirectional": True, "encoder_hidden_size": 7, "bridge": "linear"},
        ["bidirectional=True", "encoder_hidden_size=7", "even"],
    ),
    "reversed": (
        {"bidirectional": True, "reverse_source": True},
        ["bidirectional", "reverse_source=True", "both ways"],
    ),
    "bridge_act": ({"bridge_act": "relu"}, ['bridge_act="relu"', 'bridge="copy"', "leave it out"]),
    "bridge_act-zeros": ({"bridge_act": "relu", "bridge": "zeros"}, ['bridge_act="relu"', 'bridge="zeros"']),
    "bridge_act-unknown": ({"bridge": "top", "bridge_act": "gelu"}, ["bridge_act='gelu'", "'tanh', 'relu'"]),
    "attentional_act": ({"attentional_act": "relu"}, ["attentional_act='relu'", "'tanh', 'linear'"]),
    "zeros-without-attention": ({"bridge": "zeros", "attention": "none"}, ['bridge="zeros"', "nothing of the source"]),
    "attention_bias": ({"attention_bias": True, "attention": "none"}, ["attention_bias=True", 'attention="none"']),
    "attentional_act-none": ({"attentional_act": "linear", "attention": "none"}, ['attentional_act="linear"']),
    "fed": ({"attention": "none", "input_feeding": True}, ["input_feeding=True", 'attention="none"', "nothing"]),
    "dot": (
        {"score": "dot", "encoder_hidden_size": 6, "hidden_size": 8, "bridge": "linear"},
        ['score="dot"', "encoder_hidden_size=6", "hidden_size=8"],
    ),
    "location-without-length": (
        {"score": "location"},
        ["max_source_length=None", 'score="location"', "needs it"],
    ),
    "length-without-location": (
        {"score": "general", "max_source_length": 9},
        ["max_source_length=9", 'score="general"', "nothing else"],
    ),
    "length-without-attention": (
        {"score": "location", "attention": "none", "max_source_length": 9},
        ["max_source_length=9", 'attention="none"', "nothing else"],
    ),
    "copy-of-layers": (
        {"num_encoder_layers": 2, "num_decoder_layers": 3},
        ['bridge="copy"', "2 of 256", "3 of 256", 'bridge="linear"'],
    ),
    "copy-of-sizes": (
        {"encoder_hidden_size": 6, "hidden_size": 8},
        ['bridge="copy"', "1 of 6", "1 of 8", 'bridge="linear"'],
    ),
    "tied": (
        {"tie_word_embeddings": True, "hidden_size": 8, "embedding_size": 6},
        ["tie_word_embeddings=True", "hidden_size=8", "embedding_size=6"],
    ),
}
SIZES = [
    "vocab_size",
    "source_vocab_size",
    "embedding_size",
    "hidden_size",
    "encoder_hidden_size",
    "num_encoder_layers",
    "num_decoder_layers",
    "window",
    "max_source_length",
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_names_argument_value_and_reason(arguments, named):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        LuongConfig(**arguments)
    for part in named:
        assert part in str(caught.value)


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"name='luong': .*luong-global, luong-local-p, sutskever, tiny"):
        LuongConfig.from_preset("luong")


@pytest.mark.parametrize("size", [0, -3])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_positive(name, size):
    with pytest.raises(ValueError, match=f"^{name}={size} must be at least 1$"):
        LuongConfig(**{name: size})


@pytest.mark.parametrize(
    ("name", "value"), [("hidden_size", "256"), ("window", 2.5), ("input_feeding", "yes"), ("cell", 3)]
)
def test_types_are_checked(name, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=f"'{name}'"):
        LuongConfig(**{name: value})


ALLOWED = [
    {"bidirectional": True, "hidden_size": 6},
    {"score": "location", "max_source_length": 9, "attention": "local-p"},
    {"attention": "none", "score": "location"},
    # The dot product is not taken without attention.
    {"attention": "none", "score": "dot", "encoder_hidden_size": 6, "bridge": "linear"},
    {"num_encoder_layers": 1, "num_decoder_layers": 3, "encoder_hidden_size": 7, "bridge": "linear"},
    {"tie_word_embeddings": True, "embedding_size": 12, "hidden_size": 12},
    {"dropout": 0, "initializer_range": 0},
    {"pad_token_id": None, "bos_token_id": None, "decoder_start_token_id": None, "eos_token_id": [3, 4]},
    {"source_vocab_size": 2},
]


@pytest.mark.parametrize("arguments", [{}, *ALLOWED], ids=str)
def test_what_combines_builds_and_survives_json(tmp_path, arguments):
    config = LuongConfig(**arguments)
    assert parameters(config) > 0
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is LuongConfig
    assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()
    for name, value in arguments.items():
        assert getattr(loaded, name) == value
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "attnzoo_luong"
    assert LuongConfig.from_dict(json.loads(config.to_json_string(use_diff=False))).to_dict() == config.to_dict()


def test_defaults():
    config = LuongConfig(vocab_size=77)
    assert (config.cell, config.attention, config.score, config.bridge) == ("lstm", "global", "general", "copy")
    assert (config.annotation_size, config.num_states, config.num_hidden_layers) == (256, 2, 1)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (1, 2, 3)
    assert config.decoder_start_token_id == 2
    assert config.is_encoder_decoder
    assert LuongConfig(cell="gru").num_states == 1
    assert LuongConfig(encoder_hidden_size=6, bridge="linear").annotation_size == 6
    assert hf_attnzoo.LuongConfig is LuongConfig


def lstm(inputs, size):
    """Four gates, each with a matrix for either side and PyTorch's two biases."""
    return 4 * size * (inputs + size + 2)


def gru(inputs, size):
    return 3 * size * (inputs + size + 2)


# 4 layers of 1000 cells over 1000-dimensional words on both sides, 50,000 words each: section 4.1.
LUONG = 2 * 50_000 * 1000 + 8 * lstm(1000, 1000) + 1000 * 50_000
# W_c [c; h], and the columns for h~ in the first layer's gates
ATTENTIONAL, FED = 1000 * 2000, 4000 * 1000


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("luong-global", LUONG + ATTENTIONAL + FED),
        # W_a, W_p and v_p
        ("luong-local-p", LUONG + ATTENTIONAL + FED + 1000 * 1000 + 1000 * 1000 + 1000),
        # Sutskever et al., section 3.4: 384M parameters, of which 64M are the pure recurrent connections of 8 layers.
        # They don't count biases, and neither has its output layer one.
        ("sutskever", 384_000_000 + 8 * 8000),
        ("tiny", 1000 * 32 + 2 * lstm(32, 64) + 64 * 64 + 64 * 128 + 64 * 1000),
    ],
)
def test_presets_have_the_size_of_their_papers(name, count):
    assert parameters(LuongConfig.from_preset(name)) == count


def test_every_preset_is_counted_above():
    assert set(LuongConfig.presets) == {"luong-global", "luong-local-p", "sutskever", "tiny"}


def test_presets_are_the_systems_of_their_papers():
    for name in ("luong-global", "luong-local-p"):
        config = LuongConfig.from_preset(name)
        assert (config.window, config.dropout, config.initializer_range) == (10, 0.2, 0.1)
        assert (config.reverse_source, config.input_feeding, config.bidirectional) == (True, True, False)
    config = LuongConfig.from_preset("sutskever", vocab_size=10, source_vocab_size=None)
    assert (config.vocab_size, config.source_vocab_size) == (10, None)
    assert (config.attention, config.reverse_source, config.initializer_range) == ("none", True, 0.08)
    assert config.dropout == 0


SMALL = {"vocab_size": 20, "embedding_size": 5, "hidden_size": 6}
BASE = 20 * 5 + 20 * 6


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ({"score": "dot"}, 2 * lstm(5, 6) + 6 * 12),
        ({"score": "dot", "cell": "gru", "input_feeding": True}, 2 * gru(5, 6) + 6 * 12 + 18 * 6),
        ({"score": "concat"}, 2 * lstm(5, 6) + 6 * 12 + 6 * 12 + 6),
        ({"score": "location", "max_source_length": 9}, 2 * lstm(5, 6) + 6 * 12 + 9 * 6),
        ({"score": "dot", "bidirectional": True}, 2 * lstm(5, 3) + lstm(5, 6) + 6 * 12),
        ({"score": "dot", "source_vocab_size": 30}, 30 * 5 + 2 * lstm(5, 6) + 6 * 12),
        # Two layers of 8 to three of 6: h and c, all layers at once, with a bias.
        (
            {"bridge": "linear", "encoder_hidden_size": 8, "num_encoder_layers": 2, "num_decoder_layers": 3},
            lstm(5, 8) + lstm(8, 8) + lstm(5, 6) + 2 * lstm(6, 6) + 2 * 18 * (16 + 1) + 8 * 6 + 6 * (8 + 6),
        ),
        ({"attention": "none"}, 2 * lstm(5, 6)),
        ({"attention": "none", "tie_word_embeddings": True, "embedding_size": 6}, 20 * 6 + 2 * lstm(6, 6) - BASE),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_parameters_are_those_of_the_equations(arguments, count):
    assert parameters(LuongConfig(**SMALL | arguments)) == BASE + count
