"""The built-in source `shapes`: pictures of coloured shapes, captions that say which and where, and their true boxes.

A picture shows one shape, or a large and a small one. The caption names the large one first, and says on which side of
the small one it lies: `"a red circle above a blue square"`. The two sizes never meet, and the distance along one axis
is at least twice that along the other, so that a picture determines its caption and a perfect model reaches 100 %.
"""

import functools
import io
import itertools
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from datasets import Dataset, Features, Image, List, Value
from PIL import Image as PILImage
from PIL import ImageDraw

from .splits import check_split, draw_rows, pick, split_of

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 30),
    "pink": (250, 140, 190),
    "yellow": (250, 225, 20),
    "green": (30, 150, 60),
    "cyan": (40, 200, 220),
    "blue": (30, 70, 220),
    "purple": (140, 40, 180),
    "black": (20, 20, 20),
}
"""Colours by name, as RGB; a shape's own is off by at most `COLOUR_SPREAD` in each channel.

None begins with a vowel: whoever has to choose between "a" and "an" has to look at the shape before naming it.
"""

RELATIONS: dict[str, tuple[int, int]] = {"above": (0, -1), "below": (0, 1), "left of": (-1, 0), "right of": (1, 0)}
"""Where the first shape lies, seen from the second: steps to the right and down."""

COLOUR_SPREAD = 12

FEATURES = Features(
    {
        "image": Image(),
        "caption": Value("string"),
        "objects": List({"name": Value("string"), "word": Value("int32"), "box": List(Value("float32"), length=4)}),
    }
)

# Everything below is in 64ths of the picture's side.
_SIDE = 64
_LARGE = (9.0, 12.0)
_SMALL = (4.5, 6.5)
_BORDER = 1.0
_GAP = 3.0
_ROOM = _SIDE - 2 * _BORDER

# Drawn this much larger and shrunk again, which smooths the edges.
_OVERSAMPLING = 8
_MIN_SIZE, _MAX_SIZE = 32, 1024


class _Shape(NamedTuple):
    """A colour, a shape, and the words that name them."""

    colour: str
    name: str


class _Placed(NamedTuple):
    """A shape in a picture: its centre and half its side, in 64ths, and its own shade."""

    shape: _Shape
    x: float
    y: float
    radius: float
    shade: tuple[int, int, int]


class _Layout(NamedTuple):
    """What a caption says: one shape, or two and the relation of the first to the second."""

    caption: str
    shapes: tuple[_Shape, ...]
    relation: str | None


def shapes(split: str, size: int, seed: int = 0, image_size: int = 64, single_share: float = 0.1) -> Dataset:
    """Pictures of coloured shapes, captions and boxes: `"a red circle above a blue square"`, `"a green star"`.

    A hash of the caption deals the layouts to the splits, so that what `test` shows is never in `train`, in any
    position, while all its words are. Rows depend on nothing but the arguments (and on Pillow, which draws them).

    Args:
        split: `train` (90 % of all layouts), `validation` or `test` (5 % each).
        size: number of rows; 1,000 take about a second.
        seed: another seed, other rows of the same split.
        image_size: side of the pictures in pixels, 32 to 1024.
        single_share: share of pictures with one shape, 0 to 1.

    Returns:
        A dataset with the columns `image`; `caption`; and `objects`, a list of `name` (the shape's word), `word` (its
        place among the words of the caption, from 0) and `box` (left, top, right, bottom in pixels), in the order of
        the caption.

    Raises:
        ValueError: an argument out of range.
    """
    check_split(split)
    if isinstance(image_size, bool) or not isinstance(image_size, int) or not _MIN_SIZE <= image_size <= _MAX_SIZE:
        raise ValueError(f"image_size={image_size!r} must be an integer in {_MIN_SIZE}..{_MAX_SIZE}")
    if not 0 <= single_share <= 1:
        raise ValueError(f"single_share={single_share} must lie in 0..1")
    singles, pairs = _layouts(split)

    def propose(generator: random.Random) -> dict[str, Any]:
        layouts = singles if generator.random() < single_share else pairs
        layout = layouts[pick(generator, len(layouts))]
        background = _background(generator)
        placed = _place(generator, layout)
        return {"source": repr((background, placed)), "layout": layout, "background": background, "placed": placed}

    rows = draw_rows("shapes", split, size, seed, propose)
    columns = {
        "image": [{"bytes": _draw(row["background"], row["placed"], image_size), "path": None} for row in rows],
        "caption": [row["layout"].caption for row in rows],
        "objects": [_objects(row["layout"].caption, row["placed"], image_size) for row in rows],
    }
    return Dataset.from_dict(columns, features=FEATURES)


@functools.cache
def _layouts(split: str) -> tuple[tuple[_Layout, ...], tuple[_Layout, ...]]:
    """The layouts of a split with one shape and with two."""
    every = [_Shape(colour, name) for colour in COLOURS for name in OUTLINES]
    single = (_Layout(_phrase(shape), (shape,), None) for shape in every)
    double = (
        _Layout(f"{_phrase(first)} {relation} {_phrase(second)}", (first, second), relation)
        for first, second in itertools.permutations(every, 2)
        for relation in RELATIONS
    )
    return tuple(
        tuple(layout for layout in layouts if split_of(layout.caption) == split) for layouts in (single, double)
    )


def _phrase(shape: _Shape) -> str:
    return f"a {shape.colour} {shape.name}"


def _background(generator: random.Random) -> tuple[int, int, int]:
    light = _between(generator, 185, 245)
    return tuple(round(light + _between(generator, -10, 10)) for _ in range(3))


def _place(generator: random.Random, layout: _Layout) -> tuple[_Placed, ...]:
    shades = [
        tuple(
            min(255, max(0, round(level + _between(generator, -COLOUR_SPREAD, COLOUR_SPREAD))))
            for level in COLOURS[shape.colour]
        )
        for shape in layout.shapes
    ]
    if layout.relation is None:
        radius = _between(generator, _SMALL[0], _LARGE[1])
        x, y = (_between(generator, _BORDER + radius, _SIDE - _BORDER - radius) for _ in range(2))
        return (_Placed(layout.shapes[0], x, y, radius, shades[0]),)

    radii = _between(generator, *_LARGE), _between(generator, *_SMALL)
    along = _between(generator, sum(radii) + _GAP, _ROOM - sum(radii))
    most_across = min(along / 2, _ROOM - sum(radii))
    across = _between(generator, -most_across, most_across)
    step_x, step_y = RELATIONS[layout.relation]
    # From the second shape's centre to the first's
    offsets = (step_x * along, across) if step_x else (across, step_y * along)
    first, second = zip(*(_positions(generator, offset, radii) for offset in offsets), strict=True)
    return tuple(
        _Placed(shape, *centre, radius, shade)
        for shape, centre, radius, shade in zip(layout.shapes, (first, second), radii, shades, strict=True)
    )


def _positions(generator: random.Random, offset: float, radii: tuple[float, float]) -> tuple[float, float]:
    """Coordinates of two centres `offset` apart that keep both shapes in the picture."""
    low = max(_BORDER + radii[1], _BORDER + radii[0] - offset)
    high = min(_SIDE - _BORDER - radii[1], _SIDE - _BORDER - radii[0] - offset)
    second = _between(generator, low, high)
    return second + offset, second


def _between(generator: random.Random, low: float, high: float) -> float:
    return low + (high - low) * generator.random()


def _draw(background: tuple[int, int, int], placed: tuple[_Placed, ...], image_size: int) -> bytes:
    """The picture as the bytes of a PNG file."""
    picture = PILImage.new("RGB", (image_size, image_size), background)
    for each in placed:
        left, top, right, bottom = _box(each, image_size)
        # Whole pixels around the shape, so that the patch fits the grid of the picture
        x, y = math.floor(left), math.floor(top)
        size = (math.ceil(right) - x, math.ceil(bottom) - y)
        mask = PILImage.new("L", (size[0] * _OVERSAMPLING, size[1] * _OVERSAMPLING))
        scale = image_size / _SIDE * each.radius * _OVERSAMPLING
        # Pillow's coordinates are those of the middle of a pixel
        middle_x, middle_y = (
            ((left + right) / 2 - x) * _OVERSAMPLING - 0.5,
            ((top + bottom) / 2 - y) * _OVERSAMPLING - 0.5,
        )
        outline = [(middle_x + scale * u, middle_y + scale * v) for u, v in OUTLINES[each.shape.name]]
        ImageDraw.Draw(mask).polygon(outline, fill=255)
        picture.paste(each.shade, (x, y), mask.reduce(_OVERSAMPLING))
    file = io.BytesIO()
    picture.save(file, "png")
    return file.getvalue()


def _objects(caption: str, placed: tuple[_Placed, ...], image_size: int) -> list[dict[str, Any]]:
    words = caption.split()
    # "a red circle", and "a blue square" at the end
    places = (2, len(words) - 1)[: len(placed)]
    return [
        {"name": words[place], "word": place, "box": list(_box(each, image_size))}
        for place, each in zip(places, placed, strict=True)
    ]


def _box(placed: _Placed, image_size: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom in pixels. Every outline reaches from -1 to 1 in both directions."""
    scale = image_size / _SIDE
    left, top = (placed.x - placed.radius) * scale, (placed.y - placed.radius) * scale
    return left, top, left + 2 * placed.radius * scale, top + 2 * placed.radius * scale


def _regular(corners: int, radius: Callable[[int], float] = lambda corner: 1.0) -> list[tuple[float, float]]:
    """Corners around the centre, the first at the top, stretched to fill the square from -1 to 1."""
    angles = [2 * math.pi * corner / corners for corner in range(corners)]
    points = [(radius(i) * math.sin(angle), -radius(i) * math.cos(angle)) for i, angle in enumerate(angles)]
    columns = []
    for values in zip(*points, strict=True):
        low, high = min(values), max(values)
        columns.append([2 * (value - low) / (high - low) - 1 for value in values])
    return list(zip(*columns, strict=True))


OUTLINES: dict[str, list[tuple[float, float]]] = {
    "circle": _regular(64),
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "triangle": [(0, -1), (1, 1), (-1, 1)],
    "diamond": [(0, -1), (1, 0), (0, 1), (-1, 0)],
    "star": _regular(10, lambda corner: 0.4 if corner % 2 else 1.0),
    "cross": [
        *((-1 / 3, -1), (1 / 3, -1), (1 / 3, -1 / 3), (1, -1 / 3), (1, 1 / 3), (1 / 3, 1 / 3)),
        *((1 / 3, 1), (-1 / 3, 1), (-1 / 3, 1 / 3), (-1, 1 / 3), (-1, -1 / 3), (-1 / 3, -1 / 3)),
    ],
}
"""Shapes by name: corners, from -1 to 1 to the right and down."""
