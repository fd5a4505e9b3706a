"""Drawing attention maps with matplotlib's object interface: headless, thread-safe, no global state."""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import textwrap
import threading
import unicodedata
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from .maps import AttentionMap

logger = logging.getLogger(__name__)

FORMATS = (".png", ".svg", ".pdf")

# Inches unless said otherwise
CELL = 0.24
LONGEST_SIDE = 15.0
FONT_POINTS = 10.0
SMALLEST_FONT_POINTS = 4.0
LONGEST_LABEL = 24  # characters
GAP = 0.35
BORDER = 0.15
PAGE_WIDTH = 13.0
COLORBAR_WIDTH = 0.12
COLORBAR_HEIGHT = 1.6
COLORBAR_ROOM = 0.75
INK = "#333333"

# DejaVu Sans comes with matplotlib and covers Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian and Georgian; what it
# lacks is looked for in the others, in this order, where they are installed, and then in Noto's for the script
FONTS = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Yu Gothic",
    "Nirmala UI",
    "Leelawadee UI",
)
# First word of a character's name in Unicode -> Noto's font for it, where it isn't called by the script
_NOTO = {
    "CJK": "Noto Sans CJK SC",
    "HIRAGANA": "Noto Sans CJK JP",
    "KATAKANA": "Noto Sans CJK JP",
    "HANGUL": "Noto Sans CJK KR",
}
# What follows the script in such a name
_KINDS = "(?:CHARACTER|CONSONANT|DEPENDENT|DIGIT|INDEPENDENT|LETTER|MARK|SIGN|SUBJOINED|SYLLABLE|VOWEL)"
_MISSING = r"Glyph (\d+) "
# What matplotlib before 3.11 adds for some scripts
_UNSUPPORTED = r"Matplotlib currently does not support \w+ natively"
# Filters of warnings are those of all threads
_FILTERS = threading.RLock()


def plot_grid(
    maps: Sequence[AttentionMap],
    path: str | PathLike | None = None,
    *,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    cmap: str = "gray",
    vmax: float = 1.0,
    colorbar: bool = True,
    dpi: int = 150,
) -> Figure:
    """Draws attention maps in one figure: one colour scale, cells of equal size, panels lined up on their cells.

    Sources stand along the top and targets down the side. Spaces are drawn as `␣`. The figure grows with the texts
    until a side has about 60 tokens; past that the cells shrink, and in the end only every n-th token is named.

    Args:
        maps:
            At least one map.
        path:
            `.png`, `.svg` or `.pdf` file to write, its folders made as needed; None only draws.
        titles:
            One title a map, wrapped to its width.
        columns:
            Panels side by side; None takes as many as fit in about a page's width.
        cmap:
            Name of a matplotlib colour map. `"gray"` is that of the paper; `"Greys"` spares ink.
        vmax:
            Weight drawn as the map's last colour. Lower it for maps whose weights are all small.
        colorbar:
            Whether the scale is drawn at the side.
        dpi:
            Pixels per inch of a PNG.

    Returns:
        The figure, sized to its content.

    Raises:
        ValueError: no maps, another number of titles than maps, `columns` below 1, `vmax` not above 0, or a suffix
            that is none of the three.
    """
    maps = list(maps)
    if not maps:
        raise ValueError("maps is empty; at least 1 map is needed")
    if titles is not None and len(titles) != len(maps):
        raise ValueError(f"titles has {len(titles)} entries; there are {len(maps)} maps")
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}; it must be at least 1")
    if not vmax > 0:
        raise ValueError(f"vmax is {vmax}; it must be above 0")
    if path is not None:
        check_format(path)

    # Everything has its place already, whatever layout somebody's style asks for
    figure = Figure(dpi=dpi, facecolor="white", layout="none")
    canvas = FigureCanvasAgg(figure)
    colours = ScalarMappable(Normalize(0, vmax), cmap)
    cell = min(CELL, *(LONGEST_SIDE / max(each.weights.shape) for each in maps))
    fonts = fonts_for([*(titles or []), *(token for each in maps for token in (*each.source, *each.target))])
    panels = []
    for each, title in zip(maps, titles or [None] * len(maps), strict=True):
        axes = _draw_map(figure, each, title, colours, cell, fonts)
        panels.append(_Panel(axes, *_measure(axes, canvas), *(cell * n for n in reversed(each.weights.shape))))

    widest = max(panel.left + panel.width + panel.right for panel in panels)
    columns = min(columns or max(1, int(PAGE_WIDTH // (widest + GAP))), len(panels))
    _arrange(figure, panels, columns, colours if colorbar else None)
    if path is not None:
        save_figure(figure, path)
    return figure


@dataclass
class _Panel:
    """A map in the figure: room its labels take on each side of its cells, and the size of its cells, in inches."""

    axes: Axes
    left: float
    bottom: float
    right: float
    top: float
    width: float
    height: float


def _draw_map(
    figure: Figure,
    attention: AttentionMap,
    title: str | None,
    colours: ScalarMappable,
    cell: float,
    fonts: list[str],
) -> Axes:
    """Axes with the cells at their true size, anywhere on the figure: [`_arrange`] moves them."""
    rows, columns = attention.weights.shape
    page_width, page_height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, columns * cell / page_width, rows * cell / page_height))
    axes.imshow(
        attention.weights, cmap=colours.cmap, norm=colours.norm, aspect="auto", interpolation="nearest", resample=False
    )

    points = max(SMALLEST_FONT_POINTS, min(FONT_POINTS, 0.6 * 72 * cell))
    every = math.ceil(1.2 * points / 72 / cell)
    text = {"fontsize": points, "fontfamily": fonts, "color": INK, "parse_math": False}
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=4)
    axes.set_xticks(range(0, columns, every), [label_of(token) for token in attention.source[::every]], **text)
    axes.set_yticks(range(0, rows, every), [label_of(token) for token in attention.target[::every]], **text)

    # Characters stand upright, words on their side; the `</s>` at the end of characters is a word
    characters = 2 * sum(len(token) == 1 for token in attention.source) >= columns
    for token, label in zip(attention.source[::every], axes.get_xticklabels(), strict=True):
        label.set_rotation(0 if characters and len(token) == 1 else 90)

    # Faint lines lead the eye from a cell to its two tokens
    axes.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
    axes.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
    axes.grid(which="minor", color="gray", alpha=0.3, linewidth=min(0.5, 2 * cell))
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set(color=INK, linewidth=0.6, visible=True)
    if title is not None:
        letters = max(32, int(columns * cell / (0.55 * (points + 1) / 72)))
        title_text = "\n".join(textwrap.wrap(title, letters))
        axes.set_title(title_text, loc="left", pad=8, **{**text, "fontsize": points + 1, "fontweight": "bold"})
    return axes


def _measure(axes: Axes, canvas: FigureCanvasAgg) -> tuple[float, float, float, float]:
    """Inches that labels and title reach beyond the axes: left, bottom, right, top."""
    with missing_glyphs():
        cells, full = axes.get_window_extent(), axes.get_tightbbox(canvas.get_renderer())
    beyond = (cells.x0 - full.x0, cells.y0 - full.y0, full.x1 - cells.x1, full.y1 - cells.y1)
    return tuple(max(0.0, pixels) / axes.figure.dpi for pixels in beyond)


def _arrange(figure: Figure, panels: list[_Panel], columns: int, colours: ScalarMappable | None) -> None:
    """Sizes the figure to the panels and sets each in its place: columns share left edges, rows share top edges."""
    across = [panels[index::columns] for index in range(columns)]
    down = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    lefts = [max(panel.left for panel in column) for column in across]
    widths = [max(panel.width + panel.right for panel in column) for column in across]
    tops = [max(panel.top for panel in row) for row in down]
    heights = [max(panel.height + panel.bottom for panel in row) for row in down]

    grid_width = BORDER + sum(lefts) + sum(widths) + GAP * (columns - 1)
    width = grid_width + (COLORBAR_ROOM if colours else BORDER)
    height = 2 * BORDER + sum(tops) + sum(heights) + GAP * (len(down) - 1)
    figure.set_size_inches(width, height)

    def place(axes: Axes, left: float, top: float, wide: float, high: float) -> None:
        axes.set_position((left / width, 1 - (top + high) / height, wide / width, high / height))

    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        left = BORDER + sum(lefts[: column + 1]) + sum(widths[:column]) + GAP * column
        top = BORDER + sum(tops[: row + 1]) + sum(heights[:row]) + GAP * row
        place(panel.axes, left, top, panel.width, panel.height)

    if colours:
        axes = figure.add_axes((0, 0, 1, 1))
        bar = figure.colorbar(colours, cax=axes, ticks=[0, colours.norm.vmax / 2, colours.norm.vmax])
        bar.outline.set(edgecolor=INK, linewidth=0.6)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK, labelfontfamily=usable_fonts()[0])
        high = min(COLORBAR_HEIGHT, height - 2 * BORDER - tops[0])
        place(axes, grid_width + GAP / 2, BORDER + tops[0], COLORBAR_WIDTH, high)


def label_of(token: str) -> str:
    """A token as a label: what the eye cannot see is made visible, what is too long is cut."""
    shown = "".join(_visible(character) for character in token)
    if unicodedata.category(shown[:1] or "a").startswith("M"):
        # A combining mark needs something to stand on
        shown = f"◌{shown}"
    return shown if len(shown) <= LONGEST_LABEL else shown[: LONGEST_LABEL - 1] + "…"


def _visible(character: str) -> str:
    # The metaspace of SentencePiece-style tokens is a space too
    if character == "▁" or unicodedata.category(character) == "Zs":
        return "␣"
    return character if character.isprintable() else f"U+{ord(character):04X}"


@functools.cache
def usable_fonts() -> list[str]:
    """Those of `FONTS` that are installed."""
    return [name for name in FONTS if name in _installed()]


@functools.cache
def _installed() -> frozenset[str]:
    return frozenset(font_manager.get_font_names())


def fonts_for(texts: Iterable[str]) -> list[str]:
    """`usable_fonts`, and those of Noto's for the scripts of texts that are installed."""
    wanted = {_noto_font(character) for character in set().union(*texts)}
    return list(dict.fromkeys([*usable_fonts(), *sorted(wanted & _installed())]))


def _noto_font(character: str) -> str:
    """Name of Noto's font that has a character."""
    name = unicodedata.name(character, "")
    first = name.split(" ")[0]
    if first in _NOTO:
        return _NOTO[first]
    if "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uffef":
        # Punctuation
        return _NOTO["CJK"]
    if unicodedata.category(character)[0] not in "LMNP":
        return "Noto Emoji"
    script = re.match(rf"(.+?) {_KINDS}\b", name)
    return f"Noto Sans {(script[1] if script else first).title()}"


@contextmanager
def missing_glyphs() -> Iterator[set[str]]:
    """Collects the characters that no font has, of which matplotlib would warn one by one."""
    missing: set[str] = set()
    with _FILTERS, warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _MISSING)
        warnings.filterwarnings("ignore", _UNSUPPORTED)
        yield missing
    for item in caught:
        glyph = re.match(_MISSING, str(item.message))
        if glyph is None:
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
        else:
            missing.add(chr(int(glyph[1])))


# Fonts whose lack has been told: the frames of an animation, and the pictures of a run, lack the same
_told: set[str] = set()


def _tell_of_boxes(missing: set[str]) -> None:
    fonts = set(map(_noto_font, missing))
    if fonts <= _told:
        return
    _told.update(fonts)
    shown = "".join(sorted(missing)[:20]) + ("…" if len(missing) > 20 else "")
    logger.warning(
        "no font here has %s: boxes are drawn instead. Install %s (https://fonts.google.com/noto), and delete "
        "fontlist-*.json in %s, where matplotlib remembers fonts. A page (.html) takes the browser's fonts.",
        shown,
        ", ".join(sorted(fonts)),
        matplotlib.get_cachedir(),
    )


def render(figure: Figure, format: str) -> bytes:
    """The figure as the bytes of a `png`, `svg` or `pdf` file."""
    buffer = BytesIO()
    with missing_glyphs() as missing:
        figure.savefig(buffer, format=format, dpi=figure.dpi)
    if missing:
        _tell_of_boxes(missing)
    return buffer.getvalue()


def save_figure(figure: Figure, path: str | PathLike) -> None:
    """Writes a figure whole or not at all: a reader never sees half a picture, a failure leaves the old one.

    Args:
        figure:
            Any matplotlib figure.
        path:
            `.png`, `.svg` or `.pdf` file; its folders are made as needed.

    Raises:
        ValueError: the suffix is none of the three.
    """
    write_whole(render(figure, check_format(path)), path)


def write_whole(content: bytes, path: str | PathLike) -> None:
    """Writes a file whole or not at all; its folders are made as needed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def check_format(path: str | PathLike) -> str:
    """`png`, `svg` or `pdf`, by the suffix of a path; a `ValueError` for any other."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"path is {os.fspath(path)!r}; its suffix must be one of {', '.join(FORMATS)}")
    return suffix[1:]
