"""Folders of images: what is read, what is refused, and that nothing outside a folder is touched."""

import csv
import json
import logging

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, Features, List, Value
from PIL import Image

from hf_attnzoo.data import load_caption_source, load_captions, one_row_per_caption, split_of

COLOURS = ["red", "green", "blue", "white", "black", "yellow"]


def picture(path, colour="red"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), colour).save(path)


def write(path, rows, columns=("file_name", "caption")):
    """A metadata file, in the format of its name."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        table = {name: list(column) for name, column in zip(columns, zip(*rows, strict=True), strict=True)}
        pyarrow.parquet.write_table(pyarrow.table(table), path)
    elif path.suffix == ".tsv":
        path.write_text("".join("\t".join(row) + "\n" for row in (columns, *rows)))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])


@pytest.fixture
def folder(tmp_path):
    for colour in COLOURS[:3]:
        picture(tmp_path / f"{colour}.png", colour)
    return tmp_path


ROWS = [("red.png", "a red one"), ("green.png", 'green, "so" green'), ("blue.png", "blåu")]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_folder_with_metadata(folder, ending):
    write(folder / f"metadata.{ending}", ROWS)
    dataset = load_captions(folder)
    assert dataset.column_names == ["image", "caption", "captions"]
    assert dataset["caption"] == [caption for _, caption in ROWS]
    assert dataset["captions"] == [[caption] for _, caption in ROWS]
    assert [row["image"].getpixel((0, 0)) for row in dataset] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    # The same through the door, and by the file itself
    assert load_caption_source(str(folder))["caption"] == dataset["caption"]
    assert load_captions(folder / f"metadata.{ending}")["caption"] == dataset["caption"]
    # Files stay files
    stored = dataset.cast_column("image", datasets.Image(decode=False))
    assert stored[0]["image"] == {"bytes": None, "path": str(folder / "red.png")}


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (("file_name", "caption"), {}),
        (("file_name", "text"), {}),
        (("file_name", "what I see"), {}),
        (("text", "file_name"), {"image_column": "text", "caption_column": "file_name"}),
    ],
)
def test_names_of_columns(folder, columns, options):
    write(folder / "metadata.csv", ROWS, columns)
    assert load_captions(folder, **options)["caption"] == [caption for _, caption in ROWS]


def test_likelier_columns_go_first(folder):
    write(folder / "metadata.csv", [("red.png", "1", "2", "3")], ("file_name", "text", "caption", "id"))
    assert load_captions(folder)["caption"] == ["2"]
    assert load_captions(folder, caption_column="id")["caption"] == ["3"]


def test_several_captions(folder):
    write(folder / "metadata.jsonl", [("red.png", ["a", "b"]), ("green.png", "c"), ("red.png", "d")])
    dataset = load_captions(folder)
    assert dataset["captions"] == [["a", "b", "d"], ["c"]]
    assert dataset["caption"] == ["a", "c"]
    rows = one_row_per_caption(dataset)
    assert rows.column_names == ["image", "caption"]
    assert [(row["image"].getpixel((0, 0))[0], row["caption"]) for row in rows] == [
        (255, "a"),
        (255, "b"),
        (255, "d"),
        (0, "c"),
    ]
    assert one_row_per_caption(rows)["caption"] == rows["caption"]


@pytest.mark.parametrize("own_metadata", [True, False])
def test_folders_of_splits(tmp_path, own_metadata):
    splits = {"train": COLOURS[:3], "val": COLOURS[3:5], "test": COLOURS[5:]}
    for split, colours in splits.items():
        for colour in colours:
            picture(tmp_path / split / "deep" / f"{colour}.png", colour)
        if own_metadata:
            write(tmp_path / split / "metadata.csv", [(f"deep/{colour}.png", colour) for colour in colours])
    if not own_metadata:
        rows = [(f"{split}/deep/{colour}.png", colour) for split in splits for colour in splits[split]]
        write(tmp_path / "metadata.csv", rows)
    assert load_captions(tmp_path, "train")["caption"] == COLOURS[:3]
    assert load_captions(tmp_path, "validation")["caption"] == COLOURS[3:5]
    assert load_captions(tmp_path, "test")["caption"] == COLOURS[5:]
    if own_metadata:
        with pytest.raises(ValueError, match="split=None: say which split is meant"):
            load_captions(tmp_path)
        # As datasets' own loader reads it
        theirs = datasets.load_dataset(
            "imagefolder", data_dir=str(tmp_path), split="train", cache_dir=str(tmp_path / "c")
        )
        assert theirs["caption"] == COLOURS[:3]
        # A file in the folder of a split is that split, and no other
        assert load_captions(tmp_path / "train" / "metadata.csv", "train")["caption"] == COLOURS[:3]
        with pytest.raises(ValueError, match=r"split='validation': .*metadata\.csv lies in the folder of train"):
            load_captions(tmp_path / "train", "validation")
    else:
        assert load_captions(tmp_path)["caption"] == COLOURS


def test_a_split_without_a_folder_is_not_taken_from_the_others(tmp_path):
    names = [f"{split}/{i}.png" for split in ("train", "test") for i in range(40)]
    for name in names:
        picture(tmp_path / name)
    write(tmp_path / "metadata.csv", [(name, name) for name in names])
    assert load_captions(tmp_path, "train")["caption"] == names[:40]
    with pytest.raises(ValueError, match="has the folders train, test, and none for this split"):
        load_captions(tmp_path, "validation")


def test_without_folders_a_hash_deals_the_images(tmp_path):
    names = [f"{i}.png" for i in range(80)]
    for name in names:
        picture(tmp_path / name)
    write(tmp_path / "metadata.csv", [(name, name) for name in names])
    dealt = {split: load_captions(tmp_path, split)["caption"] for split in ("train", "validation", "test")}
    assert dealt == {split: [name for name in names if split_of(name) == split] for split in dealt}
    assert load_captions(tmp_path)["caption"] == names
    with pytest.raises(ValueError, match="split='dev' is not one of"):
        load_captions(tmp_path, "dev")


def test_stored_datasets(tmp_path):
    images = [Image.new("RGB", (2, 2), colour) for colour in COLOURS]
    features = Features({"id": Value("int64"), "picture": datasets.Image(), "captions": List(Value("string"))})
    rows = {"id": list(range(6)), "picture": images, "captions": [[colour, colour.upper()] for colour in COLOURS]}
    dataset = Dataset.from_dict(rows, features=features)
    DatasetDict(train=dataset.select(range(4)), dev=dataset.select([4, 5])).save_to_disk(tmp_path / "splits")
    dataset.remove_columns("id").save_to_disk(tmp_path / "whole")

    loaded = load_captions(tmp_path / "splits", "validation")
    assert loaded.column_names == ["image", "caption", "captions"]
    assert loaded["captions"] == [["black", "BLACK"], ["yellow", "YELLOW"]]
    assert [row["image"].getpixel((0, 0)) for row in loaded] == [(0, 0, 0), (255, 255, 0)]
    assert load_captions(tmp_path / "whole")["caption"] == COLOURS
    with pytest.raises(ValueError, match=r"split='test': .*splits has 0 such splits; found: train, dev"):
        load_captions(tmp_path / "splits", "test")
    with pytest.raises(ValueError, match="holds one dataset without splits"):
        load_captions(tmp_path / "whole", "train")
    with pytest.raises(ValueError, match="caption_column='title' is no column of captions; columns found: 'picture'"):
        load_captions(tmp_path / "whole", caption_column="title")
    with pytest.raises(ValueError, match="image_column='captions' holds no images"):
        load_captions(tmp_path / "whole", image_column="captions", caption_column="picture")


def test_bad_rows_of_a_stored_dataset(tmp_path):
    features = Features({"image": datasets.Image(), "caption": Value("string")})
    picture(tmp_path / "x.png")
    good = {"bytes": (tmp_path / "x.png").read_bytes(), "path": None}
    rows = {
        "image": [good, None, {"bytes": b"no image", "path": None}, good, good],
        "caption": ["a", "b", "c", None, "e"],
    }
    Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "stored")
    with pytest.raises(ValueError, match="stored:2: the image is missing"):
        load_captions(tmp_path / "stored")
    assert load_captions(tmp_path / "stored", on_error="skip")["caption"] == ["a", "e"]


def outside(folder):
    picture(folder.parent / "outside.png")
    return "../outside.png"


def link(folder):
    outside(folder)
    (folder / "link.png").symlink_to(folder.parent / "outside.png")
    return "link.png"


def text(folder):
    (folder / "text.png").write_text("no image at all")
    return "text.png"


def cut(folder):
    Image.effect_noise((64, 64), 90).save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:-500])
    return "cut.jpg"


BAD_FILES = {
    "missing": (lambda folder: "nowhere.png", "'nowhere.png': no such file"),
    "a folder": (lambda folder: ".", "'.': no such file"),
    "above": (outside, r"'\.\./outside.png' lies outside the folder"),
    "absolute": (lambda folder: "/etc/hostname", "'/etc/hostname' lies outside the folder"),
    "a link that leads out": (link, "'link.png' lies outside the folder"),
    "no name": (lambda folder: "", "'' is no name of a file"),
    "no image": (text, "the image cannot be decoded"),
    "cut short": (cut, "the image cannot be decoded"),
}


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name, ending, caplog):
    folder = tmp_path / "data"
    picture(folder / "red.png")
    make, message = BAD_FILES[name]
    write(folder / f"metadata.{ending}", [("red.png", "a"), (make(folder), "b"), ("red.png", "c")])
    line = 2 if ending == "jsonl" else 3
    with pytest.raises(ValueError, match=rf"metadata\.{ending}:{line}: {message}"):
        load_captions(folder)
    with caplog.at_level(logging.WARNING):
        dataset = load_captions(folder, on_error="skip")
    assert dataset["captions"] == [["a", "c"]]
    assert f"metadata.{ending}:{line}: " in caplog.text
    assert "skipped 1 rows" in caplog.text


def test_images_are_not_decoded_without_being_asked(folder):
    write(folder / "metadata.csv", [(text(folder), "a")])
    assert load_captions(folder, verify=False)["caption"] == ["a"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("red.png", "")], "metadata.jsonl:1: the caption is empty"),
        ([("red.png", "a"), ("green.png", None)], "metadata.jsonl:2: the caption is missing"),
        ([("red.png", ["a", " "])], "metadata.jsonl:1: the caption is empty"),
        ([("red.png", [])], "metadata.jsonl:1: there is no caption"),
        ([("red.png", 5)], "metadata.jsonl:1: the caption is int, not text"),
        ([(5, "a")], "metadata.jsonl:1: 5 is no name of a file"),
        ([("red.png", "a\ud800")], "metadata.jsonl:1: the caption is not valid UTF-8"),
    ],
)
def test_bad_captions(folder, rows, message):
    write(folder / "metadata.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        load_captions(folder)


def test_broken_lines(folder):
    (folder / "metadata.jsonl").write_text('{"file_name": "red.png", "caption": "a"}\n{"file_name": \n')
    with pytest.raises(ValueError, match=r"metadata\.jsonl:2: broken JSON"):
        load_captions(folder)
    (folder / "metadata.jsonl").unlink()
    (folder / "metadata.csv").write_text("file_name,caption\nred.png,a,b\n")
    with pytest.raises(ValueError, match=r"metadata\.csv:2: 3 columns, expected 2"):
        load_captions(folder)
    (folder / "metadata.csv").write_bytes(b"file_name,caption\nred.png,a\xff\n")
    with pytest.raises(ValueError, match=r"metadata\.csv:2: the caption is not valid UTF-8"):
        load_captions(folder)


def test_images_without_a_caption_are_told_of(folder, caplog):
    write(folder / "metadata.csv", ROWS[:1])
    with caplog.at_level(logging.WARNING):
        assert len(load_captions(folder)) == 1
    assert "names no caption for 2 images, such as" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file has no header line"),
        ("caption,text\na,b\n", r"there is no column 'file_name' of images; columns found: 'caption', 'text'"),
        ("file_name\nred.png\n", "say which column is meant with caption_column="),
        ("file_name,a,b\nred.png,1,2\n", "say which column is meant with caption_column=; columns found: 'file_name'"),
        ("file_name,caption\n", "no usable rows"),
    ],
)
def test_metadata_that_does_not_do(folder, content, message):
    (folder / "metadata.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_captions(folder)


def test_what_is_not_there(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"add a metadata file .* metadata.csv, .*; found: blue.png, green.png, red.png"
    ):
        load_captions(folder)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load_captions(tmp_path / "nowhere.jsonl")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load_captions("/no/such/place")
    with pytest.raises(ValueError, match="split=None: say which split of the Hub dataset"):
        load_captions("somebody/captions")
    with pytest.raises(FileNotFoundError, match="did you mean the built-in source 'shapes'"):
        load_caption_source("shape", "train")
    with pytest.raises(ValueError, match="on_error='ignore'"):
        load_captions(folder, on_error="ignore")
    with pytest.raises(ValueError, match="the name does not tell the format"):
        load_captions(folder / "red.png")
    write(folder / "metadata.csv", ROWS)
    write(folder / "metadata.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"has both metadata\.csv and metadata\.jsonl: remove one"):
        load_captions(folder)
    (folder / "val").mkdir()
    (folder / "dev").mkdir()
    with pytest.raises(ValueError, match="has the folders val and dev; remove one"):
        load_captions(folder, "validation")
