"""`attnzoo`: thin doors onto the rooms of the package. Nothing heavy is imported before a command needs it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="The attention models, from RNNsearch to GPT and BERT: train, translate, look inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder of a saved model, or its name on the Hub.")
]
BeamsOption = Annotated[
    int | None, typer.Option("--beams", "-b", min=1, help="Hypotheses of beam search; 1 is greedy.")
]
LengthOption = Annotated[int | None, typer.Option("--max-new-tokens", min=1, help="Longest output, in tokens.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Texts at a time.")]


@app.callback()
def main() -> None:
    """The attention models, from RNNsearch to GPT and BERT: train, translate, look inside."""


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="YAML file, or the name of a shipped recipe, such as quickstart.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as training.max_steps=100.")
    ] = None,
) -> None:
    """Train a model from a recipe, score it, draw its attention, save it, load it back."""
    from .recipes import find_recipe, load_recipe, run_recipe

    console = Console()
    with _plain_errors():
        result = run_recipe(load_recipe(find_recipe(recipe), overrides or ()), console)
    if not result.samples:
        return
    console.print(f"\nmodel, card and picture are in {result.model}; attention.png shows where it looked. Next:\n")
    source = result.samples[0][0]
    console.print(f'  attnzoo translate {result.model} "{source}"', highlight=False, soft_wrap=True)
    console.print("  attnzoo train parallel-text data.source=YOUR_PAIRS.tsv", highlight=False, soft_wrap=True)


@app.command()
def translate(
    model: ModelArgument,
    text: Annotated[str | None, typer.Argument(help="Text to translate. Without it, lines of FILE or stdin.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="One text a line.", exists=True, dir_okay=False)
    ] = None,
    beams: BeamsOption = None,
    n_best: Annotated[int, typer.Option("--n-best", "-n", min=1, help="Outputs for each text, best first.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Print log-probabilities before the outputs.")] = False,
    max_new_tokens: LengthOption = None,
    batch_size: BatchOption = 32,
) -> None:
    """Translate a text, a file, or standard input, a line at a time."""
    if text is not None and file is not None:
        raise typer.BadParameter("give a text or --file, not both")
    options = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens)
    if n_best > 1:
        options["num_return_sequences"] = n_best
        options["num_beams"] = max(beams or 0, n_best)
    with _plain_errors():
        pipe = _pipeline(model)
        for outputs in pipe(_lines(text, file), batch_size=batch_size, return_scores=scores, **options):
            for output in outputs if isinstance(outputs, list) else [outputs]:
                score = f"{output['score']:.4f}\t" if scores else ""
                typer.echo(f"{score}{output['translation_text']}")


@app.command()
def attend(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="Text to translate.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture to write: .png, .svg or .pdf.")],
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Show the attention while this is written.")
    ] = None,
    beams: BeamsOption = None,
    max_new_tokens: LengthOption = None,
) -> None:
    """Draw where a model looks while it translates a text."""
    from .attention_maps import attention_map

    with _plain_errors():
        loaded, tokenizer = _load(model)
        options = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens)
        drawn = attention_map(loaded, tokenizer, text, target, **options)
        drawn.plot(output)
    typer.echo(f"{drawn.source_text} → {drawn.target_text}: {output}")


@app.command()
def evaluate(
    model: ModelArgument,
    data: Annotated[str, typer.Argument(help="File, folder, dataset on the Hub, or a built-in source such as dates.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the data, such as split=test.")
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="Scores, with commas between them.")
    ] = "exact_match,token_error_rate,bleu,chrf",
    tokenize: Annotated[str, typer.Option(help="Tokens of BLEU and of the token scores.")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Leave case out of account.")] = False,
    beams: BeamsOption = None,
    max_new_tokens: LengthOption = None,
    batch_size: BatchOption = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a model's translations of a dataset."""
    import yaml

    from .data import load_source
    from .evaluation import generation_metrics

    with _plain_errors():
        arguments = {key: yaml.safe_load(value) for key, value in map(_key_value, options or [])}
        rows = load_source(data, **arguments)
        pipe = _pipeline(model)
        generation = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens)
        outputs = [
            item["translation_text"] for item in pipe(list(rows["source"]), batch_size=batch_size, **generation)
        ]
        scores = generation_metrics(
            outputs, list(rows["target"]), lowercase=lowercase, tokenize=tokenize, names=metrics.split(",")
        )
    if as_json:
        typer.echo(json.dumps({"pairs": len(outputs), **scores}, ensure_ascii=False))
        return
    table = Table("score", "value", "settings", title=f"{len(outputs):,} pairs of {data}")
    for name, value in scores.items():
        if not name.endswith("_signature"):
            table.add_row(name, f"{value:.4f}", str(scores[f"{name}_signature"]))
    Console().print(table)


@app.command()
def families() -> None:
    """List the families of models, and the recipes that ship."""
    from .recipes import shipped_recipes
    from .registry import FAMILIES

    console = Console()
    table = Table("family", "what it is", "paper", "presets", "pipelines")
    for family in FAMILIES.values():
        presets = ", ".join(family.config_class.presets)
        table.add_row(family.name, family.summary, family.paper, presets, ", ".join(family.pipelines))
    console.print(table)
    console.print(f"recipes: {', '.join(shipped_recipes())}")


class _plain_errors:
    """What a person has got wrong is told in a line, without a traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, (ValueError, FileNotFoundError)):
            typer.echo(f"attnzoo: {error}", err=True)
            raise typer.Exit(2) from error


def _generation_options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _key_value(option: str) -> tuple[str, str]:
    key, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"{option!r} is not of the form key=value")
    return key, value


def _lines(text: str | None, file: Path | None) -> list[str] | Iterator[str]:
    if text is not None:
        return [text]
    if file is not None:
        return file.read_text(encoding="utf-8").splitlines()
    return (line.rstrip("\n") for line in sys.stdin)


def _load(model: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    return AutoModelForSeq2SeqLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)


def _pipeline(model: str) -> Any:
    from transformers import pipeline

    return pipeline("attnzoo-translation", model=model)
