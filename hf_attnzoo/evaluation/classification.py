"""Scores of classes: how many are right, how well each is found, and how much better than chance.

Everywhere `predictions` and `references` hold N classes each, as numbers or as names.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod, sqrt

import numpy as np

from .generation import Statistics
from .scores import Score

CLASSIFICATION_METRICS = ("accuracy", "f1", "mcc")

_AVERAGES = ("macro", "micro", "weighted", "binary")


def classification_metrics(
    predictions: Sequence[Hashable],
    references: Sequence[Hashable],
    names: Sequence[str] = CLASSIFICATION_METRICS,
) -> dict[str, float | str]:
    """Several scores at once, each `x` with its settings in `x_signature`.

    Args:
        predictions: N classes.
        references: N classes.
        names: any of `CLASSIFICATION_METRICS`; `f1` is the mean over classes.

    Raises:
        ValueError: an unknown name, no predictions, or another number of references.
    """
    functions = {"accuracy": accuracy, "f1": f1_score, "mcc": matthews_correlation}
    results: dict[str, float | str] = {}
    for name in names:
        if name not in functions:
            raise ValueError(f"names has {name!r}; those of classes are {', '.join(CLASSIFICATION_METRICS)}")
        results[name], results[f"{name}_signature"] = functions[name](predictions, references)
    return results


def classification_statistics(
    name: str,
    predictions: Sequence[Hashable],
    references: Sequence[Hashable],
    classes: Sequence[Hashable] | None = None,
) -> Statistics:
    """A score in parts, one for each row, for intervals and tests; see `sentence_statistics`.

    Args:
        name: one of `CLASSIFICATION_METRICS`.
        predictions: N classes.
        references: N classes.
        classes: columns are made for these C, so that the parts of two systems can be compared. Default: `None`, for
            those that occur.

    Raises:
        ValueError: an unknown name, no predictions, another number of references, or a class none of `classes`.
    """
    score = classification_metrics(predictions, references, [name])
    signature = score[f"{name}_signature"]
    right = np.array([ours == theirs for ours, theirs in zip(predictions, references, strict=True)], dtype=np.float64)
    if name == "accuracy":
        table = np.stack([right, np.ones_like(right)], axis=1)
        return Statistics(table, lambda sums: float(sums[0] / sums[1]), ratio=True, signature=signature)
    classes = sorted({*predictions, *references}) if classes is None else classes
    for number, pair in enumerate(zip(predictions, references, strict=True)):
        for value in pair:
            if value not in classes:
                raise ValueError(f"row {number} has the class {value!r}, none of {', '.join(map(str, classes))}")
    wanted = np.array([[value == one for one in classes] for value in references], dtype=np.float64)
    given = np.array([[value == one for one in classes] for value in predictions], dtype=np.float64)
    table = np.concatenate([wanted * given, wanted, given], axis=1)
    return Statistics(table, _macro_f1 if name == "f1" else _correlation, signature=signature)


def _macro_f1(sums: np.ndarray) -> float:
    right, wanted, given = np.split(sums, 3)
    occurs = wanted + given > 0
    return float((2 * right[occurs] / (wanted + given)[occurs]).mean())


def _correlation(sums: np.ndarray) -> float:
    right, wanted, given = ([int(value) for value in part] for part in np.split(sums, 3))
    total = sum(wanted)
    covariance = sum(right) * total - sum(a * b for a, b in zip(wanted, given, strict=True))
    spread = prod(total**2 - sum(value**2 for value in part) for part in (wanted, given))
    return covariance / sqrt(spread) if spread else 0.0


def confusion_matrix(
    predictions: Sequence[Hashable], references: Sequence[Hashable]
) -> tuple[list[Hashable], np.ndarray]:
    """How often each class was taken for each.

    Args:
        predictions: N classes.
        references: N classes.

    Returns:
        The C classes that occur, in order, and counts of shape `(C, C)`: row the reference, column the prediction.

    Raises:
        ValueError: no predictions, or another number of references.
    """
    if len(predictions) == 0:
        raise ValueError("predictions is empty; at least 1 is needed")
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions and {len(references)} references; pair them up")
    classes = sorted({*predictions, *references})
    places = {name: place for place, name in enumerate(classes)}
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    for prediction, reference in zip(predictions, references, strict=True):
        counts[places[reference], places[prediction]] += 1
    return classes, counts


def accuracy(predictions: Sequence[Hashable], references: Sequence[Hashable]) -> Score:
    """Share of predictions that are right, 0 to 1.

    Raises:
        ValueError: no predictions, or another number of references.
    """
    classes, counts = confusion_matrix(predictions, references)
    return Score(float(counts.trace() / counts.sum()), f"rows:{counts.sum()}|classes:{len(classes)}")


def f1_score(
    predictions: Sequence[Hashable],
    references: Sequence[Hashable],
    average: str = "macro",
    positive: Hashable | None = None,
) -> Score:
    """Harmonic mean of precision and recall, `2 TP / (2 TP + FP + FN)`, 0 to 1.

    A class that occurs among the predictions or the references and is never predicted right has 0.

    Args:
        predictions: N classes.
        references: N classes.
        average: `"macro"`, the mean over classes; `"weighted"`, by how often each is the reference; `"micro"`, of the
            counts of all classes, which is the accuracy; `"binary"`, of one class.
        positive: which one, for `"binary"`.

    Raises:
        ValueError: an unknown average, one without its class, no predictions, or another number of references.
    """
    if average not in _AVERAGES:
        raise ValueError(f"average={average!r} is none of {', '.join(_AVERAGES)}")
    if (average == "binary") != (positive is not None):
        raise ValueError(f"average={average!r} and positive={positive!r}: a positive class is for average='binary'")
    classes, counts = confusion_matrix(predictions, references)
    right, wanted, given = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    scores = 2 * right / (wanted + given)
    if average == "binary":
        value = scores[classes.index(positive)] if positive in classes else 0.0
    elif average == "micro":
        value = right.sum() / counts.sum()
    else:
        value = np.average(scores, weights=wanted if average == "weighted" else None)
    of = f"|positive:{positive}" if average == "binary" else ""
    return Score(float(value), f"rows:{counts.sum()}|classes:{len(classes)}|average:{average}{of}")


def matthews_correlation(predictions: Sequence[Hashable], references: Sequence[Hashable]) -> Score:
    """Correlation of predictions and references, -1 to 1: 0 is chance (Matthews 1975; Gorodkin 2004 for many classes).

    It is 0 where all predictions, or all references, are of one class.

    Raises:
        ValueError: no predictions, or another number of references.
    """
    classes, counts = confusion_matrix(predictions, references)
    wanted, given, total = counts.sum(axis=1), counts.sum(axis=0), int(counts.sum())
    covariance = int(counts.trace()) * total - int(wanted @ given)
    spread = prod(total**2 - int(sums @ sums) for sums in (wanted, given))
    value = covariance / sqrt(spread) if spread else 0.0
    return Score(value, f"rows:{total}|classes:{len(classes)}")
