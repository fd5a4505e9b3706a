"""From pairs of texts to token ids, and from rows of ids, or of images and captions, to padded tensors."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Image
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, ProcessorMixin

from .batching import token_lengths

logger = logging.getLogger(__name__)

# Characters of a row that a message shows.
_SHOWN = 40


@dataclass
class Seq2SeqCollator:
    """Pads rows of token ids to one batch.

    transformers' `DataCollatorForSeq2Seq` pads labels on the tokenizer's padding side, which in front of a target
    would train the decoder to start with nothing, and fails on columns of text; otherwise this does the same.

    Args:
        tokenizer: gives `pad_token_id`, and `padding_side` for the source.
        model: if it has `prepare_decoder_input_ids_from_labels`, the batch gets `decoder_input_ids`, as label
            smoothing in `Trainer` needs them.
        max_source_length: longest source allowed, in tokens. None: no limit.
        max_target_length: longest target allowed, in tokens. None: no limit.
        pad_to_multiple_of: round both lengths up, for tensor cores.

    Returns of a call:
        `input_ids` and `attention_mask`, shape `(B, S)`, and `copy_ids`, padded with -100, if the rows have them;
        `labels`, shape `(B, T)`, padded on the right with -100, if the rows have them. Other columns are left out.

    Raises:
        ValueError: no pad token, no rows, an empty source, a row longer than the limit.
    """

    tokenizer: PreTrainedTokenizerBase
    model: Any = None
    max_source_length: int | None = None
    max_target_length: int | None = None
    pad_to_multiple_of: int | None = None

    def __post_init__(self):
        if self.tokenizer.pad_token_id is None:
            raise ValueError("tokenizer has no pad_token_id, so rows of unequal length cannot make a batch")
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of={self.pad_to_multiple_of} must be at least 1")

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        if len(rows) == 0:
            raise ValueError("rows is empty: a batch needs at least one row")
        sources = self._column(rows, "input_ids", self.max_source_length, "max_source_length")
        if "attention_mask" in rows[0]:
            masks = [torch.as_tensor(row["attention_mask"], dtype=torch.long) for row in rows]
        else:
            masks = [torch.ones_like(source) for source in sources]
        side = self.tokenizer.padding_side
        batch = {
            "input_ids": self._pad(sources, self.tokenizer.pad_token_id, side),
            "attention_mask": self._pad(masks, 0, side),
        }
        if "copy_ids" in rows[0]:
            copies = [torch.as_tensor(row["copy_ids"], dtype=torch.long) for row in rows]
            batch["copy_ids"] = self._pad(copies, -100, side)
        if "labels" in rows[0]:
            labels = self._column(rows, "labels", self.max_target_length, "max_target_length")
            batch["labels"] = self._pad(labels, -100, "right")
            if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
                batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch

    def _column(self, rows: Sequence[Mapping[str, Any]], name: str, limit: int | None, argument: str) -> list[Tensor]:
        tensors = []
        for i, row in enumerate(rows):
            ids = torch.as_tensor(row[name], dtype=torch.long)
            if len(ids) == 0:
                raise ValueError(f"{name} of row {i} in the batch is empty")
            if limit is not None and len(ids) > limit:
                raise ValueError(f"{name} of row {i} in the batch has {len(ids)} tokens, more than {argument}={limit}")
            tensors.append(ids)
        return tensors

    def _pad(self, rows: list[Tensor], value: int, side: str) -> Tensor:
        batch = pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)
        missing = -batch.shape[1] % (self.pad_to_multiple_of or 1)
        return pad(batch, (missing, 0) if side == "left" else (0, missing), value=value)


@dataclass
class CaptionCollator:
    """Makes a batch of rows of images and captions, which are decoded, resized and tokenized here, not before.

    `Trainer` needs `remove_unused_columns=False` with it, and `dataloader_num_workers` spreads the work. Of a column
    `Image(decode=False)` it decodes the images itself, and names the one that it can't decode, by its file, and by its
    number if there is a column `row`.

    Args:
        processor: an image processor and a tokenizer in one, called as `processor(images=..., text=...)`.
        model: if it has `prepare_decoder_input_ids_from_labels`, the batch gets `decoder_input_ids`, as label
            smoothing in `Trainer` needs them.
        max_target_length: longest caption allowed, in tokens, `</s>` included. None: no limit.

    Returns of a call:
        `pixel_values` `(B, 3, rows, columns)`; `labels` `(B, T)`, padded on the right with -100, if the rows have a
        `caption`. Other columns are left out.

    Raises:
        ValueError: no rows, an image that cannot be read, a caption that is empty or longer than the limit.
    """

    processor: ProcessorMixin
    model: Any = None
    max_target_length: int | None = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        if len(rows) == 0:
            raise ValueError("rows is empty: a batch needs at least one row")
        images = [_decoded(row) for row in rows]
        if "caption" not in rows[0]:
            return dict(self.processor(images=images, return_tensors="pt"))
        captions = [row["caption"] for row in rows]
        batch = dict(self.processor(images=images, text=captions, return_tensors="pt"))
        lengths = (batch["labels"] != -100).sum(1).tolist()
        for i, (caption, length) in enumerate(zip(captions, lengths, strict=True)):
            if not caption.strip():
                raise ValueError(f"the caption of row {i} in the batch is empty")
            if self.max_target_length is not None and length > self.max_target_length:
                raise ValueError(
                    f"the caption of row {i} in the batch has {length} tokens, more than"
                    f" max_target_length={self.max_target_length}"
                )
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch


def _decoded(row: Mapping[str, Any]) -> Any:
    """The image of a row, also where it is still a file, or the bytes of one."""
    image = row["image"]
    if not isinstance(image, Mapping):
        return image
    try:
        return Image().decode_example(dict(image))
    # Pillow's decoders raise whatever a damaged file makes them stumble over
    except Exception as error:
        place = f"row {row['row']}: " if "row" in row else ""
        raise ValueError(f"{place}{image.get('path') or 'an image'}: the image cannot be decoded ({error})") from error


def tokenize_pairs(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    on_too_long: str = "raise",
    num_proc: int | None = None,
    split: str | None = None,
) -> Dataset:
    """Token ids of a dataset of `source` and `target`; nothing is cut without a word.

    Args:
        dataset: string columns `source` and `target`.
        tokenizer: called as `tokenizer(source, text_target=target)`.
        max_source_length: most tokens of a source, `</s>` included. None: no limit.
        max_target_length: most tokens of a target, `</s>` included. None: no limit.
        on_too_long: what to do about longer rows: `raise`; `skip` them with a warning and a count; `truncate` them
            with a warning and a count, keeping the special token at the end.
        num_proc: processes to tokenize with.
        split: what the dataset is called in messages. Default: `None`, it has no name.

    Returns:
        A dataset of `input_ids`, `labels`, `length`, the sum of their lengths, `row`, the number of the pair in
        `dataset`, which differs from its place where pairs were skipped, and `copy_ids`, if the tokenizer makes them.

    Raises:
        ValueError: a bad argument, a row too long for `on_too_long="raise"`, a row without tokens, or no row left.
    """
    if on_too_long not in ("raise", "skip", "truncate"):
        raise ValueError(f"on_too_long={on_too_long!r} must be 'raise', 'skip' or 'truncate'")
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"dataset is {type(dataset).__name__}: only a datasets.Dataset, in full, can be tokenized here"
        )
    missing = {"source", "target"} - set(dataset.column_names)
    if missing:
        raise ValueError(f"dataset has no column {min(missing)!r}; columns found: {', '.join(dataset.column_names)}")
    limits = {"input_ids": max_source_length, "labels": max_target_length}
    for argument, limit in (("max_source_length", max_source_length), ("max_target_length", max_target_length)):
        if limit is not None and limit < 1:
            raise ValueError(f"{argument}={limit} must be at least 1")

    if len(dataset) == 0:
        raise ValueError("dataset is empty")
    tokens = dataset.map(
        _tokenize,
        batched=True,
        with_indices=True,
        fn_kwargs={"tokenizer": tokenizer},
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        desc="Tokenizing",
    )
    lengths = {column: token_lengths(tokens, column) for column in limits}
    for column, length in lengths.items():
        if len(length) and length.min() == 0:
            raise ValueError(f"row {int(length.argmin())}: the tokenizer makes no token of it in {column}")
    too_long = np.zeros(len(tokens), dtype=bool)
    for column, limit in limits.items():
        if limit is not None:
            too_long |= lengths[column] > limit
    count = int(too_long.sum())
    if count:
        row = int(too_long.argmax())
        place = f"row {row}" if split is None else f"{split}: row {row}"
        message = (
            f"{place} has {lengths['input_ids'][row]} source and {lengths['labels'][row]} target tokens, with"
            f" max_source_length={max_source_length}, max_target_length={max_target_length}"
        )
        if on_too_long == "raise":
            raise ValueError(f"{message} ({count} of {len(tokens)} rows are too long)")
        begins = dataset[row]["source"][:_SHOWN]
        logger.warning(
            "%s: such rows are %s, %d of %d, of which it is the first, and begins %r",
            message,
            _DONE[on_too_long],
            count,
            len(tokens),
            begins,
        )
        if on_too_long == "skip":
            if count == len(tokens):
                raise ValueError(f"no row is left, all are too long: {message}")
            tokens = tokens.select(np.flatnonzero(~too_long))
        else:
            tokens = truncate_pairs(tokens, tokenizer, max_source_length, max_target_length, num_proc)
    return tokens


def truncate_pairs(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    num_proc: int | None = None,
) -> Dataset:
    """Token ids of `tokenize_pairs`, longer rows cut, a special token at their end kept, as a tokenizer cuts texts.

    Args:
        dataset: from `tokenize_pairs`.
        tokenizer: that it was made with.
        max_source_length: most tokens of a source, `</s>` included. None: no limit.
        max_target_length: most tokens of a target, `</s>` included. None: no limit.
        num_proc: processes to cut with.

    Returns:
        A dataset of the same columns and rows.
    """
    limits = {"input_ids": max_source_length, "labels": max_target_length}
    return dataset.map(
        _truncate,
        batched=True,
        fn_kwargs={"limits": limits, "special": set(tokenizer.all_special_ids), "tokenizer": tokenizer},
        num_proc=num_proc,
        desc="Truncating",
    )


def tokenize_buffer(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    on_too_long: str = "raise",
) -> Dataset:
    """`tokenize_pairs` of some rows of a stream, at once and without a word.

    Args:
        rows: string columns `source` and `target`.
        tokenizer: see `tokenize_pairs`, as for the other arguments.

    Returns:
        A dataset like that of `tokenize_pairs`, maybe of no rows.

    Raises:
        ValueError: a row too long for `on_too_long="raise"`.
    """
    limits = {"input_ids": max_source_length, "labels": max_target_length}
    batch = {name: list(rows[name]) for name in ("source", "target")}
    tokens = Dataset.from_dict(_tokenize(batch, list(range(len(rows))), tokenizer))
    too_long = np.zeros(len(tokens), dtype=bool)
    for column, limit in limits.items():
        if limit is not None:
            too_long |= token_lengths(tokens, column) > limit
    if not too_long.any():
        return tokens
    if on_too_long == "skip":
        return tokens.select(np.flatnonzero(~too_long))
    if on_too_long == "raise":
        raise ValueError(
            f"a row has more tokens than max_source_length={max_source_length} or max_target_length="
            f"{max_target_length} allow: {batch['source'][too_long.argmax()]!r}"
        )
    return Dataset.from_dict(
        tokens[:] | _truncate(tokens[:], limits, set(tokenizer.all_special_ids), tokenizer), features=tokens.features
    )


_DONE = {"skip": "skipped", "truncate": "truncated"}


def _tokenize(batch: dict[str, list[str]], rows: list[int], tokenizer: PreTrainedTokenizerBase) -> dict[str, list]:
    # Lengths are judged below, so the tokenizer need not warn of them
    encoded = tokenizer(batch["source"], text_target=batch["target"], verbose=False)
    ids, labels = encoded["input_ids"], encoded["labels"]
    copies = {"copy_ids": encoded["copy_ids"]} if "copy_ids" in encoded else {}
    return {"input_ids": ids, "labels": labels, "length": _total(ids, labels), "row": rows} | copies


def _truncate(
    batch: dict[str, list], limits: dict[str, int | None], special: set[int], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list]:
    cut = {}
    for column, limit in limits.items():
        cut[column] = [_cut(ids, limit, special) for ids in batch[column]]
    if "copy_ids" in batch:
        cut["copy_ids"] = [_cut(ids, limits["input_ids"], special) for ids in batch["copy_ids"]]
        # What is cut off can't be copied.
        cut["labels"] = [
            [tokenizer.unk_token_id if label in tokenizer.slot_ids and label not in copies else label for label in row]
            for row, copies in zip(cut["labels"], cut["copy_ids"], strict=True)
        ]
    return cut | {"length": _total(cut["input_ids"], cut["labels"])}


def _cut(ids: list[int], limit: int | None, special: set[int]) -> list[int]:
    if limit is None or len(ids) <= limit:
        return ids
    return ids[: limit - 1] + ids[-1:] if ids[-1] in special else ids[:limit]


def _total(ids: list[list[int]], labels: list[list[int]]) -> list[int]:
    return [len(source) + len(target) for source, target in zip(ids, labels, strict=True)]
