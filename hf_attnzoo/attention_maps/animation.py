"""Attention as it comes: an animated picture of a text being written."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .overlay import plot_overlay
from .plotting import plot_grid, render, write_whole

if TYPE_CHECKING:
    from .image_maps import ImageAttentionMap
    from .maps import AttentionMap

_FORMATS = {".gif": "GIF", ".webp": "WEBP", ".png": "PNG"}

# How much longer than the others the last frame is shown
_LAST = 4
_UNWRITTEN = "#cfe0f3"


def animate_rows(attention: AttentionMap, path: str | PathLike, milliseconds: int, **options) -> None:
    """Writes an animated picture in which the rows of a map appear one by one.

    Args:
        attention:
            The map.
        path:
            `.gif`, `.webp` or `.png` file.
        milliseconds:
            How long a frame is shown; the last one longer.
        **options:
            Those of `AttentionMap.plot`.

    Raises:
        ValueError: another suffix, or `milliseconds` below 1.
    """
    _check(path, milliseconds)
    title = options.pop("title", None)
    figure = plot_grid([attention], titles=None if title is None else [title], **options)
    axes = figure.axes[0]
    (image,), labels, ticks = axes.images, axes.get_yticklabels(), axes.get_yticks()
    # What is not yet written has a colour that no weight has
    axes.set_facecolor(_UNWRITTEN)
    frames = []
    for rows in range(len(attention.target) + 1):
        shown = np.ma.masked_array(attention.weights, mask=np.zeros(attention.weights.shape, bool))
        shown[rows:] = np.ma.masked
        image.set_data(shown)
        for tick, label in zip(ticks, labels, strict=True):
            label.set_visible(tick < rows)
        frames.append(_frame(render(figure, "png")))
    _write(frames, path, milliseconds)


def animate_words(attention: ImageAttentionMap, path: str | PathLike, milliseconds: int, **options) -> None:
    """Writes an animated picture of an overlay in which the words' pictures appear one by one.

    Args:
        attention:
            The map.
        path:
            `.gif`, `.webp` or `.png` file.
        milliseconds:
            How long a frame is shown; the last one longer.
        **options:
            Those of [`plot_overlay`].

    Raises:
        ValueError: another suffix, or `milliseconds` below 1.
    """
    _check(path, milliseconds)
    figure = plot_overlay(attention, **options)
    # The first picture is the image itself
    pictures = figure.axes
    frames = []
    for words in range(len(attention.words) + 1):
        for number, axes in enumerate(pictures):
            axes.set_visible(number <= words)
        frames.append(_frame(render(figure, "png")))
    _write(frames, path, milliseconds)


def _check(path: str | PathLike, milliseconds: int) -> None:
    if Path(path).suffix.lower() not in _FORMATS:
        raise ValueError(f"path is {fspath(path)!r}; its suffix must be one of {', '.join(_FORMATS)}")
    if milliseconds < 1:
        raise ValueError(f"milliseconds={milliseconds} must be at least 1")


def _frame(png: bytes) -> Image.Image:
    return Image.open(BytesIO(png)).convert("RGB")


def _write(frames: Sequence[Image.Image], path: str | PathLike, milliseconds: int) -> None:
    first, *rest = frames
    durations = [milliseconds] * len(rest) + [_LAST * milliseconds]
    buffer = BytesIO()
    format = _FORMATS[Path(path).suffix.lower()]
    first.save(buffer, format, save_all=True, append_images=rest, duration=durations, loop=0)
    write_whole(buffer.getvalue(), path)
