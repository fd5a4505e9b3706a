"""What the models of all families have in common: how they are initialised, saved and checked."""

import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration_attnzoo import AttnZooConfig


class AttnZooPreTrainedModel(PreTrainedModel):
    """Base of every model class of the zoo."""

    config: AttnZooConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    # `forward` of a head takes num_items_in_batch, so that accumulated batches weigh every token the same.
    accepts_loss_kwargs = True

    def __init__(self, config: AttnZooConfig, *inputs: Any, **kwargs: Any):
        super().__init__(config, *inputs, **kwargs)
        # Of the card that a push makes. Each model has its own, for transformers adds to the list that it finds.
        self.model_tags = ["hf-attnzoo"]

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *model_args: Any,
        use_safetensors: bool | None = None,
        **kwargs: Any,
    ) -> "AttnZooPreTrainedModel":
        """Load a model from safetensors, and from nothing else: a pickle can run code while it is read.

        Args:
            pretrained_model_name_or_path: folder, or name on the Hub.
            model_args: see `PreTrainedModel.from_pretrained`, as for `kwargs`.
            use_safetensors: True is what happens anyway.
            kwargs: passed on.

        Returns:
            The model, in evaluation mode.

        Raises:
            ValueError: if `use_safetensors=False`.
            OSError: if there are no weights in safetensors.
        """
        if use_safetensors is False:
            raise ValueError("use_safetensors=False: weights are read from safetensors alone, never from a pickle")
        return super().from_pretrained(pretrained_model_name_or_path, *model_args, use_safetensors=True, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save weights and configuration, and with them the code, under every auto class of the family.

        Args:
            save_directory: folder to write to.
            kwargs: see `PreTrainedModel.save_pretrained`.
        """
        self.config.auto_map = self.config.auto_map_entries()
        super().save_pretrained(save_directory, **kwargs)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # For custom code transformers skips a module whose own parameters are all loaded, and so one that has none and
        # initialises those of its children. Ours needs no such care: it asks every parameter.
        super()._initialize_weights(module, is_custom_code=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=std)
            self._init_padding(module)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif hasattr(module, "initialize"):
            # After its children: modules are initialised from the leaves up.
            module.initialize()

    def _init_uniform(self, module: nn.Module) -> None:
        # Everything in plus or minus `initializer_range`, biases too, as the papers on stacked LSTMs have it.
        limit = self.config.initializer_range
        for parameter in module.parameters(recurse=False):
            init.uniform_(parameter, -limit, limit)
        if isinstance(module, nn.Embedding):
            self._init_padding(module)

    def _init_padding(self, embedding: nn.Embedding) -> None:
        # A slice of a parameter doesn't know that it was loaded from a checkpoint, the parameter does.
        if embedding.padding_idx is not None and not getattr(embedding.weight, "_is_hf_initialized", False):
            init.zeros_(embedding.weight[embedding.padding_idx])


def check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    """Refuse token ids that no row of the embedding answers to.

    Args:
        name: argument the ids came in by.
        ids: token ids, shape `(B, T)`.
        vocab_size: rows of the embedding.

    Raises:
        ValueError: if `ids` isn't a matrix of at least one row and column, or an id is outside `[0, vocab_size)`.
    """
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(
            f"{name} must have the shape (batch, length) and hold at least one id, got {tuple(ids.shape)}"
        )
    # A graph can't raise an error that depends on data.
    if torch.compiler.is_compiling():
        return
    low, high = (bound.item() for bound in torch.aminmax(ids))
    if low < 0 or high >= vocab_size:
        culprit = low if low < 0 else high
        raise ValueError(f"{name} holds the id {culprit}, but ids go from 0 to {vocab_size - 1}")


def check_labels(labels: Tensor, vocab_size: int, name: str = "labels") -> None:
    """Refuse labels that name no word.

    Args:
        labels: target ids, shape `(B, T)`, -100 where there is none.
        vocab_size: words of the target.
        name: argument the labels came in by.

    Raises:
        ValueError: if `labels` isn't a matrix with something in it, or one is neither -100 nor in `[0, vocab_size)`.
    """
    if labels.ndim != 2 or 0 in labels.shape:
        raise ValueError(
            f"{name} must have the shape (batch, length) and hold at least one, got {tuple(labels.shape)}"
        )
    if torch.compiler.is_compiling():
        return
    high = labels.max().item()
    if high >= vocab_size or ((labels < 0) & (labels != -100)).any():
        raise ValueError(
            f"{name} must be -100 or from 0 to {vocab_size - 1}, got up to {high}, down to {labels.min()}"
        )


def check_embeds(name: str, embeds: Tensor, size: int) -> None:
    """Refuse vectors that are not of the embedding's size.

    Raises:
        ValueError: if `embeds` isn't of the shape `(B, T, size)` with `B, T >= 1`.
    """
    if embeds.ndim != 3 or 0 in embeds.shape or embeds.shape[-1] != size:
        raise ValueError(f"{name} must have the shape (batch, length, {size}), got {tuple(embeds.shape)}")


def check_pixels(name: str, pixels: Tensor, shape: tuple[int, int, int]) -> None:
    """Refuse pictures of another size than the model sees.

    Args:
        name: argument the pictures came in by.
        pixels: shape `(B, channels, rows, columns)`.
        shape: the channels, rows and columns there must be.

    Raises:
        ValueError: if the shape differs, if there is no picture, or if the pixels are integers.
    """
    if pixels.ndim != 4 or pixels.shape[0] == 0 or tuple(pixels.shape[1:]) != shape:
        raise ValueError(
            f"{name} must have the shape (batch, {', '.join(map(str, shape))}) and hold at least one picture, "
            f"got {tuple(pixels.shape)}"
        )
    if not pixels.is_floating_point():
        raise ValueError(f"{name} must be floating-point numbers, got {pixels.dtype}: an image processor scales them")


def check_mask(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a mask of another shape than what it masks.

    Raises:
        ValueError: if the shapes differ.
    """
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"{name} must have the shape {tuple(shape)}, got {tuple(mask.shape)}")


def exactly_one(**values: Any) -> None:
    """Refuse none, and more than one, of several arguments that stand for each other.

    Raises:
        ValueError: naming the arguments.
    """
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"pass exactly one of {', '.join(values)}; got {', '.join(given) or 'none'}")
