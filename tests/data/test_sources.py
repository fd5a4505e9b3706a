import os
import subprocess
import sys

import pytest
from datasets import Dataset

from hf_attnzoo.data import SOURCES, load_annotated_source, load_source, references


def test_built_in_sources():
    assert list(SOURCES) == ["dates", "reverse", "copy", "g2p"]
    row = load_source("dates", "train", size=1, locales=["fr"], formats=["long"], first_year=2000, last_year=2000)[0]
    assert row["target"].startswith("2000-")
    assert row["locale"] == "fr"
    row = load_source("reverse", "test", size=1, symbols="ab", min_length=9, max_length=9, separator="")[0]
    assert row["target"] == row["source"][::-1]


def test_references():
    rows = Dataset.from_list([{"target": "a", "references": ["a", "b"]}, {"target": "c", "references": ["c"]}])
    assert references(rows) == [["a", "b"], ["c"]]
    assert references(rows.remove_columns("references")) == ["a", "c"]
    captioned = Dataset.from_list([{"image": 0, "caption": "a", "captions": ["a", "b"]}])
    assert references(captioned) == [["a", "b"]]
    assert references(captioned.remove_columns("captions")) == ["a"]
    with pytest.raises(ValueError, match="neither target nor caption; columns found: image"):
        references(captioned.select_columns("image"))


def test_files(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("a\tb\n")
    assert load_source(path, header=False)[0] == {"source": "a", "target": "b"}
    assert load_source(str(path), None, header=False)[0] == {"source": "a", "target": "b"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dates", {"size": 1, "locale": "fr"}, "source 'dates' has no option 'locale'; did you mean 'locales'"),
        ("copy", {}, "source 'copy' needs the option 'size'"),
        (
            "x.tsv",
            {"on_errors": "skip"},
            "'x.tsv', read as a file or dataset, has no option 'on_errors'; did you mean 'on_error'",
        ),
        ("x.tsv", {"path": "y"}, "no option 'path'"),
        ("dates", {"size": 1}, "split=None"),
    ],
)
def test_refuses_clearly(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_source(name, **options)


def test_tasks_have_a_reader_each():
    with pytest.raises(ValueError, match="task='fill-mask' is none of text-classification, token-classification, qu"):
        load_annotated_source("fill-mask", "x.csv")


def test_a_near_miss_is_pointed_out():
    with pytest.raises(FileNotFoundError, match=r"\./dates: no such .* did you mean the built-in source 'dates'"):
        load_source("./dates", "train")


def test_importing_the_room_is_light():
    code = "import sys, hf_attnzoo.data; assert not {'torch', 'datasets', 'babel'} & set(sys.modules), 'heavy'"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
