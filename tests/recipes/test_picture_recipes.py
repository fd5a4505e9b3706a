"""A run on pictures from end to end, and what such a run refuses."""

import json
import re

import numpy as np
import pytest
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from rich.console import Console
from transformers import AutoModelForImageTextToText, AutoProcessor, pipeline

from hf_attnzoo.data import load_caption_source, load_source
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.tasks.captioning import CaptioningTask

CONTENT = {
    "name": "tiny-shapes",
    "family": "show_attend_tell",
    "seed": 0,
    "data": {
        "source": "shapes",
        "options": {"image_size": 32},
        "train": {"size": 60},
        "validation": {"size": 4},
        "test": {"size": 6},
    },
    "tokenizer": {"kind": "word"},
    "model": {"preset": "tiny", "image_size": 16, "encoder_channels": [4, 8], "hidden_size": 16},
    "training": {
        "max_steps": 4,
        "batch_tokens": 300,
        "warmup_steps": 1,
        "eval_steps": 2,
        "eval_batch_size": 3,
        "logging_steps": 1,
    },
    "generation": {"max_new_tokens": 6},
    "evaluation": {"metrics": ["token_error_rate"], "best_metric": "token_error_rate", "samples": 3, "maps": 2},
}


def recipe(output, **changes):
    content = json.loads(json.dumps(CONTENT)) | {"output": str(output)}
    for path, value in changes.items():
        section, name = path.split("__")
        content[section][name] = value
    return build_recipe(content)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return run_recipe(recipe(tmp_path_factory.mktemp("captions")), Console(quiet=True))


def test_the_folder_holds_a_captioner(tiny):
    rows = load_caption_source("shapes", "test", size=6, image_size=32)
    model = AutoModelForImageTextToText.from_pretrained(tiny.model)
    # 16 pixels, halved by each of the two convolutions
    assert model.config.grid_size == (4, 4)
    processor = AutoProcessor.from_pretrained(tiny.model)
    assert processor(images=rows[0]["image"], return_tensors="pt")["pixel_values"].shape == (1, 3, 16, 16)
    ids = model.generate(**processor(images=rows["image"], return_tensors="pt"))
    written = processor.batch_decode(ids, skip_special_tokens=True)
    pipe = pipeline("attnzoo-captioning", model=str(tiny.model))
    assert [item["caption"] for item in pipe(list(rows["image"]))] == written
    captions = rows["caption"][:3]
    assert tiny.samples == [(str(i + 1), captions[i], written[i]) for i in range(3)]


def test_the_example_is_the_first_picture_of_the_test_split(tiny):
    first = load_caption_source("shapes", "test", size=1, image_size=32)[0]["image"]
    with Image.open(tiny.model / "example.png") as example:
        assert example.tobytes() == first.convert("RGB").tobytes()
    assert tiny.next_command == ["attnzoo", "caption", str(tiny.model), str(tiny.model / "example.png")]


def test_the_card_says_how_to_caption(tiny):
    card = (tiny.model / "README.md").read_text()
    assert "pipeline_tag: image-to-text" in card
    assert 'caption = pipeline("attnzoo-captioning", model="path/to/this/folder")\ncaption("example.png")' in card
    assert "`shapes`: 60 train, 4 validation, 6 test pictures." in card
    assert "a vocabulary of" in card
    assert f"| pointing score | {tiny.metrics['pointing']:.4f} |" in card


def test_the_pointing_score_counts_every_shape_of_the_test_split(tiny):
    rows = load_caption_source("shapes", "test", size=6, image_size=32)
    count = sum(len(row["objects"]) for row in rows)
    assert tiny.metrics["pointing_signature"] == f"words:{count}|captions:all|peak:bicubic"
    assert 0 <= tiny.metrics["pointing"] <= 1
    low, high = json.loads((tiny.model / "metrics.json").read_text())["intervals"]["pointing"]
    assert low <= tiny.metrics["pointing"] <= high


def test_a_picture_for_each_map(tiny):
    with Image.open(tiny.model / "attention.png") as picture:
        # Two maps, one below the other, each with a line of its own above rows of pictures
        assert picture.height > 2 * 150


def test_the_example_is_what_the_model_saw(tmp_path):
    transparent = Image.new("RGBA", (8, 8), (200, 0, 0, 0))
    deep = Image.fromarray(np.full((8, 8), 0x8000, dtype=np.uint16))
    task = CaptioningTask(recipe(tmp_path / "run"))
    # On white, and half as bright as white
    for picture, level in ((transparent, 255), (deep, 128)):
        task.write_extras([{"image": picture}], tmp_path)
        with Image.open(tmp_path / "example.png") as example:
            assert (example.mode, example.getextrema()) == ("RGB", ((level, level),) * 3)


def test_another_picture_under_the_same_name_is_other_data(tmp_path):
    task, file = CaptioningTask(recipe(tmp_path / "run")), tmp_path / "a.png"
    digests = set()
    for colour in ("red", "blue", "red"):
        Image.new("RGB", (2, 2), colour).save(file)
        features = Features({"image": ImageFeature(), "caption": Value("string")})
        rows = Dataset.from_dict({"image": [str(file)], "caption": ["a"]}, features=features)
        digests.add(task.digest(rows))
    assert len(digests) == 2


def test_captions_that_are_too_long_are_skipped(tmp_path, caplog):
    # A picture of one shape has three words and an end, one of two shapes more.
    changes = {"data__max_target_length": 4, "data__options": {"image_size": 32, "single_share": 0.5}}
    content = recipe(tmp_path / "run", **changes)
    result = run_recipe(content, Console(quiet=True))
    rows = load_caption_source("shapes", "train", size=60, image_size=32, single_share=0.5)
    count = sum(len(caption.split()) > 3 for caption in rows["caption"])
    assert f"max_target_length=4: such rows are skipped, {count} of 60" in caplog.text
    first = next(caption for caption in rows["caption"] if len(caption.split()) > 3)
    assert f"of which it is the first, and says {first!r}" in caplog.text
    # Those of the other splits count, whatever their length.
    size = content.data.test["size"]
    test = load_caption_source("shapes", "test", size=size, image_size=32, single_share=0.5)
    assert any(len(caption.split()) > 3 for caption in test["caption"])
    assert [caption for _, caption, _ in result.samples] == test["caption"][: len(result.samples)]
    assert re.search(rf": {60 - count} train, .*, {size} test pictures", (result.model / "README.md").read_text())


def test_a_folder_of_pictures_trains_on_each_of_their_captions(tmp_path):
    lines = ["file_name,caption"]
    (tmp_path / "data").mkdir()
    for number in range(60):
        Image.new("RGB", (9, 7), (4 * number, 0, 0)).save(tmp_path / "data" / f"{number}.png")
        lines += [f"{number}.png,dark {number}", f"{number}.png,red"]
    (tmp_path / "data" / "metadata.csv").write_text("\n".join(lines) + "\n")
    data = {"source": str(tmp_path / "data")}
    content = recipe(tmp_path / "run")
    content.data = type(content.data)(**data)
    result = run_recipe(content, Console(quiet=True))
    sizes = {split: len(load_caption_source(tmp_path / "data", split)) for split in ("train", "validation", "test")}
    assert sum(sizes.values()) == 60
    expected = f"{2 * sizes['train']} train, {sizes['validation']} validation, {sizes['test']} test pictures"
    assert expected in (result.model / "README.md").read_text()
    # No boxes, nothing to point at
    assert "pointing" not in result.metrics


def truncate(file):
    file.write_bytes(file.read_bytes()[:-40])


DAMAGES = {
    "truncated": (truncate, "the image cannot be decoded"),
    "missing": (lambda file: file.unlink(), "no such file"),
    "text": (lambda file: file.write_text("no picture"), "the image cannot be decoded"),
}


@pytest.fixture
def pictures(tmp_path):
    """A folder of noise, which doesn't shrink, and the recipe of a run on it."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("validation", 2), ("test", 2)):
        (tmp_path / "data" / split).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(256, size=(9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / split / f"{number}.png")
        lines = ["file_name,caption", *(f"{number}.png,noise {number}" for number in range(count))]
        (tmp_path / "data" / split / "metadata.csv").write_text("\n".join(lines))
    content = recipe(tmp_path / "run")
    content.data = type(content.data)(source=str(tmp_path / "data"))
    return content


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_picture_is_told_by_its_line_before_training(pictures, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("it went as far as training"))
    spoil, message = DAMAGES[damage]
    spoil(tmp_path / "data" / "train" / "5.png")
    with pytest.raises(ValueError, match=rf"train/metadata\.csv:7: .*{message}"):
        run_recipe(pictures, Console(quiet=True))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_picture_that_is_damaged_while_training_is_told_by_its_file(pictures, tmp_path, monkeypatch, damage):
    train, file = run_module.train, tmp_path / "data" / "train" / "5.png"

    def spoilt(*args):
        DAMAGES[damage][0](file)
        return train(*args)

    monkeypatch.setattr(run_module, "train", spoilt)
    with pytest.raises(ValueError, match=rf"row 5: {re.escape(str(file))}: the image cannot be decoded \(.+\)"):
        run_recipe(pictures, Console(quiet=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__max_source_length": 9}, "data.max_source_length=9 is for texts"),
        ({"data__on_too_long": "truncate"}, "data.on_too_long=truncate is for texts"),
        ({"data__max_target_length": 2}, "row 0 has a caption of"),
        ({"data__source": "shape"}, "did you mean the built-in source 'shapes'"),
        ({"tokenizer__kind": ["word", "word"]}, "must be one value: there is one vocabulary"),
        ({"tokenizer__shared": True}, "tokenizer.shared=True is for pairs of texts"),
        ({"tokenizer__copy_slots": 3}, "tokenizer.copy_slots=3 is for pairs of texts"),
        ({"model__vocab_size": 9}, "model.vocab_size follows from the tokenizer"),
        ({"model__image_size": "64"}, "model.image_size='64' must be an integer of at least 1"),
        ({"model__image_size": 0}, "model.image_size=0 must be an integer of at least 1"),
        ({"model__image_size": None}, "model.image_size=None must be an integer of at least 1"),
        ({"model__num_channels": 1}, "model.num_channels=1: recipes make every picture RGB"),
        ({"model__preset": ["tiny"]}, "model.preset=['tiny'] is none of paper, paper-hard, tiny"),
        ({"model__preset": "tinny"}, "model.preset='tinny' is none of paper, paper-hard, tiny"),
        ({"model__backbone_config": {"a": 1}}, "backbone_config={'a': 1} has no model_type"),
    ],
)
def test_what_can_not_be_done_is_refused_before_training(tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("it went as far as training"))
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        run_recipe(recipe(tmp_path / "run", **changes), Console(quiet=True))
    assert not (tmp_path / "run" / "model").exists()


def test_pairs_of_texts_are_no_pictures():
    with pytest.raises(ValueError, match="'dates', read as a file or dataset, has no option 'size'"):
        load_caption_source("dates", "train", size=3)
    with pytest.raises(FileNotFoundError):
        load_source("shapes", "train")
