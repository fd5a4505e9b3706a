"""Capturing attention: run a model on one text or image and read the weights it used, token by token."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    BatchEncoding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from ..models.image_processing_show_attend_tell import open_image, rgb_pixels
from ..pipelines.generating import eager_attention, target_spans, token_spans
from .analysis import choose
from .image_maps import ImageAttentionMap
from .maps import KINDS, AttentionMap


def attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | ProcessorMixin,
    text: str | os.PathLike | Image.Image | np.ndarray | Tensor,
    text_target: str | None = None,
    *,
    text_pair: str | None = None,
    caption: str | None = None,
    kind: str | None = None,
    layer: int | None = -1,
    head: int | None = None,
    max_length: int | None = None,
    **generate_kwargs,
) -> AttentionMap | ImageAttentionMap:
    """Attention of a model: of what an encoder-decoder writes over what it reads, or of a text over itself.

    A recurrent model has one layer with one head. In a stack of Transformer layers the last one, averaged over its
    heads, is the default; the alignment is often sharper in an earlier layer or in a single head. The map keeps all
    of them: see [`AttentionMap.select`].

    Args:
        model:
            Any model with attention, of this package or of transformers. It is put in eval mode and, if need be, on
            eager attention (no other returns weights) during the call, and put back afterwards.
        tokenizer:
            Its tokenizer; or, of a model that looks at images, its processor.
        text:
            The text that is read; or the image: a path, a URL, an image of Pillow, an array or a tensor of pixels. A
            decoder alone goes on with it where there is something to generate, such as `max_new_tokens=20`, and the
            map is of it all.
        text_target:
            The target text to force (teacher forcing) on an encoder-decoder. None lets the model write its own.
        text_pair:
            The second text of a pair that an encoder, or a decoder alone, reads together.
        caption:
            Another name for `text_target` where there is an image.
        kind:
            `"cross"`, or the self-attention of the `"encoder"` or the `"decoder"`. Default: `None`, cross-attention of
            an encoder-decoder, and of others the one that they have.
        layer:
            Layer, 0-based, negative from the end; None averages all layers.
        head:
            Head of that layer, 0-based, negative from the end; None averages all heads.
        max_length:
            Tokens that a text which an encoder or a decoder alone reads is cut to. Default: `None`, it is read whole.
        **generate_kwargs:
            Given to `model.generate()`: `num_beams`, `do_sample`, `decoder_input_ids`, ... Not with `text_target`.

    Returns:
        The map of one source and one target text, closing `</s>` included on both sides, the decoder's start token
        left out: row i is the attention with which target token i was predicted. The map of a text over itself, where
        both sides are the tokens that are read, the start token of a decoder among them. For an image an
        [`ImageAttentionMap`], with a grid of weights for each token.

    Raises:
        ValueError: `text` is not one text, or no image that can be read; the model has no such attention, or none on
            a grid over an image; `layer` or `head` is out of range; more than one sequence was asked for; or an
            argument means nothing to such a model.
    """
    sees = hasattr(tokenizer, "image_processor")
    if caption is not None:
        if not sees or text_target is not None:
            raise ValueError("caption is another name for text_target, for images; give one of the two")
        text_target = caption
    for name, value in (("text", text), ("text_target", text_target), ("text_pair", text_pair)):
        free = sees if name == "text" else value is None
        if not isinstance(value, str) and not free:
            raise ValueError(f"{name} is a {type(value).__name__}; an attention map is made from one string")
    if text_target is not None and generate_kwargs:
        raise ValueError(f"text_target is given, so nothing is generated; remove {sorted(generate_kwargs)}")
    kind = _kind(model, kind, sees)
    if not model.config.is_encoder_decoder:
        if text_target is not None:
            raise ValueError(
                f"text_target={text_target!r} means nothing to a {type(model).__name__}: write it into text"
            )
        return _own_map(model, tokenizer, text, text_pair, max_length, kind, layer, head, generate_kwargs)
    for name, value in (("text_pair", text_pair), ("max_length", max_length)):
        if value is not None:
            raise ValueError(f"{name}={value!r} means nothing to a {type(model).__name__}, an encoder-decoder")

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
    if kind == "encoder":
        read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        layers = self_attentions(model, read, encoder=True)
        names, spans = source_tokens(tokenizer, text), token_spans(encoding)
        return AttentionMap(names, names, choose(layers, layer, head), text, text, kind, layers, spans, spans)
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    with _evaluating(model), eager_attention(model), torch.no_grad():
        if labels is None:
            target_ids, layers = _generate(model, inputs, generate_kwargs)
            if copied:
                target_text = tokenizer.decode_copied(target_ids, text, skip_special_tokens=True)
            else:
                target_text = tokenizer.decode(target_ids, skip_special_tokens=True)
        else:
            target_ids = labels[0].to(model.device)
            layers = None
            target_text = text_target
        if kind == "decoder":
            layers = _force(model, inputs, target_ids, "decoder_attentions")
        elif layers is None:
            layers = _force(model, inputs, target_ids, "cross_attentions")

    names = tokenizer.convert_ids_to_tokens(target_ids.tolist())
    target = [copied.get(index) or name for index, name in zip(target_ids.tolist(), names, strict=True)]
    spans = target_spans(tokenizer, target_ids.tolist(), target_text)
    layers = _arrays(layers)
    if kind == "decoder":
        # What the decoder reads: its start token, and all that it writes but the last
        (start,) = tokenizer.convert_ids_to_tokens([model.generation_config.decoder_start_token_id])
        read, spans = [start, *target[:-1]], spans and [None, *spans[:-1]]
        return AttentionMap(
            read, read, choose(layers, layer, head), target_text, target_text, kind, layers, spans, spans
        )
    weights = choose(layers, layer, head)
    if sees:
        weights = weights.reshape(len(target), *_grid(model, weights.shape[1]))
        return ImageAttentionMap(target, weights, picture, target_text)
    return AttentionMap(
        source_tokens(tokenizer, text),
        target,
        weights,
        source_text=text,
        target_text=target_text,
        layers=layers,
        source_spans=None if sees else token_spans(encoding),
        target_spans=spans,
    )


def _kind(model: PreTrainedModel, kind: str | None, sees: bool) -> str:
    """The kind of attention that was asked for, or the one that the model is known for."""
    config = model.config
    if config.is_encoder_decoder:
        kinds = KINDS
    else:
        causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
        kinds = ("decoder",) if causal or getattr(config, "is_decoder", False) else ("encoder",)
    if kind is None:
        return kinds[0]
    if kind not in kinds:
        known = "" if kind in KINDS else f", and {kind!r} is no kind of attention"
        raise ValueError(f"kind={kind!r}: a {type(model).__name__} has {', '.join(kinds)} attention{known}")
    if sees and kind != "cross":
        raise ValueError(f"kind={kind!r}: only kind='cross' lies on an image")
    return kind


def _own_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_pair: str | None,
    max_length: int | None,
    kind: str,
    layer: int | None,
    head: int | None,
    generate_kwargs: dict,
) -> AttentionMap:
    """Self-attention of a model that is an encoder or a decoder alone."""
    if generate_kwargs and kind == "encoder":
        raise ValueError(f"a {type(model).__name__} writes nothing; remove {sorted(generate_kwargs)}")
    texts = [text] if text_pair is None else [text, text_pair]
    cut = {} if max_length is None else {"truncation": True, "max_length": max_length}
    encoding = tokenizer(*texts, padding=False, return_tensors="pt", **cut)
    whole = " ".join(texts)
    names, spans = _tokens(tokenizer, encoding), token_spans(encoding, second=len(text) + 1)
    inputs = dict(encoding.to(model.device))
    if generate_kwargs:
        prompt = inputs["input_ids"].shape[1]
        with _evaluating(model), torch.no_grad():
            ids = model.generate(**inputs, **generate_kwargs)
        if len(ids) != 1:
            raise ValueError(f"num_return_sequences is {len(ids)}; an attention map shows 1 sequence")
        whole = tokenizer.decode(ids[0], skip_special_tokens=True)
        names = [*names, *tokenizer.convert_ids_to_tokens(ids[0, prompt:].tolist())]
        spans = target_spans(tokenizer, ids[0].tolist(), whole)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    layers = self_attentions(model, inputs)
    return AttentionMap(names, names, choose(layers, layer, head), whole, whole, kind, layers, spans, spans)


def self_attentions(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], encoder: bool = False
) -> tuple[np.ndarray, ...]:
    """What a text attends to of itself.

    Args:
        model:
            Put in eval mode and on eager attention during the call.
        inputs:
            Of one text of T tokens: `input_ids` and what goes with them, each of shape `(1, T)`.
        encoder:
            Whether an encoder-decoder's encoder is meant.

    Returns:
        Weights of shape `(heads, T, T)` for each layer.

    Raises:
        ValueError: the model returns none.
    """
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    with _evaluating(model), eager_attention(model), torch.no_grad():
        output = (model.get_encoder() if encoder else model)(**inputs, output_attentions=True, return_dict=True)
    return _arrays(_require_weights([getattr(output, "attentions", None)], model)[0], row=0)


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
    """Tokens of a source text, one for each of its `input_ids`, special tokens included."""
    return _tokens(tokenizer, tokenizer(text, padding=False))


def _tokens(tokenizer: PreTrainedTokenizerBase, encoding: BatchEncoding) -> list[str]:
    """Tokens of the one text of an encoding.

    The names come from the encoding itself wherever there is one: a tokenizer with two vocabularies reads ids
    as target ids, so that `convert_ids_to_tokens` would name the wrong words.
    """
    if encoding.is_fast:
        return encoding.tokens()
    (ids,) = np.atleast_2d(encoding["input_ids"]).tolist()
    return tokenizer.convert_ids_to_tokens(ids)


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


def _force(model: PreTrainedModel, inputs: dict[str, Tensor], target_ids: Tensor, what: str) -> list[Tensor]:
    """Makes the model write ids, shape `(T,)`: one tensor `(heads, T, S)` a layer of the named output."""
    output = model(**inputs, labels=target_ids[None], output_attentions=True, return_dict=True)
    return [weights[0] for weights in _require_weights([getattr(output, what, None)], model)[0]]


def _arrays(layers: Sequence[Tensor], row: int | slice = slice(None)) -> tuple[np.ndarray, ...]:
    return tuple(weights[row].to(device="cpu", dtype=torch.float64).numpy() for weights in layers)


def _grid(model: PreTrainedModel, cells: int) -> tuple[int, int]:
    """Rows and columns of a model's attention over an image."""
    grid = getattr(model.config, "grid_size", None)
    if grid is None or math.prod(grid) != cells:
        raise ValueError(
            f"model is a {type(model).__name__} that attends to {cells} places, and its config.grid_size is {grid}: "
            "there is no telling where they lie on the image"
        )
    return grid


def _require_weights(
    steps: Sequence[Sequence[Tensor | None] | None], model: PreTrainedModel
) -> Sequence[Sequence[Tensor]]:
    if not steps or not steps[0] or any(weights is None for weights in steps[0]):
        raise ValueError(
            f"model is a {type(model).__name__} that returned no attention weights of this kind; a model without "
            "attention, such as an RNN or one with attention='none', has no attention map"
        )
    return steps


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
