"""`"attnzoo-translation"`: text in, text out, with any encoder-decoder model.

`pipe.save_pretrained` copies this file into a checkpoint that carries its model's code, where it works without the
package: so it imports only torch and transformers.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GenerationConfig, Pipeline, PreTrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import custom_object_save
from transformers.pipelines.pt_utils import KeyDataset
from transformers.utils import ModelOutput, logging

logger = logging.get_logger(__name__)

TASK = "attnzoo-translation"


class TranslationPipeline(Pipeline):
    """Translates texts with an encoder-decoder model of this package, of transformers, or with code of its own.

    ```python
    >>> import hf_attnzoo
    >>> from transformers import pipeline

    >>> pipe = pipeline("attnzoo-translation", model="my-dates")
    >>> pipe("5 March 2021")
    [{'translation_text': '2021-03-05'}]
    >>> pipe(["5 March 2021", "6 mars 2021"], num_beams=4, batch_size=2)
    [{'translation_text': '2021-03-05'}, {'translation_text': '2021-03-06'}]
    ```

    A text gets what `generate()` gives it alone, whatever the batch size (sampling aside: a batch draws its random
    numbers in another order). Generation follows the model's `generation_config`; if that limits no length, at most
    256 tokens are written, or as many as the decoder's position table holds, and a warning tells if that cut a text.

    Arguments of the pipeline, at construction or in a call, where the call's win:

    Args:
        truncation:
            Whether to cut a source that is too long for the model's position table or for the tokenizer's
            `model_max_length`; or a truncation strategy of the tokenizer. Default: `False`, what the table can't hold
            is refused.
        return_tensors:
            Give token ids in place of text. Default: `False`.
        return_scores:
            Give each translation its score. Default: `None`, if there are several of a text.
        return_alignments:
            Give each translation its cross-attention: that of the last layer, averaged over its heads. Default:
            `False`.
        replace_unknown:
            Put the best aligned source word in the place of each unknown word that is written, or what a mapping of
            source words to target words has for it (Luong et al. 2015, section 4). For tokenizers whose tokens are
            words or characters. Default: `False`. A model that copies words of the source does so without it.
        skip_special_tokens:
            Leave special tokens out of the text. Default: `True`.
        clean_up_tokenization_spaces:
            As in `tokenizer.decode()`. Default: `None`, the tokenizer's own setting.
        batch_size, num_workers:
            As in every pipeline.
        generate_kwargs:
            Anything else is for `model.generate()`: `num_beams`, `num_return_sequences`, `do_sample`,
            `max_new_tokens`, `streamer` (one text at a time, no beams), ... `decoder_input_ids` of shape `(1, P)`
            begin the translation of every text.

    Returns:
        A list of dicts for one text, one per returned sequence, best first under beam search. For a list of texts, a
        list with one dict per text, or with one list of dicts per text if `num_return_sequences` is above 1. For a
        dataset or an iterator, an iterator over what each text alone gives, a list. The dicts hold:

        - `translation_text`: the text; or `translation_token_ids` with `return_tensors`: ids of shape `(T + 1,)`,
          the decoder's start token first, without padding.
        - `score`: log-probability in nats of the T tokens, `</s>` included, divided by `T ** length_penalty`. That is
          the score of beam search. Greedy search and sampling are scored by the same formula, from the model's own
          probabilities, before temperature or any other processing.
        - `source_tokens` (S), `target_tokens` (T) and `alignment` (T lists of S weights that sum to 1): how much
          each target token looked at each source token when it was written, special tokens included. These are the
          arguments of `hf_attnzoo.AttentionMap`, with `numpy.array(alignment)`.

    Raises:
        TypeError: if an input is no text.
        ValueError: if a source, or the output asked for, is longer than the position table, if alignments are asked
            of a model without attention, or from `generate()`.
    """

    _pipeline_calls_generate = True
    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _default_generation_config = GenerationConfig(max_new_tokens=256)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        name = type(self.model).__name__
        if not (self.model.config.is_encoder_decoder and self.model.can_generate()):
            raise ValueError(f"model is a {name}; {TASK} takes an encoder-decoder model that can generate()")
        if self.tokenizer is None:
            raise ValueError(f"tokenizer is None; {TASK} needs the tokenizer of the {name}")
        # A model that is handed over may come from training, and dropout would change every translation
        self.model.eval()
        # Padding on the left would shift the positions of a source, and so its translation
        self.tokenizer.padding_side = "right"
        limit = position_limit(self.model.config, "decoder")
        if limit is not None:
            self._generation_defaults["max_new_tokens"] = min(self._generation_defaults["max_new_tokens"], limit)

    def _sanitize_parameters(
        self,
        truncation: bool | str | None = None,
        return_tensors: bool | None = None,
        return_scores: bool | None = None,
        return_alignments: bool | None = None,
        replace_unknown: bool | Mapping[str, str] | None = None,
        skip_special_tokens: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        assistant = getattr(self, "assistant_model", None)
        if assistant is not None:
            generate_kwargs.setdefault("assistant_model", assistant)
            if self.assistant_tokenizer is not None:
                generate_kwargs |= {"tokenizer": self.tokenizer, "assistant_tokenizer": self.assistant_tokenizer}
        if replace_unknown is not None and replace_unknown is not False:
            self._check_word_tokens()
        preprocess = _given(
            truncation=truncation, return_alignments=return_alignments, replace_unknown=replace_unknown
        )
        forward = _given(
            return_scores=return_scores, return_alignments=return_alignments, replace_unknown=replace_unknown
        )
        postprocess = _given(
            return_tensors=return_tensors,
            return_alignments=return_alignments,
            replace_unknown=replace_unknown,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        return preprocess, forward | generate_kwargs, postprocess

    def __call__(self, inputs: str | Sequence[str] | Iterator[str] | Dataset, **kwargs: Any) -> Any:
        """Translate a text, a list of texts, or the texts of an iterator or of a torch dataset as they come.

        Args:
            inputs: the texts. The column of a `datasets.Dataset` is a list, or streams as `KeyDataset(dataset, name)`.
            kwargs: see the class.

        Returns:
            See the class.
        """
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
            texts = [self._check_text(text, f"inputs[{number}]") for number, text in enumerate(inputs)]
            results = super().__call__(texts, **kwargs) if texts else []
            return [result[0] for result in results] if all(len(result) == 1 for result in results) else results
        if isinstance(inputs, Iterator):
            # Pipeline streams what a generator gives, and takes other iterators for one input
            generator = inputs if isinstance(inputs, GeneratorType) else (text for text in inputs)
            return super().__call__(generator, **kwargs)
        if isinstance(inputs, KeyDataset) and len(inputs) == 0:
            # Pipeline would look at the first
            return iter(())
        if not isinstance(inputs, Dataset):
            self._check_text(inputs, "inputs")
        return super().__call__(inputs, **kwargs)

    @staticmethod
    def _check_text(text: Any, name: str) -> str:
        if not isinstance(text, str):
            raise TypeError(
                f"{name} is of type {type(text).__name__}, expected a string, or a list, an iterator or a dataset of "
                'strings, such as dataset["source"] or KeyDataset(dataset, "source")'
            )
        return text

    def preprocess(
        self,
        text: str,
        truncation: bool | str = False,
        return_alignments: bool = False,
        replace_unknown: bool | Mapping[str, str] = False,
    ) -> dict[str, Tensor | list[str]]:
        """Source ids and mask of shape `(1, S)`, and the S tokens and the words they stand for, if wanted."""
        self._check_text(text, "a text")
        limit = position_limit(self.model.config, "encoder")
        # None leaves the tokenizer its own limit
        max_length = limit if limit is not None and limit < self.tokenizer.model_max_length else None
        encoding = self.tokenizer(text, padding=False, truncation=truncation, max_length=max_length)
        ids = encoding["input_ids"]
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"the text that starts with {text[:40]!r} has {len(ids)} tokens, and the model's position table holds "
                f"{limit}; split the text, or let truncation=True cut it"
            )
        if not ids:
            # An encoder reads at least one token, and the end is what would follow a text that isn't there
            ids = [_first_known(self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)]
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if return_alignments:
            # A tokenizer with two vocabularies takes ids for target ids; the encoding knows the source's tokens
            named = encoding.is_fast and len(encoding["input_ids"])
            inputs["source_tokens"] = encoding.tokens() if named else self.tokenizer.convert_ids_to_tokens(ids)
        if replace_unknown is not False:
            # As they stand in the text; special tokens stand for nothing in it
            inputs["source_words"] = [text[slice(*span)] for span in encoding.encodings[0].offsets]
        if "copy_ids" in encoding:
            inputs["copy_ids"] = torch.tensor([encoding["copy_ids"]])
            # What slots for copied words stand for
            inputs["source_text"] = text
        return inputs

    def _forward(
        self,
        model_inputs: dict[str, Any],
        return_scores: bool | None = None,
        return_alignments: bool = False,
        replace_unknown: bool | Mapping[str, str] = False,
        **generate_kwargs: Any,
    ) -> dict[str, Any]:
        """Runs `generate()` on B sources.

        Returns:
            `sequences` of shape `(B, n, 1 + T)`, `lengths` without padding `(B, n)`, `scores` `(B, n)` and
            `alignments` `(B, n, T, S)` where asked for, and what the sources looked like.
        """
        input_ids, attention_mask = model_inputs["input_ids"], model_inputs["attention_mask"]
        batch = len(input_ids)
        prefix = generate_kwargs.get("decoder_input_ids")
        if prefix is not None:
            prefix = prefix.to(self.device)
            generate_kwargs["decoder_input_ids"] = prefix.expand(batch, -1) if len(prefix) == 1 else prefix
        self._check_output_length(generate_kwargs, 1 if prefix is None else prefix.shape[1])

        settings = self._get_set_generation_params(self._prepare_generate_kwargs(generate_kwargs))
        beams = (settings.get("num_beams") or 1) > 1
        if return_scores is None:
            return_scores = (settings.get("num_return_sequences") or 1) > 1
        wanted = {"return_dict_in_generate": True}
        if return_scores:
            wanted["output_scores" if beams else "output_logits"] = True
        aligned = return_alignments or replace_unknown is not False
        if aligned:
            wanted["output_attentions"] = True
        if "copy_ids" in model_inputs:
            wanted["copy_ids"] = model_inputs["copy_ids"]
        with _eager_attention(self.model, needed=aligned):
            output = self.model.generate(
                input_ids=input_ids,
                attention_mask=attention_mask,
                **self._prepare_generate_kwargs(generate_kwargs, **wanted),
            )

        start = 1 if prefix is None else prefix.shape[1]
        real = real_tokens(output.sequences[:, start:], settings.get("eos_token_id"), settings.get("pad_token_id"))
        self._warn_if_cut(real, generate_kwargs, settings)
        rows = {"sequences": output.sequences, "lengths": start + real.sum(1)}
        if return_scores:
            rows["scores"] = sequence_scores(output, real, settings.get("length_penalty"))
        if aligned:
            rows["alignments"] = alignments(output)
        return {
            **{name: tensor.unflatten(0, (batch, -1)) for name, tensor in rows.items()},
            "attention_mask": attention_mask,
            "source_tokens": model_inputs.get("source_tokens"),
            "source_words": model_inputs.get("source_words"),
            "source_text": model_inputs.get("source_text"),
        }

    def postprocess(
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_alignments: bool = False,
        replace_unknown: bool | Mapping[str, str] = False,
        skip_special_tokens: bool = True,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """One dict per returned sequence of one text."""
        records = []
        source_text = model_outputs["source_text"]
        copied = {} if source_text is None else self.tokenizer.copied_words(source_text)
        for index, length in enumerate(model_outputs["lengths"][0].tolist()):
            ids = model_outputs["sequences"][0, index, :length]
            if "alignments" in model_outputs:
                # Without the padding of the batch
                source = model_outputs["attention_mask"][0].bool()
                alignment = model_outputs["alignments"][0, index, : length - 1][:, source]
            if return_tensors:
                record = {"translation_token_ids": ids}
            elif replace_unknown is not False and (ids == self.tokenizer.unk_token_id).any():
                lexicon = {} if replace_unknown is True else replace_unknown
                words = model_outputs["source_words"]
                text = self._with_words(ids[1:], alignment, words, lexicon, copied, skip_special_tokens)
                record = {"translation_text": text}
            elif source_text is not None:
                text = self.tokenizer.decode_copied(ids, source_text, skip_special_tokens=skip_special_tokens)
                record = {"translation_text": text}
            else:
                text = self.tokenizer.decode(
                    ids,
                    skip_special_tokens=skip_special_tokens,
                    clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                )
                record = {"translation_text": text}
            if "scores" in model_outputs:
                record["score"] = model_outputs["scores"][0, index].item()
            if return_alignments:
                record["source_tokens"] = model_outputs["source_tokens"]
                tokens = self.tokenizer.convert_ids_to_tokens(ids[1:].tolist())
                record["target_tokens"] = [
                    copied.get(index, token) for index, token in zip(ids[1:].tolist(), tokens, strict=True)
                ]
                record["alignment"] = alignment.tolist()
            records.append(record)
        return records

    def _check_word_tokens(self) -> None:
        for side in ("source_tokenizer", "target_tokenizer"):
            # A tokenizer with two vocabularies has one for each side
            tokenizer = getattr(self.tokenizer, side, self.tokenizer)
            kind = type(tokenizer.backend_tokenizer.model).__name__ if tokenizer.is_fast else type(tokenizer).__name__
            if kind != "WordLevel":
                raise ValueError(
                    f"replace_unknown needs tokens that are words or characters, as of train_tokenizer's kinds word, "
                    f"symbol and character, but the {side} is of the kind {kind}, whose tokens are parts of words"
                )

    def _with_words(
        self,
        ids: Tensor,
        alignment: Tensor,
        words: list[str],
        lexicon: Mapping[str, str],
        copied: Mapping[int, str],
        skip_special_tokens: bool,
    ) -> str:
        """Text of written ids `(T,)`, the unknown ones replaced by the words that the weights `(T, S)` point at, and
        slots by the words that they stand for."""
        unknown = self.tokenizer.unk_token_id
        special = set(self.tokenizer.all_special_ids) if skip_special_tokens else set()
        candidates = torch.tensor([bool(word) for word in words], device=alignment.device)
        best = alignment.masked_fill(~candidates, -1.0).argmax(dim=1).tolist()
        tokens = []
        for token_id, position in zip(ids.tolist(), best, strict=True):
            if token_id == unknown and words[position]:
                tokens.append(lexicon.get(words[position], words[position]))
            elif token_id == unknown or token_id not in special:
                tokens.append(copied.get(token_id) or self.tokenizer.convert_ids_to_tokens(token_id))
        return self.tokenizer.convert_tokens_to_string(tokens)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save model and tokenizer, and this pipeline with a model whose own code is saved too.

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
            config.custom_pipelines = {TASK: {"impl": implementation, "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}}
            custom_object_save(self, save_directory)
        try:
            self.model.save_pretrained(save_directory, **kwargs)
        finally:
            # A later save of the model alone would name a file that isn't there
            config.__dict__.pop("custom_pipelines", None)
        self.tokenizer.save_pretrained(save_directory, **kwargs)

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
                f"A translation reached the default limit of {limit} tokens; max_new_tokens= sets another."
            )


def position_limit(config: PreTrainedConfig, side: str) -> int | None:
    """Tokens that the position table of one side holds, None if there is no table.

    Args:
        config: configuration of an encoder-decoder.
        side: `"encoder"` or `"decoder"`.
    """
    part = getattr(config, side, config)
    # LED has a table for each side
    own = getattr(part, f"max_{side}_position_embeddings", None)
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


@contextmanager
def _eager_attention(model: PreTrainedModel, needed: bool) -> Iterator[None]:
    """Eager attention where weights are needed (fused kernels never form them), and what was before afterwards."""
    if not needed:
        yield
        return
    parts = {"": model.config, **{name: getattr(model.config, name) for name in model.config.sub_configs}}
    before = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _given(**parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _first_known(*ids: int | None) -> int:
    known = [token_id for token_id in ids if token_id is not None]
    if not known:
        raise ValueError("the text has no tokens, and the tokenizer has neither an eos_token nor a pad_token for it")
    return known[0]
