"""Demonstrations for prompts: built-in tasks, and files with tasks and examples of one's own."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from .dates import dates
from .in_context import IN_CONTEXT_TEMPLATE, in_context_episodes

_GRAMMAR = (
    ("He have two brother and one sister.", "He has two brothers and one sister."),
    ("Yesterday we goes to the market by foot.", "Yesterday we went to the market on foot."),
    ("The informations on this page is wrong.", "The information on this page is wrong."),
    ("I am living in this town since ten years.", "I have been living in this town for ten years."),
    ("Can you explain me how works this machine?", "Can you explain to me how this machine works?"),
    ("She is more taller than her mother.", "She is taller than her mother."),
    ("If it will rain, we stay at the home.", "If it rains, we will stay at home."),
    ("There is too much peoples in the bus.", "There are too many people on the bus."),
)

_ARTICLES = (
    (
        "Village Bridge Opens After Three Years of Repairs",
        "Residents no longer need a boat to reach the bakery",
        "The stone bridge over the Aller was opened again on Saturday, three years after a flood had carried off two "
        "of its arches. The mayor cut a ribbon, the brass band played, and the first to cross was the baker, with a "
        "tray of rolls for those who had rowed to her shop in all weathers.",
    ),
    (
        "Night Trains Return to the Northern Line",
        "Railway hopes that sleepers will win back travellers who fly",
        "From the first of May a train with forty beds will leave the capital at ten each evening and reach the coast "
        "in time for breakfast. The railway had given up the service twelve years ago for want of passengers. This "
        "time, a spokesman said, nine in ten places were sold before the timetable was printed.",
    ),
    (
        "Library Lends Out Tools as Well as Books",
        "A drill is used for thirteen minutes in its life, says the woman who had the idea",
        "Between the atlases and the novels there is now a shelf of drills, saws and sewing machines. Whoever has a "
        "card may take one home for a week. In the first month the ladder was out every day, and only one spirit "
        "level came back late.",
    ),
)

_REVIEWS = (
    ("A warm and clever film that I could watch again tomorrow.", "positive"),
    ("Two hours of my life that nobody will give back.", "negative"),
    ("The food came late, cold, and to the wrong table.", "negative"),
    ("Friendly people, a spotless room, and the best bread in town.", "positive"),
    ("The story goes nowhere and takes its time getting there.", "negative"),
    ("I laughed, I cried, and then I told all my friends.", "positive"),
    ("It broke on the second day, and so did my patience.", "negative"),
    ("Light, quiet, and the battery lasts for a week.", "positive"),
)


def _grammar() -> dict[str, Any]:
    return {
        "template": "Poor English input: {source}\nGood English output: {target}",
        "examples": [{"source": source, "target": target} for source, target in _GRAMMAR],
    }


def _article() -> dict[str, Any]:
    return {
        "template": "Title: {title}\nSubtitle: {subtitle}\nArticle: {article}",
        "separator": "\n\n",
        "examples": [dict(zip(("title", "subtitle", "article"), each, strict=True)) for each in _ARTICLES],
    }


def _dates() -> dict[str, Any]:
    rows = dates("train", 8, seed=0, locales="en", first_year=1950, last_year=2049)
    return {
        "template": "Date: {source}\nISO 8601: {target}",
        "examples": [{"source": row["source"], "target": row["target"]} for row in rows],
    }


def _letters() -> dict[str, Any]:
    # Of the test split of the recipe in-context: what the model it trains has never seen
    (episode,) = in_context_episodes("test", 1, letters=8, max_length=3, same_length=True, kinds=["map"])
    return {
        "template": IN_CONTEXT_TEMPLATE,
        "examples": [{"source": source, "target": target} for source, target in episode.pairs[:12]],
    }


def _sentiment() -> dict[str, Any]:
    return {
        "template": "Review: {text}\nSentiment: {label}",
        "separator": "\n\n",
        "labels": ["positive", "negative"],
        "examples": [{"text": text, "label": label} for text, label in _REVIEWS],
    }


FEW_SHOT_TASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "grammar": _grammar,
    "article": _article,
    "dates": _dates,
    "letters": _letters,
    "sentiment": _sentiment,
}
"""Built-in tasks by name: correct a sentence, write an article below its title, normalise a date, put
other letters for those of a word, judge a review."""

# What a file may say: arguments of the pipeline, and of what type.
_KEYS = {
    "template": str,
    "instruction": str,
    "separator": str,
    "labels": (list, dict),
    "stop": (str, list),
    "examples": list,
}


def load_few_shot_task(name_or_file: str | os.PathLike) -> dict[str, Any]:
    """A task for `attnzoo-few-shot`: `pipe(query, **load_few_shot_task("grammar"))`.

    Args:
        name_or_file: a name in `FEW_SHOT_TASKS`, or a YAML file with `template` and any of `instruction`, `separator`,
            `labels`, `stop` and `examples`, which mean what they mean to the pipeline.

    Returns:
        Arguments of the pipeline.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: a file that says something else, or no template.
    """
    name = os.fspath(name_or_file)
    if name in FEW_SHOT_TASKS:
        return FEW_SHOT_TASKS[name]()
    file = Path(name)
    if not file.is_file():
        raise FileNotFoundError(f"{name}: no such file, and none of the tasks {', '.join(FEW_SHOT_TASKS)}")
    try:
        task = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: no YAML in UTF-8: {error}") from error
    if not isinstance(task, dict) or "template" not in task:
        raise ValueError(f"{file}: must be a mapping with the key template")
    for key, value in task.items():
        if key not in _KEYS:
            raise ValueError(f"{file}: key {key!r} is none of {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise ValueError(f"{file}: {key}={value!r:.40} is of the wrong type")
    task["examples"] = [
        _texts(example, f"{file}: example {n}") for n, example in enumerate(task.get("examples", []), 1)
    ]
    return task


def load_examples(file: str | os.PathLike) -> list[dict[str, str]]:
    """Examples of a prompt from a file.

    Args:
        file: `.jsonl`, an object a line; or `.tsv` or `.csv`, whose first line names the fields.

    Returns:
        A dict of texts for each.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another suffix, a row that isn't an example, by its line, or none at all.
    """
    file = Path(file)
    suffix = file.suffix.lower()
    if suffix not in (".jsonl", ".tsv", ".csv"):
        raise ValueError(f"{file}: examples are read from .jsonl, .tsv or .csv")
    examples = []
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            if suffix == ".jsonl":
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        examples.append(_texts(_object(line, f"{file}:{number}"), f"{file}:{number}"))
            else:
                reader = csv.DictReader(stream, delimiter="\t" if suffix == ".tsv" else ",", strict=True)
                for row in reader:
                    if None in row or None in row.values():
                        raise ValueError(f"{file}:{reader.line_num}: not as many fields as the first line names")
                    examples.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file}: {error}") from error
    if not examples:
        raise ValueError(f"{file}: no examples")
    return examples


def _object(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: no JSON: {error}") from error


def _texts(example: Any, where: str) -> dict[str, str]:
    if not isinstance(example, dict) or not all(isinstance(each, str) for pair in example.items() for each in pair):
        raise ValueError(f"{where}: must be a mapping of names to texts, got {example!r:.60}")
    return example
