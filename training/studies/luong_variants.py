"""Luong's variants, measured: every score with every scope, with input feeding and without, on one task.

Table 1 of Luong, Pham and Manning (2015) adds one thing at a time to a recurrent encoder-decoder: source reversal,
attention, input feeding, another score or scope. Here the task needs no data (a string of letters is reversed), every
model has the same sizes, the same seed and the same few steps, and all combinations are tried.

    python training/studies/luong_variants.py

writes `luong_variants.png` and `luong_variants.json` beside this file, in about a quarter of an hour on two cores.
"""

import dataclasses
import itertools
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from hf_attnzoo.hub.card import hardware
from hf_attnzoo.recipes import find_recipe, load_recipe, run_recipe

SCORES = ("dot", "general", "concat", "location")
SCOPES = ("global", "local-m", "local-p")

# A window of 2 shows 5 letters of up to 10: local attention has to be in the right place.
WINDOW, LONGEST, LETTERS = 2, 10, 12

COMMON = (
    "data.source=reverse",
    f"data.options={{min_length: 4, max_length: {LONGEST}, symbols: {LETTERS}}}",
    "data.train.size=20000",
    "tokenizer.kind=symbol",
    "tokenizer.shared=true",
    "model.bidirectional=false",
    "model.embedding_size=32",
    "model.hidden_size=96",
    "training.max_steps=300",
    "training.batch_tokens=1500",
    "training.learning_rate=0.005",
    "training.eval_steps=150",
    "evaluation.metrics=[exact_match, token_error_rate]",
    "evaluation.tokenize=none",
    "evaluation.samples=0",
)


def variants() -> dict[str, list[str]]:
    """Overrides of the recipe by the name of a variant, in the order of the table."""
    without = ["model.attention=none", "model.input_feeding=false"]
    found = {"no attention": without, "no attention, source reversed": [*without, "model.reverse_source=true"]}
    for feeding, scope, score in itertools.product((False, True), SCOPES, SCORES):
        settings = [f"model.attention={scope}", f"model.score={score}", f"model.input_feeding={str(feeding).lower()}"]
        settings += [f"model.window={WINDOW}"] if scope != "global" else []
        # One position more than letters, for the end of the source.
        settings += [f"model.max_source_length={LONGEST + 1}"] if score == "location" else []
        found[f"{scope}, {score}{', input feeding' if feeding else ''}"] = settings
    return found


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Exact match of every variant with its interval, the scopes in colours of their own.

    Args:
        rows: facts by the name of a variant.
        path: of the picture.
    """
    colours = {"no attention": "0.5", "global": "tab:blue", "local-m": "tab:orange", "local-p": "tab:green"}
    figure = Figure(figsize=(7.5, 0.3 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    for place, (name, row) in enumerate(rows.items()):
        value, (low, high) = row["exact_match"], row["interval"]
        colour = colours[name.split(",")[0]]
        axes.barh(place, 100 * value, color=colour, alpha=1.0 if "feeding" in name else 0.6)
        axes.plot([100 * low, 100 * high], [place, place], color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("exact match on unseen strings, %, with 95 % intervals")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides of the recipe, for all variants.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for picture and figures.")] = Path(__file__).parent,
) -> None:
    """Train every variant, and compare."""
    console = Console()
    recipe = find_recipe("dates-luong")
    rows: dict[str, dict[str, Any]] = {}
    for number, (name, settings) in enumerate(variants().items()):
        console.print(f"\n[bold]{name}[/bold]")
        own = [f"output=runs/luong-variants/{number}", f"name=variant-{number}"]
        result = run_recipe(load_recipe(recipe, [*COMMON, *settings, *(overrides or ()), *own]), console)
        saved = json.loads((result.model / "metrics.json").read_text(encoding="utf-8"))
        rows[name] = {
            "exact_match": saved["metrics"]["exact_match"],
            "interval": saved["intervals"]["exact_match"],
            "token_error_rate": saved["metrics"]["token_error_rate"],
            "seconds": round(result.seconds, 1),
            "settings": settings,
        }

    draw(rows, output / "luong_variants.png")
    report = {
        "variants": rows,
        "recipe": dataclasses.asdict(load_recipe(recipe, [*COMMON, *(overrides or ())])),
        "hardware": hardware(),
        "versions": {name: version(name) for name in ("hf-attnzoo", "transformers", "torch")}
        | {"python": platform.python_version()},
    }
    (output / "luong_variants.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    table = Table("variant", "exact match", "95 % interval", "token error rate", "training")
    for name, row in rows.items():
        low, high = row["interval"]
        figures = (f"{row['exact_match']:.3f}", f"{low:.3f} to {high:.3f}", f"{row['token_error_rate']:.4f}")
        table.add_row(name, *figures, f"{row['seconds']:.0f} s")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
