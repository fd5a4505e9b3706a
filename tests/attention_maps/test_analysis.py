"""What is read off a map, against numbers worked out by hand."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hf_attnzoo.attention_maps import AttentionMap, ImageAttentionMap
from hf_attnzoo.attention_maps.analysis import words
from hf_attnzoo.cli import app

# "new york ." -> "neues york": tokens of words in pieces, and an end on both sides
CROSS = AttentionMap(
    source=["ne", "w", " york", ".", "</s>"],
    target=["neues", " yo", "rk", "</s>"],
    weights=np.array(
        [[0.5, 0.25, 0.125, 0.0625, 0.0625], [0, 0, 0.75, 0.25, 0], [0, 0.25, 0.25, 0.25, 0.25], [0, 0, 0, 0.5, 0.5]]
    ),
    source_text="new york.",
    target_text="neues york",
    source_spans=[(0, 2), (2, 3), (3, 8), (8, 9), None],
    target_spans=[(0, 5), (5, 8), (8, 10), None],
)


def test_words():
    merged = CROSS.by_words()
    assert merged.source == ["new", "york.", "</s>"]
    assert merged.target == ["neues", "york", "</s>"]
    assert merged.source_spans == [(0, 3), (4, 9), None]
    # Sums over the tokens of a source word, means over those of a target word
    assert merged.weights.tolist() == [[0.75, 0.1875, 0.0625], [0.125, 0.75, 0.125], [0, 0.5, 0.5]]


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        # Characters, a space among them: it goes with the word after it
        ("a bc", [(0, 1), (1, 2), (2, 3), (3, 4)], [("a", [0]), ("bc", [1, 2, 3])]),
        (" a  b", [(0, 2), (2, 5)], [("a", [0]), ("b", [1])]),
        ("ab ", [(0, 2), (2, 3)], [("ab", [0]), (" ", [1])]),
        ("ab", [(0, 1), None, (1, 2)], [("a", [0]), ("1", [1]), ("b", [2])]),
        # Several tokens for one character: all but the last stand for none
        ("a é", [(0, 1), (1, 2), (2, 2), (2, 3)], [("a", [0]), ("é", [1, 2, 3])]),
    ],
)
def test_where_words_end(text, spans, expected):
    found = words([str(number) for number in range(len(spans))], spans, text)
    assert [(word.text, word.tokens) for word in found] == expected


def test_pharaoh():
    assert CROSS.to_pharaoh() == "0-0 1-1"
    assert CROSS.to_pharaoh(threshold=0.125) == "0-0 1-0 0-1 1-1"
    assert CROSS.to_pharaoh(threshold=0.8) == ""
    with pytest.raises(ValueError, match=r"threshold=0 must be above 0"):
        CROSS.to_pharaoh(threshold=0)
    with pytest.raises(ValueError, match="source_spans and target_spans"):
        AttentionMap(["a"], ["b"], np.ones((1, 1))).to_pharaoh()


LAYERS = (
    np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]]),
    np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]]),
)
OWN = AttentionMap(
    ["<s>", "a"],
    ["<s>", "a"],
    LAYERS[1].mean(0),
    "a",
    "a",
    "decoder",
    LAYERS,
    [None, (0, 1)],
    [None, (0, 1)],
)


def test_select():
    assert OWN.select(0, 0).weights.tolist() == [[1, 0], [0.5, 0.5]]
    assert OWN.select(0).weights.tolist() == [[1, 0], [0.25, 0.75]]
    assert OWN.select(None, 1).weights.tolist() == [[1, 0], [0.5, 0.5]]
    with pytest.raises(ValueError, match="layer is 2; the model has 2 layers"):
        OWN.select(2)
    with pytest.raises(ValueError, match="layers is empty; select needs"):
        CROSS.select()


def test_rollout():
    # Layer 0: half of [[1, 0], [1/4, 3/4]] and half of what was there: [[1, 0], [1/8, 7/8]].
    # Layer 1: half of [[1, 0], [1, 0]] and half: [[1, 0], [1/2, 1/2]]. Their product: row 1 is half of (1, 0) and
    # half of (1/8, 7/8).
    assert OWN.rollout().weights.tolist() == [[1, 0], [9 / 16, 7 / 16]]
    with pytest.raises(ValueError, match="a rollout is of self-attention"):
        CROSS.rollout()


def test_entropy():
    first, second = OWN.entropy()
    # One row of two is even over two tokens
    np.testing.assert_allclose(first, [math.log(2) / 2, 0])
    assert second.tolist() == [0, 0]


def test_head_summary():
    one, two, *rest = OWN.head_summary()
    assert [(item.layer, item.head) for item in (one, two, *rest)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert one.peak == 0.75
    # Row <s> looks at itself, row a half at <s>, one token away
    assert (one.special, one.distance) == (0.75, 0.25)
    assert (two.special, two.distance) == (0.5, 0)


def test_plot_heads(tmp_path):
    figure = OWN.plot_heads(tmp_path / "heads.png", colorbar=False)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"layer {layer}, head {head}" for layer in range(2) for head in range(2)
    ]
    assert [axes.images[0].get_array().tolist() for axes in figure.axes[:2]] == LAYERS[0].tolist()
    assert len(OWN.plot_heads(layer=-1, colorbar=False).axes) == 2
    with pytest.raises(ValueError, match="layer is 5"):
        OWN.plot_heads(layer=5)


def page_data(page):
    """What the script of a page has to go by."""
    return json.loads(re.search(r"^const data = (.*);$", page, re.MULTILINE)[1])


def test_page_of_a_text(tmp_path):
    file = tmp_path / "new" / "map.html"
    page = OWN.to_html(file)
    assert file.read_text(encoding="utf-8") == page
    data = page_data(page)
    assert data["source"] == data["target"] == ["<s>", "a"]
    assert data["views"] == [
        [[[1, 0], [1, 0]]],
        [[[1, 0], [0.25, 0.75]], *LAYERS[0].tolist()],
        [[[1, 0], [1, 0]], *LAYERS[1].tolist()],
    ]
    assert re.findall(r"(?:src|href)=|https?:|@import|url\(", page) == []
    with pytest.raises(ValueError, match=r"its suffix must be \.html"):
        OWN.to_html(tmp_path / "map.png")


def test_texts_are_no_code():
    nasty = "</script><script>alert(1)</script>"
    page = AttentionMap([nasty], ["$x & <b>"], np.ones((1, 1)), nasty, "<b>").to_html()
    assert page.count("<script>") == page.count("</script>") == 1
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt; → &lt;b&gt;" in page
    assert page_data(page)["target"] == ["$x␣&␣<b>"]


@pytest.fixture
def image_map():
    weights = np.array([[[0.75, 0.25]], [[0.0, 1.0]]])
    return ImageAttentionMap(["dog", "</s>"], weights, Image.new("RGB", (40, 20), "red"), "dog")


def test_page_of_an_image(image_map):
    data = page_data(image_map.to_html())
    assert data["words"] == ["dog", "</s>"]
    assert data["weights"] == [[[0.75, 0.25]], [[0, 1]]]
    assert data["image"].startswith("data:image/png;base64,")


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_rows_come_one_by_one(tmp_path, suffix):
    path = tmp_path / f"map.{suffix}"
    CROSS.animate(path, milliseconds=50)
    with Image.open(path) as moving:
        assert moving.n_frames == 5
        frames = []
        for number in range(5):
            moving.seek(number)
            frames.append(np.asarray(moving.convert("RGB")).astype(int))
    # Each frame differs from the one before in its own row alone, lower than the row before
    tops = []
    for before, after in itertools.pairwise(frames):
        changed = np.flatnonzero((np.abs(after - before) > 60).any((1, 2)))
        tops.append(changed.min())
    assert tops == sorted(set(tops))


def test_words_on_an_image_come_one_by_one(tmp_path, image_map):
    image_map.animate(tmp_path / "words.gif")
    with Image.open(tmp_path / "words.gif") as moving:
        assert moving.n_frames == 3


def test_animation_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"must be one of \.gif, \.webp, \.png"):
        CROSS.animate(tmp_path / "map.mp4")
    with pytest.raises(ValueError, match="milliseconds=0"):
        CROSS.animate(tmp_path / "map.gif", milliseconds=0)


def test_map_checks_its_parts():
    with pytest.raises(ValueError, match=r"layers\[0\] has shape \(1, 2, 2\)"):
        AttentionMap(["a"], ["b"], np.ones((1, 1)), layers=(np.ones((1, 2, 2)),))
    with pytest.raises(ValueError, match="target_spans has 2 entries; there are 1 tokens"):
        AttentionMap(["a"], ["b"], np.ones((1, 1)), target_spans=[None, None])
    with pytest.raises(ValueError, match="kind='self'"):
        AttentionMap(["a"], ["b"], np.ones((1, 1)), kind="self")


@pytest.mark.parametrize("name", ["map.html", "map.gif", "map.svg"])
def test_command(tiny_run, tmp_path, name):
    result = CliRunner().invoke(app, ["attend", str(tiny_run.model), "a b", "-o", str(tmp_path / name), "--words"])
    assert result.exit_code == 0, result.output
    content = (tmp_path / name).read_bytes()
    assert content.startswith({"html": b"<!doctype html>", "gif": b"GIF8", "svg": b"<?xml"}[name[4:]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rollout", "--layer", "0"], "--rollout goes through all layers"),
        (["--heads", "--head", "0"], "--heads draws all of them"),
        (["--heads", "-o", "a.html"], "not a.html"),
    ],
)
def test_command_ignores_no_option(tiny_run, monkeypatch, tmp_path, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_attnzoo.attention_maps.AttentionMap.rollout", lambda found: found)
    result = CliRunner().invoke(app, ["attend", str(tiny_run.model), "a b", "-o", "a.png", *options])
    assert result.exit_code == 2
    assert message in result.output
    assert list(tmp_path.iterdir()) == []


def test_command_draws_every_head(tiny_run, tmp_path):
    command = ["attend", str(tiny_run.model), "a b", "-o", str(tmp_path / "a.png"), "--heads", "--layer", "0"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.png").is_file()


def test_command_refuses_a_rollout_of_cross_attention(tiny_run, tmp_path):
    command = ["attend", str(tiny_run.model), "a b", "-o", str(tmp_path / "a.png"), "--rollout"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "a rollout is of self-attention" in result.output
