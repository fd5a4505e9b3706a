"""All that `attnzoo evaluate` has to say about one system, or about two, as plain data and as tables."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from .generation import Statistics, generation_metrics, sentence_statistics
from .intervals import score_interval
from .lengths import LengthBin, by_length
from .scores import References, checked
from .significance import Comparison, compare

WORST_BY = ("chrf", "token_error_rate")
"""Scores that sentences can be ordered by."""


def scores_with_intervals(
    predictions: Sequence[str],
    references: References,
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    names: Sequence[str] = ("exact_match", "token_error_rate", "bleu", "chrf"),
    sources: Sequence[str] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[dict[str, float | str], dict[str, tuple[float, float]]]:
    """Scores as of [`generation_metrics`], and the 95 % intervals of those that have one; see [`score_interval`].

    Args:
        resamples, seed:
            Of the bootstrap. The others are those of [`generation_metrics`], and so are the errors.
    """
    settings = {"lowercase": lowercase, "tokenize": tokenize, "sources": sources}
    metrics, intervals, _ = _scores(predictions, references, names, settings, {"resamples": resamples, "seed": seed})
    return metrics, intervals


def _scores(
    predictions: Sequence[str],
    references: References,
    names: Sequence[str],
    settings: dict[str, Any],
    drawing: dict[str, int],
) -> tuple[dict[str, float | str], dict[str, tuple[float, float]], dict[str, Statistics | None]]:
    """Scores, their intervals, and the parts that both are made of, since some of them take long to count."""
    metrics, intervals, parts = {}, {}, {}
    for name in names:
        statistics = parts[name] = sentence_statistics(name, predictions, references, **settings)
        if statistics is None or math.isnan(statistics.value):
            # The score itself knows what to do without parts, or with texts that don't define it
            metrics |= generation_metrics(predictions, references, names=[name], **settings)
            continue
        metrics[name], metrics[f"{name}_signature"] = statistics.value, statistics.signature
        interval = score_interval(statistics, **drawing)
        if interval is not None:
            intervals[name] = interval
    return metrics, intervals, parts


def worst_sentences(
    predictions: Sequence[str],
    references: References,
    *,
    by: str = "chrf",
    count: int = 10,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> list[tuple[int, float]]:
    """Numbers of the sentences with the worst scores, from 0, and the scores, worst first.

    Args:
        predictions:
            N texts.
        references:
            N texts, or N lists of texts.
        by:
            One of `WORST_BY`: chrF of the sentence, or its token error rate.
        count:
            How many.
        lowercase:
            Whether upper and lower case are the same.
        tokenize:
            Tokenizer of the token error rate, one of `TOKENIZERS`.

    Raises:
        ValueError: another order, a count below 1, or what [`generation_metrics`] refuses.
    """
    if by not in WORST_BY:
        raise ValueError(f"by is {by!r}; it must be one of {', '.join(WORST_BY)}")
    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    statistics = sentence_statistics(by, predictions, references, lowercase=lowercase, tokenize=tokenize)
    if by == "token_error_rate":
        # Of an empty reference every token is one too many
        errors, tokens = statistics.table.T
        scores = errors / np.maximum(tokens, 1)
        order = np.argsort(-scores, kind="stable")
    else:
        scores = np.array([statistics.score(row) for row in statistics.table])
        order = np.argsort(scores, kind="stable")
    return [(int(row), float(scores[row])) for row in order[:count]]


def evaluation_report(
    outputs: Sequence[str],
    accepted: References,
    *,
    names: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
    sources: Sequence[str] | None = None,
    against: Sequence[str] | None = None,
    bins: int | Sequence[int] | None = None,
    measure: str = "bleu",
    worst: int = 0,
    worst_by: str = "chrf",
    resamples: int = 1000,
    trials: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores, intervals, scores by source length, worst sentences, and the comparison with another system.

    Args:
        outputs:
            N texts of a system.
        accepted:
            N texts, or N lists of texts.
        names:
            Which scores, of `GENERATION_METRICS`.
        tokenize, lowercase, sources:
            See [`generation_metrics`]; sources are needed with `bins`.
        against:
            N texts of the other system. Default: `None`, there is none.
        bins:
            Bins of source length, see [`by_length`]. Default: `None`, no report by length.
        measure:
            The score of that report.
        worst:
            How many of the worst sentences to list.
        worst_by:
            What they are ordered by, one of `WORST_BY`.
        resamples, trials, seed:
            See [`compare`].

    Returns:
        Scores and signatures by name; `intervals`; `by_length`, `worst` and `against` where they are asked for, the
        last with scores, signatures, `intervals` and `by_length` of its own, and `comparison`, by score. All of it can
        be written as JSON.

    Raises:
        ValueError: what the functions that are named above refuse.
    """
    if worst_by not in WORST_BY:
        raise ValueError(f"worst_by is {worst_by!r}; it must be one of {', '.join(WORST_BY)}")
    settings = {"lowercase": lowercase, "tokenize": tokenize}
    drawing = {"resamples": resamples, "seed": seed}

    def of_one(texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, Statistics | None]]:
        scores, intervals, parts = _scores(texts, accepted, names, {**settings, "sources": sources}, drawing)
        result = {**scores, "intervals": {name: list(interval) for name, interval in intervals.items()}}
        if bins is not None:
            spans = by_length(texts, accepted, sources or [], bins, metrics=[measure], seed=seed, **settings)
            result["by_length"] = [_plain(span) for span in spans]
        return result, parts

    result, parts = of_one(outputs)
    if worst:
        listed = checked(outputs, accepted)[1]
        result["worst"] = [
            {
                "row": row,
                worst_by: score,
                **({} if sources is None else {"source": sources[row]}),
                "references": listed[row],
                "output": outputs[row],
            }
            for row, score in worst_sentences(outputs, accepted, by=worst_by, count=worst, **settings)
        ]
    if against is not None:
        result["against"], others = of_one(against)
        result["against"]["comparison"] = {
            name: _plain(compare(parts[name], others[name], trials=trials, **drawing))
            for name in names
            if parts[name] is not None
        }
    return result


def parts_scores(
    parts: Mapping[str, Statistics], *, resamples: int = 1000, seed: int = 0
) -> tuple[dict[str, float | str], dict[str, tuple[float, float]]]:
    """Scores with their signatures from their parts, and the 95 % intervals of those that have one with two ends.

    Args:
        parts:
            Of each score by its name.
        resamples, seed:
            See [`score_interval`].
    """
    metrics: dict[str, float | str] = {}
    intervals = {}
    for name, statistics in parts.items():
        metrics[name], metrics[f"{name}_signature"] = statistics.value, statistics.signature
        interval = score_interval(statistics, resamples=resamples, seed=seed)
        # A perplexity may be more than any number
        if interval is not None and all(map(math.isfinite, interval)):
            intervals[name] = interval
    return metrics, intervals


def parts_report(
    parts: Mapping[str, Statistics],
    others: Mapping[str, Statistics] | None = None,
    *,
    resamples: int = 1000,
    trials: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores and intervals from their parts, and the comparison with another system.

    Args:
        parts:
            Of each score by its name, those of one system.
        others:
            Those of the other system on the same rows. Default: `None`, there is none.
        resamples, trials, seed:
            See [`compare`].

    Returns:
        As of [`evaluation_report`]: scores and signatures by name, `intervals`, and `against`.
    """
    drawing = {"resamples": resamples, "seed": seed}

    def of_one(system: Mapping[str, Statistics]) -> dict[str, Any]:
        scores, intervals = parts_scores(system, **drawing)
        return {**scores, "intervals": {name: list(interval) for name, interval in intervals.items()}}

    report = of_one(parts)
    if others is not None:
        report["against"] = of_one(others)
        report["against"]["comparison"] = {
            name: _plain(compare(statistics, others[name], trials=trials, **drawing))
            for name, statistics in parts.items()
        }
    return report


def _plain(value: LengthBin | Comparison) -> dict[str, Any]:
    """A dataclass as JSON has it, lists for tuples."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


def length_bins(report: Mapping[str, Any]) -> list[LengthBin]:
    """The bins of a report by length, as [`plot_by_length`] takes them."""
    return [LengthBin(**span) for span in report["by_length"]]


def report_tables(
    report: Mapping[str, Any], names: Sequence[str], labels: Sequence[str], title: str, measure: str = "bleu"
) -> list[Table]:
    """Tables of a report, for a terminal.

    Args:
        report:
            Of [`evaluation_report`].
        names:
            The scores, in order.
        labels:
            Name of the system, and that of the other if there is one.
        title:
            Of the first table.
        measure:
            The score of the report by length.
    """
    systems = [report, report["against"]] if "against" in report else [report]
    tables = []
    for system, label in zip(systems, labels, strict=True):
        rows = [
            (name, f"{system[name]:.4f}", _span(system["intervals"].get(name)), system[f"{name}_signature"])
            for name in names
        ]
        heading = title if len(systems) == 1 else f"{label}: {title}"
        tables.append(_table(("score", "value", "95 % interval", "settings"), rows, heading))
    if len(systems) == 2:
        header = ("score", "difference", "95 % interval", "higher in", "p, paired bootstrap", "p, randomization")
        tables.append(
            _table(header, [_compared(name, report) for name in names], f"{labels[0]} less {labels[1]}, paired")
        )
    if "by_length" in report:
        spans = {(span["low"], span["high"]): span["count"] for span in report["by_length"]}
        found = [{(span["low"], span["high"]): span for span in system["by_length"]} for system in systems]
        rows = [
            (f"{low} to {high}", f"{count:,}", *(_of_bin(bins[low, high], measure) for bins in found))
            for (low, high), count in spans.items()
        ]
        tables.append(_table(("source length", "sentences", *labels), rows, f"{measure} by source length"))
    if "worst" in report:
        keys = [key for key in report["worst"][0] if key != "row"]
        rows = [(str(item["row"] + 1), *(_cell(item[key]) for key in keys)) for item in report["worst"]]
        tables.append(_table(("row", *keys), rows, f"the {len(rows)} worst"))
    return tables


def _compared(name: str, report: Mapping[str, Any]) -> tuple[str, ...]:
    comparison = report["against"]["comparison"].get(name)
    if comparison is None:
        difference = report[name] - report["against"][name]
        return (name, f"{difference:+.4f}", "n/a: several references", "", "", "")
    return (
        name,
        f"{comparison['difference']:+.4f}",
        _span(comparison["interval"], "+"),
        f"{100 * comparison['first_higher']:.1f} %",
        f"{comparison['p_bootstrap']:.4f}",
        f"{comparison['p_randomization']:.4f}",
    )


def _of_bin(span: Mapping[str, Any], measure: str) -> str:
    if measure not in span["scores"]:
        return "n/a"
    interval = span["intervals"].get(measure)
    return f"{span['scores'][measure]:.4f}" + ("" if interval is None else f" ({_span(interval)})")


def _span(interval: Sequence[float] | None, sign: str = "") -> str:
    return "n/a" if interval is None else f"{interval[0]:{sign}.4f} to {interval[1]:{sign}.4f}"


def _cell(value: float | str | Sequence[str]) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return value if isinstance(value, str) else " / ".join(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Table:
    # What models and files are called is no markup
    table = Table(title=Text(title))
    for name in header:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*map(Text, row))
    return table
