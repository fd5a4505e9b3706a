"""Drawing where a model looks on an image: a small picture for each word."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from .plotting import (
    BORDER,
    INK,
    PAGE_WIDTH,
    check_format,
    fonts_for,
    label_of,
    missing_glyphs,
    render,
    save_figure,
    write_whole,
)

if TYPE_CHECKING:
    from .image_maps import ImageAttentionMap

# Inches unless said otherwise
LONGEST_SIDE = 1.3
SHORTEST_SIDE = 0.4
GAP = 0.12
LABEL_HEIGHT = 0.24
TITLE_HEIGHT = 0.36
FONT_POINTS = 10.0
SMALLEST_FONT_POINTS = 6.0
MOST_PIXELS = 512  # of a side of a small picture

# Brightness of what the model does not look at
DARKEST = 0.2


def plot_overlay(
    attention: ImageAttentionMap,
    path: str | PathLike | None = None,
    *,
    title: str | None = None,
    columns: int | None = None,
    vmax: float | None = None,
    dpi: int = 150,
) -> Figure:
    """Draws an image and, for each word, the image again, dark but for where the model looked.

    Args:
        attention:
            The map.
        path:
            `.png`, `.svg` or `.pdf` file to write, its folders made as needed; None only draws.
        title:
            A line above everything, cut to the width there is.
        columns:
            Pictures side by side; None takes as many as fit in about a page's width.
        vmax:
            Weight of a cell that is drawn at full brightness. Default: `None`, each word's largest.
        dpi:
            Pixels per inch of a PNG.

    Returns:
        The figure, sized to its content.

    Raises:
        ValueError: `columns` below 1, `vmax` not above 0, or a suffix that is none of the three.
    """
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}; it must be at least 1")
    if vmax is not None and not vmax > 0:
        raise ValueError(f"vmax is {vmax}; it must be above 0")
    if path is not None:
        check_format(path)

    image = attention.image.convert("RGB")
    image.thumbnail((MOST_PIXELS, MOST_PIXELS))
    levels = np.asarray(image) / 255
    pictures = [("", levels)]
    for number, word in enumerate(attention.words):
        weights = attention.upsampled(number, image.size)
        light = (weights / (weights.max() if vmax is None else vmax)).clip(max=1)[..., None]
        pictures.append((word, levels * (DARKEST + (1 - DARKEST) * light)))

    longest = max(attention.image.size)
    wide, high = (max(SHORTEST_SIDE, LONGEST_SIDE * side / longest) for side in attention.image.size)
    columns = min(columns or max(1, int((PAGE_WIDTH - 2 * BORDER + GAP) // (wide + GAP))), len(pictures))
    rows = -(-len(pictures) // columns)
    above = BORDER + (TITLE_HEIGHT if title is not None else 0)
    width = 2 * BORDER + columns * (wide + GAP) - GAP
    height = above + rows * (LABEL_HEIGHT + high + GAP) - GAP + BORDER

    # Everything has its place already, whatever layout somebody's style asks for
    figure = Figure((width, height), dpi=dpi, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    text = _text([title or "", *attention.words])
    for number, (word, picture) in enumerate(pictures):
        row, column = divmod(number, columns)
        left = BORDER + column * (wide + GAP)
        top = above + row * (LABEL_HEIGHT + high + GAP) + LABEL_HEIGHT
        axes = figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))
        axes.imshow(picture, aspect="auto")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set(color=INK, linewidth=0.6, visible=True)
        label = axes.set_title(label_of(word) if word else "", loc="center", pad=3, fontsize=FONT_POINTS, **text)
        _fit(label, wide + 0.8 * GAP, canvas)
    if title is not None:
        line = figure.text(BORDER / width, 1 - BORDER / height, title, va="top", fontsize=FONT_POINTS + 1, **text)
        line.set_fontweight("bold")
        _fit(line, width - 2 * BORDER, canvas)
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_overlays(
    maps: Sequence[ImageAttentionMap], path: str | PathLike, *, titles: Sequence[str] | None = None, **options: Any
) -> None:
    """Draws several maps one below the other, each as [`plot_overlay`] does.

    Args:
        maps:
            What to draw.
        path:
            `.png` file to write, its folders made as needed.
        titles:
            A line above each map.
        **options:
            Those of [`plot_overlay`].

    Raises:
        ValueError: no maps, another number of titles, or another suffix.
    """
    if not maps:
        raise ValueError("maps is empty; at least 1 is needed")
    if titles is not None and len(titles) != len(maps):
        raise ValueError(f"there are {len(titles)} titles and {len(maps)} maps; pair them up")
    if check_format(path) != "png":
        raise ValueError(f"path is {str(path)!r}; several overlays make a .png, no other format")
    figures = [
        plot_overlay(item, title=title, **options)
        for item, title in zip(maps, titles or [None] * len(maps), strict=True)
    ]
    pictures = [Image.open(BytesIO(render(figure, "png"))).convert("RGB") for figure in figures]
    page = Image.new("RGB", (max(item.width for item in pictures), sum(item.height for item in pictures)), "white")
    top = 0
    for picture in pictures:
        page.paste(picture, (0, top))
        top += picture.height
    buffer = BytesIO()
    page.save(buffer, "png")
    write_whole(buffer.getvalue(), path)


def _text(texts: Sequence[str]) -> dict:
    return {"fontfamily": fonts_for(texts), "fontweight": "normal", "color": INK, "parse_math": False}


def _fit(text: Text, room: float, canvas: FigureCanvasAgg) -> None:
    """Make a text smaller until it is at most `room` inches wide, and cut it where it would be too small to read."""

    def width() -> float:
        with missing_glyphs():
            return text.get_window_extent(canvas.get_renderer()).width / text.figure.dpi

    if width() > room:
        text.set_fontsize(max(SMALLEST_FONT_POINTS, text.get_fontsize() * room / width()))
    whole = text.get_text()
    kept = len(whole)
    while width() > room and kept > 1:
        kept = min(kept - 1, max(1, int(kept * room / width())))
        text.set_text(whole[:kept] + "…")
