"""Pictures of scores: by source length, and of classes that are taken for each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..attention_maps.plotting import save_figure
from .lengths import LengthBin
from .names import SCORE_NAMES

# Okabe and Ito's colours, told apart by colour-blind readers too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
INK, FAINT = "#333333", "#dddddd"

# Scores that go to 100, or beyond
HUNDREDS = ("bleu", "chrf", "ter", "gleu")

# Share of the height that the name of a line takes, and how many names of bins fit side by side
LABEL_STEP = 0.06
MOST_TICKS = 16


def plot_by_length(
    reports: Mapping[str, Sequence[LengthBin]],
    path: str | PathLike | None = None,
    *,
    measure: str = "token_accuracy",
    trained: tuple[int, int] | None = None,
    counts: bool = False,
    title: str | None = None,
    dpi: int = 150,
) -> Figure:
    """Draws a score against source length, a line a model, each with its 95 % interval as a band.

    Args:
        reports:
            For each model's name what [`by_length`] returned.
        path:
            `.png`, `.svg` or `.pdf` file to write, its folders made as needed; None only draws.
        measure:
            Name of a score that the bins hold.
        trained:
            Shortest and longest source length seen in training, shaded in the picture.
        counts:
            Whether columns below say how many sentences each bin holds.
        title:
            Title.
        dpi:
            Pixels per inch of a PNG.

    Returns:
        The figure.

    Raises:
        ValueError: no reports, an empty one, a measure that a report doesn't hold, or a suffix that is none of the
            three.
    """
    if not reports or not all(reports.values()):
        raise ValueError(f"reports is {dict(reports)!r}; at least 1 model with at least 1 bin is needed")
    for report in reports.values():
        held = [name for each in report for name in each.scores]
        if measure not in held:
            raise ValueError(f"measure is {measure!r}; it must be one of {', '.join(dict.fromkeys(held))}")
    reports = {name: [each for each in report if measure in each.scores] for name, report in reports.items()}
    figure = Figure(figsize=(7.2, 4.8 if counts else 4.2), dpi=dpi, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    FigureCanvasAgg(figure)
    if counts:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    else:
        axes, below = figure.add_subplot(), None
    ends = {}
    for number, (name, report) in enumerate(reports.items()):
        middles = [(each.low + each.high) / 2 for each in report]
        scores = [each.scores[measure] for each in report]
        # Where nothing is known of it the band has a gap: without a width it would look certain
        known = [each.intervals.get(measure, (math.nan, math.nan)) for each in report]
        low, high = zip(*known, strict=True)
        ends[name] = (scores[-1], draw_line(axes, number, middles, scores, low, high))

    bins = sorted({(each.low, each.high) for report in reports.values() for each in report})
    top = _top(reports, measure)
    _name_bins(axes, bins)
    name_lines(axes, ends, top)
    if below is not None:
        _draw_counts(below, max(reports.values(), key=len))
    if trained is not None:
        axes.axvspan(trained[0] - 0.5, trained[1] + 0.5, color=FAINT, alpha=0.4, linewidth=0, zorder=0)
        axes.annotate(
            "lengths in training",
            (sum(trained) / 2, 0),
            xytext=(0, 4),
            textcoords="offset points",
            horizontalalignment="center",
            color=INK,
            fontsize=8,
        )

    axes.set_ylim(0, 1.03 * top)
    if measure not in HUNDREDS:
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    (below or axes).set_xlabel("Source length in tokens (bands: 95 % intervals)", color=INK)
    name = SCORE_NAMES[measure]
    axes.set_ylabel(name.capitalize() if name.islower() else name, color=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    if title is not None:
        axes.set_title(title, loc="left", fontweight="bold", color=INK, pad=10)
    if path is not None:
        save_figure(figure, path)
    return figure


def plot_confusion(
    classes: Sequence[str],
    counts: Sequence[Sequence[int]],
    path: str | PathLike | None = None,
    *,
    title: str | None = None,
    dpi: int = 150,
) -> Figure:
    """Draws how often each class was taken for each: shades are shares of a row, numbers are counts.

    Args:
        classes:
            C names, in order.
        counts:
            Of [`confusion_matrix`], shape `(C, C)`: row the class that it is, column what it was taken for.
        path:
            `.png`, `.svg` or `.pdf` file to write, its folders made as needed; None only draws.
        title:
            Title.
        dpi:
            Pixels per inch of a PNG.

    Returns:
        The figure.

    Raises:
        ValueError: no classes, counts of another shape, or a suffix that is none of the three.
    """
    table = np.asarray(counts, dtype=np.float64)
    if not len(classes) or table.shape != (len(classes), len(classes)):
        raise ValueError(
            f"counts has the shape {table.shape}, and there are {len(classes)} classes: it must be (C, C)"
        )
    side = min(2.2 + 0.5 * len(classes), 12)
    figure = Figure(figsize=(side + 0.6, side), dpi=dpi, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # A class that is the right one nowhere has a row without shades.
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= MOST_TICKS:
        for row, column in np.ndindex(table.shape):
            colour = "white" if shares[row, column] > 0.5 else INK
            axes.text(column, row, f"{table[row, column]:,.0f}", ha="center", va="center", color=colour, fontsize=8)
    shown = range(0, len(classes), -(-len(classes) // (3 * MOST_TICKS)))
    names = [classes[number] for number in shown]
    axes.set_xticks(list(shown), names, rotation=90 if max(map(len, names)) > 3 else 0, parse_math=False)
    axes.set_yticks(list(shown), names, parse_math=False)
    axes.set_xlabel("Taken for", color=INK)
    axes.set_ylabel("Class", color=INK)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    if title is not None:
        axes.set_title(title, loc="left", fontweight="bold", color=INK, pad=10, parse_math=False)
    if path is not None:
        save_figure(figure, path)
    return figure


def _top(reports: Mapping[str, Sequence[LengthBin]], measure: str) -> float:
    """The end of the scale: 1 for what can't be more, otherwise a little above the highest line."""
    if measure in ("exact_match", "token_accuracy", "sequence_error_rate"):
        return 1.0
    bins = [each for report in reports.values() for each in report]
    highest = max(max(each.scores[measure], *each.intervals.get(measure, (0, 0))) for each in bins)
    return highest if highest > 0 else 1.0


def _draw_counts(axes: Axes, report: Sequence[LengthBin]) -> None:
    """Columns as wide as the bins, with their numbers on top if they fit."""
    middles = [(each.low + each.high) / 2 for each in report]
    columns = axes.bar(
        middles, [each.count for each in report], [each.high - each.low + 0.8 for each in report], color="#bbbbbb"
    )
    if len(report) <= MOST_TICKS:
        axes.bar_label(columns, fontsize=8, color=INK, padding=1)
    axes.set_ylabel("Sentences", color=INK, fontsize=8)
    axes.margins(y=0.35)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)


def _name_bins(axes: Axes, bins: list[tuple[int, int]]) -> None:
    """Ticks at the middles of the bins, no more than fit."""
    shown = bins[:: -(-len(bins) // MOST_TICKS)]
    labels = [str(low) if low == high else f"{low}\N{EN DASH}{high}" for low, high in shown]
    axes.set_xticks([(low + high) / 2 for low, high in shown], labels)


def draw_line(
    axes: Axes,
    number: int,
    places: Sequence[float],
    values: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
) -> str:
    """Draws a line of N points with its intervals as a band.

    Args:
        axes:
            Where to draw.
        number:
            Of the line among others, which its colour and its marks follow from.
        places:
            N places along the picture.
        values:
            N values.
        low:
            Lower ends of their intervals.
        high:
            Upper ends.

    Returns:
        The colour.
    """
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(places, values, color=colour, marker=marker, markersize=5, linewidth=2, zorder=3, clip_on=False)
    return colour


def name_lines(axes: Axes, ends: Mapping[str, tuple[float, str]], top: float) -> None:
    """Names the lines at the right edge, as high as each ends but apart from one another."""
    step = LABEL_STEP * top
    lowest_free = step * (len(ends) - 1)
    above = math.inf
    for name, (score, colour) in sorted(ends.items(), key=lambda item: -item[1][0]):
        height = min(max(score, lowest_free), above - step)
        axes.text(
            1.01,
            height,
            name,
            transform=axes.get_yaxis_transform(),
            verticalalignment="center",
            color=colour,
            fontweight="bold",
            parse_math=False,
        )
        above, lowest_free = height, lowest_free - step
