"""Commands for folders of models: convert, average, card, push; and what there is, families and starters."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..wording import counted
from .base import app, make_table, plain_errors


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder of a saved model (transformers, JoeyNMT), or a file of a training program: nanoGPT's "
            "ckpt.pt, JoeyNMT's best.ckpt, OpenNMT-py's model_step_5000.pt."
        ),
    ],
    target: Annotated[Path, typer.Argument(help="Folder to write.")],
    to: Annotated[str, typer.Option("--to", help="attnzoo, or transformers for the way back.")] = "attnzoo",
) -> None:
    """Turn a checkpoint of another kind into one of the zoo, or one of the zoo into transformers' own.

    GPT-2, BERT, RoBERTa, Marian and BART of transformers, nanoGPT, JoeyNMT 2 and OpenNMT-py 3; what has no place in
    our models is refused by name.
    """
    from transformers.utils import logging

    from ..conversion import convert as convert_checkpoint
    from ..hub import find_model

    logging.disable_progress_bar()
    with plain_errors():
        convert_checkpoint(find_model(source), target, to)
    typer.echo(f"{source}: converted to {target}")


@app.command()
def average(
    checkpoints: Annotated[list[Path], typer.Argument(help="Folders of checkpoints of one model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
) -> None:
    """Write a model whose weights are the mean of those of several checkpoints."""
    from transformers.utils import logging

    from ..hub import average_checkpoints

    logging.disable_progress_bar()
    with plain_errors():
        folder = average_checkpoints(checkpoints, output)
    typer.echo(f"{folder}: the mean of {counted(len(checkpoints), 'checkpoint')}")


@app.command()
def card(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="Folder that a run has saved its model in, or one of `attnzoo starters`."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="NAME", help="Where to, such as model_cards/dates.")],
) -> None:
    """Copy the card of a run and its pictures to where cards are collected, under a name of their own."""
    from ..hub import export_card

    with plain_errors():
        for written in export_card(folder, target):
            typer.echo(written)


@app.command()
def push(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder that a run has saved its model in, or one of `attnzoo starters`."),
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="USER/NAME on the Hub, or NAME; made if need be.")],
    private: Annotated[bool, typer.Option("--private", help="Make a repository that its owner alone sees.")] = False,
    with_code: Annotated[
        bool,
        typer.Option("--with-code/--no-code", help="With the code that it takes where hf-attnzoo isn't installed."),
    ] = True,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Of the commit.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, made if need be. Default: main.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request with it.")] = False,
) -> None:
    """Share a model on the Hub: weights, tokenizer or processor, code, card and its pictures, in one commit.

    They are checked first; what a training leaves beside them stays here. The token is that of `hf auth login`, or
    HF_TOKEN.
    """
    from ..hub import push_checkpoint

    with plain_errors():
        pushed = push_checkpoint(
            folder,
            repo,
            private=private,
            with_code=with_code,
            message=message,
            revision=revision,
            create_pr=create_pr,
        )
    if pushed.left_out:
        typer.echo(f"not sent: {', '.join(pushed.left_out)}")
    if pushed.deleted:
        typer.echo(f"removed there: {', '.join(pushed.deleted)}")
    one = len(pushed.files) == 1
    lie = ("is" if one else "are") if pushed.changed else ("was" if one else "were") + " already"
    typer.echo(f"{folder}: {counted(len(pushed.files), 'file')} {lie} in {pushed.url}")


@app.command()
def families() -> None:
    """List the families of models, and the recipes that ship."""
    from ..recipes import shipped_recipes
    from ..recipes.reporting import make_console
    from ..registry import FAMILIES

    rows = []
    for family in FAMILIES.values():
        presets, pipelines = ", ".join(family.config_class.presets), ", ".join(family.pipelines)
        rows.append((family.name, family.summary, family.paper, presets, pipelines))
    make_console().print(make_table(("family", "what it is", "paper", "presets", "pipelines"), rows))
    typer.echo(f"recipes: {', '.join(shipped_recipes())}")


@app.command()
def starters() -> None:
    """List the trained models that come with the package; wherever a command takes a model, it takes their names."""
    from ..hub import STARTERS
    from ..recipes.reporting import make_console

    rows = []
    for name, starter in STARTERS.items():
        size = f"{starter.size / 1e6:.1f} MB"
        rows.append((name, starter.summary, starter.family.name, f"{starter.parameters:,}", size, starter.recipe))
    make_console().print(make_table(("name", "what it does", "family", "parameters", "size", "recipe"), rows))
    for starter in STARTERS.values():
        typer.echo(shlex.join(starter.example))
