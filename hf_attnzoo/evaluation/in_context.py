"""How well a language model does new tasks by the number of examples in its prompt (Brown et al. 2020, figure 1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..attention_maps.plotting import save_figure
from ..data.in_context import IN_CONTEXT_TEMPLATE, Episode
from ..pipelines.prompting import PromptTemplate
from .intervals import wilson_interval
from .plotting import FAINT, INK, draw_line, name_lines

SHOTS = (0, 1, 2, 4, 8, 16)


@dataclass(frozen=True)
class ShotScore:
    """How many queries a model gets right after so many examples.

    Args:
        shots: examples in front of a query.
        right: queries whose answer is right from the first character to the last, and then ends.
        total: queries.
        level: confidence of the interval.
    """

    shots: int
    right: int
    total: int
    level: float = 0.95

    @property
    def accuracy(self) -> float:
        """Share of right ones."""
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of that share; see [`wilson_interval`]."""
        return wilson_interval(self.right, self.total, level=self.level)


def in_context_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    episodes: Sequence[Episode],
    *,
    shots: Sequence[int] = SHOTS,
    template: str = IN_CONTEXT_TEMPLATE,
    level: float = 0.95,
    batch_size: int = 32,
) -> list[ShotScore]:
    """Ask a model the last pair of every episode, with more and more of the pairs before it as examples.

    The query is the same for every number of examples, and k of them are the k that stand next to it. An answer is
    right if greedy search would write it and then the end of its line: if, with the right answer given, every token of
    it and of what follows is the likeliest.

    ```python
    episodes = in_context_episodes("test", 200)
    scores = in_context_accuracy(model, tokenizer, episodes)
    ```

    Args:
        model:
            Causal language model. It is in eval mode during the call, and put back afterwards.
        tokenizer:
            Its tokenizer.
        episodes:
            Of [`in_context_episodes`], with one pair more than the most examples.
        shots:
            Numbers of examples.
        template:
            How a pair is written, with `{source}` and `{target}`; each on its line.
        level:
            Confidence of the intervals.
        batch_size:
            Prompts at a time.

    Returns:
        A score for each number of examples, as they are given.

    Raises:
        ValueError: no episodes or numbers, one that an episode has too few pairs for, or a prompt that is longer than
            the model's table of positions.
    """
    if not episodes or not shots:
        raise ValueError(f"episodes has {len(episodes)} and shots {len(shots)}; at least 1 of each is needed")
    fewest = min(len(episode.pairs) for episode in episodes)
    if min(shots) < 0 or max(shots) >= fewest:
        raise ValueError(
            f"shots={list(shots)} must lie between 0 and {fewest - 1}, one less than an episode has pairs"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    written = PromptTemplate(template)
    limit = getattr(model.config, "max_position_embeddings", None)
    training = model.training
    model.eval()
    scores = []
    try:
        for count in shots:
            rows = [_row(tokenizer, written, episode, count) for episode in episodes]
            longest = _longest(rows)
            if limit is not None and longest > limit:
                raise ValueError(f"shots={count} makes a prompt of {longest} tokens, and the model can read {limit}")
            right = 0
            for first in range(0, len(rows), batch_size):
                right += _right(model, rows[first : first + batch_size])
            scores.append(ShotScore(count, right, len(rows), level))
    finally:
        model.train(training)
    return scores


def longest_prompt(
    tokenizer: PreTrainedTokenizerBase,
    episodes: Sequence[Episode],
    shots: int,
    *,
    template: str = IN_CONTEXT_TEMPLATE,
) -> int:
    """Tokens that [`in_context_accuracy`] lets a model read at a time after so many examples, at the most.

    Args:
        tokenizer:
            That of the model.
        episodes:
            At least 1, with one pair more than the examples.
        shots:
            Number of examples.
        template:
            How a pair is written.
    """
    written = PromptTemplate(template)
    return _longest([_row(tokenizer, written, episode, shots) for episode in episodes])


def plot_in_context(
    scores: Mapping[str, Sequence[ShotScore]],
    path: str | PathLike | None = None,
    *,
    title: str | None = None,
    dpi: int = 150,
) -> Figure:
    """Draws accuracy against the number of examples, a line a model, each with its intervals as a band.

    Args:
        scores:
            For each model's name what [`in_context_accuracy`] returned.
        path:
            `.png`, `.svg` or `.pdf` file to write, its folders made as needed; None only draws.
        title:
            Title.
        dpi:
            Pixels per inch of a PNG.

    Returns:
        The figure.

    Raises:
        ValueError: no scores, or a suffix that is none of the three.
    """
    if not scores or not all(scores.values()):
        raise ValueError(f"scores is {dict(scores)!r}; at least 1 model with at least 1 score is needed")
    figure = Figure(figsize=(7.2, 4.2), dpi=dpi, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ends = {}
    for number, (name, line) in enumerate(scores.items()):
        places = [each.shots for each in line]
        low, high = zip(*(each.interval for each in line), strict=True)
        shares = [each.accuracy for each in line]
        ends[name] = (shares[-1], draw_line(axes, number, places, shares, low, high))
    # Doubling is a step, and 0 has a place
    axes.set_xscale("symlog", base=2, linthresh=1)
    ticks = sorted({each.shots for line in scores.values() for each in line})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    name_lines(axes, ends, 1.0)
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel(f"Examples in the prompt (bands: {line[0].level:.0%} intervals)", color=INK)
    axes.set_ylabel("Right answers to new tasks", color=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    if title is not None:
        axes.set_title(title, loc="left", fontweight="bold", color=INK, pad=10)
    if path is not None:
        save_figure(figure, path)
    return figure


def _row(
    tokenizer: PreTrainedTokenizerBase, template: PromptTemplate, episode: Episode, count: int
) -> tuple[list[int], int]:
    """Ids of a prompt with its right answer and the end of the line, and where the answer begins."""
    *before, (source, target) = episode.pairs
    shown = [{"source": word, "target": answer} for word, answer in before[len(before) - count :]]
    asked, gap = template.asked({"source": source})
    prompt = template.head(shown) + asked
    whole, ids = (_ids(tokenizer, text) for text in (prompt + gap + target + template.end, prompt))
    return whole, max(1, next((n for n, (a, b) in enumerate(zip(ids, whole, strict=False)) if a != b), len(ids)))


def _longest(rows: Sequence[tuple[list[int], int]]) -> int:
    # The last token is predicted alone.
    return max(len(ids) for ids, _ in rows) - 1


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    start, end = tokenizer("")["input_ids"], tokenizer.eos_token_id
    start = [index for index in start if index != end or end == tokenizer.bos_token_id]
    return start + tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


@torch.no_grad()
def _right(model: PreTrainedModel, rows: list[tuple[list[int], int]]) -> int:
    longest = max(len(ids) for ids, _ in rows) - 1
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask, wanted = torch.zeros_like(ids), torch.full_like(ids, -100)
    for number, (row, start) in enumerate(rows):
        # Padding comes after the text, where no causal model looks
        ids[number, : len(row) - 1], mask[number, : len(row) - 1] = torch.tensor(row[:-1]), 1
        wanted[number, start - 1 : len(row) - 1] = torch.tensor(row[start:])
    ids, mask, wanted = (each.to(model.device) for each in (ids, mask, wanted))
    likeliest = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.argmax(-1)
    return int(((likeliest == wanted) | (wanted == -100)).all(dim=1).sum())
