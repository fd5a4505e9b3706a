"""Does a captioner look at what it names? The pointing score, on pictures whose boxes are known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from ..attention_maps import attention_rows, find_peak
from ..models.tokenization_attnzoo import tokenizer_sides
from .scores import Score


def pointing_score(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    rows: Sequence[Mapping[str, Any]],
    predictions: Sequence[str] | None = None,
    *,
    batch_size: int = 32,
) -> Score:
    """Share of named things for which the attention's peak, as the word is written, lies inside the thing's box.

    For each picture the model is made to write the caption word by word. The attention that a word is written with
    (of the last layer, averaged over heads, and over the tokens of the word if there are several) has its peak on the
    picture where [`find_peak`] finds it, by bicubic interpolation. It counts as a hit if it lies in the box, edges
    included. Words that name nothing with a box are not looked at.

    Args:
        model:
            A captioner whose `config.grid_size` says how its attention lies on the picture. It is put in eval mode
            and, if need be, on eager attention during the call, and put back afterwards.
        processor:
            Its processor.
        rows:
            N rows with `image`, `caption` and `objects`, each with `word`, its place among the caption's words
            (separated by white space, from 0), and `box`, left, top, right and bottom in pixels of the image; as the
            source `shapes` has them.
        predictions:
            What the model wrote by itself for each row: only rows where it equals the caption count. What it looks at
            when made to write those is what it looked at when it wrote them. Default: `None`, all rows count.
        batch_size:
            Pictures at a time.

    Returns:
        The share, 0 to 1, and how it came about.

    Raises:
        ValueError: no rows, another number of predictions, nothing to point at, or a model without such attention.
    """
    hits = pointing_hits(model, processor, rows, predictions, batch_size=batch_size)
    return share_of_hits(hits, "all" if predictions is None else "exact")


def share_of_hits(hits: np.ndarray, scope: str) -> Score:
    """The score of [`pointing_hits`].

    Args:
        hits:
            1 for each hit, otherwise 0, shape `(N,)`.
        scope:
            Which captions counted: `"all"`, or the `"exact"` ones.

    Raises:
        ValueError: no hits at all.
    """
    if not len(hits):
        raise ValueError("rows hold nothing to point at: no objects, or no caption was predicted right")
    return Score(float(hits.mean()), f"words:{len(hits)}|captions:{scope}|peak:bicubic")


def pointing_hits(
    model: PreTrainedModel,
    processor: ProcessorMixin,
    rows: Sequence[Mapping[str, Any]],
    predictions: Sequence[str] | None = None,
    *,
    batch_size: int = 32,
) -> np.ndarray:
    """1 for each named thing that was looked at, otherwise 0, in the order of the rows; see [`pointing_score`]."""
    if len(rows) == 0:
        raise ValueError("rows is empty; at least 1 picture is needed")
    if predictions is not None and len(predictions) != len(rows):
        raise ValueError(f"there are {len(predictions)} predictions and {len(rows)} rows; pair them up")
    numbers = [i for i in range(len(rows)) if predictions is None or predictions[i] == rows[i]["caption"]]
    tokenizer = tokenizer_sides(processor.tokenizer)[1]
    hits = []
    for start in range(0, len(numbers), batch_size):
        batch = [rows[i] for i in numbers[start : start + batch_size]]
        images, captions = [row["image"] for row in batch], [row["caption"] for row in batch]
        for row, grids in zip(batch, attention_rows(model, processor, images, captions), strict=True):
            tokens = _tokens_of_words(tokenizer, row["caption"])
            for thing in row["objects"]:
                if thing["word"] >= len(tokens):
                    raise ValueError(f"objects: word {thing['word']} is not one of {row['caption']!r}")
                weights = grids[tokens[thing["word"]]].mean(0)
                x, y = find_peak(weights, row["image"].size)
                left, top, right, bottom = thing["box"]
                hits.append(left <= x <= right and top <= y <= bottom)
    return np.array(hits, dtype=int)


def _tokens_of_words(tokenizer: PreTrainedTokenizerBase, caption: str) -> list[list[int]]:
    """For each word of a caption the places of its tokens."""
    spans = tokenizer(caption, return_offsets_mapping=True)["offset_mapping"]
    return [
        [place for place, (start, end) in enumerate(spans) if start < word.end() and word.start() < end]
        for word in re.finditer(r"\S+", caption)
    ]
