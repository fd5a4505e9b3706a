"""Scores of classes against values worked out by hand."""

from math import sqrt

import pytest

from hf_attnzoo.evaluation.classification import (
    accuracy,
    classification_metrics,
    confusion_matrix,
    f1_score,
    matthews_correlation,
)

WANTED = [0, 0, 0, 1, 1, 2]
GIVEN = [0, 0, 1, 1, 2, 2]
# 2 TP / (given + wanted): 4 of 5, 2 of 4, 2 of 3
F1 = [4 / 5, 1 / 2, 2 / 3]


def test_the_counts():
    classes, counts = confusion_matrix(GIVEN, WANTED)
    assert classes == [0, 1, 2]
    assert counts.tolist() == [[2, 1, 0], [0, 1, 1], [0, 0, 1]]


def test_accuracy_by_hand():
    assert accuracy(GIVEN, WANTED) == (4 / 6, "rows:6|classes:3")


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, sum(F1) / 3),
        ({"average": "weighted"}, (3 * F1[0] + 2 * F1[1] + F1[2]) / 6),
        ({"average": "micro"}, 4 / 6),
        ({"average": "binary", "positive": 1}, F1[1]),
        ({"average": "binary", "positive": 7}, 0.0),
    ],
    ids=str,
)
def test_f1_by_hand(options, value):
    assert f1_score(GIVEN, WANTED, **options).value == pytest.approx(value)


def test_a_class_that_is_never_right_has_none():
    # "b" is never wanted: F1 of "a" is 2 / (1 + 2), that of "b" 0
    assert f1_score(["a", "b"], ["a", "a"]).value == pytest.approx((2 / 3 + 0) / 2)


def test_correlation_by_hand():
    # c s - sum p t, over the roots of s^2 - sum p^2 and s^2 - sum t^2
    assert matthews_correlation(GIVEN, WANTED).value == pytest.approx((4 * 6 - 12) / sqrt((36 - 12) * (36 - 14)))
    # Of two classes: (TP TN - FP FN) / sqrt((TP + FP)(TP + FN)(TN + FP)(TN + FN))
    given = [1] * 6 + [0] * 3 + [1] + [0] * 2
    wanted = [1] * 6 + [0] * 3 + [0] + [1] * 2
    assert matthews_correlation(given, wanted).value == pytest.approx((6 * 3 - 1 * 2) / sqrt(7 * 8 * 4 * 5))
    assert matthews_correlation([1, 1], [0, 1]).value == 0.0
    assert matthews_correlation(["x", "y"], ["y", "x"]).value == -1.0


def test_several_at_once():
    scores = classification_metrics(GIVEN, WANTED, ["mcc", "accuracy"])
    assert list(scores) == ["mcc", "mcc_signature", "accuracy", "accuracy_signature"]
    assert scores["accuracy"] == 4 / 6
    assert classification_metrics(GIVEN, WANTED)["f1_signature"] == "rows:6|classes:3|average:macro"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy([], []), "predictions is empty"),
        (lambda: accuracy([1], [1, 2]), "there are 1 predictions and 2 references"),
        (lambda: f1_score([1], [1], average="mean"), "average='mean' is none of macro, micro"),
        (lambda: f1_score([1], [1], average="binary"), "positive=None"),
        (lambda: f1_score([1], [1], positive=1), "positive=1"),
        (lambda: classification_metrics([1], [1], ["auc"]), "names has 'auc'"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
