"""The processor's batches by hand, with either kind of tokenizer."""

import json

import numpy as np
import pytest
import torch

from hf_attnzoo import ShowAttendTellImageProcessor, ShowAttendTellProcessor, train_tokenizer

CAPTIONS = ["a red circle above a blue square", "a green star"]
# Words by how often they occur, those of one number by the alphabet, after the four special ones
WORDS = ["a", "above", "blue", "circle", "green", "red", "square", "star"]
IDS = [[4, 9, 7, 5, 4, 6, 10, 3], [4, 8, 11, 3]]
IMAGES = [np.zeros((5, 6, 3), np.uint8), np.full((5, 6, 3), 255, np.uint8)]


@pytest.fixture(scope="module", params=["one vocabulary", "two vocabularies"])
def processor(request):
    if request.param == "one vocabulary":
        tokenizer = train_tokenizer("word", CAPTIONS)
    else:
        tokenizer = train_tokenizer("word", ["circle star", "unrelated"], CAPTIONS)
    return ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=4), tokenizer)


def test_images_and_captions(processor):
    assert [processor.tokenizer.convert_ids_to_tokens(i) for i in range(4, 12)] == WORDS
    batch = processor(images=IMAGES, text=CAPTIONS, return_tensors="pt")
    assert set(batch) == set(processor.model_input_names) == {"pixel_values", "labels"}
    assert batch["labels"].tolist() == [IDS[0], IDS[1] + [-100] * 4]
    assert batch["labels"].dtype == torch.int64
    assert batch["pixel_values"].shape == (2, 3, 4, 4)
    assert batch["pixel_values"].amin((1, 2, 3)).tolist() == batch["pixel_values"].amax((1, 2, 3)).tolist() == [-1, 1]


def test_either_alone(processor):
    assert processor(text=CAPTIONS)["labels"] == IDS
    assert processor(text=CAPTIONS[1])["labels"] == [IDS[1]]
    assert set(processor(images=IMAGES[0])) == {"pixel_values"}
    assert processor(images=IMAGES[0], text=CAPTIONS[1], return_tensors="np")["labels"].tolist() == [IDS[1]]


def test_arguments_reach_their_part(processor):
    batch = processor(
        images=IMAGES, text=CAPTIONS, return_tensors="pt", size=6, do_normalize=False, max_length=4, truncation=True
    )
    assert batch["pixel_values"].shape == (2, 3, 6, 6)
    assert batch["pixel_values"].unique().tolist() == [0, 1]
    assert batch["labels"].tolist() == [[4, 9, 7, 3], [4, 8, 11, 3]]
    assert processor(text=CAPTIONS[1], padding="max_length", max_length=6)["labels"] == [IDS[1] + [-100] * 2]
    assert processor(text=["an ox"])["labels"] == [[0, 0, 3]]


def test_padding_is_at_the_end_whatever_the_tokenizer_does_to_sources(processor):
    processor.tokenizer.padding_side = "left"
    try:
        labels = processor(text=CAPTIONS, return_tensors="pt")["labels"].tolist()
    finally:
        processor.tokenizer.padding_side = "right"
    assert labels[1] == IDS[1] + [-100] * 4


def test_decoding(processor):
    assert processor.batch_decode([[2, *ids, 1] for ids in IDS], skip_special_tokens=True) == CAPTIONS
    assert processor.decode(IDS[1], skip_special_tokens=True) == CAPTIONS[1]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "images and text are both None"),
        ({"images": IMAGES, "text": CAPTIONS[:1]}, "there are 2 images and 1 captions"),
        ({"text": ["a", 3]}, r"text\[1\] is of type int; a caption is a string"),
        ({"images": [IMAGES[0], "nowhere.png"]}, r"images\[1\]='nowhere.png'"),
    ],
)
def test_refuses_clearly(processor, inputs, message):
    with pytest.raises(ValueError, match=message):
        processor(**inputs)


def test_round_trip(processor, tmp_path):
    processor.save_pretrained(tmp_path)
    again = ShowAttendTellProcessor.from_pretrained(tmp_path)
    assert again.image_processor.to_dict() == processor.image_processor.to_dict()
    expected = processor(images=IMAGES, text=CAPTIONS, return_tensors="pt")
    for name, values in again(images=IMAGES, text=CAPTIONS, return_tensors="pt").items():
        assert torch.equal(values, expected[name])
    # The code goes along
    assert {path.name for path in tmp_path.glob("*.py")} >= {
        "processing_show_attend_tell.py",
        "image_processing_show_attend_tell.py",
    }
    config = json.loads((tmp_path / "processor_config.json").read_text())
    assert config["auto_map"] == {"AutoProcessor": "processing_show_attend_tell.ShowAttendTellProcessor"}
