"""How likely texts are under a causal language model: cross-entropy, perplexity, bits per character and per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import cut_blocks
from .generation import Statistics

LIKELIHOOD_METRICS = ("cross_entropy", "perplexity", "bits_per_character", "bits_per_byte")
"""Names of the scores of texts under a language model. Lower is better."""

IGNORE_INDEX = -100

# e to the power of more than this is no floating-point number
_LARGEST_EXPONENT = 709


@dataclass(frozen=True, eq=False)
class TextLikelihood:
    """How likely texts are, and how long.

    Args:
        losses:
            For each block that the model has read, the sum of its tokens' losses in nats, and the number of tokens,
            shape `(N, 2)`.
        characters:
            Of all texts; None where only answers in them were predicted.
        bytes:
            The same, in UTF-8.
    """

    losses: np.ndarray
    characters: int | None
    bytes: int | None

    def score(self, name: str) -> float:
        """One of `LIKELIHOOD_METRICS`.

        `"cross_entropy"` is in nats per token, and `"perplexity"` its exponential; both depend on what a token is.
        `"bits_per_character"` and `"bits_per_byte"` spread the loss of all tokens, ends of texts among them, over the
        texts, and can be compared between tokenizers.

        Raises:
            ValueError: an unknown name, or one of all tokens where only answers were predicted.
        """
        return self.statistics(name).value

    def statistics(self, name: str, signature: str = "") -> Statistics:
        """The score in parts, one for each block; see [`sentence_statistics`]. Errors are those of `score`."""
        table = self.losses.astype(np.float64)
        if name == "cross_entropy":
            return Statistics(table, lambda sums: float(sums[0] / sums[1]), signature=signature)
        if name == "perplexity":
            return Statistics(table, lambda sums: exponential(sums[0] / sums[1]), signature=signature)
        if name not in LIKELIHOOD_METRICS:
            raise ValueError(f"name is {name!r}; the scores are {', '.join(LIKELIHOOD_METRICS)}")
        length = self.characters if name == "bits_per_character" else self.bytes
        if length is None:
            raise ValueError(f"name is {name!r}, which is of all tokens, and only answers were predicted")
        # How long the text of a block is depends on where it was cut: it gets its share by tokens
        per_token = max(length, 1) / table[:, 1].sum()
        return Statistics(table, lambda sums: float(sums[0] / sums[1] / per_token / math.log(2)), signature=signature)


def text_likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    block_size: int | None = None,
    batch_size: int = 8,
    join: bool = True,
    answers_after: str | None = None,
) -> TextLikelihood:
    """Read texts with a causal language model, in blocks as in training; see [`cut_blocks`].

    Every token is predicted once, from those before it in its block: the larger the blocks, the better the score.

    Args:
        model:
            Causal language model. It is in eval mode during the call, and put back afterwards.
        tokenizer:
            Its tokenizer.
        texts:
            Documents.
        block_size:
            Tokens of a block. Default: `None`, what the model's table of positions holds, 1,024 if it has none.
        batch_size:
            Blocks at a time.
        join:
            Whether texts follow each other in a block; otherwise each is read, and its end predicted, by itself.
        answers_after:
            What stands in front of the answers in texts, if they alone count. Default: `None`, all tokens do.

    Raises:
        ValueError: no texts, something that is not a text, or blocks that are too small, or too long for the model.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts is one string, {texts[:40]!r}; it must be a list of texts")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{number}] is {text!r}, a {type(text).__name__}; it must be a text")
    if not any(texts):
        raise ValueError("texts is empty; at least 1 text is needed")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    block_size = block_size or default_block_size(model)
    blocks = cut_blocks(Dataset.from_dict({"text": list(texts)}), tokenizer, block_size, join, answers_after)
    training = model.training
    model.eval()
    rows = []
    try:
        for start in range(0, len(blocks), batch_size):
            rows.append(_read(model, **blocks[start : start + batch_size]))
    finally:
        model.train(training)
    if answers_after is not None:
        return TextLikelihood(np.concatenate(rows), None, None)
    return TextLikelihood(np.concatenate(rows), sum(map(len, texts)), sum(len(text.encode()) for text in texts))


def reading_signature(block_size: int, join: bool, answers_after: str | None, tokens: int) -> str:
    """How texts were read, as signatures of scores say it.

    Args:
        block_size, join, answers_after:
            See [`text_likelihood`].
        tokens:
            Those predicted.
    """
    parts = [f"block:{block_size}", "" if join else "texts:apart"]
    parts.append("" if answers_after is None else f"after:{answers_after!r}")
    return "|".join(part for part in (*parts, f"tokens:{tokens}") if part)


def default_block_size(model: PreTrainedModel) -> int:
    """Tokens that a model reads at once: its table of positions, 1,024 if it has none."""
    return getattr(model.config, "max_position_embeddings", None) or 1024


def row_losses(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """Sum of the losses of every row in nats, and how many they are: what evaluation keeps of the logits.

    Args:
        logits: of a causal model, shape `(B, T, V)`; the first of several outputs.
        labels: shape `(B, T)`, -100 where nothing is predicted.

    Returns:
        Shape `(B, 2)`.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    losses = functional.cross_entropy(
        logits[:, :-1].float().transpose(1, 2), labels[:, 1:], ignore_index=IGNORE_INDEX, reduction="none"
    )
    return torch.stack([losses.sum(dim=1), (labels[:, 1:] != IGNORE_INDEX).sum(dim=1)], dim=1)


@torch.no_grad()
def _read(model: PreTrainedModel, input_ids: list[list[int]], labels: list[list[int]]) -> np.ndarray:
    # Padding comes after the text, where no causal model looks: it needs no id of its own, and no positions
    ids, wanted, mask = (
        pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=value).to(model.device)
        for rows, value in ((input_ids, 0), (labels, IGNORE_INDEX), ([[1] * len(row) for row in input_ids], 0))
    )
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return row_losses(logits, wanted).cpu().numpy()


def exponential(exponent: float) -> float:
    """e to the power of a number, infinity where that is more than a floating-point number can be."""
    return math.exp(exponent) if exponent < _LARGEST_EXPONENT else math.inf
