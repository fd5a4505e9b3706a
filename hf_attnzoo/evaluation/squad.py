"""Scores of answers that are parts of a text, as SQuAD has them (Rajpurkar et al. 2016, section 6.1; 2018).

Everywhere `predictions` holds N texts, the empty one for "there is no answer", and `references` N lists of accepted
answers, an empty list where there is none.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from .generation import Statistics
from .scores import Score

SQUAD_METRICS = ("exact_match", "f1")

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """An answer in lower case, without ASCII punctuation, English articles and superfluous white space."""
    # Punctuation goes before articles: "the-a" is one word.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad_metrics(
    predictions: Sequence[str], references: Sequence[Sequence[str]], names: Sequence[str] = SQUAD_METRICS
) -> dict[str, float | str]:
    """Mean scores, 0 to 1, each `x` with its settings in `x_signature`.

    Args:
        predictions: N answers.
        references: N lists of accepted answers.
        names: any of `SQUAD_METRICS`.

    Raises:
        ValueError: an unknown name, no predictions, another number of references, or one string for a list.
    """
    functions = {"exact_match": squad_exact, "f1": squad_f1}
    results: dict[str, float | str] = {}
    for name in names:
        if name not in functions:
            raise ValueError(f"names has {name!r}; those of answers are {', '.join(SQUAD_METRICS)}")
        score = _mean(functions[name](predictions, references), references)
        results[name], results[f"{name}_signature"] = score
    return results


def squad_statistics(name: str, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
    """A score in parts, one for each question; see `sentence_statistics`.

    Args:
        name: one of `SQUAD_METRICS`.
        predictions: N answers.
        references: N lists of accepted answers.

    Raises:
        ValueError: as `squad_metrics`.
    """
    signature = squad_metrics(predictions, references, [name])[f"{name}_signature"]
    values = (squad_exact if name == "exact_match" else squad_f1)(predictions, references)
    table = np.stack([values, np.ones_like(values)], axis=1)
    return Statistics(table, lambda sums: float(sums[0] / sums[1]), ratio=True, signature=signature)


def squad_exact(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """1.0 where a prediction equals an accepted answer once both are normalised, otherwise 0.0, shape `(N,)`.

    Raises:
        ValueError: as `squad_metrics`.
    """
    return _best(lambda ours, theirs: float(ours == theirs), predictions, references)


def squad_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """F1 of the words of a prediction and those of the accepted answer it is nearest to, shape `(N,)`, 0 to 1.

    Words that stand several times count several times. Where either side has no words, it is 1 if neither has.

    Raises:
        ValueError: as `squad_metrics`.
    """
    return _best(_overlap, predictions, references)


def _overlap(ours: str, theirs: str) -> float:
    words, wanted = ours.split(), theirs.split()
    if not words or not wanted:
        return float(words == wanted)
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))


def _best(
    score: Callable[[str, str], float], predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> np.ndarray:
    if len(predictions) == 0:
        raise ValueError("predictions is empty; at least 1 answer is needed")
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions and {len(references)} references; pair them up")
    best = []
    for prediction, accepted in zip(predictions, references, strict=True):
        if isinstance(accepted, str):
            raise ValueError(f"references must hold lists of accepted answers, got one string: {accepted[:40]!r}")
        ours = normalize_answer(prediction)
        # An answer of nothing but articles and punctuation is none, unless all are.
        theirs = [text for text in map(normalize_answer, accepted) if text] or [""]
        best.append(max(score(ours, text) for text in theirs))
    return np.array(best)


def _mean(values: np.ndarray, references: Sequence[Sequence[str]]) -> Score:
    counts = {len(accepted) for accepted in references}
    number = str(counts.pop()) if len(counts) == 1 else "var"
    return Score(float(values.mean()), f"questions:{len(values)}|nrefs:{number}|norm:squad")
