"""Scores worked out by hand."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnzoo.evaluation import (
    bleu,
    bootstrap_interval,
    chrf,
    exact_match,
    exact_matches,
    generation_metrics,
    sequence_error_rate,
    token_accuracy,
    token_error_rate,
    token_errors,
    wilson_interval,
)
from hf_attnzoo.evaluation.scores import edit_distance


def test_exact_match():
    assert exact_match(["a", "B", "c ", ""], ["a", "b", "c", ""]) == (0.5, "nrefs:1|case:mixed")
    assert exact_match(["a", "B", "c ", ""], ["a", "b", "c", ""], lowercase=True) == (0.75, "nrefs:1|case:lc")
    assert exact_match(["a", "b"], [["x", "a"], ["x"]]) == (0.5, "nrefs:var|case:mixed")
    assert exact_matches(["a", "b"], ["a", "c"]).tolist() == [1, 0]


def test_sequence_error_rate():
    assert sequence_error_rate(["a", "B", "c", "d"], ["a", "b", "c", "x"]) == (0.5, "nrefs:1|case:mixed")
    assert sequence_error_rate(["a", "B", "c", "d"], ["a", "b", "c", "x"], lowercase=True) == (0.25, "nrefs:1|case:lc")
    assert sequence_error_rate(["a b", "a"], [["a", "a b"], ["x", "y"]]) == (0.5, "nrefs:2|case:mixed")


def test_token_error_rate_is_of_the_corpus():
    # cat -> dog, and down is missing: 2 edits to 4 tokens; then 0 edits to 2 tokens
    predictions, references = ["the cat sat", "x y"], ["the dog sat down", "x y"]
    score = token_error_rate(predictions, references, tokenize="none")
    assert score.value == pytest.approx(2 / 6)
    assert score.signature == "nrefs:1|case:mixed|tok:none"
    errors, lengths = token_errors(predictions, references, tokenize="none")
    assert errors.tolist() == [2, 0]
    assert lengths.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("prediction", "reference", "tokenize", "expected"),
    [
        ("kitten", "sitting", "char", 3 / 7),
        # The space is a character
        ("ab", "a b", "char", 1 / 3),
        ("", "abc", "char", 1.0),
        ("abcdef", "a", "char", 5.0),
        # One word for one word, or the full stop apart from it
        ("Stop.", "Stop!", "none", 1.0),
        ("Stop.", "Stop!", "13a", 1 / 2),
        ("a  b ", "a b", "none", 0.0),
        ("狗叫", "猫叫", "zh", 1 / 2),
    ],
)
def test_tokens(prediction, reference, tokenize, expected):
    assert token_error_rate([prediction], [reference], tokenize=tokenize).value == pytest.approx(expected)


def test_case_and_closest_reference_of_token_error_rate():
    assert token_error_rate(["A b"], ["a B"], tokenize="none").value == 1
    assert token_error_rate(["A b"], ["a B"], tokenize="none", lowercase=True).value == 0
    # 1 edit to the second, of 3 tokens
    assert token_error_rate(["a b"], [["x y", "a b c"]], tokenize="none").value == pytest.approx(1 / 3)


def test_token_accuracy():
    # 1 of 3 positions right, the surplus token being wrong; then 2 of 4, the missing ones being wrong
    score = token_accuracy(["a x y", "a b"], ["a b", "a b c d"], tokenize="none")
    assert score == (pytest.approx(3 / 7), "nrefs:1|case:mixed|tok:none")
    assert token_accuracy(["ab"], [["xyab", "ax"]], tokenize="char").value == 1 / 2


def test_bleu():
    # n-gram precisions 4/5, 3/4, 2/3, 1/2: their product is 1/5
    assert bleu(["a b c d e"], ["a b c d f"], tokenize="none").value == pytest.approx(100 * 0.2**0.25)
    # All n-grams right, brevity penalty exp(1 - 5/4)
    assert bleu(["a b c d"], ["a b c d e"], tokenize="none").value == pytest.approx(100 * np.exp(-0.25))
    # Counts of the corpus: unigrams 9/10, bigrams 7/8, trigrams 5/6, 4-grams 3/4
    score = bleu(["a b c d e", "v w x y z"], ["a b c d f", "v w x y z"], tokenize="none")
    assert score.value == pytest.approx(100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:")
    # Not tokenized yet: 13a parts the full stop, so that 4 of 5 unigrams are right as above
    assert bleu(["a b c d."], ["a b c d!"]).value == pytest.approx(100 * 0.2**0.25)
    assert bleu(["A B C D"], ["a b c d"]).value == 0
    assert bleu(["A B C D"], ["a b c d"], lowercase=True).value == pytest.approx(100)


def test_references_go_with_their_own_prediction():
    predictions = ["a b c d e", "v w x y z"]
    references = [["a b c d e", "k l m n o"], ["p q r s t", "v w x y z"]]
    # As many references as predictions, so that nothing but the value tells rows from columns. The right ones stand on
    # the diagonal, where a mistake does no harm, then off it
    for given_order in (references, [accepted[::-1] for accepted in references]):
        score = bleu(predictions, given_order, tokenize="none")
        assert score.value == pytest.approx(100)
        assert score.signature.startswith("nrefs:2|")
        assert chrf(predictions, given_order).value == pytest.approx(100)


def test_some_texts_have_more_references():
    predictions, references = ["a b c d e", "v w x y z"], [["a b c d e"], ["p q r s t", "v w x y z", "f"]]
    score = bleu(predictions, references, tokenize="none")
    assert score.value == pytest.approx(100)
    assert score.signature.startswith("nrefs:var|")
    assert generation_metrics(predictions, references)["exact_match"] == 1


def test_chrf():
    # Unigrams 1/2 and bigrams 0/1 on both sides; longer n-grams do not exist
    assert chrf(["ab"], ["ac"]).value == pytest.approx(25)
    # Precision 1, recall 1/2, recall counting beta = 2 times as much: 5 * 1 * 1/2 / (4 * 1 + 1/2)
    score = chrf(["a"], ["ab"])
    assert score.value == pytest.approx(100 * 5 / 9)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert chrf(["AB"], ["ab"], lowercase=True).value == pytest.approx(100)


def test_generation_metrics():
    metrics = generation_metrics(["ab cd", "ef"], ["ab cd", "eg"], tokenize="char")
    # 1 of 7 characters is wrong; in BLEU's view there are no spaces: 5/6, 3/4, 2/2, 1/1
    assert metrics["exact_match"] == 0.5
    assert metrics["token_error_rate"] == pytest.approx(1 / 7)
    assert metrics["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 4) ** 0.25)
    assert list(metrics) == [
        name + suffix for name in ("exact_match", "token_error_rate", "bleu", "chrf") for suffix in ("", "_signature")
    ]
    assert "|tok:char|" in metrics["bleu_signature"]
    assert all(type(value) in (float, str) for value in metrics.values())
    assert generation_metrics(["A"], ["a"], lowercase=True, names=("token_accuracy",)) == {
        "token_accuracy": 1.0,
        "token_accuracy_signature": "nrefs:1|case:lc|tok:13a",
    }


@cache
def distance_by_definition(left, right):
    if not left or not right:
        return len(left) + len(right)
    return min(
        distance_by_definition(left[1:], right) + 1,
        distance_by_definition(left, right[1:]) + 1,
        distance_by_definition(left[1:], right[1:]) + (left[0] != right[0]),
    )


@settings(max_examples=200, deadline=None)
@given(st.text("abc", max_size=9), st.text("abc", max_size=9))
def test_edit_distance_by_definition(left, right):
    assert edit_distance(left, right) == distance_by_definition(left, right)


@pytest.mark.parametrize("score", [exact_match, token_error_rate, token_accuracy, bleu, chrf, generation_metrics])
def test_what_every_score_refuses(score):
    with pytest.raises(ValueError, match="predictions is empty"):
        score([], [])
    with pytest.raises(ValueError, match="2 predictions and 1 references"):
        score(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="predictions is one string"):
        score("ab", ["a", "b"])
    with pytest.raises(ValueError, match=r"references\[1\] is empty"):
        score(["a", "b"], [["a"], []])
    with pytest.raises(ValueError, match=r"predictions\[0\] is 3, a int"):
        score([3], ["a"])
    with pytest.raises(ValueError, match=r"references\[0\] is None"):
        score(["a"], [None])


def test_further_refusals():
    for score in (token_error_rate, token_accuracy, bleu):
        # This one would download a model
        with pytest.raises(ValueError, match="tokenize is 'flores200'; it must be one of 13a"):
            score(["a"], ["a"], tokenize="flores200")
    with pytest.raises(ValueError, match="names has 'bleurt'"):
        generation_metrics(["a"], ["a"], names=("bleurt",))
    with pytest.raises(ValueError, match="no tokens"):
        token_error_rate(["a", ""], ["", " "], tokenize="none")


def test_interval_of_two_sentences():
    # The mean of two draws from {0, 1} is 0, 1/2, 1 with probability 1/4, 1/2, 1/4
    assert bootstrap_interval([0, 1], level=0.95) == (0, 1)
    assert bootstrap_interval([0, 1], level=0.4) == (0.5, 0.5)


def test_interval_of_a_large_sample():
    # Normal approximation: 1.96 standard errors of sqrt(0.2 * 0.8 / 400) = 0.02
    low, high = bootstrap_interval([1] * 80 + [0] * 320, resamples=4000)
    assert low == pytest.approx(0.2 - 1.96 * 0.02, abs=0.004)
    assert high == pytest.approx(0.2 + 1.96 * 0.02, abs=0.004)


def test_interval_of_a_ratio():
    # 1 error in 1 token or 0 in 99: a ratio of sums is not the mean of the rates
    low, high = bootstrap_interval([1, 0], [1, 99], level=0.4)
    assert (low, high) == (0.01, 0.01)
    # A draw without any token is left out
    assert bootstrap_interval([0, 1, 2], [0, 2, 2], level=0.999) == (0.5, 1)


def test_interval_where_all_sentences_agree():
    # Wilson's with z^2 = 3.841459: nothing wrong in 1,000 sentences, z^2 / (1000 + z^2)
    assert bootstrap_interval([0] * 1000, [7] * 1000) == pytest.approx((0, 0.003827), abs=1e-6)
    # All right, in sentences of different lengths: 10 / (10 + z^2)
    assert bootstrap_interval(range(1, 11), range(1, 11)) == pytest.approx((0.722467, 1), abs=1e-6)
    # A quarter, whatever is drawn: 0.390369 -+ 0.353533
    assert bootstrap_interval([1, 2, 5], [4, 8, 20]) == pytest.approx((0.036836, 0.743902), abs=1e-5)
    # One that weighs nothing is no trial
    assert bootstrap_interval([0, 1], [0, 1]) == pytest.approx((0.206549, 1), abs=1e-6)
    # Twice as many errors as tokens: 2 times 1 / (1 + z^2)
    assert bootstrap_interval([6], [3]) == pytest.approx((2 * 0.206549, 2), abs=1e-5)


def test_interval_is_seeded():
    values = np.arange(30)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)
    wide, narrow = bootstrap_interval(values, level=0.99), bootstrap_interval(values, level=0.5)
    assert wide[0] < narrow[0] < 14.5 < narrow[1] < wide[1]


def test_interval_refuses():
    for arguments, message in (
        (([],), "values has shape"),
        (([1, 2], [1]), "weights has shape"),
        (([1, 2], [1, -1]), "weights sum to"),
        (([1, 2], [0, 0]), "weights sum to"),
        (([1, -2],), "values has -2"),
    ):
        with pytest.raises(ValueError, match=message):
            bootstrap_interval(*arguments)
    with pytest.raises(ValueError, match="level is 95"):
        bootstrap_interval([1], level=95)
    with pytest.raises(ValueError, match="resamples is 0"):
        bootstrap_interval([1], resamples=0)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # n = 10 by hand with z = 1.959964: all right gives [10 / (10 + z^2), 1]; half right 0.5 -+ 0.263406
    [(10, 10, 0.722467, 1.0), (0, 10, 0.0, 0.277533), (5, 10, 0.236594, 0.763406)],
)
def test_wilson_interval(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (3, 2), (-1, 2)])
def test_wilson_interval_refuses(successes, trials):
    with pytest.raises(ValueError, match=f"successes={successes}, trials={trials}"):
        wilson_interval(successes, trials)
