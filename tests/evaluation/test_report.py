"""Reports of one system and of two."""

import io
import json

import pytest
from rich.console import Console

from hf_attnzoo.evaluation import evaluation_report, length_bins, report_tables, scores_with_intervals, worst_sentences

REFERENCES = ["a b c d", "a b", "", "w x y z"]
OUTPUTS = ["a b c x", "a b", "q", "z y x w"]


def test_worst_sentences():
    # Edits per token: 1 of 4, 0 of 2, 1 where there should be none, 4 of 4
    worst = worst_sentences(OUTPUTS, REFERENCES, by="token_error_rate", count=3)
    assert worst == [(2, 1.0), (3, 1.0), (0, 0.25)]
    by_chrf = worst_sentences(OUTPUTS, REFERENCES)
    assert [row for row, _ in by_chrf][::3] == [2, 1]
    assert (by_chrf[0][1], by_chrf[-1][1]) == (0, pytest.approx(100))
    with pytest.raises(ValueError, match="by is 'bleu'"):
        worst_sentences(OUTPUTS, REFERENCES, by="bleu")
    with pytest.raises(ValueError, match="count is 0"):
        worst_sentences(OUTPUTS, REFERENCES, count=0)


def test_scores_that_have_no_parts_or_no_tokens():
    scores, intervals = scores_with_intervals(
        ["a b c d e"], [["a b c d e", "a b c d f"]], names=["gleu", "exact_match"], sources=["a b c d f"]
    )
    assert 0 < scores["gleu"] < 100
    assert list(intervals) == ["exact_match"]
    with pytest.raises(ValueError, match="no tokens"):
        scores_with_intervals(["a"], [""], names=["word_error_rate"])


def test_report_of_two():
    report = evaluation_report(
        OUTPUTS,
        REFERENCES,
        names=["exact_match", "bleu"],
        sources=["1 2 3", "1", "1", "1 2 3 4"],
        against=REFERENCES,
        bins=3,
        worst=1,
        resamples=20,
        trials=20,
    )
    assert json.loads(json.dumps(report)) == report
    assert (report["exact_match"], report["against"]["exact_match"]) == (0.25, 1)
    assert report["against"]["comparison"]["exact_match"]["difference"] == -0.75
    assert report["intervals"]["exact_match"] == pytest.approx([0.0456, 0.6994], abs=1e-4)
    # Of a system without a fault nothing is known beyond its scores of all or nothing
    assert list(report["against"]["intervals"]) == ["exact_match"]
    assert [(each.low, each.high, each.count) for each in length_bins(report)] == [(0, 2, 2), (3, 5, 2)]
    (worst,) = report["worst"]
    assert worst == {"row": 2, "chrf": 0.0, "source": "1", "references": [""], "output": "q"}

    console = Console(width=200, record=True, file=io.StringIO())
    for table in report_tables(report, ["exact_match", "bleu"], ["mine [b]", "other"], "4 pairs of [data]"):
        console.print(table)
    text = console.export_text()
    for part in ("mine [b]: 4 pairs of [data]", "mine [b] less other, paired", "bleu by source length", "the 1 worst"):
        assert part in text
    assert "-0.7500" in text
    with pytest.raises(ValueError, match="worst_by is 'bleu'"):
        evaluation_report(OUTPUTS, REFERENCES, names=["bleu"], worst_by="bleu")


def test_several_references_of_corrections():
    settings = {"names": ["gleu"], "sources": ["a b c d"], "against": ["a b c e"], "resamples": 2, "trials": 2}
    report = evaluation_report(["a b c d"], [["a b c d", "a b c e"]], **settings)
    assert report["against"]["comparison"] == {}
    (_, _, paired) = report_tables(report, ["gleu"], ["one", "two"], "1 pair")
    assert "n/a: several references" in [str(cell) for column in paired.columns for cell in column.cells]
