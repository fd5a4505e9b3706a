"""What attention weights say, in numbers: choosing, merging words, rollout, entropy, alignments. Arrays in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..wording import counted

Span = tuple[int, int]


@dataclass(frozen=True)
class Word:
    """Tokens that make up a word.

    Args:
        text: the word, or the name of a special token.
        tokens: numbers of its tokens.
        span: its characters, first and one past the last; None for a special token.
    """

    text: str
    tokens: list[int]
    span: Span | None


@dataclass(frozen=True)
class HeadSummary:
    """What a head does.

    Args:
        layer: 0-based.
        head: 0-based.
        entropy: mean entropy of its rows in nats.
        peak: mean over rows of the largest weight.
        special: mean share of attention that goes to special tokens (Clark et al. 2019, section 3.2); None where it
            isn't known which they are.
        distance: mean of |i - j|, the tokens between where a head is and where it looks, weighted with its attention;
            None for cross-attention, whose two sides have no common measure.
    """

    layer: int
    head: int
    entropy: float
    peak: float
    special: float | None
    distance: float | None


def choose(layers: Sequence[np.ndarray], layer: int | None, head: int | None) -> np.ndarray:
    """Weights `(T, S)` of a layer and a head out of `(heads, T, S)` for each layer, None standing for the mean of all.

    Raises:
        ValueError: a number is out of range.
    """
    if layer is not None and not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer is {layer}; the model has {counted(len(layers), 'layer')}, 0 to {len(layers) - 1}")
    chosen = layers if layer is None else [layers[layer]]
    heads = min(len(weights) for weights in chosen)
    if head is not None and not -heads <= head < heads:
        raise ValueError(f"head is {head}; the layer has {counted(heads, 'head')}, 0 to {heads - 1}")
    return np.mean([weights.mean(0) if head is None else weights[head] for weights in chosen], axis=0)


def words(tokens: Sequence[str], spans: Sequence[Span | None], text: str) -> list[Word]:
    """Tokens put together into what white space separates.

    Args:
        tokens: N names.
        spans: N pairs of characters in `text`; None for special tokens.
        text: what the tokens are of.

    Returns:
        Words and special tokens in the order of the tokens; each token is in one of them.
    """
    # Number of the word that each character belongs to: white space goes with what follows it
    number, numbers = 0, []
    for position, character in enumerate(text):
        if character.isspace() and position and not text[position - 1].isspace():
            number += 1
        numbers.append(number)
    groups: list[tuple[int | None, list[int]]] = []
    for index, span in enumerate(spans):
        if span is None:
            groups.append((None, [index]))
            continue
        # A token of no characters, such as one of several for a single letter, is where it begins
        last = min(max(span[0], span[1] - 1), len(text) - 1)
        word = numbers[last] if numbers else 0
        if groups and groups[-1][0] == word:
            groups[-1][1].append(index)
        else:
            groups.append((word, [index]))
    made = []
    for word, members in groups:
        if word is None:
            made.append(Word(tokens[members[0]], members, None))
            continue
        start, end = spans[members[0]][0], spans[members[-1]][1]
        shown = text[start:end]
        start += len(shown) - len(shown.lstrip())
        made.append(Word(shown.strip() or shown, members, (min(start, end), end)))
    return made


def merge(weights: np.ndarray, targets: Sequence[Word], sources: Sequence[Word]) -> np.ndarray:
    """Attention between words out of `(..., T, S)` between tokens: sums over sources, means over targets."""
    columns = np.stack([weights[..., word.tokens].sum(-1) for word in sources], axis=-1)
    return np.stack([columns[..., word.tokens, :].mean(-2) for word in targets], axis=-2)


def links(
    weights: np.ndarray,
    source_spans: Sequence[Span | None],
    target_spans: Sequence[Span | None],
    threshold: float | None,
) -> list[tuple[int, int]]:
    """Pairs of a source and a target word, numbered without special tokens, out of weights `(T, S)` between words.

    Args:
        weights: attention between words.
        source_spans: None for a special token.
        target_spans: likewise.
        threshold: least weight of a link. None links each target word to its largest weight.
    """
    sources = [index for index, span in enumerate(source_spans) if span is not None]
    targets = [index for index, span in enumerate(target_spans) if span is not None]
    if not sources:
        return []
    kept = weights[np.ix_(targets, sources)]
    if threshold is None:
        return [(int(row.argmax()), target) for target, row in enumerate(kept)]
    return [(int(source), target) for target, row in enumerate(kept) for source in np.flatnonzero(row >= threshold)]


def rollout(layers: Sequence[np.ndarray]) -> np.ndarray:
    """Attention rollout of self-attention, `(heads, T, T)` for each layer, the first one first.

    Abnar and Zuidema (2020), section 3 and equation 1: `A~_l = (A_l / 2 + I / 2) A~_{l-1}`, with A_l the mean over
    heads, rows normalised.
    """
    identity = np.eye(layers[0].shape[-1])
    total = identity
    for layer in layers:
        mixed = layer.mean(0) / 2 + identity / 2
        total = mixed / mixed.sum(-1, keepdims=True) @ total
    return total


def entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy in nats of the rows of weights `(..., S)`, with 0 log 0 = 0."""
    return -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(-1)


def summarise(layers: Sequence[np.ndarray], special: Sequence[bool] | None, kind: str) -> list[HeadSummary]:
    """What each head does, out of weights `(heads, T, S)` for each layer.

    Args:
        layers: weights.
        special: which sources are special tokens. None: not known.
        kind: of attention; distances are for self-attention alone.
    """
    found = []
    for number, layer in enumerate(layers):
        away = np.abs(np.arange(layer.shape[1])[:, None] - np.arange(layer.shape[2]))
        for head, weights in enumerate(layer):
            found.append(
                HeadSummary(
                    number,
                    head,
                    float(entropy(weights).mean()),
                    float(weights.max(-1).mean()),
                    None if special is None else float(weights[:, np.asarray(special)].sum(-1).mean()),
                    None if kind == "cross" else float((weights * away).sum(-1).mean()),
                )
            )
    return found
