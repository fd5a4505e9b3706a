"""Models that write: translations, captions, texts that go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, pipeline, set_seed

from ..attention_maps import AttentionMap, ImageAttentionMap, attention_map
from ..models.image_processing_show_attend_tell import open_image, rgb_pixels
from ..pipelines.generating import real_tokens, sequence_scores
from ..wording import counted
from .demo import Answer, Demo, Field, Setting

_N_BEST = Setting("n_best", "Outputs", 3, 1, 10)
_BEAMS = Setting("beams", "Beams of the search", 4, 1, 10)
_SAMPLE = Setting("sample", "Draw at random instead of searching", False)
_TEMPERATURE = Setting("temperature", "Temperature of what is drawn", 1.0, 0.05, 2.0, 0.05)
_SEED = Setting("seed", "Seed of what is drawn", 0, 0, 2**32 - 1)
_LENGTH = Setting("max_new_tokens", "Most new tokens (empty: the model's own limit)", None, 1, 4096)

_SCORE = "score"


def _generation(settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate()` of what is set on the page."""
    count, beams = settings["n_best"], settings["beams"]
    options: dict[str, Any] = {"num_return_sequences": count}
    if settings["max_new_tokens"] is not None:
        options["max_new_tokens"] = settings["max_new_tokens"]
    if settings["sample"]:
        set_seed(settings["seed"])
        return {**options, "do_sample": True, "num_beams": 1, "temperature": settings["temperature"], "top_k": 0}
    if beams < count:
        raise ValueError(f"{_BEAMS.label} is {beams}, which can't give {count} outputs: take as many beams, or more")
    return {**options, "do_sample": False, "num_beams": beams}


def _end(text: str, longest: int = 80) -> str:
    """The end of a text, of its last line."""
    line = text.rpartition("\n")[2][-longest:]
    return line if line == text else f"…{line}"


def _length_penalty(model: PreTrainedModel) -> float:
    """By what power of its number of tokens the log-probability of an output is divided."""
    penalty = model.generation_config.length_penalty
    return 1.0 if penalty is None else penalty


def _meaning(penalty: float) -> str:
    length = "its number of tokens" if penalty == 1 else f"its number of tokens to the power of {penalty:g}"
    chosen = "" if penalty == 1 else ", the model's length_penalty"
    return (
        f"log-probability of the output in nats, divided by {length}{chosen}; the bar is the probability of a token, "
        "the geometric mean of all"
    )


def _likelihoods(scores: list[float], lengths: list[int], penalty: float) -> tuple[float, ...]:
    """What probability a token has on average, of the scores of outputs."""
    return tuple(
        min(1.0, float(np.exp(score * length ** (penalty - 1)))) for score, length in zip(scores, lengths, strict=True)
    )


def _open(picture: Any) -> Image.Image:
    """The picture of a person, who knows its name, and not the folder of this machine that it was put into."""
    try:
        return open_image(picture, "the picture")
    except ValueError as error:
        if isinstance(picture, Image.Image):
            raise
        name = Path(picture).name
        raise ValueError(f"{name} can't be read: it is damaged, or no picture of a kind that is known here") from error


class _PipelineDemo(Demo):
    """Around a pipeline of ours, which gives each of its outputs a score and the attention it was written with."""

    task = ""
    output = ""
    settings = (_N_BEST, _BEAMS, _LENGTH, _SAMPLE, _TEMPERATURE, _SEED)

    def _outputs(self, value: Any, settings: dict[str, Any]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """What the pipeline gives, and what is to be said about it."""
        wanted = {"return_scores": True, "return_alignments": True}
        try:
            records = self.pipe(value, **wanted, **_generation(settings))
        except ValueError as error:
            # Without attention there are no alignments; whatever else is wrong is told once more
            records = self.pipe(value, return_scores=True, **_generation(settings))
            return records, (f"No map: {error}.",)
        end = self.tokenizer.eos_token
        cut = [len(record["target_tokens"]) for record in records if end not in record["target_tokens"][-1:]]
        if end is None or not cut:
            return records, ()
        some = f"{counted(len(cut), 'output')} of {len(records)} {'ends' if len(cut) == 1 else 'end'}"
        return records, (f"{some} at the limit of {counted(max(cut), 'token')}, unfinished.",)

    def _answer(self, records: list[dict[str, Any]], notes: tuple[str, ...], look: Callable) -> Answer:
        scores, penalty = [record["score"] for record in records], _length_penalty(self.model)
        # Without a map it isn't told how many tokens there are, which don't matter if the score is by token
        known = penalty == 1 or all("target_tokens" in record for record in records)
        lengths = [len(record.get("target_tokens", ".")) for record in records]
        return Answer(
            columns=(self.output, _SCORE),
            rows=tuple((record[self.key], score) for record, score in zip(records, scores, strict=True)),
            looks=() if notes and "alignment" not in records[0] else tuple(look(record) for record in records),
            shares=_likelihoods(scores, lengths, penalty) if known else (),
            notes=notes,
            meaning=_meaning(penalty),
        )


class TranslationDemo(_PipelineDemo):
    """An encoder-decoder that reads a text and writes one."""

    verb = "Translate"
    output, key = "output", "translation_text"
    fields = (Field("text", "Text", lines=3, hint="What the model reads"),)

    def __init__(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, *args: Any, **kwargs: Any):
        super().__init__(model, processor, *args, **kwargs)
        self.pipe = pipeline("attnzoo-translation", model=model, tokenizer=processor)

    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        text = inputs["text"]
        self._check_length(text)
        records, notes = self._outputs(text, settings)
        return self._answer(records, notes, lambda record: lambda: self._map(text, record))

    def _map(self, text: str, record: dict[str, Any]) -> AttentionMap:
        """The attention that an output was written with, with all layers and heads where its text tells its tokens."""
        forced, written = attention_map(self.model, self.tokenizer, text, record[self.key]), record["target_tokens"]
        if forced.target[: len(written)] == written:
            # An output that was cut has no end, which is forced all the same
            return replace(
                forced,
                target=written,
                weights=forced.weights[: len(written)],
                layers=tuple(layer[:, : len(written)] for layer in forced.layers),
                target_spans=forced.target_spans and forced.target_spans[: len(written)],
            )
        return AttentionMap(
            record["source_tokens"],
            written,
            np.array(record["alignment"]),
            text,
            record[self.key],
            source_spans=record["source_spans"],
            target_spans=record["target_spans"],
        )


class CaptioningDemo(_PipelineDemo):
    """A model that says what a picture shows."""

    verb = "Describe"
    output, key = "caption", "caption"
    fields = (Field("image", "Picture", kind="image"),)

    def __init__(self, model: PreTrainedModel, processor: ProcessorMixin, *args: Any, **kwargs: Any):
        super().__init__(model, processor, *args, **kwargs)
        self.pipe = pipeline("attnzoo-captioning", model=model, processor=processor)

    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        image = _open(inputs["image"])
        picture = Image.fromarray(rgb_pixels(image, "the picture").round().astype(np.uint8))
        records, notes = self._outputs(image, settings)
        if self.pipe.grid_size is None and not notes:
            notes = ("No map: the model doesn't say where on a picture the places lie that it looks at.",)
            records = [{name: record[name] for name in (self.key, "score")} for record in records]

        def look(record: dict[str, Any]) -> Callable[[], ImageAttentionMap]:
            return lambda: ImageAttentionMap(
                record["target_tokens"], np.array(record["alignment"]), picture, record[self.key]
            )

        return self._answer(records, notes, look)


class ContinuationDemo(Demo):
    """A language model that goes on with a text."""

    verb = "Go on"
    fields = (Field("prompt", "Text to go on with", lines=4, hint="Once upon a time"),)
    settings = (
        Setting("n_best", "Texts", 3, 1, 10),
        Setting("max_new_tokens", "New tokens", 60, 1, 1024),
        Setting("sample", "Draw at random (off: the likeliest, by beam search)", True),
        Setting("temperature", "Temperature of what is drawn", 0.8, 0.05, 2.0, 0.05),
        _SEED,
    )

    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        prompt, count = inputs["prompt"], settings["n_best"]
        self._check_length(prompt, more=settings["max_new_tokens"], name="The beginning", side="decoder")
        encoding = self.tokenizer(prompt, return_tensors="pt").to(self.model.device)
        read = encoding["input_ids"].shape[1]
        options: dict[str, Any] = {"do_sample": settings["sample"], "max_new_tokens": settings["max_new_tokens"]}
        if settings["sample"]:
            set_seed(settings["seed"])
            # Of all tokens, not of the 50 likeliest, which is generate()'s default
            options |= {"temperature": settings["temperature"], "num_beams": 1, "top_k": 0}
        else:
            options["num_beams"] = count
        options["output_scores" if options["num_beams"] > 1 else "output_logits"] = True
        # The pipeline for this, of transformers, gives no scores
        with torch.no_grad():
            output = self.model.generate(
                input_ids=encoding["input_ids"],
                attention_mask=encoding["attention_mask"],
                num_return_sequences=count,
                return_dict_in_generate=True,
                **options,
            )
        config, penalty = self.model.generation_config, _length_penalty(self.model)
        real = real_tokens(output.sequences[:, read:], config.eos_token_id, config.pad_token_id)
        scores = sequence_scores(output, real, config.length_penalty).tolist()
        begun = self.tokenizer.decode(encoding["input_ids"][0], skip_special_tokens=True)
        texts = []
        for ids, length in zip(output.sequences, real.sum(1).tolist(), strict=True):
            whole = self.tokenizer.decode(ids[: read + length], skip_special_tokens=True)
            # As the tokenizer spells it, the beginning may be another than what was typed
            texts.append(whole[len(begun) :])
        return Answer(
            columns=("text", _SCORE),
            rows=tuple(zip(texts, scores, strict=True)),
            looks=tuple(self._look(prompt + text) for text in texts),
            shares=_likelihoods(scores, real.sum(1).clamp(min=1).tolist(), penalty),
            lead=_end(prompt),
            meaning=_meaning(penalty),
        )

    def _look(self, text: str) -> Callable[[], AttentionMap]:
        return lambda: attention_map(self.model, self.tokenizer, text)
