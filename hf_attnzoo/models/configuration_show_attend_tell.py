"""Configuration of Show, Attend and Tell: captions of pictures by soft or hard attention."""

import copy
import dataclasses
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .configuration_attnzoo import (
    AttnZooConfig,
    check_choice,
    check_not_negative,
    check_positive,
    check_probability,
    check_token_ids,
)


@strict
class ShowAttendTellConfig(AttnZooConfig):
    """Sizes and choices of Xu et al. (2015).

    Args:
        vocab_size: words of the captions.
        embedding_size: size m of a word vector.
        hidden_size: size n of the decoder's state.
        attention_size: size of the alignment model's hidden layer. Default: `None`, `hidden_size`.
        image_size: rows and columns of a picture's pixels.
        num_channels: colours of a pixel.
        encoder_channels: widths of the encoder's own convolutions, each of which halves the sides of the picture; the
            last is the size D of an annotation.
        num_residual_layers: residual 3x3 convolutions after them, which widen what an annotation sees.
        backbone_config: configuration, or its dict, of any model of `AutoBackbone`, timm's by `TimmBackboneConfig`,
            which then makes the annotations instead. It is built with new weights; `from_backbone` of the model
            classes takes trained ones. Default: `None`, the encoder's own convolutions.
        freeze_backbone: whether the backbone stays as it is, in evaluation mode, as the paper's does.
        position_embeddings: whether a learned vector for its place in the grid is added to every annotation. The paper
            has none: its annotations know their place only from what the padding lets through.
        attention: `"soft"`, the expected annotation (section 4.2), or `"hard"`, one sampled annotation (section 4.1).
        context_gate: whether the context is scaled by a scalar predicted from the state (section 4.2.1).
        doubly_stochastic_weight: lambda, what it costs in training that the attention a location gets over the whole
            caption isn't 1 (equation 14).
        reward_weight: lambda_r, weight of the reinforcement term of hard attention. 0.1 as in the authors' release; 1
            is the gradient of equation 11 itself.
        entropy_weight: lambda_e, reward of the entropy of hard attention.
        baseline_decay: how much of the moving average of the rewards a batch leaves standing.
        expected_attention_rate: how often a caption is trained by the expected annotation in place of samples, in
            [0, 1].
        hard_evaluation: what hard attention reads outside training, where nothing is left to chance: the likeliest
            location, `"argmax"`, or the `"expected"` annotation. The paper leaves it open.
        dropout: rate on the deep output layer, in [0, 1).
        initializer_range: weights of linear layers and word vectors are uniform in plus or minus this.
        tie_word_embeddings: whether the output layer is the embedding of the words.

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.
    """

    model_type = "attnzoo_show_attend_tell"
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "backbone_config": SubConfigSpec(config_class=AutoConfig, model_type="resnet", optional=True)
    }
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "ShowAttendTellModel",
        "AutoModelForImageTextToText": "ShowAttendTellForConditionalGeneration",
    }
    modeling_module: ClassVar[str] = "modeling_show_attend_tell"
    # The paper has 14x14 annotations of size 512 and 10,000 words; other sizes and rates are as its authors released
    # them. What makes the annotations there is a VGG-19 that others have trained.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "vocab_size": 10_000,
            "embedding_size": 512,
            "hidden_size": 1800,
            "image_size": 224,
            "encoder_channels": [64, 128, 256, 512],
            "dropout": 0.5,
        },
        "paper-hard": {
            "vocab_size": 10_000,
            "embedding_size": 512,
            "hidden_size": 1800,
            "image_size": 224,
            "encoder_channels": [64, 128, 256, 512],
            "attention": "hard",
            "context_gate": False,
            "doubly_stochastic_weight": 0.0,
            "dropout": 0.5,
        },
        "tiny": {"embedding_size": 32, "hidden_size": 64, "image_size": 32, "encoder_channels": [8, 16, 32]},
    }

    vocab_size: int = 1000
    embedding_size: int = 256
    hidden_size: int = 256
    attention_size: int | None = None
    image_size: int = 64
    num_channels: int = 3
    encoder_channels: list[int] = dataclasses.field(default_factory=lambda: [16, 32, 64])
    num_residual_layers: int = 1
    backbone_config: dict | PreTrainedConfig | None = None
    freeze_backbone: bool = False
    position_embeddings: bool = False
    attention: str = "soft"
    context_gate: bool = True
    doubly_stochastic_weight: float | int = 1.0
    reward_weight: float | int = 0.1
    entropy_weight: float | int = 0.002
    baseline_decay: float | int = 0.9
    expected_attention_rate: float | int = 0.5
    hard_evaluation: str = "argmax"
    dropout: float | int = 0.0
    initializer_range: float | int = 0.1
    tie_word_embeddings: bool = False
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

    def __post_init__(self, **kwargs: Any):
        backbone = self.backbone_config
        if isinstance(backbone, dict) and "model_type" not in backbone:
            raise ValueError(f"backbone_config={backbone} has no model_type, such as 'resnet'")
        super().__post_init__(**kwargs)
        check_choice("attention", self.attention, ("soft", "hard"))
        check_choice("hard_evaluation", self.hard_evaluation, ("argmax", "expected"))
        check_positive(
            vocab_size=self.vocab_size,
            embedding_size=self.embedding_size,
            hidden_size=self.hidden_size,
            attention_size=self.attention_size,
            image_size=self.image_size,
            num_channels=self.num_channels,
        )
        for index, width in enumerate(self.encoder_channels):
            check_positive(**{f"encoder_channels[{index}]": width})
        check_not_negative(
            num_residual_layers=self.num_residual_layers,
            doubly_stochastic_weight=self.doubly_stochastic_weight,
            reward_weight=self.reward_weight,
            entropy_weight=self.entropy_weight,
            initializer_range=self.initializer_range,
        )
        check_probability(dropout=self.dropout, baseline_decay=self.baseline_decay)
        if not 0 <= self.expected_attention_rate <= 1:
            raise ValueError(
                f"expected_attention_rate={self.expected_attention_rate} must be at least 0 and at most 1"
            )
        check_token_ids(
            self.vocab_size,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            decoder_start_token_id=self.decoder_start_token_id,
        )
        self._check_combinations()

    def _check_combinations(self) -> None:
        if not self.encoder_channels:
            raise ValueError("encoder_channels=[] must hold at least one width")
        if self.attention == "soft":
            self._check_unused(
                'attention="hard"',
                ("reward_weight", "entropy_weight", "baseline_decay", "expected_attention_rate", "hard_evaluation"),
            )
        if self.backbone_config is None:
            self._check_unused("backbone_config", ("freeze_backbone",))
            return
        self._check_unused("backbone_config=None", ("encoder_channels", "num_residual_layers"))
        channels = getattr(self.backbone_config, "num_channels", self.num_channels)
        if channels != self.num_channels:
            raise ValueError(f"num_channels={self.num_channels}, but backbone_config.num_channels={channels}")

    def _check_unused(self, wanted: str, names: tuple[str, ...]) -> None:
        """Refuse options that were set where nothing reads them."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        for name in names:
            field, value = fields[name], getattr(self, name)
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            if value != default:
                raise ValueError(f"{name}={value} has an effect with {wanted} alone, else it must be {default}")

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the grid of annotations: `cross_attentions` `(B, 1, T, L)` has `L = rows * columns`, row
        by row from the top left.

        With a backbone it is found by a run of the backbone's shapes, without any numbers.
        """
        if self.backbone_config is None:
            side = self.image_size
            for _ in self.encoder_channels:
                side = (side + 1) // 2
            return side, side
        import torch
        from transformers import AutoBackbone

        with torch.device("meta"), torch.no_grad():
            backbone = AutoBackbone.from_config(copy.deepcopy(self.backbone_config)).eval()
            pixels = torch.zeros(1, self.num_channels, self.image_size, self.image_size, dtype=backbone.dtype)
            rows, columns = backbone(pixels).feature_maps[-1].shape[-2:]
        return rows, columns
