"""Scores of answers against values worked out by hand."""

import pytest

from hf_attnzoo.evaluation.squad import normalize_answer, squad_exact, squad_f1, squad_metrics


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The  Cat's pyjamas!", "cats pyjamas"),
        ("a-b an (theatre)\tthe", "ab theatre"),
        ("A", ""),
        ("1,5 %", "15"),
        ("Ängste über\u2014uns", "ängste über\u2014uns"),
    ],
)
def test_what_is_left_of_an_answer(text, left):
    assert normalize_answer(text) == left


@pytest.mark.parametrize(
    ("prediction", "accepted", "exact", "f1"),
    [
        ("the Normans", ["Normans"], 1, 1),
        ("big black cat", ["a cat", "black dog"], 0, 2 * 1 / (3 + 1)),
        ("big black cat", ["dog", "the black cat!"], 0, 2 * 2 / (3 + 2)),
        # A word that stands twice counts twice
        ("x x y", ["x x x"], 0, 2 * 2 / (3 + 3)),
        ("x", ["y"], 0, 0),
        ("", [], 1, 1),
        ("x", [], 0, 0),
        ("", ["x"], 0, 0),
        # Articles alone are an answer only where no other is
        ("the", ["the"], 1, 1),
        ("", ["the", "x"], 0, 0),
    ],
)
def test_answers_by_hand(prediction, accepted, exact, f1):
    assert squad_exact([prediction], [accepted]).tolist() == [exact]
    assert squad_f1([prediction], [accepted]) == pytest.approx([f1])


def test_means_of_several():
    scores = squad_metrics(["cat", "black cat", ""], [["the cat"], ["cat"], ["dog"]])
    assert scores["exact_match"] == pytest.approx(1 / 3)
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert scores["f1_signature"] == "questions:3|nrefs:1|norm:squad"
    assert squad_metrics(["a", "b"], [["a"], ["b", "c"]], ["f1"])["f1_signature"] == "questions:2|nrefs:var|norm:squad"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: squad_metrics([], []), "predictions is empty"),
        (lambda: squad_metrics(["a"], [["a"], ["b"]]), "there are 1 predictions and 2 references"),
        (lambda: squad_metrics(["a"], ["abc"]), "lists of accepted answers, got one string: 'abc'"),
        (lambda: squad_metrics(["a"], [["a"]], ["bleu"]), "names has 'bleu'"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
