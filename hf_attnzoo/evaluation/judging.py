"""What models say of texts, of their words, or of questions about them, and how right that is, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import Pipeline

from ..data import first_tokens
from ..pipelines.question_answering import most_tokens
from ..wording import counted
from .classification import CLASSIFICATION_METRICS, classification_statistics, confusion_matrix
from .generation import Statistics
from .report import parts_report
from .squad import SQUAD_METRICS, squad_f1, squad_statistics
from .tagging import TAGGING_METRICS, tagging_statistics

Track = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Answers:
    """What one system says of N rows.

    Args:
        values: a class, a list of tags, or a text, for each row.
        goodness: for each row how good that is, 0 to 1, shape `(N,)`: the probability of the right class, the share of
            words that are right, or F1 with the nearest accepted answer.
    """

    values: list[Any]
    goodness: np.ndarray

    @property
    def lines(self) -> list[str]:
        """The values as they are written to a file, one a line."""
        return [value if isinstance(value, str) else " ".join(value) for value in self.values]


@dataclass(frozen=True)
class JudgedTask:
    """How models of a task are evaluated.

    Args:
        pipeline: of transformers, or of ours.
        unit: what rows are called.
        metrics: scores that there are.
        goodness: what `Answers.goodness` is.
        ask: from a pipeline, rows, a batch size and what shows progress to the answers.
        read: from the lines of a file of answers and rows to the answers.
        statistics: from a score, the values of some systems, rows and the number of the one that is meant to the parts
            of its score.
        told: from a row to its cells in a list of the worst.
    """

    pipeline: str
    unit: str
    metrics: tuple[str, ...]
    goodness: str
    ask: Callable[[Pipeline, Dataset, int, Track], Answers]
    read: Callable[[list[str], Dataset], Answers]
    statistics: Callable[[str, Sequence[list[Any]], Dataset, int], Statistics]
    told: Callable[[dict[str, Any]], dict[str, str]]


def _set_limit(pipe: Pipeline) -> int:
    """Let a pipeline cut texts off where its model or its tokenizer must."""
    pipe.tokenizer.model_max_length = most_tokens(pipe.model, pipe.tokenizer)
    return pipe.tokenizer.model_max_length


def _classes(pipe: Pipeline, rows: Dataset, batch_size: int, track: Track) -> Answers:
    wanted = known_classes(rows["label"], pipe.model.config.id2label)
    texts = ({"text": row["text"], "text_pair": row.get("text_pair")} for row in rows)
    given = pipe(texts, batch_size=batch_size, top_k=None, truncation=True, max_length=_set_limit(pipe))
    values, goodness = [], []
    for scores, right in zip(track(given), wanted, strict=True):
        shares = {item["label"]: item["score"] for item in scores}
        values.append(max(shares, key=shares.get))
        goodness.append(shares[right])
    return Answers(values, np.array(goodness))


def known_classes(labels: Sequence[str], names: dict[int, str]) -> list[str]:
    """The classes of rows as a model names them, who may know them by name or by number.

    Args:
        labels: N names or numbers.
        names: of the model's classes, by number.

    Raises:
        ValueError: a class that the model doesn't have.
    """
    known = set(names.values())
    if not set(labels) <= known and all(label.isdecimal() and int(label) in names for label in labels):
        return [names[int(label)] for label in labels]
    for number, label in enumerate(labels):
        if label not in known:
            raise ValueError(
                f"row {number} of the data has the label {label!r}, and the model knows {', '.join(names.values())}; "
                "label_names says which are meant by the numbers 0, 1, ..."
            )
    return list(labels)


def _tags(pipe: Pipeline, rows: Dataset, batch_size: int, track: Track) -> Answers:
    _set_limit(pipe)
    given = pipe((" ".join(words) for words in rows["tokens"]), batch_size=batch_size, ignore_labels=[])
    values = []
    for words, found in zip(rows["tokens"], track(given), strict=True):
        places = first_tokens(words, [(item["start"], item["end"]) for item in found])
        # What was cut off is nothing.
        values.append(["O" if place is None else found[place]["entity"] for place in places])
    return Answers(values, _right_words(values, rows))


def _right_words(values: list[list[str]], rows: Dataset) -> np.ndarray:
    return np.array(
        [
            np.mean([given == right for given, right in zip(ours, theirs, strict=True)])
            for ours, theirs in zip(values, rows["tags"], strict=True)
        ]
    )


def _found(pipe: Pipeline, rows: Dataset, batch_size: int, track: Track) -> Answers:
    questions = ({"question": row["question"], "context": row["context"]} for row in rows)
    # Where some questions have no answer, that there is none is one.
    given = pipe(questions, batch_size=batch_size, handle_impossible_answer=not all(rows["answers"]))
    values = [answer["answer"] for answer in track(given)]
    return Answers(values, squad_f1(values, list(rows["answers"])))


def _read_classes(lines: list[str], rows: Dataset) -> Answers:
    right = [float(line == label) for line, label in zip(lines, rows["label"], strict=True)]
    return Answers(lines, np.array(right))


def _read_tags(lines: list[str], rows: Dataset) -> Answers:
    values = [line.split() for line in lines]
    for number, (ours, theirs) in enumerate(zip(values, rows["tags"], strict=True), 1):
        if len(ours) != len(theirs):
            raise ValueError(f"line {number} has {len(ours)} tags, and its sentence {len(theirs)} words")
    return Answers(values, _right_words(values, rows))


def _read_found(lines: list[str], rows: Dataset) -> Answers:
    return Answers(lines, squad_f1(lines, list(rows["answers"])))


def _class_parts(name: str, systems: Sequence[list[Any]], rows: Dataset, number: int) -> Statistics:
    # Parts of two systems are compared: they have columns for the same classes.
    classes = sorted({*rows["label"], *(value for values in systems for value in values)})
    return classification_statistics(name, systems[number], list(rows["label"]), classes)


JUDGED_TASKS: dict[str, JudgedTask] = {
    "text-classification": JudgedTask(
        "text-classification",
        "texts",
        CLASSIFICATION_METRICS,
        "probability of the right class",
        _classes,
        _read_classes,
        _class_parts,
        lambda row: {
            "text": f"{row['text']} / {row['text_pair']}" if row.get("text_pair") else row["text"],
            "class": row["label"],
        },
    ),
    "token-classification": JudgedTask(
        "token-classification",
        "sentences",
        TAGGING_METRICS,
        "share of words that are right",
        _tags,
        _read_tags,
        lambda name, systems, rows, number: tagging_statistics(name, systems[number], list(rows["tags"])),
        lambda row: {"sentence": " ".join(row["tokens"]), "tags": " ".join(row["tags"])},
    ),
    "question-answering": JudgedTask(
        "attnzoo-question-answering",
        "questions",
        SQUAD_METRICS,
        "f1",
        _found,
        _read_found,
        lambda name, systems, rows, number: squad_statistics(name, systems[number], list(rows["answers"])),
        lambda row: {"question": row["question"], "answers": " | ".join(dict.fromkeys(row["answers"]))},
    ),
}
"""Tasks whose models say something of a text, by what transformers calls them."""


def judged_report(
    task: JudgedTask,
    systems: Sequence[Pipeline | list[str]],
    rows: Dataset,
    names: Sequence[str],
    *,
    worst: int = 0,
    batch_size: int = 32,
    track: Callable[[int, Iterable[Any]], Iterable[Any]] = lambda number, given: given,
    resamples: int = 1000,
    trials: int = 10_000,
    seed: int = 0,
) -> tuple[dict[str, Any], list[Answers]]:
    """Scores, intervals, the worst answers, and the comparison with another system.

    Args:
        task: of `JUDGED_TASKS`.
        systems: one or two, each a pipeline of the task, or N lines with an answer each.
        rows: N rows of the data, as `load_annotated_source` reads them.
        names: which scores, of `task.metrics`.
        worst: how many of the worst answers of the first system to list.
        batch_size: inputs at a time.
        track: from the number of a system and its answers as they come to the same; what shows progress.
        resamples, trials, seed: see `compare`.

    Returns:
        What `parts_report` gives, with `worst` if it is asked for; and the answers of each system.

    Raises:
        ValueError: an unknown score, another number of lines than of rows, or data that a model doesn't fit.
    """
    for name in names:
        if name not in task.metrics:
            raise ValueError(f"names has {name!r}; the scores of {task.unit} are {', '.join(task.metrics)}")
    pipes = [system for system in systems if not isinstance(system, list)]
    if "label" in rows.column_names and pipes:
        # Numbers in the data become the names that answers have.
        labels = known_classes(rows["label"], pipes[0].model.config.id2label)
        rows = rows.remove_columns("label").add_column("label", labels)
    answers = []
    for number, system in enumerate(systems):
        if isinstance(system, list):
            if len(system) != len(rows):
                found = f"{counted(len(system), 'line')} and {counted(len(rows), 'row')} of data"
                raise ValueError(f"found {found}: an answer a line")
            answers.append(task.read(system, rows))
        else:
            answers.append(task.ask(system, rows, batch_size, partial(track, number)))
    values = [each.values for each in answers]
    parts = [{name: task.statistics(name, values, rows, number) for name in names} for number in range(len(systems))]
    report = parts_report(*parts, resamples=resamples, trials=trials, seed=seed)
    if worst:
        report["worst"] = worst_answers(task, answers[0], rows, worst)
    if "label" in rows.column_names:
        classes, counts = confusion_matrix(values[0], list(rows["label"]))
        report["confusion"] = {"classes": classes, "counts": counts.tolist()}
    return report, answers


def worst_answers(task: JudgedTask, answers: Answers, rows: Dataset, count: int) -> list[dict[str, Any]]:
    """The rows with the worst answers, worst first.

    Args:
        task: of the rows.
        answers: to them.
        rows: of the data.
        count: how many, at least 1.

    Returns:
        For each its `row`, from 0, how good the answer is, what the row holds, and the `output`.

    Raises:
        ValueError: a count below 1.
    """
    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    lines = answers.lines
    return [
        {
            "row": int(number),
            task.goodness: float(answers.goodness[number]),
            **task.told(rows[int(number)]),
            "output": lines[number],
        }
        for number in np.argsort(answers.goodness, kind="stable")[:count]
    ]
