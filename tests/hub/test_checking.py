"""Every card of the repository is one that the Hub takes, and those of runs are copied with their pictures."""

import itertools
from pathlib import Path

import pytest
from huggingface_hub import InferenceClient
from typer.testing import CliRunner

from hf_attnzoo import FAMILIES
from hf_attnzoo.cli import app
from hf_attnzoo.hub import card_links, check_card, export_card, plot_curve

CARDS = Path(__file__).parents[2] / "model_cards"
NAMES = sorted(path.name for path in CARDS.glob("*.md"))

FRONT = "---\nlicense: apache-2.0\nlibrary_name: transformers\npipeline_tag: translation\ntags:\n- hf-attnzoo\n"


@pytest.mark.parametrize("name", NAMES)
def test_cards_of_the_repository(name):
    card = check_card(CARDS / name)
    assert card.data.library_name == "transformers"
    assert "hf-attnzoo" in card.data.tags
    # Those that have none
    without = name == "rnnlm.md" or "without-attention" in name
    assert ("attention" in card.data.tags) == (not without)
    # The client has a method for every task of the Hub
    assert hasattr(InferenceClient, card.data.pipeline_tag.replace("-", "_"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_card(family):
    text = (CARDS / f"{family}.md").read_text(encoding="utf-8")
    for heading in ("What it computes", "Meant for", "Limits", "Citation"):
        assert f"\n## {heading}\n" in text
    assert "```bibtex\n@" in text.split("\n## Citation\n")[1]


def test_every_picture_is_shown():
    shown = {link for name in NAMES for link in card_links((CARDS / name).read_text(encoding="utf-8"))}
    page = card_links((CARDS.parent / "README.md").read_text(encoding="utf-8"))
    shown |= {link.removeprefix("model_cards/") for link in page}
    assert {path.name for path in CARDS.iterdir()} - set(NAMES) <= shown


@pytest.fixture
def card(tmp_path):
    def write(text, front=FRONT):
        (tmp_path / "README.md").write_text(f"{front}---\n\n{text}\n", encoding="utf-8")
        return tmp_path / "README.md"

    return write


def test_links():
    text = "[a](a.md#x) ![b](b.png) ![b](b.png) [c](https://c.d) [d](#d) \\[e\\](e) `[f](f)` ``[g](`g)``\n"
    text += "```yaml\n[h](h)\n```\n[i](sub/i.png) [j](mailto:a@b.c) a`b [k](<k.png>)\n"
    assert card_links(text) == ["a.md", "b.png", "sub/i.png", "k.png"]


@pytest.mark.parametrize(
    ("front", "text", "message"),
    [
        ("", "x", "it has no front matter"),
        ("---\nlicense: [\n", "x", "no model card"),
        (FRONT.replace("license: apache-2.0\n", ""), "x", "license is None"),
        (FRONT.replace("apache-2.0", ""), "x", "license is None"),
        (FRONT.replace("translation", "3"), "x", "pipeline_tag is 3"),
        (FRONT.replace("- hf-attnzoo\n", "- 1\n"), "x", r"tags is \[1\]"),
        (FRONT + "base_model: null\n", "x", "base_model is None"),
        (FRONT + "extra:\n- a: .inf\n", "x", r"extra\[0\].a is inf"),
        (FRONT + "model-index:\n- name: x\n", "x", "no model card"),
        (FRONT, "![map](map.png)", "links to map.png"),
        (FRONT, "[up](../README.md)", "links to ../README.md"),
        (FRONT, "[root](/etc/hostname)", "links to /etc/hostname"),
    ],
)
def test_what_is_no_card(card, front, text, message):
    path = card(text, front)
    (path.parent.parent / "README.md").write_text("x")
    with pytest.raises(ValueError, match=message):
        check_card(path)


def test_export(card, tmp_path):
    path = card("![maps](attention.png) ![curve](curve.png) \\[x\\](curve.png)")
    with pytest.raises(ValueError, match=r"links to attention.png"):
        export_card(tmp_path, tmp_path / "cards" / "dates")
    (tmp_path / "attention.png").write_bytes(b"map")
    (tmp_path / "curve.png").write_bytes(b"curve")
    done = CliRunner().invoke(app, ["card", str(tmp_path), str(tmp_path / "cards" / "dates.md")])
    assert done.exit_code == 0, done.stderr
    names = ["dates.png", "dates-curve.png", "dates.md"]
    assert done.stdout.splitlines() == [str(tmp_path / "cards" / name) for name in names]
    assert sorted(file.name for file in (tmp_path / "cards").iterdir()) == sorted(names)
    assert (tmp_path / "cards" / "dates.png").read_bytes() == b"map"
    assert (tmp_path / "cards" / "dates-curve.png").read_bytes() == b"curve"
    text = (tmp_path / "cards" / "dates.md").read_text()
    assert text == f"{FRONT}---\n\n![maps](dates.png) ![curve](dates-curve.png) \\[x\\](curve.png)\n"
    assert path.read_text().count("attention.png") == 1
    done = CliRunner().invoke(app, ["card", str(tmp_path / "cards"), "x"])
    assert done.exit_code == 2
    assert "README.md: no such card" in done.stderr


def test_a_folder_is_no_name_for_a_card(card, tmp_path, monkeypatch):
    path = card("text")
    (tmp_path / "cards").mkdir()
    monkeypatch.chdir(tmp_path / "cards")
    for target, message in (
        (".", r"target=\. is a folder: name the card in it, such as NAME\.md"),
        ("../cards/", r"target=\.\./cards is a folder: name the card in it, such as \.\./cards/NAME\.md"),
        ("/", "target=/ is a folder"),
        ("../README", r"target=\.\./README is the card that is to be copied"),
    ):
        with pytest.raises(ValueError, match=message):
            export_card(tmp_path, target)
    assert list((tmp_path / "cards").iterdir()) == []
    assert path.read_text().endswith("text\n")


@pytest.mark.parametrize("lowest", [2.5, 1.4, 0.2, 0.05, 0.004, 5e-5, 1e-9])
def test_labels_of_a_curve_have_room(lowest):
    figure = plot_curve([(1, 3.0), (50, lowest)], [{"step": 50, "loss": lowest}])
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis
    low, high = axis.axes.get_ylim()
    boxes = [
        label.get_window_extent()
        for place, label in zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
        if low <= place <= high
    ]
    assert len(boxes) >= 2
    for below, above in itertools.pairwise(sorted(boxes, key=lambda box: box.y0)):
        assert below.y1 <= above.y0


def test_curve(tmp_path):
    evaluations = [{"step": 10, "loss": 2.0, "bleu": 3.0}, {"step": 20, "loss": 1.0, "bleu": 30.0}]
    figure = plot_curve([(5, 3.0), (10, 2.5)], evaluations, tmp_path / "curve.png", metric="bleu", name="BLEU")
    loss, score = figure.axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in loss.get_lines()}
    assert lines == {"training": ([5, 10], [3.0, 2.5]), "validation": ([10, 20], [2.0, 1.0])}
    assert loss.get_yscale() == "log"
    assert list(score.get_lines()[0].get_ydata()) == [3.0, 30.0]
    assert score.get_title(loc="left") == "validation: BLEU"
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    # No score, and a loss that has no logarithm
    (alone,) = plot_curve([(1, 0.0)], []).axes
    assert alone.get_yscale() == "linear"
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_curve([], [])
    with pytest.raises(ValueError, match="metric is 'chrf'"):
        plot_curve([], evaluations, metric="chrf")
