"""GLEU, worked out by hand."""

import math

import pytest

from hf_attnzoo.evaluation import gleu

SOURCE, REFERENCE = "a b c d e x", "a b c d e f"


def test_errors_that_are_left_in_count_against():
    # x stands in the source and not in the reference, and so do e x, d e x and c d e x:
    # 5 - 1 of 6 words, 4 - 1 of 5 pairs, 3 - 1 of 4, 2 - 1 of 3
    assert gleu([SOURCE], [REFERENCE], sources=[SOURCE]).value == pytest.approx(
        100 * (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    )
    # Another error in its place costs no more than it does in BLEU: 5 of 6, 4 of 5, 3 of 4, 2 of 3
    assert gleu(["a b c d e y"], [REFERENCE], sources=[SOURCE]).value == pytest.approx(
        100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    )
    assert gleu([REFERENCE], [REFERENCE], sources=[SOURCE]).value == pytest.approx(100)


def test_too_short_and_over_the_corpus():
    # 5 words where the reference has 6
    assert gleu(["a b c d e"], [REFERENCE], sources=[SOURCE]).value == pytest.approx(100 * math.exp(1 - 6 / 5))
    # Counts are added up: (4 + 6) of 12, (3 + 5) of 10, (2 + 4) of 8, (1 + 3) of 6
    both = gleu([SOURCE, REFERENCE], [REFERENCE] * 2, sources=[SOURCE] * 2)
    assert both.value == pytest.approx(100 * (10 / 12 * 8 / 10 * 6 / 8 * 4 / 6) ** 0.25)
    assert both.signature == "nrefs:1|case:mixed|tok:none"


def test_what_the_reference_has_is_no_error_however_often():
    # a a is left in, a is not: 5 of 6 words; 4 of 5 pairs less a a; a a b; a a b c
    score = gleu(["a a b c d e"], ["a b c d e f"], sources=["a a b c d e"])
    assert score.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_nothing_matches():
    assert gleu(["z z z z"], [REFERENCE], sources=[SOURCE]).value == 0
    # Matches of a sentence do not fall below 0, or the other one would pay for them
    one = gleu([REFERENCE], [REFERENCE], sources=[SOURCE]).value
    assert gleu(["x", REFERENCE], ["y", REFERENCE], sources=["x", SOURCE]).value == pytest.approx(
        one * (6 / 7) ** 0.25
    )
    assert gleu([""], ["a"], sources=["a"]).value == 0


def test_one_of_several_references_is_drawn():
    low = 100 * (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    # Against itself an unchanged text is right, and against the other reference it has the score above
    score = gleu([SOURCE], [[SOURCE, REFERENCE]], sources=[SOURCE])
    draws = (score.value - low) / (100 - low) * 500
    assert draws == pytest.approx(round(draws), abs=1e-6)
    assert 200 < draws < 300
    assert score == gleu([SOURCE], [[SOURCE, REFERENCE]], sources=[SOURCE])
    assert score.value != gleu([SOURCE], [[SOURCE, REFERENCE]], sources=[SOURCE], seed=1).value
    assert score.signature == "nrefs:2|case:mixed|tok:none|iterations:500|seed:0"
    # Texts may have different numbers of them
    mixed = gleu([SOURCE, REFERENCE], [[SOURCE], [REFERENCE, REFERENCE]], sources=[SOURCE] * 2)
    assert mixed.value == pytest.approx(100)


def test_case_tokens_and_refusals():
    assert gleu(["A, b, c, d."], ["a, b, c, d."], sources=["x"], lowercase=True, tokenize="13a").value == 100
    with pytest.raises(ValueError, match="sources is None"):
        gleu(["a"], ["a"], sources=None)
    with pytest.raises(ValueError, match="2 sources and 1 predictions"):
        gleu(["a"], ["a"], sources=["a", "b"])
    with pytest.raises(ValueError, match="iterations is 0"):
        gleu(["a"], ["a"], sources=["a"], iterations=0)
