"""Intervals and paired tests: against chances worked out by hand, and against sacreBLEU where it is right."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from hf_attnzoo.evaluation import (
    GENERATION_METRICS,
    Statistics,
    compare,
    generation_metrics,
    score_interval,
    sentence_statistics,
)

WORDS = ["the", "a", "cat", "dog", "sat", "lay", "on", "under", "mat", "rug", "red", "old"]


def corpus(seed, noise, size=40):
    """Texts, and what is left of them when each word is another one with a probability."""
    generator = np.random.default_rng(seed)
    texts = [list(generator.choice(WORDS, size=generator.integers(4, 12))) for _ in range(size)]
    noisy = [[str(generator.choice(WORDS)) if generator.random() < noise else word for word in text] for text in texts]
    return [" ".join(text) for text in texts], [" ".join(text) for text in noisy]


REFERENCES, FIRST = corpus(0, 0.2)
_, SECOND = corpus(0, 0.3)


@pytest.mark.parametrize("name", GENERATION_METRICS)
def test_the_parts_make_the_score(name):
    settings = {"lowercase": True, "tokenize": "char", "sources": SECOND}
    statistics = sentence_statistics(name, FIRST, REFERENCES, **settings)
    scores = generation_metrics(FIRST, REFERENCES, names=[name], **settings)
    assert statistics.value == pytest.approx(scores[name])
    assert statistics.signature == scores[f"{name}_signature"]
    half = generation_metrics(
        FIRST[::2], REFERENCES[::2], names=[name], lowercase=True, tokenize="char", sources=SECOND[::2]
    )
    assert statistics.take(range(0, 40, 2)).value == pytest.approx(half[name])
    if name != "gleu":
        several = [[reference, other] for reference, other in zip(REFERENCES, SECOND, strict=True)]
        statistics = sentence_statistics(name, FIRST, several)
        assert statistics.value == pytest.approx(generation_metrics(FIRST, several, names=[name])[name])


def test_a_score_that_draws_references_has_no_parts():
    assert sentence_statistics("gleu", ["a"], [["a", "b"]], sources=["a"]) is None
    with pytest.raises(ValueError, match="names has 'meteor'"):
        sentence_statistics("meteor", ["a"], ["a"])


def test_interval_of_bleu_is_that_of_resampled_corpora():
    low, high = score_interval(sentence_statistics("bleu", FIRST, REFERENCES), level=1 - 1e-12, resamples=3, seed=5)
    generator = np.random.default_rng(5)
    scores = []
    for _ in range(3):
        drawn = generator.integers(40, size=40)
        scores.append(BLEU().corpus_score([FIRST[row] for row in drawn], [[REFERENCES[row] for row in drawn]]).score)
    assert (low, high) == pytest.approx((min(scores), max(scores)))


def test_interval_that_nothing_is_known_of():
    for name in ("bleu", "chrf", "ter"):
        assert score_interval(sentence_statistics(name, REFERENCES, REFERENCES)) is None
    # Shares and rates: 40 / (40 + 1.96 ** 2)
    assert score_interval(sentence_statistics("exact_match", REFERENCES, REFERENCES)) == pytest.approx(
        (0.912378, 1), abs=1e-6
    )
    assert score_interval(sentence_statistics("token_error_rate", REFERENCES, REFERENCES)) == pytest.approx(
        (0, 0.087622), abs=1e-6
    )


def matches(right, size=40):
    return sentence_statistics("exact_match", ["a"] * right + ["b"] * (size - right), ["a"] * size)


@pytest.mark.parametrize(("ahead", "chance"), [(0, 1), (1, 1), (2, 1 / 2), (5, 1 / 16), (8, 1 / 128)])
def test_randomization_of_matches(ahead, chance):
    # Where the first is right in some sentences more, all of them have to stay, or all to change places
    comparison = compare(matches(30 + ahead), matches(30))
    assert comparison.difference == pytest.approx(ahead / 40)
    assert comparison.p_randomization == pytest.approx(chance, abs=4 * (chance * (1 - chance) / 10_000) ** 0.5 + 2e-4)


def test_bootstrap_of_matches():
    # The one sentence that tells them apart is drawn in 1 - (3 / 4) ** 4 of the test sets; without it they are equal
    comparison = compare(matches(1, 4), matches(0, 4), resamples=4000)
    drawn = 1 - (3 / 4) ** 4
    assert comparison.first_higher == pytest.approx(drawn + (1 - drawn) / 2, abs=0.02)
    # It is drawn once in so many; any other number of times is as far from the real difference as 0 is, or farther
    once = 4 * (1 / 4) * (3 / 4) ** 3
    assert comparison.p_bootstrap == pytest.approx(1 - once, abs=0.03)
    assert comparison.interval[0] == 0
    same = compare(matches(3, 4), matches(3, 4))
    assert (same.difference, same.interval, same.first_higher) == (0, (0, 0), 0.5)
    assert (same.p_bootstrap, same.p_randomization) == (1, 1)


@pytest.mark.parametrize(("name", "metric"), [("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())])
def test_agrees_with_sacrebleu(name, metric):
    systems = [("second", SECOND), ("first", FIRST)]
    _, scores = PairedTest(systems, {name: metric}, [REFERENCES], "ar", n_samples=2000)()
    second, first = scores[name.upper() if name != "chrf" else "chrF2"]
    comparison = compare(
        *(sentence_statistics(name, texts, REFERENCES) for texts in (FIRST, SECOND)), resamples=200, trials=2000
    )
    assert (comparison.first, comparison.second) == pytest.approx((first.score, second.score))
    assert comparison.p_randomization == pytest.approx(first.p_value, abs=0.03)
    low, high = comparison.interval
    assert low < comparison.difference < high


def test_seeded_and_refused():
    parts = [sentence_statistics("chrf", texts, REFERENCES) for texts in (FIRST, SECOND)]
    one, same, other = (compare(*parts, resamples=50, trials=50, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    back = compare(*parts[::-1], resamples=50, trials=50, seed=1)
    assert back.difference == -one.difference
    assert back.first_higher == pytest.approx(1 - one.first_higher)
    with pytest.raises(ValueError, match=r"second has a table of shape \(4, 2\), first of \(5, 2\)"):
        compare(matches(1, 5), matches(1, 4))
    with pytest.raises(ValueError, match="trials is 0"):
        compare(matches(1, 4), matches(1, 4), trials=0)
    with pytest.raises(ValueError, match="resamples is 0"):
        score_interval(Statistics(np.ones((2, 2)), lambda sums: 1.0), resamples=0)
