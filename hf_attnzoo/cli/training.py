"""`attnzoo train`."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .base import app, given_options, make_table, plain_errors


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="YAML file, or the name of a shipped recipe, such as quickstart.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as training.max_steps=100.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing but two small steps: say what it would take.")
    ] = False,
    devices: Annotated[
        int | None, typer.Option(min=1, help="With --dry-run: how many, or processes of a cpu.")
    ] = None,
    device_kind: Annotated[
        str | None, typer.Option(help="With --dry-run: a100-80gb (default), h100, v100, ..., or cpu, this machine.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="With --dry-run: ddp (default), fsdp, zero1, zero2 or zero3.")
    ] = None,
    accelerate: Annotated[
        Path | None, typer.Option(help="With --dry-run: a configuration of Accelerate, for the three above.")
    ] = None,
    utilization: Annotated[
        float | None, typer.Option(help="With --dry-run: share of a device's peak that training reaches.")
    ] = None,
    source_length: Annotated[int | None, typer.Option(min=1, help="With --dry-run: tokens of a source.")] = None,
    target_length: Annotated[int | None, typer.Option(min=1, help="With --dry-run: tokens of a target.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
) -> None:
    """Train a model from a recipe, score it, draw its attention, save it, load it back."""
    options = given_options(
        devices=devices,
        device_kind=device_kind,
        strategy=strategy,
        accelerate=accelerate,
        utilization=utilization,
        source_length=source_length,
        target_length=target_length,
    )
    if dry_run:
        _tell_what_it_takes(recipe, overrides or [], options, as_json)
        return
    if as_json or options:
        name = "json" if as_json else next(iter(options)).replace("_", "-")
        raise typer.BadParameter(f"--{name} is for --dry-run, which is missing")
    from ..recipes import find_recipe, load_recipe, run_recipe
    from ..recipes.reporting import make_console, say

    console = make_console()
    with plain_errors():
        result = run_recipe(load_recipe(find_recipe(recipe), overrides or ()), console)
        _end_together()
    if not result.next_command:
        return
    picture = "; attention.png shows where it looked" if (result.model / "attention.png").is_file() else ""
    say(console, f"\nmodel and card are in {result.model}{picture}. Next:\n")
    say(console, f"  {shlex.join(result.next_command)}")
    say(console, f"  {result.own_data}")


def _tell_what_it_takes(recipe: str, overrides: list[str], options: dict[str, Any], as_json: bool) -> None:
    from transformers.utils import logging

    from ..recipes import dry_run, find_recipe, load_recipe
    from ..recipes.planning import figures, notes
    from ..recipes.reporting import make_console, say

    logging.disable_progress_bar()
    with plain_errors():
        told = dry_run(load_recipe(find_recipe(recipe), overrides), **options)
    if as_json:
        typer.echo(json.dumps(told.to_dict(), ensure_ascii=False))
        return
    console = make_console()
    console.print(make_table(("what", "how much", "of which"), figures(told), f"{told.name}: nothing was trained"))
    for note in notes(told):
        say(console, note)


def _end_together() -> None:
    """Let the processes of a run end at the same time: one that leaves early takes the others down with it."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
