"""Pictures of shapes: read back from their pixels by rules of their own, and dealt to splits that share no layout."""

import math

import numpy as np
import pytest
from datasets import Image

from hf_attnzoo.data import load_caption_source
from hf_attnzoo.data.shapes import shapes


def in_star(u, v):
    # Five tips at radius 1, the first at the top, and dents at radius 0.4, stretched to fill its box
    x, y = u * math.sin(math.radians(72)), (v + 1) / 2 * (1 + math.cos(math.radians(36))) - 1
    angle, radius = np.degrees(np.arctan2(x, -y)), np.hypot(x, y)
    # Folded onto the tenth between a tip, at (1, 0), and the dent after it
    angle = np.radians(np.abs((angle + 36) % 72 - 36))
    dent_x, dent_y = 0.4 * math.cos(math.radians(36)), 0.4 * math.sin(math.radians(36))
    return dent_y * (radius * np.cos(angle) - 1) - (dent_x - 1) * radius * np.sin(angle) < 0


# Each filled area, in the coordinates of its box from -1 to 1, to the right and down
AREAS = {
    "circle": lambda u, v: u**2 + v**2 < 1,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) < 1,
    "triangle": lambda u, v: (np.abs(u) < (v + 1) / 2) & (v < 1),
    "diamond": lambda u, v: np.abs(u) + np.abs(v) < 1,
    "star": in_star,
    "cross": lambda u, v: (np.minimum(np.abs(u), np.abs(v)) < 1 / 3) & (np.maximum(np.abs(u), np.abs(v)) < 1),
}
COLOURS = {
    "red": (220, 30, 30),
    "pink": (250, 140, 190),
    "yellow": (250, 225, 20),
    "green": (30, 150, 60),
    "cyan": (40, 200, 220),
    "blue": (30, 70, 220),
    "purple": (140, 40, 180),
    "black": (20, 20, 20),
}


def read_shape(pixels, box):
    """Colour and name of what fills a box: the colour of its middle, and the area that explains it best."""
    middle = pixels[int(box[1] + box[3]) // 2, int(box[0] + box[2]) // 2]
    colour = min(COLOURS, key=lambda name: np.abs(middle - COLOURS[name]).sum())
    contrast = (middle - pixels[0, 0]).astype(float)
    covered = ((pixels - pixels[0, 0]) @ contrast / (contrast @ contrast)).clip(0, 1)

    sides, grids = [], []
    for low, high in ((box[0], box[2]), (box[1], box[3])):
        side = slice(math.floor(low), math.ceil(high))
        # Eight points to a pixel, from -1 to 1 in the box
        points = side.start + (np.arange(8 * (side.stop - side.start)) + 0.5) / 8
        sides.append(side)
        grids.append((points - low) / (high - low) * 2 - 1)
    seen = covered[sides[1], sides[0]]
    misfits = {}
    for name, area in AREAS.items():
        expected = area(*np.meshgrid(*grids)).reshape(seen.shape[0], 8, seen.shape[1], 8).mean((1, 3))
        misfits[name] = np.abs(expected - seen).mean()
    name, second = sorted(misfits, key=misfits.get)[:2]
    # Clearly this shape and no other
    assert misfits[name] < 0.05 < 0.1 < misfits[second]
    return f"a {colour} {name}"


def read_caption(pixels, boxes):
    """The caption, from the pixels and from where shapes lie, in any order."""
    boxes = sorted(boxes, key=lambda box: box[0] - box[2])
    phrases = [read_shape(pixels, box) for box in boxes]
    if len(boxes) == 1:
        return phrases[0]
    assert boxes[0][2] - boxes[0][0] > 1.3 * (boxes[1][2] - boxes[1][0])
    x, y = (boxes[0][i] + boxes[0][i + 2] - boxes[1][i] - boxes[1][i + 2] for i in (0, 1))
    assert max(abs(x), abs(y)) > 1.999 * min(abs(x), abs(y))
    relation = ("left of" if x < 0 else "right of") if abs(x) > abs(y) else ("above" if y < 0 else "below")
    return f"{phrases[0]} {relation} {phrases[1]}"


@pytest.mark.parametrize("image_size", [64, 100])
def test_a_picture_determines_its_caption(image_size):
    relations = set()
    for row in shapes("train", 150, seed=3, image_size=image_size):
        assert row["image"].size == (image_size, image_size)
        assert row["image"].mode == "RGB"
        boxes = [shape["box"] for shape in row["objects"]]
        pixels = np.asarray(row["image"]).astype(int)
        caption = read_caption(pixels, boxes)
        assert caption == row["caption"]
        words = caption.split()
        relations.add(" ".join(words[3:-3]))
        assert [words[shape["word"]] for shape in row["objects"]] == [shape["name"] for shape in row["objects"]]
        assert [shape["word"] for shape in row["objects"]] == [2, len(words) - 1][: len(boxes)]
        # Everything that is not background lies in a box, and every box is filled to its edges
        drawn = (pixels != pixels[0, 0]).any(axis=2)
        for left, top, right, bottom in boxes:
            window = slice(math.floor(top), math.ceil(bottom)), slice(math.floor(left), math.ceil(right))
            rows, columns = np.nonzero(drawn[window])
            np.testing.assert_allclose(rows.max() - rows.min(), bottom - top, atol=2)
            np.testing.assert_allclose(columns.max() - columns.min(), right - left, atol=2)
            drawn[window] = False
            assert 0 <= min(left, top) < max(right, bottom) <= image_size
        assert not drawn.any()
    assert relations == {"", "above", "below", "left of", "right of"}


def test_no_layout_is_in_two_splits_and_every_word_is_in_training():
    splits = {split: shapes(split, 500, image_size=32) for split in ("train", "validation", "test")}
    captions = {split: set(dataset["caption"]) for split, dataset in splits.items()}
    assert not captions["train"] & captions["test"]
    assert not captions["train"] & captions["validation"]
    assert not captions["validation"] & captions["test"]
    words = {word for caption in captions["train"] for word in caption.split()}
    # The article, 8 colours, 6 shapes, 2 relations of one word, 2 of two
    assert len(words) == 1 + 8 + 6 + 2 + 3
    assert {word for caption in captions["validation"] | captions["test"] for word in caption.split()} <= words


def test_layouts_that_were_dealt_once_and_for_all():
    # By the hash of the caption; these must not move, or models that were trained would be tested on what they saw
    assert set(shapes("test", 60, single_share=1, image_size=32)["caption"]) == {"a pink circle", "a blue circle"}
    assert set(shapes("validation", 60, single_share=1, image_size=32)["caption"]) == {"a black diamond"}


def test_seeded():
    def pictures(*args, **options):
        return [row["image"]["bytes"] for row in shapes(*args, **options).cast_column("image", Image(decode=False))]

    assert pictures("train", 6, seed=1)[:4] == pictures("train", 4, seed=1)
    assert pictures("train", 4, seed=1) != pictures("train", 4, seed=2)
    assert len(set(pictures("test", 100, seed=1))) == 100


def test_share_of_single_shapes():
    assert {len(row) for row in shapes("train", 40, single_share=0)["objects"]} == {2}
    assert {len(row) for row in shapes("train", 40, single_share=1)["objects"]} == {1}
    assert 60 < sum(len(row) == 1 for row in shapes("train", 200, single_share=0.4)["objects"]) < 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split='dev'"),
        ({"size": 0}, "size=0"),
        ({"image_size": 31}, r"image_size=31 must be an integer in 32\.\.1024"),
        ({"image_size": 64.0}, r"image_size=64\.0"),
        ({"single_share": 1.5}, r"single_share=1\.5 must lie in 0\.\.1"),
    ],
)
def test_refuses_clearly(options, message):
    with pytest.raises(ValueError, match=message):
        shapes(**({"split": "train", "size": 1} | options))


def test_behind_the_door_of_captions():
    dataset = load_caption_source("shapes", "test", size=2, seed=5, image_size=40)
    assert dataset.column_names == ["image", "caption", "objects"]
    assert dataset["caption"] == shapes("test", 2, seed=5)["caption"]
    with pytest.raises(ValueError, match="source 'shapes' has no option 'image_sise'; did you mean 'image_size'"):
        load_caption_source("shapes", "test", size=2, image_sise=40)
