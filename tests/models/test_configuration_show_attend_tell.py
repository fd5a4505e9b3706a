"""Show, Attend and Tell's configuration: what it refuses and how it says so, what it keeps, its presets and grids."""

import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig, ConvNextConfig, ResNetConfig, SwinConfig

import hf_attnzoo
from hf_attnzoo.models.configuration_show_attend_tell import ShowAttendTellConfig
from hf_attnzoo.models.modeling_show_attend_tell import ShowAttendTellForConditionalGeneration

RESNET = {"model_type": "resnet", "hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1], "embedding_size": 8}

# Arguments, and what the message must name: arguments, values and the reason.
REFUSED = {
    "attention": ({"attention": "harsh"}, ["attention='harsh'", "'soft', 'hard'", "did you mean 'hard'"]),
    "hard_evaluation": (
        {"attention": "hard", "hard_evaluation": "arg_max"},
        ["hard_evaluation='arg_max'", "'argmax', 'expected'", "did you mean 'argmax'"],
    ),
    "dropout": ({"dropout": 1.0}, ["dropout=1.0", "below 1"]),
    "baseline_decay": ({"attention": "hard", "baseline_decay": 1.0}, ["baseline_decay=1.0", "below 1"]),
    "rate-high": (
        {"attention": "hard", "expected_attention_rate": 1.5},
        ["expected_attention_rate=1.5", "at most 1"],
    ),
    "rate-low": (
        {"attention": "hard", "expected_attention_rate": -0.5},
        ["expected_attention_rate=-0.5", "at least 0"],
    ),
    "penalty": ({"doubly_stochastic_weight": -1.0}, ["doubly_stochastic_weight=-1.0", "at least 0"]),
    "reward": ({"attention": "hard", "reward_weight": -1.0}, ["reward_weight=-1.0", "at least 0"]),
    "entropy": ({"attention": "hard", "entropy_weight": -1.0}, ["entropy_weight=-1.0", "at least 0"]),
    "residual": ({"num_residual_layers": -1}, ["num_residual_layers=-1", "at least 0"]),
    "initializer_range": ({"initializer_range": -0.1}, ["initializer_range=-0.1", "at least 0"]),
    "no-channels": ({"encoder_channels": []}, ["encoder_channels=[]", "at least one"]),
    "channels": ({"encoder_channels": [8, 0]}, ["encoder_channels[1]=0", "at least 1"]),
    "pad_token_id": ({"pad_token_id": 1000}, ["pad_token_id=1000", "1000 has the ids 0 to 999"]),
    "eos_token_id": ({"eos_token_id": [3, 1000]}, ["eos_token_id=[3, 1000]", "0 to 999"]),
    "decoder_start_token_id": ({"decoder_start_token_id": -1}, ["decoder_start_token_id=-1", "0 to 999"]),
    "soft-reward": ({"reward_weight": 1.0}, ["reward_weight=1.0", 'attention="hard"', "0.1"]),
    "soft-entropy": ({"entropy_weight": 1.0}, ["entropy_weight=1.0", 'attention="hard"', "0.002"]),
    "soft-baseline": ({"baseline_decay": 0.5}, ["baseline_decay=0.5", 'attention="hard"', "0.9"]),
    "soft-rate": ({"expected_attention_rate": 0.2}, ["expected_attention_rate=0.2", 'attention="hard"', "0.5"]),
    "soft-evaluation": ({"hard_evaluation": "expected"}, ["hard_evaluation=expected", 'attention="hard"', "argmax"]),
    "frozen": ({"freeze_backbone": True}, ["freeze_backbone=True", "backbone_config", "False"]),
    "backbone-channels": (
        {"backbone_config": RESNET, "encoder_channels": [8]},
        ["encoder_channels=[8]", "backbone_config=None", "[16, 32, 64]"],
    ),
    "backbone-residual": (
        {"backbone_config": RESNET, "num_residual_layers": 3},
        ["num_residual_layers=3", "backbone_config=None"],
    ),
    "colours": (
        {"backbone_config": RESNET, "num_channels": 1},
        ["num_channels=1", "backbone_config.num_channels=3"],
    ),
}
SIZES = ["vocab_size", "embedding_size", "hidden_size", "attention_size", "image_size", "num_channels"]


@pytest.mark.parametrize(("arguments", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_names_argument_value_and_reason(arguments, named):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        ShowAttendTellConfig(**arguments)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize("size", [0, -3])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_positive(name, size):
    with pytest.raises(ValueError, match=f"^{name}={size} must be at least 1$"):
        ShowAttendTellConfig(**{name: size})


@pytest.mark.parametrize(
    ("name", "value"), [("hidden_size", "256"), ("encoder_channels", [2.5]), ("context_gate", "yes"), ("attention", 3)]
)
def test_types_are_checked(name, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=f"'{name}'"):
        ShowAttendTellConfig(**{name: value})


def test_a_backbone_of_no_known_kind_is_refused():
    with pytest.raises((ValueError, KeyError), match="vgg_from_mars"):
        ShowAttendTellConfig(backbone_config={"model_type": "vgg_from_mars"})
    with pytest.raises(ValueError, match=r"backbone_config=\{'depths': \[1\]\} has no model_type"):
        ShowAttendTellConfig(backbone_config={"depths": [1]})


def test_everything_survives_json(tmp_path):
    config = ShowAttendTellConfig(
        backbone_config=SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[1, 2], out_features=["stage1"]),
        freeze_backbone=True,
        attention="hard",
        attention_size=7,
        hard_evaluation="expected",
        image_size=96,
        eos_token_id=[3, 5],
    )
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is ShowAttendTellConfig
    assert type(loaded.backbone_config) is SwinConfig
    assert loaded.backbone_config.out_features == ["stage1"]
    assert loaded.to_dict() == config.to_dict() | {"_name_or_path": loaded.to_dict().get("_name_or_path")}
    assert json.loads(loaded.to_json_string())["backbone_config"]["embed_dim"] == 8
    again = ShowAttendTellConfig.from_dict(json.loads(config.to_json_string()))
    assert again.backbone_config.to_dict() == config.backbone_config.to_dict()


def test_a_backbone_can_be_a_configuration_or_its_dict():
    by_dict = ShowAttendTellConfig(backbone_config=RESNET)
    by_class = ShowAttendTellConfig(backbone_config=ResNetConfig(**RESNET))
    assert type(by_dict.backbone_config) is ResNetConfig
    assert by_dict.backbone_config.hidden_sizes == by_class.backbone_config.hidden_sizes == [8, 12, 16, 20]
    assert ShowAttendTellConfig().backbone_config is None


# A halving of an odd side rounds up.
GRIDS = {
    "default": ({}, 8),
    "odd": ({"image_size": 13, "encoder_channels": [4, 4]}, 4),
    "one": ({"image_size": 5, "encoder_channels": [4, 4, 4, 4]}, 1),
    "residual": ({"image_size": 16, "encoder_channels": [4], "num_residual_layers": 2}, 8),
    # ResNet's stem divides by 4, and every stage after the first by 2.
    "resnet-last": ({"image_size": 64, "backbone_config": RESNET}, 2),
    "resnet-stage2": ({"image_size": 64, "backbone_config": RESNET | {"out_features": ["stage2"]}}, 8),
    "convnext": (
        {"image_size": 40, "backbone_config": ConvNextConfig(num_stages=2, depths=[1, 1], hidden_sizes=[4, 6])},
        5,
    ),
}


@pytest.mark.parametrize(("options", "side"), GRIDS.values(), ids=GRIDS.keys())
def test_the_grid_is_known_before_a_picture_is_seen(options, side):
    config = ShowAttendTellConfig(vocab_size=9, embedding_size=4, hidden_size=4, **options)
    assert config.grid_size == (side, side)
    model = ShowAttendTellForConditionalGeneration(config).eval()
    assert model.grid_size == (side, side)
    pixels = torch.zeros(1, 3, config.image_size, config.image_size)
    assert model.get_encoder()(pixels).last_hidden_state.shape[1] == side * side


def test_presets():
    paper = ShowAttendTellConfig.from_preset("paper")
    assert paper.grid_size == (14, 14)
    with torch.device("meta"):
        model = ShowAttendTellForConditionalGeneration(paper)
    assert model.model.encoder.annotation_size == 512
    decoder = sum(parameter.numel() for parameter in model.model.decoder.parameters())
    n, m, size = 1800, 512, 512
    expected = 2 * n * (size + 1)  # h_0 and c_0
    expected += n * (n + size + 1)  # f_att
    expected += n + 1  # f_beta
    expected += 4 * n * (m + size + n + 2)  # the LSTM, with two biases
    expected += m * (n + size)  # L_h and L_z
    assert decoder == expected
    hard = ShowAttendTellConfig.from_preset("paper-hard")
    assert (hard.attention, hard.doubly_stochastic_weight, hard.context_gate) == ("hard", 0.0, False)
    assert ShowAttendTellConfig.from_preset("tiny", vocab_size=9).vocab_size == 9
    with pytest.raises(ValueError, match=r"name='vgg': .*paper, paper-hard, tiny"):
        ShowAttendTellConfig.from_preset("vgg")
    with pytest.raises(ValueError, match="did you mean 'hidden_size'"):
        ShowAttendTellConfig.from_preset("tiny", hiden_size=9)


def test_the_family_is_in_the_package():
    assert hf_attnzoo.ShowAttendTellConfig is ShowAttendTellConfig
    assert hf_attnzoo.FAMILIES["show_attend_tell"].task == "image-to-text"
