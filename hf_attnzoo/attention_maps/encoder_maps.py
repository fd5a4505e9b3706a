"""What an encoder that was trained for a task looks at: the token that a classifier reads, or a question."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..pipelines.question_answering import longest_window, question_windows
from .analysis import choose
from .capture import attention_map, self_attentions
from .maps import AttentionMap

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")

# Tokens of a text that are drawn on either side of an answer.
_AROUND = 12


def summary_attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_pair: str | None = None,
    *,
    max_length: int | None = None,
) -> AttentionMap:
    """Attention of the token that a classifier reads, in every layer, averaged over heads.

    That is the first token, `[CLS]`, of an encoder, and the last one of a causal model.

    Args:
        model: an encoder or a decoder alone; see `attention_map`.
        tokenizer: its tokenizer.
        text: what it reads.
        text_pair: the second text, if there is one.
        max_length: tokens that a longer text is cut to. Default: `None`, it is read whole.

    Returns:
        A map with a row for each layer, the first one on top, and a column for each token.

    Raises:
        ValueError: the model gives no self-attention.
    """
    whole = attention_map(model, tokenizer, text, text_pair=text_pair, max_length=max_length)
    # In a causal model nothing looks at what follows.
    reader = -1 if whole.kind == "decoder" else 0
    rows = np.stack([weights.mean(0)[reader] for weights in whole.layers])
    names = [f"layer-{number}" for number in range(len(rows))]
    return AttentionMap(whole.source, names, rows, whole.source_text)


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
        model: an encoder; see `attention_map`, as for the layer and the head.
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
    inputs = {name: torch.tensor([encoded[name][number]]) for name in _INPUTS if name in encoded}
    asked = [place for place, side in enumerate(window.sequence_ids) if side == 0]
    read = [place for place, side in enumerate(window.sequence_ids) if side == 1]
    middle = next((rank for rank, place in enumerate(read) if window.offsets[place][1] > start), len(read) - 1)
    read = read[max(0, middle - _AROUND) : middle + _AROUND + 1]
    weights = choose(self_attentions(model, inputs), layer, head)[np.ix_(asked, read)]
    names = [[window.tokens[place] for place in places] for places in (read, asked)]
    return AttentionMap(*names, weights, context, question)
