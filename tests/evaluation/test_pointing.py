"""The pointing score on attention made by hand, and through a model against a plain forward pass."""

import numpy as np
import pytest
from PIL import Image

from hf_attnzoo import (
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    ShowAttendTellImageProcessor,
    ShowAttendTellProcessor,
    attention_map,
    train_tokenizer,
)
from hf_attnzoo.data.shapes import shapes
from hf_attnzoo.evaluation import pointing, pointing_hits, pointing_score
from hf_attnzoo.testing import scattered

CAPTIONS = ["a red circle", "a blue square above a star"]


def processor_for(kind, texts=CAPTIONS, **options):
    return ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=16), train_tokenizer(kind, texts, **options))


def rows():
    """Pictures of 40 x 80 pixels, on which a grid of 4 x 4 has cells of 10 x 20."""
    image = Image.new("RGB", (40, 80))
    return [
        {"image": image, "caption": CAPTIONS[0], "objects": [{"word": 2, "box": [10, 20, 20, 40]}]},
        {
            "image": image,
            "caption": CAPTIONS[1],
            "objects": [{"word": 2, "box": [0, 0, 10, 20]}, {"word": 5, "box": [30, 60, 40, 80]}],
        },
    ]


def grids(length, looks):
    """Attention of `length` tokens on a grid of 4 x 4: all on one cell where `looks` says so, otherwise everywhere."""
    weights = np.full((length, 4, 4), 1 / 16)
    for token, cell in looks.items():
        weights[token] = 0
        weights[token][cell] = 1
    return weights


@pytest.fixture
def looking(monkeypatch):
    """Makes every model look as told, and remembers which captions were asked for."""

    def look(*looks):
        asked = []

        def attention_rows(model, processor, images, captions):
            asked.extend(captions)
            lengths = {caption: len(processor(text=caption)["labels"][0]) for caption in captions}
            return [grids(lengths[caption], looks[CAPTIONS.index(caption)]) for caption in captions]

        monkeypatch.setattr(pointing, "attention_rows", attention_rows)
        return asked

    return look


def test_by_hand(looking):
    processor = processor_for("word")
    # The circle is found, row 1 and column 1; the square is missed by a row; the star is found
    looking({2: (1, 1)}, {2: (1, 0), 5: (3, 3)})
    assert pointing_hits(None, processor, rows()).tolist() == [1, 0, 1]
    score = pointing_score(None, processor, rows(), batch_size=1)
    assert score == (2 / 3, "words:3|captions:all|peak:bicubic")


def test_only_right_captions_count(looking):
    asked = looking({2: (1, 1)}, {2: (1, 0), 5: (3, 3)})
    score = pointing_score(None, processor_for("word"), rows(), ["a red square", CAPTIONS[1]])
    assert asked == CAPTIONS[1:]
    assert score == (1 / 2, "words:2|captions:exact|peak:bicubic")
    with pytest.raises(ValueError, match="nothing to point at"):
        pointing_score(None, processor_for("word"), rows(), ["", ""])


def test_the_peak_lies_between_cells(looking, monkeypatch):
    # Equal weights on two neighbours: a peak at 10 and 10, the corner of neither
    weights = grids(4, {2: (0, 0)})
    weights[2][0, 0] = weights[2][0, 1] = weights[2][1, 0] = weights[2][1, 1] = 0.25
    monkeypatch.setattr(pointing, "attention_rows", lambda *_: [weights])
    row = {"image": Image.new("RGB", (40, 40)), "caption": CAPTIONS[0]}
    for box, hit in (([7, 7, 13, 13], 1), ([0, 0, 7, 7], 0)):
        assert pointing_hits(
            None, processor_for("word"), [{**row, "objects": [{"word": 2, "box": box}]}]
        ).tolist() == [hit]


def test_words_of_several_tokens(looking):
    processor = processor_for("character")
    # "circle" is written by tokens 6 to 11; four of the six look at it
    looking({place: (1, 1) if place < 10 else (3, 3) for place in range(6, 12)}, {})
    assert pointing_hits(None, processor, rows()[:1]).tolist() == [1]
    looking({place: (1, 1) if place < 8 else (3, 3) for place in range(6, 12)}, {})
    assert pointing_hits(None, processor, rows()[:1]).tolist() == [0]


@pytest.mark.parametrize("kind", ["word", "two vocabularies"])
def test_through_a_model(kind):
    dataset = shapes("train", 12, image_size=32)
    captions = dataset["caption"]
    tokenizer = train_tokenizer("word", captions, captions if kind != "word" else None)
    processor = ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=16), tokenizer)
    config = ShowAttendTellConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), image_size=16, encoder_channels=[4, 8]
    )
    model = scattered(ShowAttendTellForConditionalGeneration(config), seed=2, std=0.6)
    expected = []
    for row in dataset:
        looked = attention_map(model, processor, row["image"], row["caption"])
        for thing in row["objects"]:
            x, y = looked.peak(thing["word"])
            left, top, right, bottom = thing["box"]
            expected.append(int(left <= x <= right and top <= y <= bottom))
    assert pointing_hits(model, processor, dataset, batch_size=5).tolist() == expected


def test_refuses_clearly(looking):
    processor = processor_for("word")
    looking({}, {})
    with pytest.raises(ValueError, match="rows is empty"):
        pointing_score(None, processor, [])
    with pytest.raises(ValueError, match="there are 1 predictions and 2 rows"):
        pointing_score(None, processor, rows(), ["a"])
    bad = [{**rows()[0], "objects": [{"word": 3, "box": [0, 0, 1, 1]}]}]
    with pytest.raises(ValueError, match="word 3 is not one of 'a red circle'"):
        pointing_score(None, processor, bad)
