"""What a run prints: a live bar in a terminal, lines in a log."""

import os
from typing import TYPE_CHECKING

from accelerate.utils import get_int_from_env
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..hub import RunFacts
from ..hub.card import energy_text
from ..wording import counted

if TYPE_CHECKING:
    from .trainer import ZooTrainer


# Where launchers put the number of a process.
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


def is_first_process() -> bool:
    """Whether this is the process of a run that writes, before there is a trainer to ask."""
    return get_int_from_env(_RANKS, 0) == 0


def make_console() -> Console:
    """A console on standard output, which the first of several processes alone writes to."""
    console = Console(quiet=not is_first_process())
    if not (console.is_terminal or console.is_jupyter or "COLUMNS" in os.environ):
        # A file has no width: rich would fold lines and cut tables at 80 columns.
        console.width = 10_000
    return console


def say(console: Console, line: str) -> None:
    """Print a line in which brackets and colons are just that."""
    console.print(line, markup=False, emoji=False, soft_wrap=True)


class ProgressReport(TrainerCallback):
    """Steps, loss, target tokens per second and time left."""

    def __init__(self, trainer: "ZooTrainer", console: Console):
        self.trainer = trainer
        self.console = console
        self.progress: Progress | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.first_step = state.global_step
        if state.is_world_process_zero and self.console.is_terminal:
            self.progress = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[report]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.progress.add_task(
                "", total=state.max_steps, completed=state.global_step, report="loss ..."
            )
            self.progress.start()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if not state.is_world_process_zero or logs is None:
            return
        seconds = self.trainer.seconds - self.trainer.seconds_before
        # All processes are as fast as this one.
        speed = self.trainer.target_tokens_seen * args.world_size / max(seconds, 1e-9)
        step = f"step {state.global_step}/{state.max_steps}"
        if "loss" in logs:
            norm = f" · gradient norm {logs['grad_norm']:.2f}" if "grad_norm" in logs else ""
            report = f"loss {logs['loss']:.4f}{norm} · {speed:,.0f} {self.trainer.counted}/s"
            if self.progress is not None:
                self.progress.update(self.task, report=report)
            else:
                done = max(state.global_step - self.first_step, 1)
                left = (state.max_steps - state.global_step) * seconds / done
                say(self.console, f"{step} · {report} · {_clock(left)} left")
        elif "eval_loss" in logs:
            scores = " · ".join(
                f"{key.removeprefix('eval_')} {value:.4f}"
                for key, value in logs.items()
                if key.startswith("eval_") and not key.endswith(("runtime", "per_second"))
            )
            say(self.console, f"{step} · validation: {scores}")

    def close(self) -> None:
        """Give the terminal back, its cursor too, however training has ended."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def report(console: Console, facts: RunFacts) -> None:
    """Print samples and scores.

    Args:
        console: where to.
        facts: of the run.
    """
    if facts.samples:
        table = Table(*facts.kind.sample_columns, title=f"{len(facts.samples)} of the test {facts.kind.unit}")
        for *cells, output in facts.samples:
            style = "" if output == cells[-1] else "red"
            table.add_row(*map(Text, cells), Text(output, style=style))
        console.print(table)
    for name, value in facts.metrics.items():
        if name.endswith("_signature"):
            continue
        between = facts.intervals.get(name)
        interval = f" (95 % interval {between[0]:.4f} to {between[1]:.4f})" if between else ""
        say(console, f"test {name}: {value:.4f}{interval}  {facts.metrics[f'{name}_signature']}")
    say(console, f"{counted(facts.steps, 'step')} in {facts.seconds:.0f} s")
    if facts.energy is not None:
        say(console, energy_text(facts.energy))
