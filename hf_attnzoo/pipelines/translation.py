"""`"attnzoo-translation"`: text in, text out, with any encoder-decoder model.

`pipe.save_pretrained` copies this file into a checkpoint that carries its model's code, where it works without the
package: so it imports only torch, transformers and its neighbour.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .generating import GeneratingPipeline, given, position_limit, target_spans, token_spans


class TranslationPipeline(GeneratingPipeline):
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
          each target token looked at each source token when it was written, special tokens included. And
          `source_spans` and `target_spans`, the characters of either text that a token stands for, first and one past
          the last; None for a special token, or in place of a list where they can't be told, such as for a text with
          words put in or copied. These are the arguments of `hf_attnzoo.AttentionMap`, with `numpy.array(alignment)`.

    Raises:
        TypeError: if an input is no text.
        ValueError: if a source, or the output asked for, is longer than the position table, if alignments are asked
            of a model without attention, or from `generate()`.
    """

    task_name = "attnzoo-translation"
    auto_class = "AutoModelForSeq2SeqLM"
    output_name = "A translation"

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Padding on the left would shift the positions of a source, and so its translation
        self.tokenizer.padding_side = "right"

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
        if replace_unknown is not None and replace_unknown is not False:
            self._check_word_tokens()
        preprocess = given(truncation=truncation, return_alignments=return_alignments, replace_unknown=replace_unknown)
        forward = given(
            return_scores=return_scores, return_alignments=return_alignments, replace_unknown=replace_unknown
        )
        postprocess = given(
            return_tensors=return_tensors,
            return_alignments=return_alignments,
            replace_unknown=replace_unknown,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        return preprocess, forward | self._with_assistant(generate_kwargs), postprocess

    @staticmethod
    def check_input(text: Any, name: str) -> str:
        """A text, or a `TypeError`."""
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
        self.check_input(text, "a text")
        limit = position_limit(self.model.config, "encoder")
        # None leaves the tokenizer its own limit
        max_length = limit if limit is not None and limit < self.tokenizer.model_max_length else None
        encoding = self.tokenizer(text, padding=False, truncation=truncation, max_length=max_length)
        ids = encoding["input_ids"]
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"the text that starts with {text[:40]!r} has {len(ids)} tokens, and the model has positions "
                f"for {limit}; split the text, or let truncation=True cut it (--truncate on a command line)"
            )
        if not ids:
            # An encoder reads at least one token, and the end is what would follow a text that isn't there
            ids = [_first_known(self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)]
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if return_alignments:
            # A tokenizer with two vocabularies takes ids for target ids; the encoding knows the source's tokens
            named = encoding.is_fast and len(encoding["input_ids"])
            inputs["source_tokens"] = encoding.tokens() if named else self.tokenizer.convert_ids_to_tokens(ids)
            inputs["source_spans"] = token_spans(encoding) if named else None
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
        names = ("input_ids", "attention_mask", "copy_ids")
        inputs = {name: model_inputs[name] for name in names if name in model_inputs}
        rows = self._write(inputs, return_scores, return_alignments or replace_unknown is not False, generate_kwargs)
        return {
            **rows,
            "attention_mask": inputs["attention_mask"],
            "source_tokens": model_inputs.get("source_tokens"),
            "source_spans": model_inputs.get("source_spans"),
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
                record["source_spans"] = model_outputs["source_spans"]
                text = record.get("translation_text")
                record["target_spans"] = None if text is None else target_spans(self.tokenizer, ids[1:].tolist(), text)
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


def _first_known(*ids: int | None) -> int:
    known = [token_id for token_id in ids if token_id is not None]
    if not known:
        raise ValueError("the text has no tokens, and the tokenizer has neither an eos_token nor a pad_token for it")
    return known[0]
