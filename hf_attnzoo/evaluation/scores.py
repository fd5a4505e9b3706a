"""Scores of written texts against references: plain functions over lists of strings.

Everywhere `predictions` holds N texts, and `references` N entries, each one text or a list of accepted texts. Nothing
here needs the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER

References = Sequence[str] | Sequence[Sequence[str]]

# sacreBLEU's other tokenizers download a model or need an extra package
TOKENIZERS = ("13a", "intl", "zh", "char", "none")


class Score(NamedTuple):
    """A figure and how it came about.

    Args:
        value:
            The score: a fraction for matches and error rates, 0 to 100 for BLEU, chrF and GLEU, 0 and more for TER.
        signature:
            The settings it was computed with, in sacreBLEU's notation.
    """

    value: float
    signature: str


def exact_match(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Share of predictions that equal a reference, character by character: 0 to 1.

    Raises:
        ValueError: no predictions, another number of references, or something that is not a text.
    """
    matches = exact_matches(predictions, references, lowercase=lowercase)
    return Score(float(matches.mean()), signature(references, lowercase))


def sequence_error_rate(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Share of predictions that equal no reference, 1 less the exact match: 0 is perfect.

    Where a text is the pronunciation of one word this is the word error rate of grapheme-to-phoneme conversion, and
    [`token_error_rate`] with `tokenize="none"` its phoneme error rate.

    Raises:
        ValueError: no predictions, another number of references, or something that is not a text.
    """
    matches = exact_matches(predictions, references, lowercase=lowercase)
    return Score(float(1 - matches.mean()), signature(references, lowercase))


def token_error_rate(
    predictions: Sequence[str], references: References, *, lowercase: bool = False, tokenize: str = "13a"
) -> Score:
    """Edits that turn the predictions into the references, per token of the references: 0 is perfect, no upper limit.

    An edit inserts, deletes or replaces one token (Levenshtein distance); the counts of the whole corpus are summed
    before the division. With `tokenize="char"` this is the character error rate, with `"none"` the word error rate.
    Where there are several references, the one with the fewest edits counts.

    Args:
        predictions:
            N texts.
        references:
            N texts, or N lists of texts.
        lowercase:
            Whether upper and lower case are the same.
        tokenize:
            One of `TOKENIZERS`: `"none"` splits at white space, `"char"` makes every character a token, spaces
            included; the others are sacreBLEU's.

    Raises:
        ValueError: no predictions, another number of references, something that is not a text, an unknown
            tokenizer, or references without a single token.
    """
    errors, lengths = token_errors(predictions, references, lowercase=lowercase, tokenize=tokenize)
    if not lengths.sum():
        raise ValueError("references hold no tokens at all; an error rate is per reference token")
    return Score(float(errors.sum() / lengths.sum()), f"{signature(references, lowercase)}|tok:{tokenize}")


def token_accuracy(
    predictions: Sequence[str], references: References, *, lowercase: bool = False, tokenize: str = "13a"
) -> Score:
    """Share of positions at which prediction and reference have the same token, over the corpus: 0 to 1.

    Missing and surplus tokens count as wrong positions. Arguments and errors are those of [`token_error_rate`].
    """
    matches, lengths = token_matches(predictions, references, lowercase=lowercase, tokenize=tokenize)
    if not lengths.sum():
        raise ValueError("predictions and references hold no tokens at all; an accuracy is per token")
    return Score(float(matches.sum() / lengths.sum()), f"{signature(references, lowercase)}|tok:{tokenize}")


def bleu(
    predictions: Sequence[str], references: References, *, lowercase: bool = False, tokenize: str = "13a"
) -> Score:
    """Corpus BLEU of sacreBLEU, 0 to 100, on texts that are not tokenized yet.

    Raises:
        ValueError: no predictions, another number of references, something that is not a text, or an unknown
            tokenizer.
    """
    check_tokenizer(tokenize)
    return _sacrebleu(BLEU(lowercase=lowercase, tokenize=tokenize), predictions, references)


def chrf(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Corpus chrF2 of sacreBLEU (character 6-grams), 0 to 100.

    Raises:
        ValueError: no predictions, another number of references, or something that is not a text.
    """
    return _sacrebleu(CHRF(lowercase=lowercase), predictions, references)


def ter(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Corpus TER of sacreBLEU (Snover et al. 2006): edits and shifts per 100 words of the references, 0 is perfect.

    Words are those of tercom, which are separated by white space: punctuation belongs to the word before it.

    Raises:
        ValueError: no predictions, another number of references, or something that is not a text.
    """
    return _sacrebleu(TER(case_sensitive=not lowercase), predictions, references)


def word_error_rate(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """[`token_error_rate`] over words, separated by white space. Errors are those of [`token_error_rate`]."""
    return token_error_rate(predictions, references, lowercase=lowercase, tokenize="none")


def phoneme_error_rate(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """[`token_error_rate`] over phonemes, separated by white space. Errors are those of [`token_error_rate`].

    The word error rate that goes with it counts whole pronunciations: see [`sequence_error_rate`].
    """
    return token_error_rate(predictions, references, lowercase=lowercase, tokenize="none")


def character_error_rate(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """[`token_error_rate`] over characters, spaces included. Errors are those of [`token_error_rate`]."""
    return token_error_rate(predictions, references, lowercase=lowercase, tokenize="char")


def exact_matches(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> np.ndarray:
    """1 for each prediction that equals a reference, otherwise 0, shape `(N,)`."""
    pairs = _pairs(predictions, references, lowercase, lambda text: text)
    return np.array([int(prediction in accepted) for prediction, accepted in pairs])


def token_errors(
    predictions: Sequence[str], references: References, *, lowercase: bool = False, tokenize: str = "13a"
) -> tuple[np.ndarray, np.ndarray]:
    """Edits of each prediction, and tokens of the reference they lead to, shapes `(N,)`; see [`token_error_rate`]."""
    rows = [
        min(((edit_distance(tokens, reference), len(reference)) for reference in accepted), key=lambda row: row[0])
        for tokens, accepted in _pairs(predictions, references, lowercase, splitter(tokenize))
    ]
    errors, lengths = np.array(rows).T
    return errors, lengths


def token_matches(
    predictions: Sequence[str], references: References, *, lowercase: bool = False, tokenize: str = "13a"
) -> tuple[np.ndarray, np.ndarray]:
    """Right positions of each prediction, and positions, shapes `(N,)`; see [`token_accuracy`].

    Where there are several references, the one with the largest share of right positions counts.
    """

    def compare(tokens: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
        matches = sum(ours == theirs for ours, theirs in zip(tokens, reference, strict=False))
        return matches, max(len(tokens), len(reference))

    rows = [
        max((compare(tokens, reference) for reference in accepted), key=lambda row: row[0] / max(row[1], 1))
        for tokens, accepted in _pairs(predictions, references, lowercase, splitter(tokenize))
    ]
    matches, lengths = np.array(rows).T
    return matches, lengths


def edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and replacements that turn `left` into `right`."""
    # What both begin and end with costs nothing; a trained model's output is mostly that
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    left, right = left[start : len(left) - end], right[start : len(right) - end]

    distances = list(range(len(right) + 1))
    for row, ours in enumerate(left, 1):
        diagonal, distances[0] = distances[0], row
        for column, theirs in enumerate(right, 1):
            replaced = diagonal + (ours != theirs)
            diagonal = distances[column]
            distances[column] = min(replaced, diagonal + 1, distances[column - 1] + 1)
    return distances[-1]


def splitter(tokenize: str) -> Callable[[str], Sequence[str]]:
    """The function that cuts a text into the tokens of a tokenizer of `TOKENIZERS`."""
    check_tokenizer(tokenize)
    if tokenize == "char":
        # sacreBLEU's own joins the characters by spaces, which swallows the spaces of the text
        return list
    tokenizer = BLEU(tokenize=tokenize).tokenizer
    return lambda text: tokenizer(text.rstrip()).split()


def checked(predictions: Sequence[str], references: References) -> tuple[list[str], list[list[str]]]:
    """Predictions, and for each the list of its references.

    Raises:
        ValueError: no predictions, another number of references, or something that is not a text.
    """
    for name, texts in (("predictions", predictions), ("references", references)):
        if isinstance(texts, str):
            raise ValueError(f"{name} is one string, {texts[:40]!r}; it must be a list of texts")
    predictions = list(predictions)
    # A lone text is a list of one; anything that is no text is refused below
    references = [list(entry) if isinstance(entry, (list, tuple)) else [entry] for entry in references]
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions and {len(references)} references; pair them up")
    if not predictions:
        raise ValueError("predictions is empty; at least 1 text is needed")
    for index, (prediction, accepted) in enumerate(zip(predictions, references, strict=True)):
        if not accepted:
            raise ValueError(f"references[{index}] is empty; at least 1 reference is needed")
        for name, texts in (("predictions", [prediction]), ("references", accepted)):
            for text in texts:
                if not isinstance(text, str):
                    raise ValueError(f"{name}[{index}] is {text!r}, a {type(text).__name__}; it must be a text")
    return predictions, references


def streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """References as sacreBLEU wants them: a list for each place among them, None where a text has fewer."""
    return [list(stream) for stream in zip_longest(*references)]


def _pairs(
    predictions: Sequence[str], references: References, lowercase: bool, split: Callable[[str], Sequence[str]]
) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
    """Each prediction with its references, all lower-cased if need be and split."""

    def prepare(text: str) -> Sequence[str]:
        return split(text.lower() if lowercase else text)

    return [
        (prepare(prediction), [prepare(reference) for reference in accepted])
        for prediction, accepted in zip(*checked(predictions, references), strict=True)
    ]


def _sacrebleu(metric: BLEU | CHRF | TER, predictions: Sequence[str], references: References) -> Score:
    predictions, references = checked(predictions, references)
    score = metric.corpus_score(predictions, streams(references)).score
    return Score(float(score), metric.get_signature().format())


def signature(references: References, lowercase: bool) -> str:
    """How many references there are and whether case counts, in sacreBLEU's notation."""
    counts = {1 if isinstance(entry, str) else len(entry) for entry in references}
    return f"nrefs:{counts.pop() if len(counts) == 1 else 'var'}|case:{'lc' if lowercase else 'mixed'}"


def check_tokenizer(tokenize: str) -> None:
    """Raises a `ValueError` for anything but one of `TOKENIZERS`."""
    if tokenize not in TOKENIZERS:
        raise ValueError(f"tokenize is {tokenize!r}; it must be one of {', '.join(TOKENIZERS)}")
