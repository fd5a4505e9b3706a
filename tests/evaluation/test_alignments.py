"""Alignment error rates: the example of NLTK's documentation, and one with possible links by hand."""

import pytest

from hf_attnzoo.evaluation import (
    alignment_counts,
    alignment_error_rate,
    alignment_precision,
    alignment_recall,
    load_metric,
    read_alignment,
)

# A = 0-0, 1-2, 2-1; S = 0-0, 1-1; P = S and 1-2, 2-2. In S: 1 of 3; in P: 2 of 3
LINKS, GOLD = "2-1 0-0 1-2", "0-0 1-1 1p2 2?2"


def test_links():
    gold = read_alignment("0-0\t1p2  2?3 ")
    assert gold.sure == {(0, 0)}
    assert gold.possible == {(0, 0), (1, 2), (2, 3)}
    assert read_alignment("") == (frozenset(), frozenset())
    for line in ("0-", "a-b", "0-1-2", "1:2", "-1-2", "\N{ARABIC-INDIC DIGIT ONE}-2"):
        with pytest.raises(ValueError, match="is no link"):
            read_alignment(line)


def test_a_published_example():
    # nltk.translate.metrics: reference 0-0 1-1 2-2, test 0-0 1-2 2-1
    assert alignment_error_rate(["0-0 1-2 2-1"], ["0-0 1-1 2-2"]).value == pytest.approx(2 / 3)


def test_sure_and_possible_links():
    assert alignment_counts([LINKS], [GOLD]).tolist() == [[1, 2, 3, 2]]
    assert alignment_error_rate([LINKS], [GOLD]).value == pytest.approx(1 - 3 / 5)
    assert alignment_precision([LINKS], [GOLD]).value == pytest.approx(2 / 3)
    assert alignment_recall([LINKS], [GOLD]).value == pytest.approx(1 / 2)
    # All sure links and some of the possible ones make no error
    assert alignment_error_rate(["0-0 1-1 2-2"], [GOLD]).value == 0


def test_counts_are_of_the_corpus():
    # 1 + 1 sure, 2 + 1 possible; 3 + 1 links, 2 + 1 sure ones; a link twice is one
    score = alignment_error_rate([LINKS, "4-4 4-4"], [GOLD, "4-4"])
    assert score == (pytest.approx(1 - 5 / 7), "sentences:2|links:4|sure:3")
    assert alignment_error_rate(["", "0-0"], ["0-0", "0-0"]).value == pytest.approx(1 - 2 / 3)


def test_refusals():
    for score in (alignment_error_rate, alignment_precision, alignment_recall):
        with pytest.raises(ValueError, match="predictions is empty"):
            score([], [])
        with pytest.raises(ValueError, match="1 predictions and 2 references"):
            score(["0-0"], ["0-0", "1-1"])
        with pytest.raises(ValueError, match="references is one string"):
            score(["0-0"], "0-0")
        with pytest.raises(ValueError, match="links at all"):
            score([""], [""])


def test_module():
    result = load_metric("alignment_error_rate").compute(predictions=[LINKS], references=[GOLD])
    assert result == {
        "alignment_error_rate": pytest.approx(0.4),
        "alignment_error_rate_signature": "sentences:1|links:3|sure:2",
        "alignment_precision": pytest.approx(2 / 3),
        "alignment_precision_signature": "sentences:1|links:3",
        "alignment_recall": pytest.approx(1 / 2),
        "alignment_recall_signature": "sentences:1|sure:2",
    }
