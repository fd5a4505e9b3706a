"""Annotations of a picture: one vector for every location of a grid, by convolutions of our own or by a backbone."""

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoBackbone
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from .pretrained import check_pixels


class ConvolutionStage(GradientCheckpointingLayer):
    """A 3x3 convolution, normalised within each picture, and a rectifier.

    It halves the sides of its input, or else adds it to its output. Batch normalisation would let the pictures of a
    batch change each other.

    Args:
        input_channels: of the map that comes in.
        channels: of the map that goes out.
        residual: keep the sides, and add the input.
    """

    def __init__(self, input_channels: int, channels: int, residual: bool):
        super().__init__()
        self.residual = residual
        self.conv = nn.Conv2d(input_channels, channels, 3, stride=1 if residual else 2, padding=1, bias=False)
        self.norm = nn.GroupNorm(1, channels)

    def forward(self, maps: Tensor) -> Tensor:
        """`(B, input_channels, rows, columns)` to `(B, channels, rows', columns')`."""
        hidden = torch.relu(self.norm(self.conv(maps)))
        return maps + hidden if self.residual else hidden


class ImageEncoder(nn.Module):
    """Annotation vectors a_1 to a_L of a picture (Xu et al. 2015, section 3.1.1).

    Args:
        config: of the family; what it says of the image, of its convolutions and of the backbone counts.
    """

    # generate() looks here for the name of the encoder's main input
    main_input_name = "pixel_values"

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        if config.backbone_config is None:
            widths = [config.num_channels, *config.encoder_channels]
            stages = [ConvolutionStage(*pair, residual=False) for pair in itertools.pairwise(widths)]
            stages += [
                ConvolutionStage(widths[-1], widths[-1], residual=True) for _ in range(config.num_residual_layers)
            ]
            self.stages = nn.ModuleList(stages)
            self.annotation_size = widths[-1]
        else:
            # The backbone writes into its configuration.
            self.backbone = AutoBackbone.from_config(copy.deepcopy(config.backbone_config))
            if len(self.backbone.channels) != 1:
                raise ValueError(
                    f"backbone_config has out_features={self.backbone.out_features}: annotations are the vectors of "
                    f"one feature map, name one"
                )
            self.annotation_size = self.backbone.channels[0]
            if config.freeze_backbone:
                self.backbone.requires_grad_(False)
        if config.position_embeddings:
            rows, columns = config.grid_size
            self.position_embeddings = nn.Embedding(rows * columns, self.annotation_size)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Look at pictures.

        Args:
            pixel_values: shape `(B, num_channels, image_size, image_size)`.
            output_attentions: no matter, this encoder attends to nothing.
            output_hidden_states: also return what comes before the annotations.

        Returns:
            Annotations `(B, L, D)`, the grid row by row, and as hidden states every stage's feature map, shape
            `(B, channels, rows, columns)`, or what the backbone calls its hidden states; the annotations are the last.

        Raises:
            ValueError: if `pixel_values` has another shape, or isn't made of floating-point numbers.
        """
        config = self.config
        check_pixels("pixel_values", pixel_values, (config.num_channels, config.image_size, config.image_size))
        if config.backbone_config is None:
            maps, hidden_states = self._convolve(pixel_values)
        else:
            maps, hidden_states = self._backbone_maps(pixel_values, bool(output_hidden_states))
        annotations = maps.permute(0, 2, 3, 1).flatten(1, 2)
        if config.position_embeddings:
            places = torch.arange(annotations.shape[1], device=annotations.device)
            annotations = annotations + self.position_embeddings(places)
        return BaseModelOutput(
            last_hidden_state=annotations,
            hidden_states=(*hidden_states, annotations) if output_hidden_states else None,
        )

    def _convolve(self, pixel_values: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        # Colours side by side are the layout that convolutions are fast in, and that annotations have.
        maps = pixel_values.to(self.stages[0].conv.weight.dtype, memory_format=torch.channels_last)
        hidden_states = []
        for stage in self.stages:
            maps = stage(maps)
            hidden_states.append(maps)
        return maps, tuple(hidden_states)

    def _backbone_maps(self, pixel_values: Tensor, output_hidden_states: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_backbone):
            outputs = self.backbone(pixel_values.to(self.backbone.dtype), output_hidden_states=output_hidden_states)
        return outputs.feature_maps[0], tuple(outputs.hidden_states or ())

    def train(self, mode: bool = True) -> "ImageEncoder":
        """Switch training on or off, but for a frozen backbone, whose statistics and dropout rest."""
        super().train(mode)
        if self.config.freeze_backbone:
            # Loading makes new parameters, and ends with a call of this.
            self.backbone.requires_grad_(False).eval()
        return self
