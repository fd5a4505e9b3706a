"""The fixed-vector bottleneck, measured: accuracy by source length, with attention and without.

Two RNNsearch models of equal size learn to reverse strings of 5 to 15 letters: one looks at the source again for every
letter it writes, the other has one vector for all of it (Bahdanau, Cho and Bengio 2015, figure 2, on a task that needs
no data). Both are asked for strings of 3 to 25 letters.

    python training/studies/bottleneck.py

writes `bottleneck.png` and `bottleneck.json` beside this file, in about five minutes on two cores.
"""

import dataclasses
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from transformers import pipeline

from hf_attnzoo import RNNSearchConfig, RNNSearchForConditionalGeneration
from hf_attnzoo.data import load_source
from hf_attnzoo.evaluation import by_length, plot_by_length
from hf_attnzoo.hub.card import hardware
from hf_attnzoo.recipes import find_recipe, load_recipe, run_recipe

TRAINED, ASKED = (5, 15), (3, 25)


def parameters(**fields: Any) -> int:
    """Number of parameters of an RNNsearch with these fields."""
    return RNNSearchForConditionalGeneration(RNNSearchConfig(**fields)).num_parameters()


def equal_hidden_size(fields: dict[str, Any]) -> int:
    """Hidden size at which the model without attention first has as many parameters as that with it."""
    goal = parameters(**fields)
    size = fields["hidden_size"]
    while parameters(**{**fields, "attention": "none", "hidden_size": size}) < goal:
        size += 1
    return size


def main(
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides of the reversal recipe, for both.")] = None,
    per_length: Annotated[int, typer.Option(min=1, help="Strings of each length to ask for.")] = 100,
    output: Annotated[Path, typer.Option(help="Folder for picture and figures.")] = Path(__file__).parent,
) -> None:
    """Train both models, ask for every length, and draw."""
    console = Console()
    recipe = find_recipe("reversal")
    vocabulary = 26 + 4
    fields = {"vocab_size": vocabulary, **load_recipe(recipe, overrides or ()).model}
    hidden = {"additive": fields["hidden_size"], "none": equal_hidden_size(fields)}
    names = {"additive": "RNNsearch, with attention", "none": "RNNencdec, one vector"}

    questions = [
        row
        for length in range(ASKED[0], ASKED[1] + 1)
        for row in load_source("reverse", "test", size=per_length, min_length=length, max_length=length)
    ]
    sources, references = [row["source"] for row in questions], [row["target"] for row in questions]
    reports, facts = {}, {}
    for attention, name in names.items():
        settings = [f"model.attention={attention}", f"model.hidden_size={hidden[attention]}"]
        settings += [f"output=runs/bottleneck/{attention}", f"name=reversal-{attention}"]
        result = run_recipe(load_recipe(recipe, [*(overrides or ()), *settings]), console)
        translate = pipeline("attnzoo-translation", model=str(result.model))
        answers = [item["translation_text"] for item in translate(sources, batch_size=100)]
        reports[name] = by_length(answers, references, sources, bins=1, tokenize="none")
        facts[name] = {
            "parameters": parameters(**{**fields, "attention": attention, "hidden_size": hidden[attention]}),
            "seconds": round(result.seconds),
            "test": result.metrics,
            "token accuracy, lengths 5 to 15": _mean(reports[name], *TRAINED),
            "token accuracy, lengths 15 to 25": _mean(reports[name], TRAINED[1], ASKED[1]),
        }

    plot_by_length(reports, output / "bottleneck.png", trained=TRAINED, title="Reversing a string of letters")
    report = {
        "models": facts,
        "token accuracy by length": {
            name: {item.low: item.token_accuracy for item in bins} for name, bins in reports.items()
        },
        "strings per length": per_length,
        "recipe": dataclasses.asdict(load_recipe(recipe, overrides or ())),
        "hardware": hardware(),
        "versions": {name: version(name) for name in ("hf-attnzoo", "transformers", "torch")}
        | {"python": platform.python_version()},
    }
    (output / "bottleneck.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    table = Table("model", "parameters", "right symbols, 5 to 15", "right symbols, 15 to 25", "training")
    for name, row in facts.items():
        accuracy = [f"{100 * row[f'token accuracy, lengths {span}']:.1f} %" for span in ("5 to 15", "15 to 25")]
        table.add_row(name, f"{row['parameters']:,}", *accuracy, f"{row['seconds']} s")
    console.print(table)


def _mean(bins: list[Any], low: int, high: int) -> float:
    kept = [item for item in bins if low <= item.low <= high]
    return sum(item.token_accuracy for item in kept) / len(kept)


if __name__ == "__main__":
    typer.run(main)
