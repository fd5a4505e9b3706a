"""The picture of a run: its losses and its score, step by step."""

from collections.abc import Mapping, Sequence
from os import PathLike

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..attention_maps.plotting import save_figure

# Okabe and Ito's blue and vermilion, told apart by colour-blind readers too
TRAINING, VALIDATION = "#0072B2", "#D55E00"
INK, FAINT = "#333333", "#dddddd"
# Up to how large a ratio of losses which multiples of a power of ten are labelled
_BETWEEN = ((30, (1, 1.5, 2, 3, 5, 7)), (1000, (1, 3)))
_TITLE = {"loc": "left", "color": INK, "fontsize": 10}


def plot_curve(
    losses: Sequence[tuple[int, float]],
    evaluations: Sequence[Mapping[str, float]],
    path: str | PathLike | None = None,
    *,
    metric: str | None = None,
    name: str | None = None,
    dpi: int = 100,
) -> Figure:
    """Draws the losses of training and validation, on a logarithmic scale, and beside them a score of validation.

    Args:
        losses: pairs of a step and the training loss reported there.
        evaluations: scores of the validation split, each with its `step`, and `loss` among them.
        path: `.png`, `.svg` or `.pdf` file to write, its folders made as needed; None only draws.
        metric: the score to draw. Default: `None`, no score.
        name: what it is called in the picture. Default: `None`, `metric`.
        dpi: pixels per inch of a PNG.

    Returns:
        The figure.

    Raises:
        ValueError: nothing to draw, a score that no evaluation has, or a suffix that is none of the three.
    """
    scores = [(each["step"], each[metric]) for each in evaluations if metric in each]
    if not losses and not evaluations:
        raise ValueError("losses and evaluations are empty; there is nothing to draw")
    if metric is not None and not scores:
        raise ValueError(f"metric is {metric!r}, which no evaluation has")
    figure = Figure(figsize=(8 if scores else 4.4, 3), dpi=dpi, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    left, *right = figure.subplots(1, 2 if scores else 1, squeeze=False)[0]
    validation = [(each["step"], each["loss"]) for each in evaluations if "loss" in each]
    for points, label, colour in ((losses, "training", TRAINING), (validation, "validation", VALIDATION)):
        if points:
            _line(left, points, colour, label)
    # A loss of exactly 0 has no place on a logarithmic scale
    values = [loss for _, loss in [*losses, *validation]]
    if min(values, default=0) > 0:
        left.set_yscale("log")
        # As many labels as there is room for
        span = max(values) / min(values)
        between = next((subs for most, subs in _BETWEEN if span < most), (1,))
        left.yaxis.set_major_locator(LogLocator(subs=between))
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        left.yaxis.set_minor_locator(NullLocator())
    # Above the axes, where a long name has room
    left.set_title("loss", **_TITLE)
    left.legend(frameon=False, labelcolor=INK)
    if scores:
        _line(right[0], scores, VALIDATION, None)
        right[0].set_title(f"validation: {name or metric}", **_TITLE)
    for axes in (left, *right):
        axes.set_xlabel("step", color=INK)
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelcolor=INK)
    if path is not None:
        save_figure(figure, path)
    return figure


def _line(axes: Axes, points: Sequence[tuple[int, float]], colour: str, label: str | None) -> None:
    steps, values = zip(*points, strict=True)
    # Few points would be overlooked without a mark
    marker = "o" if len(points) < 30 else None
    axes.plot(steps, values, color=colour, label=label, marker=marker, markersize=3.5, linewidth=1.6)
