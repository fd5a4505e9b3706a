"""The scores of written texts by name, and what each sentence adds to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER

from .correction import gleu, gleu_of, gleu_statistics
from .scores import (
    References,
    bleu,
    character_error_rate,
    check_tokenizer,
    checked,
    chrf,
    exact_match,
    exact_matches,
    phoneme_error_rate,
    sequence_error_rate,
    signature,
    streams,
    ter,
    token_accuracy,
    token_error_rate,
    token_errors,
    token_matches,
    word_error_rate,
)

GENERATION_METRICS = (
    "exact_match",
    "sequence_error_rate",
    "token_error_rate",
    "word_error_rate",
    "character_error_rate",
    "phoneme_error_rate",
    "token_accuracy",
    "bleu",
    "chrf",
    "ter",
    "gleu",
)
"""Names of the scores of written texts."""

# Score -> how its tokens are cut, None if the caller says
_TOKEN_ERRORS = {
    "token_error_rate": None,
    "word_error_rate": "none",
    "phoneme_error_rate": "none",
    "character_error_rate": "char",
}


class Statistics(NamedTuple):
    """A score of a corpus in parts: what each sentence adds, and the score of a sum of such parts.

    Args:
        table:
            A row for each sentence, shape `(N, K)`.
        score:
            Function from the sum of any rows, shape `(K,)`, to the score.
        ratio:
            Whether the score is the first column over the second, K being 2: a share, or a rate.
        signature:
            The settings of the score, in sacreBLEU's notation.
    """

    table: np.ndarray
    score: Callable[[np.ndarray], float]
    ratio: bool = False
    signature: str = ""

    @property
    def value(self) -> float:
        """The score of the whole corpus."""
        return self.score(self.table.sum(axis=0))

    def take(self, rows: Sequence[int]) -> Statistics:
        """The same of some sentences."""
        return self._replace(table=self.table[rows])


def generation_metrics(
    predictions: Sequence[str],
    references: References,
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    names: Sequence[str] = ("exact_match", "token_error_rate", "bleu", "chrf"),
    sources: Sequence[str] | None = None,
) -> dict[str, float | str]:
    """Several scores of the same texts, for an evaluation during training or after it.

    Args:
        predictions:
            N texts.
        references:
            N texts, or N lists of texts.
        lowercase:
            Whether upper and lower case are the same, for all scores.
        tokenize:
            Tokenizer of BLEU, GLEU, token error rate and token accuracy, one of `TOKENIZERS`.
        names:
            Which scores, of `GENERATION_METRICS`.
        sources:
            N texts that the predictions were made of, for `"gleu"` alone.

    Returns:
        Each score under its name, a float, and its settings under `<name>_signature`, a string.

    Raises:
        ValueError: an unknown name, `"gleu"` without sources, or what the single scores refuse.
    """
    functions = {
        "exact_match": exact_match,
        "sequence_error_rate": sequence_error_rate,
        "token_error_rate": partial(token_error_rate, tokenize=tokenize),
        "word_error_rate": word_error_rate,
        "character_error_rate": character_error_rate,
        "phoneme_error_rate": phoneme_error_rate,
        "token_accuracy": partial(token_accuracy, tokenize=tokenize),
        "bleu": partial(bleu, tokenize=tokenize),
        "chrf": chrf,
        "ter": ter,
        "gleu": partial(gleu, sources=sources, tokenize=tokenize),
    }
    check_tokenizer(tokenize)
    metrics = {}
    for name in names:
        _check_name(name)
        score = functions[name](predictions, references, lowercase=lowercase)
        metrics[name], metrics[f"{name}_signature"] = score
    return metrics


def sentence_statistics(
    name: str,
    predictions: Sequence[str],
    references: References,
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    sources: Sequence[str] | None = None,
) -> Statistics | None:
    """A score in parts, for intervals, tests and scores of some of the sentences.

    Args:
        name:
            Of the score, one of `GENERATION_METRICS`. The others are those of [`generation_metrics`].

    Returns:
        The parts; None for `"gleu"` of several references, one of which is drawn anew each time.

    Raises:
        ValueError: see [`generation_metrics`].
    """
    _check_name(name)
    check_tokenizer(tokenize)
    texts = (predictions, references)
    settings = signature(references, lowercase)
    if name in ("exact_match", "sequence_error_rate"):
        hits = exact_matches(*texts, lowercase=lowercase)
        return _ratio(hits if name == "exact_match" else 1 - hits, np.ones_like(hits), settings)
    if name in _TOKEN_ERRORS:
        tokenize = _TOKEN_ERRORS[name] or tokenize
        errors = token_errors(*texts, lowercase=lowercase, tokenize=tokenize)
        return _ratio(*errors, f"{settings}|tok:{tokenize}")
    if name == "token_accuracy":
        right = token_matches(*texts, lowercase=lowercase, tokenize=tokenize)
        return _ratio(*right, f"{settings}|tok:{tokenize}")
    if name == "gleu":
        table = gleu_statistics(*texts, sources=sources, lowercase=lowercase, tokenize=tokenize)
        return None if table is None else Statistics(table, gleu_of, signature=f"{settings}|tok:{tokenize}")
    metric = {
        "bleu": lambda: BLEU(lowercase=lowercase, tokenize=tokenize),
        "chrf": lambda: CHRF(lowercase=lowercase),
        "ter": lambda: TER(case_sensitive=not lowercase),
    }[name]()
    predictions, references = checked(predictions, references)
    # sacreBLEU has no other way to what a sentence adds; `corpus_score` is these two, with a sum in between
    table = np.array(metric._extract_corpus_statistics(predictions, streams(references)), dtype=np.float64)
    return Statistics(
        table,
        lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score),
        signature=metric.get_signature().format(),
    )


def _ratio(values: np.ndarray, weights: np.ndarray, signature: str) -> Statistics:
    # A share or rate of nothing is left undefined: it is never drawn unless there is nothing else to draw
    return Statistics(
        np.stack([values, weights], axis=1).astype(np.float64),
        lambda sums: float(sums[0] / sums[1]) if sums[1] else float("nan"),
        ratio=True,
        signature=signature,
    )


def _check_name(name: str) -> None:
    if name not in GENERATION_METRICS:
        raise ValueError(f"names has {name!r}; the scores are {', '.join(GENERATION_METRICS)}")
