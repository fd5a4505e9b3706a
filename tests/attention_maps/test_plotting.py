"""Pictures: sizes, labels that keep apart, files written whole."""

import os
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from PIL import Image

from hf_attnzoo.attention_maps import AttentionMap, ImageAttentionMap, plot_grid, plotting


def uniform(source, target):
    return AttentionMap(list(source), list(target), np.full((len(target), len(source)), 1 / len(source)))


WORDS = uniform(["The", "agreement", "on", "</s>"], ["L'", "accord", "</s>"])


def axis_labels(figure):
    axes = figure.axes[0]
    return [[label.get_text() for label in labels] for labels in (axes.get_xticklabels(), axes.get_yticklabels())]


def boxes(figure):
    renderer = FigureCanvasAgg(figure).get_renderer()
    return [
        [label.get_window_extent(renderer) for label in labels]
        for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels())
    ]


def test_map_checks_its_shape():
    with pytest.raises(ValueError, match=r"\(2, 1\).*\(target, source\) = \(1, 2\)"):
        AttentionMap(["a", "b"], ["c"], np.ones((2, 1)))
    with pytest.raises(ValueError, match="at least one"):
        AttentionMap([], ["c"], np.ones((1, 0)))


def test_map_is_drawn_as_target_by_source():
    weights = np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])
    figure = AttentionMap(["a", "b", "</s>"], ["x", "</s>"], weights).plot(title="a b")
    axes, scale = figure.axes
    np.testing.assert_array_equal(axes.images[0].get_array(), weights)
    assert axes.images[0].get_clim() == (0, 1)
    assert axis_labels(figure) == [["a", "b", "</s>"], ["x", "</s>"]]
    assert axes.xaxis.get_ticks_position() == "top"
    assert axes.get_title(loc="left") == "a b"
    # The first target token is at the top
    assert axes.get_ylim() == (1.5, -0.5)
    assert scale.get_ylim() == (0, 1)


def test_what_cannot_be_seen_is_drawn():
    shown = uniform([" ", "▁Hello", "\u00a0", "\n", "\u0301", "$x$", "w" * 60], ["a"])
    labels = axis_labels(shown.plot())[0]
    assert labels == ["␣", "␣Hello", "␣", "U+000A", "◌\u0301", "$x$", "w" * 23 + "…"]


@pytest.mark.parametrize(
    "drawn",
    [
        WORDS,
        uniform([*"W.M_W MWMW" * 6, "</s>"], [*"Wp|Qg" * 12]),
        uniform(["internationalisation"] * 60, ["Ågjpq"] * 60),
        uniform(["MMMM", *"MM"], ["Åg"]),
        uniform("W" * 400, "g" * 300),
    ],
    ids=["words", "characters", "many-words", "mixed", "huge"],
)
def test_labels_never_overlap(drawn):
    figure = drawn.plot(title="a title")
    across, down = boxes(figure)
    assert all(left.x1 <= right.x0 for left, right in pairwise(across))
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(down))
    # Nothing is cut off by the edge of the figure
    tight = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())
    width, height = figure.get_size_inches()
    assert 0 <= tight.x0 < tight.x1 <= width
    assert 0 <= tight.y0 < tight.y1 <= height
    assert max(width, height) < 20


def test_sixty_by_sixty_is_legible():
    figure = uniform("m" * 60, "m" * 60).plot()
    labels = figure.axes[0].get_xticklabels()
    assert len(labels) == 60
    # In pixels of the PNG at its own resolution
    assert min(label.get_fontsize() for label in labels) / 72 * figure.dpi > 16


def test_size_follows_the_text():
    small, large = (uniform("a" * n, "b" * n).plot().axes[0].get_window_extent() for n in (5, 20))
    assert large.width == pytest.approx(4 * small.width)
    assert large.height == pytest.approx(4 * small.height)


def test_grid_lines_up():
    maps = [uniform("abcdefgh", "xy"), uniform("abc", ["word"] * 3), uniform("ab", "z")]
    figure = plot_grid(maps, titles=["one", "two", "three"], columns=2, colorbar=False)
    one, two, three = (axes.get_window_extent() for axes in figure.axes)
    assert one.y1 == pytest.approx(two.y1)
    assert one.x0 == pytest.approx(three.x0)
    assert three.y1 < min(one.y0, two.y0)
    assert two.x0 > one.x1
    # Cells are squares of one size
    assert one.width / 8 == pytest.approx(two.height / 3) == pytest.approx(three.width / 2)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "two", "three"]


def test_files(tmp_path):
    WORDS.plot(tmp_path / "new" / "map.png")
    pixels = imread(tmp_path / "new" / "map.png")
    width, height = WORDS.plot().get_size_inches()
    assert pixels.shape[:2] == (pytest.approx(height * 150, abs=1), pytest.approx(width * 150, abs=1))
    plot_grid([WORDS, WORDS], str(tmp_path / "map.SVG"))
    assert ElementTree.parse(tmp_path / "map.SVG").getroot().tag.endswith("svg")  # noqa: S314 - our own file
    WORDS.plot(tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(os.listdir(tmp_path)) == ["map.SVG", "map.pdf", "new"]
    assert WORDS._repr_png_().startswith(b"\x89PNG")


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    path = tmp_path / "map.png"
    path.write_bytes(b"old")

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(plotting.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        WORDS.plot(path)
    assert os.listdir(tmp_path) == ["map.png"]
    assert path.read_bytes() == b"old"


def test_no_global_state(tmp_path):
    from matplotlib import _pylab_helpers

    WORDS.plot(tmp_path / "map.png")
    assert not _pylab_helpers.Gcf.get_all_fig_managers()


def test_a_style_of_the_readers_own_changes_nothing(recwarn):
    seen = ImageAttentionMap(["uno"], np.ones((1, 2, 2)) / 4, Image.new("RGB", (8, 8)))
    own = {"figure.constrained_layout.use": True, "axes.spines.top": False}
    own |= {"axes.titlelocation": "left", "axes.titleweight": "bold"}
    for draw in (WORDS.plot, seen.overlay):
        plain = plotting.render(draw(), "png")
        with matplotlib.rc_context(own):
            assert plotting.render(draw(), "png") == plain
    assert not recwarn.list


def test_characters_without_a_font_are_told_once(tmp_path, caplog, recwarn, monkeypatch):
    monkeypatch.setattr(plotting, "_told", set())
    monkeypatch.setattr(plotting, "usable_fonts", lambda: ["DejaVu Sans"])
    monkeypatch.setattr(plotting, "_installed", lambda: frozenset(["DejaVu Sans"]))
    # A syllable of Gurmukhi, an ideograph, and what DejaVu has
    drawn = uniform(["\u0a15\u0a3e", "a"], ["\u4e2d", "я", "</s>"])
    drawn.plot(tmp_path / "map.png", title="\u4e2d")
    drawn.animate(tmp_path / "map.gif")
    seen = ImageAttentionMap(["\u4e2d"], np.ones((1, 2, 2)) / 4, Image.new("RGB", (8, 8)))
    seen.overlay(tmp_path / "seen.png")
    [record] = caplog.records
    # The second character stands on the first, and is missing with it
    assert re.match("no font here has \u0a15\u0a3e?\u4e2d: boxes are drawn instead", record.getMessage())
    assert "Install Noto Sans CJK SC, Noto Sans Gurmukhi (https" in record.getMessage()
    assert not recwarn.list


def test_an_installed_font_of_the_script_is_taken(monkeypatch):
    monkeypatch.setattr(plotting, "usable_fonts", lambda: ["DejaVu Sans"])
    monkeypatch.setattr(plotting, "_installed", lambda: frozenset(["Noto Sans Gurmukhi", "Noto Sans Thai"]))
    assert plotting.fonts_for(["a\u0a15", "\u4e2d"]) == ["DejaVu Sans", "Noto Sans Gurmukhi"]
    names = {"\u1780": "Khmer", "\u0e01": "Thai", "\u3042": "CJK JP", "\ud55c": "CJK KR", "\u0b95\u0bbe": "Tamil"}
    names |= {"\u3002\uff0c": "CJK SC", "\u0964": "Devanagari"}
    for characters, name in names.items():
        assert {plotting._noto_font(character) for character in characters} == {f"Noto Sans {name}"}


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match=r"map\.gif.*\.png, \.svg, \.pdf"):
        WORDS.plot(tmp_path / "map.gif")
    with pytest.raises(ValueError, match="maps is empty"):
        plot_grid([])
    with pytest.raises(ValueError, match="titles has 1 entries; there are 2 maps"):
        plot_grid([WORDS, WORDS], titles=["one"])
    with pytest.raises(ValueError, match="columns is 0"):
        plot_grid([WORDS], columns=0)
    with pytest.raises(ValueError, match="vmax is 0"):
        plot_grid([WORDS], vmax=0)
