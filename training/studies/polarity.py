"""What a start is worth: one set of sentences, classified from random weights and from two pre-trained encoders.

The same recipe, data and seed three times: a small BERT that starts from nothing, the same BERT once it has read some
books (`attnzoo train bert-mlm`), and a checkpoint of others, such as MiniLM, converted on the way.

    python training/studies/polarity.py DATA BOOKS_BERT MINILM

DATA is a folder of `train`, `validation` and `test` tables with the columns `text` and `label`, such as Pang and Lee's
sentence polarity; the other two are folders of checkpoints. It writes `polarity.png` and `polarity.json` beside this
file.
"""

import dataclasses
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForSequenceClassification

from hf_attnzoo.hub.card import hardware
from hf_attnzoo.recipes import find_recipe, load_recipe, run_recipe


def main(
    data: Annotated[str, typer.Argument(help="Folder of labelled texts.")],
    books: Annotated[str, typer.Argument(help="Folder of a BERT that has read books.")],
    other: Annotated[str, typer.Argument(help="Folder of another checkpoint.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides of the recipe, for all.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for picture and figures.")] = Path(__file__).parent,
    name: Annotated[str, typer.Option(help="What the other checkpoint is called.")] = "MiniLM",
) -> None:
    """Train three times, compare, and draw."""
    console = Console()
    recipe = find_recipe("sentence-classification")
    starts = {"from random weights": None, "from the BERT of the books": books, f"from {name}": other}
    common = [f"data.source={data}", *(overrides or ())]
    # The small BERT has the sizes of the one that has read books.
    sizes = _sizes(books)
    rows: dict[str, dict[str, Any]] = {}
    for number, (what, start) in enumerate(starts.items()):
        settings = [*common, f"output=runs/polarity/{number}", "name=polarity"]
        if start is None:
            settings += [f"model.{field}={value}" for field, value in sizes.items()]
        else:
            settings.append(f"pretrained.model={start}")
        result = run_recipe(load_recipe(recipe, settings), console)
        saved = json.loads((result.model / "metrics.json").read_text(encoding="utf-8"))
        model = AutoModelForSequenceClassification.from_pretrained(result.model)
        rows[what] = {
            "accuracy": saved["metrics"]["accuracy"],
            "interval": saved["intervals"]["accuracy"],
            "metrics": saved["metrics"],
            "parameters": model.num_parameters(),
            "seconds": round(saved["seconds"]),
            "steps": saved["steps"],
        }

    report = {
        "models": rows,
        "recipe": dataclasses.asdict(load_recipe(recipe, common)),
        "hardware": hardware(),
        "versions": {package: version(package) for package in ("hf-attnzoo", "transformers", "torch")}
        | {"python": platform.python_version()},
    }
    output.mkdir(parents=True, exist_ok=True)
    (output / "polarity.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _draw(rows, output / "polarity.png")
    table = Table("model", "parameters", "accuracy", "95 % interval", "training")
    for what, row in rows.items():
        low, high = (f"{100 * end:.1f}" for end in row["interval"])
        accuracy = f"{100 * row['accuracy']:.1f} %"
        table.add_row(what, f"{row['parameters']:,}", accuracy, f"{low} to {high} %", f"{row['seconds']} s")
    console.print(table)


def _sizes(folder: str) -> dict[str, Any]:
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    return {name: config[name] for name in names}


def _draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(6.4, 2.2), dpi=150, layout="constrained")
    axes = FigureCanvasAgg(figure).figure.add_subplot()
    names = list(rows)[::-1]
    values = [100 * rows[name]["accuracy"] for name in names]
    ends = [[100 * abs(rows[name]["accuracy"] - rows[name]["interval"][side]) for name in names] for side in (0, 1)]
    axes.errorbar(values, range(len(names)), xerr=ends, fmt="o", color="#333333", capsize=4)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.axvline(50, color="#bbbbbb", linewidth=1)
    axes.set_xlabel("% of the test sentences, and 95 % interval")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    typer.run(main)
