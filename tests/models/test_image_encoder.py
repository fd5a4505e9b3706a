"""Annotations from backbones: trained weights are taken over, and what is frozen stays as it is."""

import copy

import pytest
import torch
from transformers import AutoBackbone, ResNetConfig

from hf_attnzoo import ShowAttendTellConfig, ShowAttendTellForConditionalGeneration, ShowAttendTellModel

RESNET = {"embedding_size": 6, "hidden_sizes": [6, 8], "depths": [1, 1], "layer_type": "basic"}
OPTIONS = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 5, "image_size": 16}


def trained_backbone(**options):
    """A backbone whose weights and statistics are no initial ones."""
    torch.manual_seed(3)
    backbone = AutoBackbone.from_config(ResNetConfig(**RESNET | options))
    with torch.no_grad():
        for name, tensor in backbone.state_dict().items():
            if tensor.is_floating_point():
                tensor.normal_(std=0.3)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return backbone.eval()


@pytest.mark.parametrize("cls", [ShowAttendTellModel, ShowAttendTellForConditionalGeneration])
def test_from_backbone_takes_weights_and_statistics(cls, tmp_path):
    backbone = trained_backbone(out_features=["stage1"])
    model = cls.from_backbone(backbone, freeze_backbone=True, **OPTIONS)
    assert not model.training
    pixels = torch.randn(2, 3, 16, 16)
    maps = backbone(pixels).feature_maps[0]
    expected = torch.stack([maps[:, :, r, c] for r in range(4) for c in range(4)], dim=1)
    assert torch.equal(model.get_encoder()(pixels).last_hidden_state, expected)
    # A copy: neither the backbone nor its configuration is shared.
    assert model.config.backbone_config is not backbone.config
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.zero_()
    assert torch.equal(model.get_encoder()(pixels).last_hidden_state, expected)
    model.save_pretrained(tmp_path)
    loaded, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(loaded.get_encoder()(pixels).last_hidden_state, expected)


def test_a_frozen_backbone_learns_nothing_and_counts_nothing(tmp_path):
    model = ShowAttendTellForConditionalGeneration.from_backbone(
        trained_backbone(out_features=["stage1"]), freeze_backbone=True, **OPTIONS
    )
    model.save_pretrained(tmp_path)
    for fresh in (model, type(model).from_pretrained(tmp_path)):
        fresh.train()
        before = copy.deepcopy(fresh.model.encoder.backbone.state_dict())
        trainable = {name for name, parameter in fresh.named_parameters() if parameter.requires_grad}
        assert not any("backbone" in name for name in trainable)
        assert any("decoder" in name for name in trainable)
        optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.1, weight_decay=0.1)
        labels = torch.tensor([[4, 5, 3], [6, 3, -100]])
        fresh(pixel_values=torch.randn(2, 3, 16, 16), labels=labels).loss.backward()
        optimizer.step()
        for name, tensor in fresh.model.encoder.backbone.state_dict().items():
            assert torch.equal(tensor, before[name]), name


def test_a_backbone_that_is_not_frozen_trains():
    model = ShowAttendTellForConditionalGeneration.from_backbone(
        trained_backbone(out_features=["stage1"]), **OPTIONS
    ).train()
    backbone = model.model.encoder.backbone
    assert all(module.training for module in backbone.modules())
    model(pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([[4, 5, 3], [6, 3, -100]])).loss.backward()
    reached = {name for name, parameter in backbone.named_parameters() if parameter.grad is not None}
    # What lies behind the named feature map isn't run for it.
    assert any("stages.0" in name for name in reached)
    assert any("embedder" in name for name in reached)


def test_several_feature_maps_are_refused():
    config = ShowAttendTellConfig(backbone_config=ResNetConfig(**RESNET, out_features=["stage1", "stage2"]), **OPTIONS)
    with pytest.raises(ValueError, match=r"out_features=\['stage1', 'stage2'\].*one feature map"):
        ShowAttendTellForConditionalGeneration(config)


def test_pixels_take_the_dtype_of_the_weights():
    config = ShowAttendTellConfig(encoder_channels=[4, 4], **OPTIONS)
    model = ShowAttendTellForConditionalGeneration(config).to(torch.bfloat16)
    assert model.get_encoder()(torch.randn(1, 3, 16, 16)).last_hidden_state.dtype == torch.bfloat16


def test_pictures_of_a_batch_leave_each_other_alone_in_training():
    model = ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(encoder_channels=[4, 4], **OPTIONS)).train()
    pixels = torch.randn(3, 3, 16, 16)
    together = model.get_encoder()(pixels).last_hidden_state
    for row in range(3):
        alone = model.get_encoder()(pixels[row : row + 1]).last_hidden_state
        torch.testing.assert_close(alone[0], together[row], rtol=1e-5, atol=1e-5)
