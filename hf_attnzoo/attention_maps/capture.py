"""Capturing attention: run a model on one text and read the weights it used, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .maps import AttentionMap


def attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_target: str | None = None,
    *,
    layer: int | None = -1,
    head: int | None = None,
    **generate_kwargs,
) -> AttentionMap:
    """Cross-attention of an encoder-decoder model while it writes its output for `text`, or a given output.

    A recurrent model has one layer with one head. In a stack of Transformer layers the last one, averaged over its
    heads, is the default; the alignment is often sharper in an earlier layer or in a single head.

    Args:
        model:
            An encoder-decoder model that can `generate()`, of this package or of transformers. It is put in eval mode
            and, if need be, on eager attention (no other returns weights) during the call, and put back afterwards.
        tokenizer:
            Its tokenizer.
        text:
            The source text.
        text_target:
            The target text to force (teacher forcing). None lets the model write its own.
        layer:
            Decoder layer, 0-based, negative from the end; None averages all layers.
        head:
            Head of that layer, 0-based, negative from the end; None averages all heads.
        **generate_kwargs:
            Given to `model.generate()`: `num_beams`, `do_sample`, `decoder_input_ids`, ... Not with `text_target`.

    Returns:
        The map of one source and one target text, closing `</s>` included on both sides, the decoder's start token
        left out: row i is the attention with which target token i was predicted.

    Raises:
        ValueError: `text` is not one text, the model has no cross-attention, `layer` or `head` is out of range,
            or more than one sequence was asked for.
    """
    for name, value in (("text", text), ("text_target", text_target)):
        if not isinstance(value, str) and not (name == "text_target" and value is None):
            raise ValueError(f"{name} is a {type(value).__name__}; an attention map is made from one string")
    if not model.config.is_encoder_decoder:
        raise ValueError(f"model is a {type(model).__name__}; only encoder-decoder models have a cross-attention map")
    if text_target is not None and generate_kwargs:
        raise ValueError(f"text_target is given, so nothing is generated; remove {sorted(generate_kwargs)}")

    encoding = tokenizer(text, padding=False, return_tensors="pt")
    names = ("input_ids", "attention_mask", "copy_ids")
    inputs = {name: encoding[name].to(model.device) for name in names if name in encoding}
    # What a slot of the target vocabulary stands for in this text
    copies = getattr(tokenizer, "copy_slots", None) is not None
    copied = tokenizer.copied_words(text) if copies else {}
    with _evaluating(model), _eager_attention(model), torch.no_grad():
        if text_target is None:
            target_ids, layers = _generate(model, inputs, generate_kwargs)
            if copies:
                target_text = tokenizer.decode_copied(target_ids, text, skip_special_tokens=True)
            else:
                target_text = tokenizer.decode(target_ids, skip_special_tokens=True)
        else:
            labels = tokenizer(text, text_target=text_target, padding=False, return_tensors="pt")["labels"]
            target_ids, layers = _force(model, inputs, labels.to(model.device))
            target_text = text_target

    return AttentionMap(
        source=source_tokens(tokenizer, text),
        target=[copied.get(index) or tokenizer.convert_ids_to_tokens(index) for index in target_ids.tolist()],
        weights=_choose(layers, layer, head).to(device="cpu", dtype=torch.float64).numpy(),
        source_text=text,
        target_text=target_text,
    )


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
    """Makes the model write `labels` `(1, T)`. Returns as [`_generate`] does."""
    output = model(**inputs, labels=labels, output_attentions=True, return_dict=True)
    return labels[0], [weights[0] for weights in _require_weights([output.cross_attentions], model)[0]]


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


@contextmanager
def _eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Eager attention (fused kernels never form the weights), and each part's own implementation afterwards."""
    before = _implementations(model.config)
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _implementations(config: PreTrainedConfig) -> dict[str, str | dict | None]:
    """Attention implementations as `set_attn_implementation` takes them: `""` for the config, then its sub-configs."""
    parts = {name: getattr(config, name) for name in config.sub_configs}
    own = {"": config._attn_implementation}
    return own | {name: _implementations(part) for name, part in parts.items() if part is not None}
