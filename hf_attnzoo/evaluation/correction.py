"""GLEU: how good a correction of a text is, given the text that was to be corrected."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from .scores import References, Score, checked, signature, splitter

ORDER = 4


def gleu(
    predictions: Sequence[str],
    references: References,
    *,
    sources: Sequence[str] | None,
    lowercase: bool = False,
    tokenize: str = "none",
    iterations: int = 500,
    seed: int = 0,
) -> Score:
    """Corpus GLEU for the correction of grammar, 0 to 100 (Napoles et al. 2015, and 2016, "GLEU Without Tuning").

    BLEU, with n-grams up to 4, whose matches are fewer by the n-grams of the prediction that stand in the source and
    not in the reference: errors that have been left in. As in the authors' program the penalty counts n-grams that the
    reference lacks altogether, and takes at most all matches of a sentence. Where texts have several references, one
    of them is drawn for each text, and the score is the mean over many such draws. The GLEU of Wu et al. (2016) is
    another score.

    Args:
        predictions:
            N corrected texts.
        references:
            N texts, or N lists of texts.
        sources:
            N texts before correction.
        lowercase:
            Whether upper and lower case are the same.
        tokenize:
            One of `TOKENIZERS`; the authors' program takes tokenized texts, `"none"`.
        iterations:
            How often references are drawn.
        seed:
            Seed of the drawing.

    Raises:
        ValueError: sources are missing or another number, no iterations, no predictions, another number of
            references, something that is not a text, or an unknown tokenizer.
    """
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}; it must be at least 1")
    tables = _tables(predictions, references, sources, lowercase, tokenize)
    counts = np.array([len(table) for table in tables])
    settings = f"{signature(references, lowercase)}|tok:{tokenize}"
    if counts.max() == 1:
        return Score(gleu_of(np.concatenate(tables).sum(axis=0)), settings)
    generator = np.random.default_rng(seed)
    starts = np.concatenate([[0], counts.cumsum()[:-1]])
    rows = np.concatenate(tables)
    draws = [gleu_of(rows[starts + generator.integers(counts)].sum(axis=0)) for _ in range(iterations)]
    return Score(float(np.mean(draws)), f"{settings}|iterations:{iterations}|seed:{seed}")


def gleu_statistics(
    predictions: Sequence[str],
    references: References,
    *,
    sources: Sequence[str] | None,
    lowercase: bool = False,
    tokenize: str = "none",
) -> np.ndarray | None:
    """What each text adds to [`gleu_of`], shape `(N, 10)`; None where a text has several references, of which another
    is drawn each time. Arguments and errors are those of [`gleu`]."""
    tables = _tables(predictions, references, sources, lowercase, tokenize)
    return np.concatenate(tables) if max(map(len, tables)) == 1 else None


def gleu_of(sums: np.ndarray) -> float:
    """GLEU of a corpus, 0 to 100.

    Args:
        sums: length of the predictions, length of the references, matches less penalties for each order, and n-grams
            of the predictions for each order, shape `(10,)`.
    """
    length, reference_length, matches, totals = sums[0], sums[1], sums[2 : 2 + ORDER], sums[2 + ORDER :]
    if not matches.all() or not totals.all():
        return 0.0
    brevity = min(0.0, 1 - reference_length / length)
    return 100 * math.exp(brevity + float(np.log(matches / totals).mean()))


def _tables(
    predictions: Sequence[str],
    references: References,
    sources: Sequence[str] | None,
    lowercase: bool,
    tokenize: str,
) -> list[np.ndarray]:
    """For each text the statistics with each of its references, shape `(R, 10)`."""
    predictions, references = checked(predictions, references)
    if sources is None:
        raise ValueError("sources is None; GLEU compares with the texts before correction")
    if len(sources) != len(predictions):
        raise ValueError(f"there are {len(sources)} sources and {len(predictions)} predictions; pair them up")
    split = splitter(tokenize)

    def tokens(text: str) -> Sequence[str]:
        return split(text.lower() if lowercase else text)

    tables = []
    for prediction, accepted, source in zip(predictions, references, sources, strict=True):
        written, before = tokens(prediction), tokens(source)
        tables.append(np.array([_statistics(written, tokens(reference), before) for reference in accepted], float))
    return tables


def _statistics(written: Sequence[str], reference: Sequence[str], source: Sequence[str]) -> list[int]:
    matches, totals = [], []
    for order in range(1, ORDER + 1):
        ours, theirs, before = (_ngrams(text, order) for text in (written, reference, source))
        left_in = Counter({ngram: count for ngram, count in before.items() if ngram not in theirs})
        matches.append(max((ours & theirs).total() - (ours & left_in).total(), 0))
        totals.append(ours.total())
    return [len(written), len(reference), *matches, *totals]


def _ngrams(tokens: Sequence[str], order: int) -> Counter:
    return Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) + 1 - order))
