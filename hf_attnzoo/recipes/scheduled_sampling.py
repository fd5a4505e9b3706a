"""Scheduled sampling: in training too a model is fed words of its own (Bengio, Vinyals, Jaitly and Shazeer 2015)."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from .schema import ScheduledSamplingSection

# e to the power of more than this is no floating-point number.
_LARGEST_EXPONENT = 700


def true_share(section: ScheduledSamplingSection, step: int) -> float:
    """The probability that a word is the true one (section 2.4).

    Args:
        section: with a schedule.
        step: optimiser steps that have been taken.

    Returns:
        epsilon, from 0 to 1.
    """
    k = section.k
    if section.schedule == "linear":
        share = k - section.c * step
    elif section.schedule == "exponential":
        share = k**step
    else:
        share = 0.0 if step / k > _LARGEST_EXPONENT else k / (k + math.exp(step / k))
    return min(1.0, max(section.minimum, share))


class ScheduledSampling:
    """Puts words of the model's own into a batch.

    Word by word, without gradients and without dropout, the model writes what it makes of the words before; then the
    batch is learnt from as always, with those words fed in the place of some true ones. As in the paper no gradient
    goes through the choice of a word: without dropout the gradients are those of a loop that trains while it writes.

    It costs as many small steps of the decoder as the longest target has words, for every batch; what is learnt from
    still takes the fast way. Nothing is written, and nothing drawn, while all words are the true ones.

    Args:
        section: of a recipe, with a schedule.
    """

    def __init__(self, section: ScheduledSamplingSection):
        self.section = section

    def __call__(self, model: PreTrainedModel, batch: Mapping[str, Any], step: int) -> dict[str, Any]:
        """A batch for an optimiser step.

        Args:
            model: that is trained.
            batch: as the collator made it, with `labels` `(B, T)`.
            step: optimiser steps that have been taken.

        Returns:
            The batch, its `decoder_input_ids` or `input_ids` `(B, T)` mixed; its labels stay what they are.
        """
        own_share = 1 - true_share(self.section, step)
        if own_share <= 0:
            return dict(batch)
        with torch.no_grad(), _evaluating(model):
            return self._mix(model, batch, own_share)

    def _mix(self, model: PreTrainedModel, batch: Mapping[str, Any], own_share: float) -> dict[str, Any]:
        labels = batch["labels"]
        # Drawn where a checkpoint keeps the generator, for every word there is.
        own = (torch.rand(labels.shape) < own_share).to(labels.device)
        if model.config.is_encoder_decoder:
            words = batch.get("decoder_input_ids")
            if words is None:
                words = model.prepare_decoder_input_ids_from_labels(labels=labels)
            # Word t is label t - 1, the first one aside.
            own[:, 1:] &= labels[:, :-1] != -100
            given = {name: batch[name] for name in ("attention_mask", "copy_ids") if name in batch}
            of_target = ("labels", "copy_ids", "decoder_input_ids", "decoder_attention_mask", "num_items_in_batch")
            source = {name: value for name, value in batch.items() if name not in of_target}
            given["encoder_outputs"] = model.get_encoder()(**source)
            name, mask = "decoder_input_ids", None
        else:
            words, mask, given, name = batch["input_ids"], batch["attention_mask"], {}, "input_ids"
            # A word can be written where it and the one before it are real.
            own[:, 1:] &= (mask[:, 1:] & mask[:, :-1]).bool()
        own[:, 0] = False
        words, cache = words.clone(), None
        last = int(own.any(dim=0).nonzero().amax()) if own.any() else 0
        for place in range(last):
            if mask is not None:
                given["attention_mask"] = mask[:, : place + 1]
            outputs = model(**{name: words[:, place, None]}, cache=cache, use_cache=True, **given)
            cache, logits = outputs.cache, outputs.logits[:, -1]
            if self.section.choice == "sample":
                written = torch.multinomial(logits.float().softmax(dim=-1), 1)[:, 0]
            else:
                written = logits.argmax(dim=-1)
            words[:, place + 1] = torch.where(own[:, place + 1], written, words[:, place + 1])
        return {**batch, name: words}


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    # Part of a model may not be in training mode, such as a frozen backbone.
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
