"""Capturing attention: run a model on one text or image and read the weights it used, token by token."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from ..models.image_processing_show_attend_tell import open_image, rgb_pixels
from ..pipelines.generating import eager_attention
from .image_maps import ImageAttentionMap
from .maps import AttentionMap


def attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | ProcessorMixin,
    text: str | os.PathLike | Image.Image | np.ndarray | Tensor,
    text_target: str | None = None,
    *,
    caption: str | None = None,
    layer: int | None = -1,
    head: int | None = None,
    **generate_kwargs,
) -> AttentionMap | ImageAttentionMap:
    """Cross-attention of an encoder-decoder model while it writes its output for `text`, or a given output.

    A recurrent model has one layer with one head. In a stack of Transformer layers the last one, averaged over its
    heads, is the default; the alignment is often sharper in an earlier layer or in a single head.

    Args:
        model:
            An encoder-decoder model that can `generate()`, of this package or of transformers. It is put in eval mode
            and, if need be, on eager attention (no other returns weights) during the call, and put back afterwards.
        tokenizer:
            Its tokenizer; or, of a model that looks at images, its processor.
        text:
            The source text; or the image: a path, a URL, an image of Pillow, an array or a tensor of pixels.
        text_target:
            The target text to force (teacher forcing). None lets the model write its own.
        caption:
            Another name for `text_target` where there is an image.
        layer:
            Decoder layer, 0-based, negative from the end; None averages all layers.
        head:
            Head of that layer, 0-based, negative from the end; None averages all heads.
        **generate_kwargs:
            Given to `model.generate()`: `num_beams`, `do_sample`, `decoder_input_ids`, ... Not with `text_target`.

    Returns:
        The map of one source and one target text, closing `</s>` included on both sides, the decoder's start token
        left out: row i is the attention with which target token i was predicted. For an image an
        [`ImageAttentionMap`], with a grid of weights for each token.

    Raises:
        ValueError: `text` is not one text, or no image that can be read; the model has no cross-attention, or none on
            a grid over an image; `layer` or `head` is out of range; or more than one sequence was asked for.
    """
    sees = hasattr(tokenizer, "image_processor")
    if caption is not None:
        if not sees or text_target is not None:
            raise ValueError("caption is another name for text_target, for images; give one of the two")
        text_target = caption
    for name, value in (("text", text), ("text_target", text_target)):
        free = sees if name == "text" else value is None
        if not isinstance(value, str) and not free:
            raise ValueError(f"{name} is a {type(value).__name__}; an attention map is made from one string")
    if not model.config.is_encoder_decoder:
        raise ValueError(f"model is a {type(model).__name__}; only encoder-decoder models have a cross-attention map")
    if text_target is not None and generate_kwargs:
        raise ValueError(f"text_target is given, so nothing is generated; remove {sorted(generate_kwargs)}")

    labels = None
    # What a slot of the target vocabulary stands for in this text
    copied: dict[int, str] = {}
    if sees:
        image = open_image(text, "text") if isinstance(text, (str, os.PathLike, Image.Image)) else text
        picture = Image.fromarray(rgb_pixels(image, "text").round().astype(np.uint8))
        pixel_values = tokenizer.image_processor([image], return_tensors="pt")["pixel_values"]
        inputs = {"pixel_values": pixel_values.to(model.dtype)}
        tokenizer = tokenizer.tokenizer
        if text_target is not None:
            labels = tokenizer(text_target=text_target, padding=False, return_tensors="pt")["input_ids"]
    else:
        encoding = tokenizer(text, text_target=text_target, padding=False, return_tensors="pt")
        inputs = {name: encoding[name] for name in ("input_ids", "attention_mask", "copy_ids") if name in encoding}
        labels = encoding.get("labels")
        if getattr(tokenizer, "copy_slots", None) is not None:
            copied = tokenizer.copied_words(text)
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    with _evaluating(model), eager_attention(model), torch.no_grad():
        if labels is None:
            target_ids, layers = _generate(model, inputs, generate_kwargs)
            if copied:
                target_text = tokenizer.decode_copied(target_ids, text, skip_special_tokens=True)
            else:
                target_text = tokenizer.decode(target_ids, skip_special_tokens=True)
        else:
            target_ids, layers = _force(model, inputs, labels.to(model.device))
            target_text = text_target

    target = tokenizer.convert_ids_to_tokens(target_ids.tolist())
    weights = _choose(layers, layer, head).to(device="cpu", dtype=torch.float64).numpy()
    if sees:
        weights = weights.reshape(len(target), *_grid(model, weights.shape[1]))
        return ImageAttentionMap(target, weights, picture, target_text)
    return AttentionMap(
        source=source_tokens(tokenizer, text),
        target=[copied.get(index) or name for index, name in zip(target_ids.tolist(), target, strict=True)],
        weights=weights,
        source_text=text,
        target_text=target_text,
    )


def attention_rows(
    model: PreTrainedModel, processor: ProcessorMixin, images: Sequence, captions: Sequence[str]
) -> list[np.ndarray]:
    """Cross-attention over images of a model that is made to write captions, many at a time.

    Args:
        model:
            A captioner, as for [`attention_map`].
        processor:
            Its processor.
        images:
            B images.
        captions:
            B texts.

    Returns:
        For each image the weights of the last layer, averaged over its heads, shape `(T, rows, columns)`: one grid for
        each of the T tokens of its caption, `</s>` included.

    Raises:
        ValueError: another number of captions than images, or as [`attention_map`].
    """
    batch = processor(images=list(images), text=list(captions), return_tensors="pt").to(model.device)
    labels = batch["labels"]
    with _evaluating(model), eager_attention(model), torch.no_grad():
        output = model(
            pixel_values=batch["pixel_values"].to(model.dtype), labels=labels, output_attentions=True, return_dict=True
        )
    (layers,) = _require_weights([output.cross_attentions], model)
    weights = layers[-1].to(device="cpu", dtype=torch.float64).mean(1)
    weights = weights.unflatten(2, _grid(model, weights.shape[2])).numpy()
    lengths = (labels != -100).sum(1).tolist()
    return [row[:length] for row, length in zip(weights, lengths, strict=True)]


def source_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Tokens of a source text, one for each of its `input_ids`, special tokens included.

    The names come from the encoding itself wherever there is one: a tokenizer with two vocabularies reads ids
    as target ids, so that `convert_ids_to_tokens` would name the wrong words.
    """
    encoding = tokenizer(text, padding=False)
    if encoding.is_fast:
        return encoding.tokens()
    return tokenizer.convert_ids_to_tokens(encoding["input_ids"])


def _generate(model: PreTrainedModel, inputs: dict[str, Tensor], generate_kwargs: dict) -> tuple[Tensor, list[Tensor]]:
    """Lets the model write, and gathers what it attended to.

    Returns:
        Target ids `(T,)` without the decoder's start token, and one tensor `(heads, T, S)` a layer.
    """
    wanted = {"output_attentions": True, "return_dict_in_generate": True}
    output = model.generate(**inputs, **{**generate_kwargs, **wanted})
    if len(output.sequences) != 1:
        raise ValueError(f"num_return_sequences is {len(output.sequences)}; an attention map shows 1 sequence")
    steps = _require_weights(output.cross_attentions, model)

    # A beam's tokens come from different rows at different steps: beam_indices names them, -1 after its end
    rows = [0] * len(steps)
    if getattr(output, "beam_indices", None) is not None:
        rows = [row for row in output.beam_indices[0].tolist() if row >= 0]
    # The first step covers the whole prompt; a later one covers it again if there is no cache, and only its end is new
    layers = []
    for layer in zip(*steps, strict=True):
        first, *later = (weights[row] for weights, row in zip(layer, rows, strict=False))
        layers.append(torch.cat([first, *(weights[:, -1:] for weights in later)], dim=1))
    return output.sequences[0, 1 : 1 + layers[0].shape[1]], layers


def _force(model: PreTrainedModel, inputs: dict[str, Tensor], labels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Makes the model write `labels`, shape `(1, T)`. Returns as [`_generate`] does."""
    output = model(**inputs, labels=labels, output_attentions=True, return_dict=True)
    return labels[0], [weights[0] for weights in _require_weights([output.cross_attentions], model)[0]]


def _grid(model: PreTrainedModel, cells: int) -> tuple[int, int]:
    """Rows and columns of a model's attention over an image."""
    grid = getattr(model.config, "grid_size", None)
    if grid is None or math.prod(grid) != cells:
        raise ValueError(
            f"model is a {type(model).__name__} that attends to {cells} places, and its config.grid_size is {grid}: "
            "there is no telling where they lie on the image"
        )
    return grid


def _require_weights(steps: Sequence[Sequence[Tensor | None]], model: PreTrainedModel) -> Sequence[Sequence[Tensor]]:
    if not steps or not steps[0] or any(weights is None for weights in steps[0]):
        raise ValueError(
            f"model is a {type(model).__name__} that returned no cross-attention weights; "
            "a model without attention (attention='none') has no attention map"
        )
    return steps


def _choose(layers: list[Tensor], layer: int | None, head: int | None) -> Tensor:
    """Weights `(T, S)` of a layer and a head, None standing for the mean of all."""
    if layer is not None and not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer is {layer}; the model has {len(layers)} decoder layers, 0 to {len(layers) - 1}")
    chosen = layers if layer is None else [layers[layer]]
    heads = min(weights.shape[0] for weights in chosen)
    if head is not None and not -heads <= head < heads:
        raise ValueError(f"head is {head}; the layer has {heads} heads, 0 to {heads - 1}")
    return torch.stack([weights.mean(0) if head is None else weights[head] for weights in chosen]).mean(0)


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Eval mode (dropout would blur the weights), and each module's own mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
