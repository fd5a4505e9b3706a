"""Attention of a text over itself: what the tokens of a sentence, or of a question, look at in an encoder."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..pipelines.generating import eager_attention
from ..pipelines.question_answering import longest_window, question_windows
from .capture import _choose, _evaluating
from .maps import AttentionMap

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")

# Tokens of a text that are drawn on either side of an answer.
_AROUND = 12


def self_attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_pair: str | None = None,
    *,
    layer: int | None = -1,
    head: int | None = None,
) -> AttentionMap:
    """Attention of every token of a text over all its tokens, special tokens included.

    Args:
        model: with self-attention over one text, such as BERT or GPT. It is put in eval mode and, if need be, on eager
            attention during the call, and put back afterwards.
        tokenizer: its tokenizer, a fast one.
        text: what it reads.
        text_pair: the second text, if there is one.
        layer: 0-based, negative from the end; None averages all layers.
        head: of that layer, 0-based, negative from the end; None averages all heads.

    Returns:
        A map of T rows and T columns: row i is what token i attends to.

    Raises:
        ValueError: the model gives no self-attention, or `layer` or `head` is out of range.
    """
    tokens, inputs = _read(tokenizer, text, text_pair)
    layers = _attentions(model, inputs)
    weights = _choose(layers, layer, head).double().numpy()
    return AttentionMap(tokens, tokens, weights, _both(text, text_pair), _both(text, text_pair))


def summary_attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_pair: str | None = None,
    **tokenizer_options: object,
) -> AttentionMap:
    """Attention of the token that a classifier reads, in every layer, averaged over heads.

    That is the first token, `[CLS]`, of an encoder, and the last one of a causal model.

    Args:
        model: see `self_attention_map`, as for the tokenizer and the texts.
        tokenizer: its tokenizer, a fast one.
        text: what it reads.
        text_pair: the second text, if there is one.
        tokenizer_options: given to the tokenizer, such as `truncation`.

    Returns:
        A map with a row for each layer, the first one on top, and a column for each token.

    Raises:
        ValueError: the model gives no self-attention.
    """
    tokens, inputs = _read(tokenizer, text, text_pair, **tokenizer_options)
    layers = _attentions(model, inputs)
    # In a causal model nothing looks at what follows.
    causal = not torch.stack([weights.triu(1) for weights in layers]).any()
    rows = torch.stack([weights.mean(0)[-1 if causal else 0] for weights in layers]).double().numpy()
    names = [f"layer {number}" for number in range(1, len(layers) + 1)]
    return AttentionMap(tokens, names, rows, _both(text, text_pair))


def question_attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    context: str,
    start: int = 0,
    max_length: int | None = None,
    *,
    layer: int | None = -1,
    head: int | None = None,
) -> AttentionMap:
    """Attention of a question's tokens over a part of the text that it is asked about.

    Args:
        model: see `self_attention_map`, as for the tokenizer, the layer and the head.
        tokenizer: its tokenizer, a fast one.
        question: the first text.
        context: the second.
        start: character of the context that the part lies around, such as where the answer begins.
        max_length: tokens of a window, of which the first with that character is read. Default: `None`, as long as the
            pipeline for question answering has them.
        layer: 0-based, negative from the end; None averages all layers.
        head: of that layer, 0-based, negative from the end; None averages all heads.

    Returns:
        A map of the question's tokens, down the side, over some of the text's. Rows don't sum to 1: the question looks
        at itself and at the rest of the text too.

    Raises:
        ValueError: the model gives no self-attention, or `layer` or `head` is out of range.
    """
    length = longest_window(model, tokenizer) if max_length is None else max_length
    encoded, windows = question_windows(tokenizer, question, context, length)
    ends = [[place[1] for place, _ in tokens if place is not None] for tokens in windows]
    number = next((number for number, stops in enumerate(ends) if stops and stops[-1] > start), len(windows) - 1)
    window = encoded.encodings[number]
    layers = _attentions(model, {name: torch.tensor([encoded[name][number]]) for name in _INPUTS if name in encoded})
    asked = [place for place, side in enumerate(window.sequence_ids) if side == 0]
    read = [place for place, side in enumerate(window.sequence_ids) if side == 1]
    middle = next((rank for rank, place in enumerate(read) if window.offsets[place][1] > start), len(read) - 1)
    read = read[max(0, middle - _AROUND) : middle + _AROUND + 1]
    weights = _choose(layers, layer, head).double().numpy()[np.ix_(asked, read)]
    names = [[window.tokens[place] for place in places] for places in (read, asked)]
    return AttentionMap(*names, weights, context, question)


def _both(text: str, text_pair: str | None) -> str:
    return text if text_pair is None else f"{text} / {text_pair}"


def _read(
    tokenizer: PreTrainedTokenizerBase, text: str, text_pair: str | None, **options: object
) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Tokens of a text, and what a model reads of it."""
    encoding = tokenizer(text, text_pair, return_tensors="pt", **options)
    return encoding.tokens(), {name: encoding[name] for name in _INPUTS if name in encoding}


def _attentions(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The weights of every layer, `(heads, T, T)`."""
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    with _evaluating(model), eager_attention(model), torch.no_grad():
        layers = model(**inputs, output_attentions=True).attentions
    if not layers or layers[0] is None or layers[0].shape[-1] != layers[0].shape[-2]:
        raise ValueError(f"model is a {type(model).__name__} that returned no self-attention weights")
    return [weights[0].to("cpu") for weights in layers]
