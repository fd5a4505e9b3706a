"""What pipelines have in common, most of all those that write text with an encoder-decoder model.

`pipe.save_pretrained` copies this file and the pipeline's own into a checkpoint that carries its model's code, where
they work without the package: so they import only torch, transformers and each other.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BatchEncoding,
    GenerationConfig,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.dynamic_module_utils import custom_object_save
from transformers.pipelines.pt_utils import KeyDataset
from transformers.utils import ModelOutput, logging

logger = logging.get_logger(__name__)


class SavedWithCodeMixin:
    """A pipeline that goes with its code where its model's own code goes.

    Class attributes:
        task_name: name of the task in `transformers.pipeline`.
        auto_class: auto class that the task's models load by.
        kind: type of the task, as `PIPELINE_REGISTRY.register_pipeline` takes it.
    """

    task_name = ""
    auto_class = ""
    kind = "text"

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save all parts, and this pipeline with a model whose own code is saved too.

        Where hf_attnzoo isn't installed, such a folder loads by `pipeline(model=..., trust_remote_code=True)`. A model
        of transformers' own loads without anybody's trust, and goes on to: no code is saved with it.

        Args:
            save_directory: folder to write to.
            kwargs: see `PreTrainedModel.save_pretrained`.
        """
        os.makedirs(save_directory, exist_ok=True)
        config = self.model.config
        if self.model.is_remote_code():
            implementation = f"{type(self).__module__.split('.')[-1]}.{type(self).__name__}"
            config.custom_pipelines = {
                self.task_name: {"impl": implementation, "pt": [self.auto_class], "type": self.kind}
            }
            custom_object_save(self, save_directory)
        try:
            self.model.save_pretrained(save_directory, **kwargs)
        finally:
            # A later save of the model alone would name a file that isn't there
            config.__dict__.pop("custom_pipelines", None)
        if self.processor is not None:
            self.processor.save_pretrained(save_directory, **kwargs)
            return
        if self.image_processor is not None:
            self.image_processor.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)


class GeneratingPipeline(SavedWithCodeMixin, Pipeline):
    """Base of pipelines around `generate()` of an encoder-decoder model.

    Class attributes:
        output_name: what is written, with its article, for messages. The others are those of `SavedWithCodeMixin`.
    """

    output_name = "A text"

    _pipeline_calls_generate = True
    _load_video_processor = False
    _load_feature_extractor = False
    _default_generation_config = GenerationConfig(max_new_tokens=256)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        name = type(self.model).__name__
        if not (self.model.config.is_encoder_decoder and self.model.can_generate()):
            raise ValueError(f"model is a {name}; {self.task_name} takes an encoder-decoder model that can generate()")
        if self.tokenizer is None:
            raise ValueError(f"tokenizer is None; {self.task_name} needs the tokenizer of the {name}")
        # A model that is handed over may come from training, and dropout would change every output
        self.model.eval()
        limit = position_limit(self.model.config, "decoder")
        if limit is not None:
            self._generation_defaults["max_new_tokens"] = min(self._generation_defaults["max_new_tokens"], limit)

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Run on one input, a list of inputs, or those of an iterator or of a torch dataset as they come.

        Args:
            inputs: see the class.
            kwargs: see the class.

        Returns:
            See the class.
        """
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
            checked = [self.check_input(one, f"inputs[{number}]") for number, one in enumerate(inputs)]
            results = super().__call__(checked, **kwargs) if checked else []
            return [result[0] for result in results] if all(len(result) == 1 for result in results) else results
        if isinstance(inputs, Iterator):
            # Pipeline streams what a generator gives, and takes other iterators for one input
            generator = inputs if isinstance(inputs, GeneratorType) else (one for one in inputs)
            return super().__call__(generator, **kwargs)
        if isinstance(inputs, KeyDataset) and len(inputs) == 0:
            # Pipeline would look at the first
            return iter(())
        if not isinstance(inputs, Dataset):
            self.check_input(inputs, "inputs")
        return super().__call__(inputs, **kwargs)

    @staticmethod
    def check_input(value: Any, name: str) -> Any:
        """Return an input, or raise a `TypeError` that says what is expected.

        Args:
            value: one input.
            name: what to call it in an error.
        """
        raise NotImplementedError

    def _with_assistant(self, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `generate()`, with the smaller model that drafts for this one, if there is one."""
        assistant = getattr(self, "assistant_model", None)
        if assistant is not None:
            generate_kwargs.setdefault("assistant_model", assistant)
            if self.assistant_tokenizer is not None:
                generate_kwargs |= {"tokenizer": self.tokenizer, "assistant_tokenizer": self.assistant_tokenizer}
        return generate_kwargs

    def _write(
        self,
        inputs: dict[str, Tensor],
        return_scores: bool | None,
        return_alignments: bool,
        generate_kwargs: dict[str, Any],
    ) -> dict[str, Tensor]:
        """Runs `generate()` on B inputs, n sequences each.

        Returns:
            `sequences` of shape `(B, n, 1 + T)`, `lengths` without padding `(B, n)`, and `scores` `(B, n)` and
            `alignments` `(B, n, T, S)` where asked for; None asks for scores if there are several sequences.
        """
        batch = len(next(iter(inputs.values())))
        prefix = generate_kwargs.get("decoder_input_ids")
        if prefix is not None:
            prefix = prefix.to(self.device)
            generate_kwargs["decoder_input_ids"] = prefix.expand(batch, -1) if len(prefix) == 1 else prefix
        start = 1 if prefix is None else prefix.shape[1]
        self._check_output_length(generate_kwargs, start)

        settings = self._get_set_generation_params(self._prepare_generate_kwargs(generate_kwargs))
        beams = (settings.get("num_beams") or 1) > 1
        if return_scores is None:
            return_scores = (settings.get("num_return_sequences") or 1) > 1
        wanted = {"return_dict_in_generate": True}
        if return_scores:
            wanted["output_scores" if beams else "output_logits"] = True
        if return_alignments:
            wanted["output_attentions"] = True
        with eager_attention(self.model) if return_alignments else nullcontext():
            output = self.model.generate(**inputs, **self._prepare_generate_kwargs(generate_kwargs, **wanted))

        real = real_tokens(output.sequences[:, start:], settings.get("eos_token_id"), settings.get("pad_token_id"))
        self._warn_if_cut(real, generate_kwargs, settings)
        rows = {"sequences": output.sequences, "lengths": start + real.sum(1)}
        if return_scores:
            rows["scores"] = sequence_scores(output, real, settings.get("length_penalty"))
        if return_alignments:
            rows["alignments"] = alignments(output)
        return {name: tensor.unflatten(0, (batch, -1)) for name, tensor in rows.items()}

    def _chosen(self, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
        """Generation parameters of the pipeline's user, apart from those of the model and the pipeline's defaults."""
        if "generation_config" not in generate_kwargs:
            generate_kwargs = {**self._generate_kwargs, **generate_kwargs}
        config = generate_kwargs.get("generation_config")
        return {**(config.to_diff_dict() if config is not None else {}), **generate_kwargs}

    def _check_output_length(self, generate_kwargs: dict[str, Any], prefix_length: int) -> None:
        limit = position_limit(self.model.config, "decoder")
        if limit is None:
            return
        chosen = self._chosen(generate_kwargs)
        # The last token is written, and not read again
        for name, most in (("max_new_tokens", limit + 1 - prefix_length), ("max_length", limit + 1)):
            if (chosen.get(name) or 0) > most:
                raise ValueError(
                    f"{name} is {chosen[name]}, and the model's position table of {limit} allows at most {most}"
                )

    def _warn_if_cut(self, real: Tensor, generate_kwargs: dict[str, Any], settings: dict[str, Any]) -> None:
        limit = self._generation_defaults["max_new_tokens"]
        known = self._get_set_generation_params(self._chosen(generate_kwargs))
        by_default = not {"max_new_tokens", "max_length"} & known.keys()
        if by_default and settings.get("eos_token_id") is not None and bool((real.sum(1) >= limit).any()):
            logger.warning_once(
                f"{self.output_name} reached the default limit of {limit} tokens; max_new_tokens= sets another."
            )


def position_limit(config: PreTrainedConfig, side: str) -> int | None:
    """Tokens that one side has positions for, None if it reads any number.

    Args:
        config: configuration of an encoder-decoder.
        side: `"encoder"` or `"decoder"`.
    """
    part = getattr(config, side, config)
    # LED has a table for each side
    own = getattr(part, f"max_{side}_position_embeddings", None)
    if own is None and side == "encoder":
        # Of Luong's location scores, which have a weight for each position of a source
        own = getattr(part, "max_source_length", None)
    return own if own is not None else getattr(part, "max_position_embeddings", None)


def real_tokens(ids: Tensor, eos: int | list[int] | None, pad: int | None) -> Tensor:
    """Mask of what was written: up to the first `eos`; where there is none, up to the padding at the end.

    Args:
        ids: generated ids, shape `(R, T)`.
        eos: ids that end a text.
        pad: id that fills the rest; it may be an `eos` too.

    Returns:
        Boolean mask of shape `(R, T)`, True on a text and the `eos` that ends it.
    """
    ends = torch.isin(ids, torch.tensor([] if eos is None else eos, device=ids.device, dtype=ids.dtype))
    before_end = ends.cumsum(1) - ends.long() == 0
    content = before_end & (ends if pad is None else (ends | (ids != pad)))
    return content.flip(1).cumsum(1).flip(1) > 0


def sequence_scores(output: ModelOutput, real: Tensor, length_penalty: float | None) -> Tensor:
    """Log-probability of each sequence in nats, over its length to the power of `length_penalty`.

    Args:
        output: of `generate()`, with `sequences_scores` of beam search or, without beams, with `logits`.
        real: mask of what was written, the ids of a prefix left out, shape `(R, T)`.
        length_penalty: exponent. Default: `None`, 1.

    Returns:
        Scores of shape `(R,)`.
    """
    if getattr(output, "sequences_scores", None) is not None:
        return output.sequences_scores
    steps = len(output.logits)
    written, real = output.sequences[:, -steps:], real[:, -steps:]
    log_probs = [
        logits.float().log_softmax(-1).gather(1, ids[:, None])
        for logits, ids in zip(output.logits, written.T, strict=True)
    ]
    total = torch.cat(log_probs, dim=1).masked_fill(~real, 0.0).sum(1)
    return total / real.sum(1).clamp(min=1) ** (1.0 if length_penalty is None else length_penalty)


def alignments(output: ModelOutput) -> Tensor:
    """Cross-attention of the last layer, averaged over its heads, of each sequence.

    Args:
        output: of `generate()`, with `cross_attentions`: for each step a tuple of `(rows, heads, queries, S)`.

    Returns:
        Weights of shape `(R, T, S)`: row i is the attention with which token `i + 1` of a sequence was predicted.

    Raises:
        ValueError: if the model returned none.
    """
    steps = output.cross_attentions
    if not steps or not steps[0] or steps[0][-1] is None:
        raise ValueError(
            "return_alignments and replace_unknown need weights, but the model has no cross-attention to show"
        )
    beams = getattr(output, "beam_indices", None)
    weights = []
    for step, layers in enumerate(steps if beams is None else steps[: beams.shape[1]]):
        # A beam's tokens come from different rows at different steps, -1 after its end
        rows = layers[-1] if beams is None else layers[-1][beams[:, step].clamp(min=0)]
        mean = rows.float().mean(1)
        # The first step reads the whole prefix; without a cache later ones do so again, and only their end is new
        weights.append(mean if step == 0 else mean[:, -1:])
    return torch.cat(weights, dim=1)


def token_spans(encoding: BatchEncoding, second: int = 0) -> list[tuple[int, int] | None] | None:
    """Characters of a text, or of a pair, that the tokens of an encoding stand for.

    Args:
        encoding: of one text or pair, by a fast tokenizer.
        second: what the characters of a pair's second text are counted from.

    Returns:
        For each token a first and one past the last character, None for a special token. Or None alone, if the
        tokenizer isn't a fast one and doesn't tell.
    """
    if not encoding.is_fast:
        return None
    starts = [None if sequence is None else sequence * second for sequence in encoding.sequence_ids()]
    offsets = encoding.encodings[0].offsets
    return [
        None if start is None else (start + first, start + last)
        for start, (first, last) in zip(starts, offsets, strict=True)
    ]


def target_spans(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str
) -> list[tuple[int, int] | None] | None:
    """Characters of a written text that its tokens stand for.

    Args:
        tokenizer: which the ids are decoded with.
        ids: target ids.
        text: what they are decoded to.

    Returns:
        For each id a first and one past the last character, None for a special token. Or None alone, if the text is
        put together otherwise than from left to right, or not of these ids.
    """
    spans, special, before = [], set(tokenizer.all_special_ids), 0
    for number, index in enumerate(ids):
        if index in special:
            spans.append(None)
            continue
        beginning = tokenizer.decode(ids[: number + 1], skip_special_tokens=True)
        # Part of a character is shown as U+FFFD until the rest of it is there
        end = len(beginning.rstrip("\ufffd"))
        if end < before or text[:end] != beginning[:end]:
            return None
        spans.append((before, end))
        before = end
    return spans if before == len(text) else None


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Eager attention (fused kernels never form the weights), and each part's own implementation afterwards.

    Args:
        model: of any kind. Parts that have chosen none, such as a convolutional backbone, are left alone: what they
            have can't be set again.
    """
    before = _implementations(model.config)
    eager = _implementations(model.config, "eager")
    if before == eager:
        yield
        return
    model.set_attn_implementation(eager)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _implementations(config: PreTrainedConfig, replaced_by: str | None = None) -> dict[str, str | dict]:
    """Attention implementations, or another in the place of each, as `set_attn_implementation` takes them: `""` for
    the config itself, then its sub-configs."""
    own = config._attn_implementation
    parts = {name: getattr(config, name) for name in config.sub_configs}
    nested = {name: _implementations(part, replaced_by) for name, part in parts.items() if part is not None}
    return ({} if own is None else {"": replaced_by or own}) | {name: part for name, part in nested.items() if part}


def given(**parameters: Any) -> dict[str, Any]:
    """The parameters that are not None."""
    return {name: value for name, value in parameters.items() if value is not None}
