"""Path length, measured: how far back can a model remember a symbol, and after how much training?

Vaswani et al. (2017, table 1 and section 4) compare architectures by the number of steps that a signal takes between
two positions: as many as lie between them in a recurrence, one in attention. A sequence is one of ten answer symbols,
then symbols of another alphabet that say nothing, then a query mark: `distance` steps after the answer symbol the
model has to name it. What is to be remembered is told apart by itself, so its distance alone makes the task hard.

Five models of equal size read the same sequences in the same order: two language models go on with them, three
encoder-decoders read them as a source and write one symbol. The recurrent encoders read forwards only, since a
backward one would meet the answer last and have no path to speak of. What recurrences are known to need they have: the
bias of the gates that keep a state is 1 at first. A model is trained at every distance anew, and asked for the same
distance, so no position is beyond what it has seen. Training ends when the last 320 sequences, each of them drawn
anew, have been answered right, or after `steps` of 32 sequences. The learning rate of a model is the one of three that
ends soonest, or with the lowest loss, at a distance of 16.

    python training/studies/path_length.py

writes `path_length.png`, `path_length.md` and `path_length.json` beside this file.
"""

import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from hf_attnzoo import (
    GPTConfig,
    GPTForCausalLM,
    RNNLMConfig,
    RNNLMForCausalLM,
    RNNSearchConfig,
    RNNSearchForConditionalGeneration,
    TransformerConfig,
    TransformerForConditionalGeneration,
)
from hf_attnzoo.evaluation import wilson_interval
from hf_attnzoo.evaluation.plotting import COLOURS, FAINT, INK, MARKERS
from hf_attnzoo.hub.card import hardware

# Ids 0 to 3 are the special tokens.
START, QUERY, ANSWERS, NOISE, VOCABULARY = 2, 4, 5, 15, 25
CHOICES = NOISE - ANSWERS

ROWS, STREAK, WARMUP = 32, 10, 20
RATES, SEARCHED = (0.001, 0.003, 0.01), 16
PARAMETERS, TOLERANCE = 100_000, 0.01

# Positions of the longest sequence: the tables of learned ones count as parameters, at every distance alike.
LONGEST = 512


@dataclass
class Cell:
    """One model at one distance.

    Args:
        model: its name.
        distance: steps from the symbol to the question about it.
        learning_rate: highest.
        solved_after: steps until the last sequences were all right; None where the steps ran out.
        loss: mean of the last training steps, in nats.
        right: answers that are, of those below.
        asked: test sequences.
        interval: 95 % of their share.
        seconds: CPU time of training.
    """

    model: str
    distance: int
    learning_rate: float
    solved_after: int | None
    loss: float
    right: int
    asked: int
    interval: tuple[float, float]
    seconds: float


def rnn_lm(size: int) -> PreTrainedModel:
    # Uniform weights of a standard deviation of 0.1.
    config = RNNLMConfig(vocab_size=VOCABULARY, embedding_size=64, hidden_size=size, initializer_range=0.1 * 3**0.5)
    return RNNLMForCausalLM(config)


def rnnsearch(size: int, attention: str) -> PreTrainedModel:
    config = RNNSearchConfig(
        vocab_size=VOCABULARY,
        embedding_size=64,
        hidden_size=size,
        maxout_size=64,
        attention=attention,
        bidirectional=False,
        # With the paper's 0.01 nothing is left of a symbol in a model as small as this one.
        initializer_range=0.1,
    )
    return RNNSearchForConditionalGeneration(config)


def gpt(size: int) -> PreTrainedModel:
    config = GPTConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LONGEST + 1,
        hidden_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=size,
        dropout=0.0,
        attention_dropout=0.0,
    )
    return GPTForCausalLM(config)


def transformer(size: int) -> PreTrainedModel:
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LONGEST + 1,
        hidden_size=56,
        num_encoder_layers=2,
        num_decoder_layers=1,
        num_attention_heads=4,
        intermediate_size=size,
        dropout=0.0,
    )
    return TransformerForConditionalGeneration(config)


# Name -> how to build it by the one size that is fitted, and the steps of the path over a distance d.
MODELS: dict[str, tuple[Callable[[int], PreTrainedModel], str]] = {
    "RNN LM (LSTM)": (rnn_lm, "d"),
    "RNNencdec, one vector (GRU)": (lambda size: rnnsearch(size, "none"), "d"),
    "RNNsearch, attention (GRU)": (lambda size: rnnsearch(size, "additive"), "1"),
    "Transformer, encoder-decoder": (transformer, "1"),
    "GPT, decoder alone": (gpt, "1"),
}


def fitted_size(build: Callable[[int], PreTrainedModel]) -> int:
    """The size at which a model comes closest to `PARAMETERS`.

    Raises:
        ValueError: if that is not within `TOLERANCE`.
    """
    low, high = 8, 512
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if build(middle).num_parameters() < PARAMETERS else (low, middle)
    best = min((low - 1, low), key=lambda size: abs(build(size).num_parameters() - PARAMETERS))
    count = build(best).num_parameters()
    if abs(count - PARAMETERS) > TOLERANCE * PARAMETERS:
        raise ValueError(f"{count:,} parameters at size {best} are not {PARAMETERS:,} within {TOLERANCE:.0%}")
    return best


def sequences(rows: int, distance: int, generator: torch.Generator) -> Tensor:
    """Answer symbol, noise, query mark, ids of shape `(rows, distance + 1)`."""
    answers = torch.randint(ANSWERS, NOISE, (rows, 1), generator=generator)
    noise = torch.randint(NOISE, VOCABULARY, (rows, distance - 1), generator=generator)
    return torch.cat([answers, noise, torch.full((rows, 1), QUERY)], dim=1)


def answer_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """What a model says after the query mark, shape `(rows, VOCABULARY)`."""
    if model.config.is_encoder_decoder:
        return model(input_ids=ids, decoder_input_ids=torch.full((len(ids), 1), START)).logits[:, -1]
    return model(input_ids=ids, logits_to_keep=1).logits[:, -1]


def train(model: PreTrainedModel, distance: int, rate: float, steps: int, seed: int) -> tuple[int | None, float]:
    """Train until it is solved or the steps run out; returns the steps it took, or None, and the last loss."""
    generator = torch.Generator().manual_seed(1000 * seed + distance)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), fused=True)
    streak, losses = 0, []
    model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / WARMUP)
        ids = sequences(ROWS, distance, generator)
        logits = answer_logits(model, ids)
        loss = functional.cross_entropy(logits, ids[:, 0])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        streak = streak + 1 if logits.argmax(dim=1).equal(ids[:, 0]) else 0
        if streak == STREAK:
            return step + 1, losses[-1]
    last = losses[-STREAK:]
    return None, sum(last) / len(last)


@torch.no_grad()
def count_right(model: PreTrainedModel, distance: int, asked: int) -> int:
    """Right answers to test sequences, the same ones for every model."""
    generator = torch.Generator().manual_seed(distance)
    model.eval()
    right = 0
    for rows in torch.full((asked,), 1).split(100):
        ids = sequences(len(rows), distance, generator)
        right += int((answer_logits(model, ids).argmax(dim=1) == ids[:, 0]).sum())
    return right


@torch.no_grad()
def fresh(name: str, size: int, seed: int) -> PreTrainedModel:
    """A model that has not learnt anything; of a recurrent one, the gates that keep a state begin open."""
    torch.manual_seed(seed)
    model = MODELS[name][0](size)
    for parameter, bias in model.named_parameters():
        if parameter.endswith("hidden_proj.bias"):
            # Of an LSTM's gates and of a GRU's, the second one keeps (Jozefowicz et al. 2015, section 4).
            bias.view(-1, model.config.hidden_size)[1] = 1.0
    return model


def best_rate(name: str, size: int, steps: int, seed: int) -> float:
    """The learning rate that solves the task soonest at a distance of `SEARCHED`, or else has the lowest loss."""

    def rank(rate: float) -> tuple[int, float]:
        solved, loss = train(fresh(name, size, seed), SEARCHED, rate, steps, seed)
        return (steps if solved is None else solved), loss

    return min(RATES, key=rank)


def measure(name: str, size: int, distance: int, rate: float, steps: int, seed: int, asked: int) -> Cell:
    """Train a model at a distance, and ask it."""
    model = fresh(name, size, seed)
    started = time.process_time()
    solved, loss = train(model, distance, rate, steps, seed)
    seconds = time.process_time() - started
    right = count_right(model, distance, asked)
    interval = wilson_interval(right, asked)
    return Cell(name, distance, rate, solved, round(loss, 4), right, asked, interval, round(seconds, 1))


def remembered(file: Path, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What an interrupted study with these settings has found so far, one finding a line."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found = [json.loads(line) for line in lines]
    if found and found[0] == settings:
        yield from found[1:]
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings) + "\n", encoding="utf-8")


def note(file: Path, finding: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(finding) + "\n")


def table(cells: dict[str, list[Cell]], parameters: dict[str, int]) -> str:
    """The figures in Markdown: right answers in per cent and, if the task was solved, after how many steps."""
    distances = sorted({cell.distance for row in cells.values() for cell in row})
    lines = [
        "| model | parameters | path | " + " | ".join(f"d = {distance}" for distance in distances) + " |",
        "| --- | --- | --- |" + " --- |" * len(distances),
    ]
    for name, row in cells.items():
        texts = []
        for cell in row:
            steps = "" if cell.solved_after is None else f" ({cell.solved_after})"
            texts.append(f"{100 * cell.right / cell.asked:.1f}{steps}")
        lines.append(f"| {name} | {parameters[name]:,} | {MODELS[name][1]} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def draw(cells: dict[str, list[Cell]], steps: int, path: Path) -> None:
    """Right answers by distance, a line a model with its interval as a band; below, the steps that it took.

    Args:
        cells: of every model, by rising distance.
        steps: that each had at most.
        path: of the picture.
    """
    figure = Figure(figsize=(8.5, 6.4), facecolor="white", layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    distances = sorted({cell.distance for row in cells.values() for cell in row})
    for number, (name, row) in enumerate(cells.items()):
        colour, marker = COLOURS[number], MARKERS[number]
        # Side by side, since many lie on top of each other.
        places = [cell.distance * 2 ** (0.07 * (number - 2)) for cell in row]
        low, high = zip(*(cell.interval for cell in row), strict=True)
        right = [cell.right / cell.asked for cell in row]
        upper.fill_between(places, [100 * x for x in low], [100 * x for x in high], color=colour, alpha=0.15)
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.6, "clip_on": False}
        upper.plot(places, [100 * x for x in right], label=f"{name}: path {MODELS[name][1]}", zorder=3, **style)
        taken = [steps if cell.solved_after is None else cell.solved_after for cell in row]
        lower.plot(places, taken, zorder=3, **style)
    upper.axhline(100 / CHOICES, color=INK, linestyle="--", linewidth=1)
    upper.annotate("chance", (distances[0], 100 / CHOICES), xytext=(0, 3), textcoords="offset points", color=INK)
    lower.axhline(steps, color=INK, linestyle=":", linewidth=1)
    lower.annotate("not solved", (distances[0], steps), xytext=(0, 3), textcoords="offset points", color=INK)
    upper.set_ylim(0, 103)
    upper.set_ylabel("right answers, %, with 95 % intervals", color=INK)
    lower.set_ylim(0, 1.15 * steps)
    lower.set_ylabel("steps until solved", color=INK)
    lower.set_xscale("log", base=2)
    lower.set_xticks(distances, [str(distance) for distance in distances])
    lower.minorticks_off()
    lower.set_xlabel("steps between a symbol and the question about it", color=INK)
    figure.legend(frameon=False, loc="outside upper center", ncols=2)
    for axes in (upper, lower):
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(
    steps: Annotated[int, typer.Option(min=1, help="Most steps of a training, 32 sequences each.")] = 400,
    longest: Annotated[int, typer.Option(min=4, max=LONGEST, help="Distances double from 4 to this.")] = LONGEST,
    asked: Annotated[int, typer.Option(min=1, help="Test sequences.")] = 500,
    seed: Annotated[int, typer.Option(help="Of weights and sequences.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for picture and figures.")] = Path(__file__).parent,
    notes: Annotated[Path, typer.Option(help="Where an interrupted study is gone on with.")] = Path(
        "runs/path-length.jsonl"
    ),
) -> None:
    """Train every model at every distance, and draw."""
    console = Console()
    distances = [4 * 2**power for power in range(8) if 4 * 2**power <= longest]
    sizes = {name: fitted_size(build) for name, (build, _) in MODELS.items()}
    parameters = {name: fresh(name, size, seed).num_parameters() for name, size in sizes.items()}
    settings = {"steps": steps, "rows": ROWS, "asked": asked, "seed": seed, "sizes": sizes}
    known = {(entry["model"], entry.get("distance")): entry for entry in remembered(notes, settings)}
    cells: dict[str, list[Cell]] = {name: [] for name in MODELS}
    for name, size in sizes.items():
        if (name, None) not in known:
            known[name, None] = {"model": name, "learning_rate": best_rate(name, size, steps, seed)}
            note(notes, known[name, None])
        for distance in distances:
            if (name, distance) not in known:
                rate = known[name, None]["learning_rate"]
                known[name, distance] = asdict(measure(name, size, distance, rate, steps, seed, asked))
                note(notes, known[name, distance])
            cell = Cell(**known[name, distance])
            cells[name].append(cell)
            end = "not solved" if cell.solved_after is None else f"solved after {cell.solved_after} steps"
            console.print(f"{name}, {distance}: {cell.right} of {cell.asked}, {end}, {cell.seconds} s")

    draw(cells, steps, output / "path_length.png")
    (output / "path_length.md").write_text(table(cells, parameters) + "\n", encoding="utf-8")
    report = {
        "settings": settings | {"rates": RATES, "searched at": SEARCHED, "warm-up": WARMUP, "right in a row": STREAK},
        "parameters": parameters,
        "chance": 1 / CHOICES,
        "cells": [asdict(cell) for row in cells.values() for cell in row],
        "CPU seconds of training": round(sum(cell.seconds for row in cells.values() for cell in row)),
        "threads": torch.get_num_threads(),
        "hardware": hardware(),
        "versions": {name: version(name) for name in ("hf-attnzoo", "transformers", "torch")}
        | {"python": platform.python_version()},
    }
    (output / "path_length.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.print(table(cells, parameters), soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
