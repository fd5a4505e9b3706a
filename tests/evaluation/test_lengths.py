"""Accuracy by source length, counted by hand, and its picture."""

from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from hf_attnzoo.evaluation import LengthBin, by_length, plot_by_length

SOURCES = ["a", "a b", "a b c", "a b c d"]
REFERENCES = ["a", "b a", "c b a", "d c b a"]
PREDICTIONS = ["a", "b x", "c b a", "d"]


def test_bins_of_a_width():
    report = by_length(PREDICTIONS, REFERENCES, SOURCES, bins=2)
    assert [(each.low, each.high, each.count) for each in report] == [(0, 1, 1), (2, 3, 2), (4, 5, 1)]
    assert [each.exact_match for each in report] == [1, 0.5, 0]
    # Of positions: 1 of 1, 1 + 3 of 2 + 3, 1 of 4
    assert [each.token_accuracy for each in report] == pytest.approx([1, 4 / 5, 1 / 4])
    # One right of two: Wilson's interval. Drawn alone they have 1/2 and 3/3 of their positions
    assert report[1].intervals["exact_match"] == pytest.approx((0.0945, 0.9055), abs=1e-4)
    assert report[1].intervals["token_accuracy"] == (0.5, 1)
    # One right of one, 1 / (1 + 1.96 ** 2): a bootstrap would be certain of it
    for name in ("exact_match", "token_accuracy"):
        assert report[0].intervals[name] == pytest.approx((0.2065, 1), abs=1e-4)


def test_bins_between_edges():
    report = by_length(PREDICTIONS, REFERENCES, SOURCES, bins=(1, 2, 4, 7))
    assert [(each.low, each.high, each.count) for each in report] == [(1, 1, 1), (2, 3, 2), (4, 6, 1)]
    # Edges without a source in between make no bin
    assert [each.low for each in by_length(["a"], ["a"], ["a"], bins=(0, 1, 2, 3))] == [1]


def test_any_score_by_length():
    report = by_length(
        ["a b c d", "a x", "", "w x y z"],
        ["a b c d", "a b", "", "w x y z"],
        ["a", "b", "c d", "e f"],
        bins=1,
        metrics=["bleu", "word_error_rate"],
    )
    # Of the n-grams 5/6, 3/4, 2/2, 1/1 match, and the texts are as long as the references; nothing in an empty text
    assert report[0].scores["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 4) ** 0.25)
    assert report[0].scores["word_error_rate"] == pytest.approx(1 / 6)
    assert report[1].scores == {"bleu": pytest.approx(100), "word_error_rate": 0}
    (empty,) = by_length([""], [""], ["a"], metrics=["word_error_rate", "exact_match"])
    assert empty.scores == {"exact_match": 1}
    with pytest.raises(ValueError, match="'gleu', which draws"):
        by_length(["a"], [["a", "b"]], ["a"], metrics=["gleu"])


def test_the_scale_of_other_scores():
    bins = [LengthBin(5, 9, 3, {"bleu": 20.0}, {}), LengthBin(10, 14, 1, {"bleu": 10.0}, {"bleu": (5.0, 30.0)})]
    figure = plot_by_length({"model": [*bins, LengthBin(15, 19, 2, {}, {})]}, measure="bleu", counts=True)
    above, below = figure.axes
    assert above.get_ylim() == pytest.approx((0, 1.03 * 30))
    assert above.get_ylabel() == "BLEU"
    assert [bar.get_height() for bar in below.patches] == [3, 1]
    assert [text.get_text() for text in below.texts] == ["3", "1"]


def test_characters_and_case_and_references():
    report = by_length(["AB"], [["xy", "ab"]], ["a b"], bins=1, tokenize="char", lowercase=True)
    assert [(each.low, each.exact_match, each.token_accuracy) for each in report] == [(3, 1, 1)]


def test_empty_texts_agree():
    (report,) = by_length(["", ""], ["", "a"], ["", ""], bins=1)
    assert (report.exact_match, report.token_accuracy) == (0.5, 0.5)


def test_refusals():
    with pytest.raises(ValueError, match="1 sources and 2 predictions"):
        by_length(["a", "b"], ["a", "b"], ["a"])
    with pytest.raises(ValueError, match="predictions is empty"):
        by_length([], [], [])
    with pytest.raises(ValueError, match="bins is 0"):
        by_length(["a"], ["a"], ["a"], bins=0)
    with pytest.raises(ValueError, match=r"bins is \[3, 3\]"):
        by_length(["a"], ["a"], ["a"], bins=(3, 3))
    with pytest.raises(ValueError, match="a source has 3 tokens; bins has room for 1 to 2"):
        by_length(["a"], ["a"], ["a b c"], bins=(1, 3))


def report(*scores, width=1):
    return [
        LengthBin(
            start * width,
            start * width + width - 1,
            10,
            {"exact_match": score / 2, "token_accuracy": score},
            {"exact_match": (0, score), "token_accuracy": (score - 0.05, score)},
        )
        for start, score in enumerate(scores, 1)
    ]


def lines(figure):
    return [(line.get_xdata().tolist(), list(line.get_ydata())) for line in figure.axes[0].get_lines()]


def test_picture(tmp_path):
    reports = {"attention": report(1, 0.9, 0.8, width=5), "no $x$ attention": report(1, 0.5, 0.1, width=5)}
    figure = plot_by_length(reports, tmp_path / "lengths.png", trained=(5, 9), title="By length")
    assert lines(figure) == [([7, 12, 17], [1, 0.9, 0.8]), ([7, 12, 17], [1, 0.5, 0.1])]
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        f"{low}\N{EN DASH}{low + 4}" for low in (5, 10, 15)
    ]
    assert [text.get_text() for text in axes.texts] == ["attention", "no $x$ attention", "lengths in training"]
    assert [text.get_position()[1] for text in axes.texts[:2]] == [0.8, 0.1]
    assert imread(tmp_path / "lengths.png").shape[0] > 500
    assert lines(plot_by_length(reports, measure="exact_match"))[0][1] == [0.5, 0.45, 0.4]


@pytest.mark.parametrize("score", [0, 0.5, 1])
def test_names_of_lines_keep_apart(score):
    figure = plot_by_length({f"model {number}": report(1, score) for number in range(6)})
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    assert len(boxes) == 6
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))
    assert boxes[-1].y0 > 0
    assert boxes[0].y1 < figure.bbox.y1


def test_names_of_bins_keep_apart():
    figure = plot_by_length({"model": report(*[0.5] * 60)})
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [label.get_window_extent(renderer) for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_picture_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"reports is \{\}"):
        plot_by_length({})
    with pytest.raises(ValueError, match="at least 1 bin"):
        plot_by_length({"model": []})
    with pytest.raises(ValueError, match="measure is 'bleu'"):
        plot_by_length({"model": report(1)}, measure="bleu")
    with pytest.raises(ValueError, match="suffix"):
        plot_by_length({"model": report(1)}, tmp_path / "lengths.bmp")
