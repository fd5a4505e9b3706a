"""How well masked words are guessed: cross-entropy, perplexity and accuracy of a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import MaskingCollator, join_parts, masked_once, masking_blocks
from .generation import Statistics
from .likelihood import IGNORE_INDEX, exponential

MASKED_METRICS = ("cross_entropy", "perplexity", "masked_accuracy")
"""Names of the scores of masked words."""


def masked_scores(logits: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """What evaluation keeps of the logits: of every row its summed loss, right guesses and masked tokens.

    Args:
        logits: shape `(B, T, V)`; the first of several outputs.
        labels: shape `(B, T)`, -100 where nothing is masked.

    Returns:
        Shape `(B, 3)`, losses in nats.
    """
    logits = (logits[0] if isinstance(logits, (tuple, list)) else logits).float()
    losses = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE_INDEX, reduction="none")
    masked = labels != IGNORE_INDEX
    right = masked & (logits.argmax(dim=-1) == labels)
    return torch.stack([losses.sum(dim=1), right.sum(dim=1), masked.sum(dim=1)], dim=1)


def masked_statistics(name: str, sums: np.ndarray, signature: str = "") -> Statistics:
    """A score in parts, one for each row that was read; see `sentence_statistics`.

    Args:
        name: one of `MASKED_METRICS`: nats per masked token, their exponential, or the share that is guessed right.
        sums: of `masked_scores`, shape `(N, 3)`.
        signature: the settings of the score.

    Raises:
        ValueError: an unknown name.
    """
    if name not in MASKED_METRICS:
        raise ValueError(f"name is {name!r}; the scores of masked words are {', '.join(MASKED_METRICS)}")
    sums = sums.astype(np.float64)
    if name == "masked_accuracy":
        return Statistics(sums[:, 1:], lambda total: float(total[0] / total[1]), ratio=True, signature=signature)
    losses = sums[:, ::2]
    if name == "cross_entropy":
        return Statistics(losses, lambda total: float(total[0] / total[1]), ratio=True, signature=signature)
    return Statistics(losses, lambda total: exponential(total[0] / total[1]), signature=signature)


def masked_likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    block_size: int,
    batch_size: int = 8,
    **masking: Any,
) -> np.ndarray:
    """Let a masked language model guess words of texts, in blocks as in training; see `masking_blocks`.

    The masks hang on the texts, the tokenizer, the seed and the other arguments alone.

    Args:
        model: masked language model. It is in eval mode during the call, and put back afterwards.
        tokenizer: its tokenizer.
        texts: documents.
        block_size: tokens of a block, special tokens included.
        batch_size: blocks at a time.
        masking: arguments of `MaskingCollator`, such as `unit` and `probability`. Its seed is 0 by default.

    Returns:
        For each block what `masked_scores` keeps, shape `(N, 3)`.

    Raises:
        ValueError: no texts, or what `MaskingCollator`, `masking_blocks` or the model refuse.
    """
    if not any(texts):
        raise ValueError("texts is empty; at least 1 text is needed")
    collator = MaskingCollator(tokenizer, **{"seed": 0, **masking})
    blocks = masking_blocks(join_parts(Dataset.from_dict({"text": list(texts)})), tokenizer, block_size)
    blocks = masked_once(blocks, collator)
    training = model.training
    model.eval()
    rows = []
    try:
        for start in range(0, len(blocks), batch_size):
            some = [blocks[number] for number in range(start, min(start + batch_size, len(blocks)))]
            batch = {name: tensor.to(model.device) for name, tensor in collator.pad(some, some).items()}
            labels = batch.pop("labels")
            with torch.no_grad():
                rows.append(masked_scores(model(**batch).logits, labels).cpu().numpy())
    finally:
        model.train(training)
    return np.concatenate(rows)
