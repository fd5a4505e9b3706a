"""What all commands share: the app, their options, and how they read, print and fail."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

# What generators of random numbers take
MOST_SEED = 2**32 - 1

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Folder of a saved model, one of `attnzoo starters`, or a name on the Hub."),
]
BeamsOption = Annotated[
    int | None,
    typer.Option("--beams", "-b", min=1, help="Hypotheses of beam search; 1 is greedy. Default: the model's own."),
]
LengthOption = Annotated[
    int | None, typer.Option("--max-new-tokens", min=1, help="Longest output, in tokens. Default: the model's.")
]
NBestOption = Annotated[int, typer.Option("--n-best", "-n", min=1, help="Outputs for each input, best first.")]
ScoresOption = Annotated[bool, typer.Option("--scores", help="Print log-probabilities before the outputs.")]
TruncateOption = Annotated[
    bool, typer.Option("--truncate", help="Cut a source that is longer than the model can read.")
]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Inputs at a time.")]


@app.callback()
def main() -> None:
    """The attention models, from RNNsearch to GPT and BERT: train, translate, look inside."""
    # Read when torch is imported. Threads that spin while they wait take the cores from each other as soon as anything
    # else runs on the machine: training was six times slower then.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def plain_errors(program: str = "attnzoo") -> Iterator[None]:
    """What a person has got wrong is told in a line, without a traceback.

    Args:
        program: whose name the line begins with.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    # The package that an import lacks is an optional one, such as timm for a backbone
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"{program}: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error


def make_table(header: tuple[str, ...], rows: list[tuple[str, ...]], title: str | None = None) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None)
    for number, name in enumerate(header):
        # Names stay whole; what is said of them has lines of its own
        table.add_column(name, no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def n_best_options(count: int, beams: int | None) -> dict[str, int]:
    if count == 1:
        return {}
    if beams is not None and beams < count:
        raise typer.BadParameter(f"--beams {beams} can't give --n-best {count}: take as many beams, or more")
    return {"num_return_sequences": count, "num_beams": beams or count}


def given_options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def key_value(option: str) -> tuple[str, str]:
    key, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"{option!r} is not of the form key=value")
    return key, value


def read_lines(file: Path | None) -> Iterator[str]:
    """Texts as they come, one a line, where only `\\n` and `\\r\\n` end a line."""
    where = file or "standard input"
    with file.open("rb") if file is not None else typer.get_binary_stream("stdin") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}:{number}: not valid UTF-8") from error
