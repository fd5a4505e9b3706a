"""What encoders are pre-trained on: texts with words masked, and pairs of texts that follow each other or don't."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from .collators import Seq2SeqCollator

UNITS = ("token", "word", "span")

# SpanBERT's lengths in words, and how likely they are: geometric, with none above ten.
_SPAN_LENGTHS = np.arange(1, 11)
_SPAN_SHARES = 0.8**_SPAN_LENGTHS / (0.8**_SPAN_LENGTHS).sum()


@dataclass
class MaskingCollator:
    """Pads rows of token ids to one batch, and masks some of them for the model to predict.

    Of every row `probability` of the tokens are chosen, one at least, special tokens never. Of these 80 % become the
    mask, 10 % another word and 10 % stay (Devlin et al. 2019, section 3.1). What is chosen depends on the seed, the
    epoch and the row's own ids, and on nothing else: not on the batch, its order, the workers or the process, so that
    training that is resumed sees what it would have seen. `MaskingCallback` counts the epochs in `Trainer`.

    Args:
        tokenizer: gives the padding id, the mask, and the special tokens.
        unit: what is chosen at once: a `"token"`; a `"word"`, all tokens of it (whole-word masking); or a `"span"` of
            1 to 10 words, geometric in length with a mean of 3.8, which are all masked, replaced or kept together
            (Joshi et al. 2020, section 3.1).
        probability: share of the tokens.
        mask_share: share of the chosen ones that become the mask.
        random_share: share that becomes another word.
        seed: of the choice.
        pad_to_multiple_of: round the length up, for tensor cores.

    A row has `input_ids`, and may have `token_type_ids`, `next_sentence_label` and `word_ids`: the number of the word
    that a token belongs to, -1 if none. Without them, a token that begins with `##` goes with the one before.
    (`Trainer` drops what the model doesn't read, `word_ids` for one, unless `remove_unused_columns=False`.)

    Returns of a call:
        `input_ids`, `attention_mask` and `labels`, shape `(B, T)`, -100 where nothing was chosen; and what else the
        rows have of the above, but `word_ids`.

    Raises:
        ValueError: no mask or padding token, a share out of range, no rows, an empty row, or words that nothing tells.
    """

    tokenizer: PreTrainedTokenizerBase
    unit: str = "token"
    probability: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    seed: int = 0
    pad_to_multiple_of: int | None = None
    # Workers that live on see the epoch change.
    _epoch: Tensor = field(
        default_factory=lambda: torch.zeros((), dtype=torch.long).share_memory_(), init=False, repr=False
    )

    def __post_init__(self):
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit!r} is none of {', '.join(map(repr, UNITS))}")
        if not 0 < self.probability < 1:
            raise ValueError(f"probability={self.probability} must be above 0 and below 1")
        for name in ("mask_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be from 0 to 1")
        if self.mask_share + self.random_share > 1:
            raise ValueError(f"mask_share={self.mask_share} and random_share={self.random_share} are more than 1")
        if self.tokenizer.mask_token_id is None:
            raise ValueError("tokenizer has no mask_token_id")
        self._padder = Seq2SeqCollator(self.tokenizer, pad_to_multiple_of=self.pad_to_multiple_of)
        size = len(self.tokenizer)
        self._special = np.zeros(size, dtype=bool)
        self._special[[index for index in self.tokenizer.all_special_ids if index < size]] = True
        tokens = self.tokenizer.convert_ids_to_tokens(range(size))
        self._inner = np.array([token is not None and token.startswith("##") for token in tokens])

    @property
    def epoch(self) -> int:
        """Number of the pass over the data, from 0."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the masks of the next pass; each epoch has its own."""
        self._epoch.fill_(epoch)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        if len(rows) == 0:
            raise ValueError("rows is empty: a batch needs at least one row")
        return self.pad([self.mask(row) for row in rows], rows)

    def mask(self, row: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """`input_ids` of a row with some of them masked, and `labels`, shape `(T,)` each, in this epoch."""
        ids, labels = self._masked(np.asarray(row["input_ids"], dtype=np.int64), row.get("word_ids"))
        return {"input_ids": ids, "labels": labels}

    def pad(self, masked: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch of rows that are masked already.

        Args:
            masked: `input_ids` and `labels` of each.
            rows: what else they have, in the same order.
        """
        batch = self._padder(masked)
        width, side = batch["input_ids"].shape[1], self.tokenizer.padding_side
        # The padder puts labels on the right, as targets want it; these stand below their ids.
        for name, filler in (("labels", -100), ("token_type_ids", self.tokenizer.pad_token_type_id)):
            source = masked if name == "labels" else rows
            if name in source[0]:
                batch[name] = torch.full((len(rows), width), filler)
                for number, row in enumerate(source):
                    values = torch.as_tensor(row[name], dtype=torch.long)
                    place = slice(width - len(values), None) if side == "left" else slice(len(values))
                    batch[name][number, place] = values
        if "next_sentence_label" in rows[0]:
            batch["next_sentence_label"] = torch.tensor([row["next_sentence_label"] for row in rows])
        return batch

    def _masked(self, ids: np.ndarray, word_ids: Sequence[int | None] | None) -> tuple[np.ndarray, np.ndarray]:
        """Ids with some of them masked, and labels, shape `(T,)` each."""
        generator = np.random.Generator(np.random.PCG64([self.seed, self.epoch, zlib.crc32(ids.tobytes())]))
        labels = np.full_like(ids, -100)
        units = self._units(ids, word_ids)
        choices = self._chosen(units, generator)
        changed = ids.copy()
        for choice in choices:
            labels[choice] = ids[choice]
            # A span has one fate, the tokens of a word have one each.
            draws = generator.random(1 if self.unit == "span" else len(choice))
            fate = np.broadcast_to(draws, len(choice))
            changed[choice[fate < self.mask_share]] = self.tokenizer.mask_token_id
            others = choice[(fate >= self.mask_share) & (fate < self.mask_share + self.random_share)]
            changed[others] = generator.choice(np.flatnonzero(~self._special), size=len(others))
        return changed, labels

    def _units(self, ids: np.ndarray, word_ids: Sequence[int | None] | None) -> list[np.ndarray]:
        """Places of the tokens of each word, or of each token, without special tokens."""
        free = ~self._special[ids]
        begins = np.ones(len(ids), dtype=bool)
        if self.unit != "token":
            if word_ids is not None:
                words = np.array([-1 if word is None else word for word in word_ids])
                begins[1:] = (words[1:] != words[:-1]) | (words[1:] == -1)
            elif self._inner.any():
                begins = ~self._inner[ids]
            else:
                raise ValueError(f"unit={self.unit!r} needs rows with word_ids: the tokenizer marks no token with ##")
        numbers = begins.cumsum()
        places = np.flatnonzero(free)
        cuts = np.flatnonzero(np.diff(numbers[places])) + 1
        return [unit for unit in np.split(places, cuts) if len(unit)]

    def _chosen(self, units: list[np.ndarray], generator: np.random.Generator) -> list[np.ndarray]:
        """Places that are masked together, one array each; `probability` of the tokens in all, and one at least."""
        if not units:
            return []
        budget = max(1, round(self.probability * sum(map(len, units))))
        if self.unit == "span":
            return self._chosen_spans(units, budget, generator)
        chosen, order = [], generator.permutation(len(units))
        for index in order:
            if len(units[index]) <= budget:
                chosen.append(units[index])
                budget -= len(units[index])
        # A text of long words has one masked all the same.
        return chosen or [units[order[0]]]

    def _chosen_spans(self, units: list[np.ndarray], budget: int, generator: np.random.Generator) -> list[np.ndarray]:
        chosen, taken = [], np.zeros(len(units), dtype=bool)
        # Most draws succeed; a text that is nearly full may not have room for what is left.
        for _ in range(10 * len(units)):
            length = int(generator.choice(_SPAN_LENGTHS, p=_SPAN_SHARES))
            start = int(generator.integers(len(units)))
            span = units[start : start + length]
            whole = np.concatenate(span)
            # Words with something between them, such as the end of the first text, are no span.
            if len(span) < length or whole[-1] - whole[0] + 1 != len(whole) or taken[start : start + length].any():
                continue
            if len(whole) > budget:
                # The last span is cut to what is left.
                kept = np.cumsum([len(unit) for unit in span]) <= budget
                if not kept.any():
                    continue
                span = span[: int(kept.sum())]
                whole = np.concatenate(span)
            taken[start : start + len(span)] = True
            chosen.append(whole)
            budget -= len(whole)
            if budget == 0:
                break
        return chosen or [units[int(generator.integers(len(units)))]]


class MaskingCallback(TrainerCallback):
    """Tells a `MaskingCollator` the epoch, so that `Trainer` sees other masks in each.

    Args:
        collator: the trainer's data collator.
    """

    def __init__(self, collator: MaskingCollator):
        self.collator = collator

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by `Trainer`, which counts epochs in fractions."""
        self.collator.set_epoch(int(state.epoch or 0))


def tokenize_texts(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    column: str = "text",
    max_length: int | None = None,
    num_proc: int | None = None,
) -> Dataset:
    """Token ids of a dataset of texts, with what whole-word masking wants to know.

    Args:
        dataset: with a string column.
        tokenizer: a fast one.
        column: name of the column.
        max_length: tokens of a row, special tokens included; a longer text becomes several rows. Default: `None`, a
            text is a row.
        num_proc: processes to tokenize with.

    Returns:
        A dataset of `input_ids`, `word_ids` (-1 where there is no word) and, if the tokenizer tells segments,
        `token_type_ids`.

    Raises:
        ValueError: if there is no such column, or the tokenizer isn't a fast one.
    """
    if column not in dataset.column_names:
        raise ValueError(f"column {column!r} is not in the dataset; columns found: {', '.join(dataset.column_names)}")
    if not tokenizer.is_fast:
        raise ValueError(f"tokenizer is a {type(tokenizer).__name__}, which doesn't tell words")
    return dataset.map(
        _tokenize_texts,
        batched=True,
        fn_kwargs={"tokenizer": tokenizer, "column": column, "max_length": max_length},
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        desc="Tokenizing",
    )


def _tokenize_texts(
    batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, column: str, max_length: int | None
) -> dict[str, list]:
    cut = (
        {} if max_length is None else {"truncation": True, "max_length": max_length, "return_overflowing_tokens": True}
    )
    encoded = tokenizer(batch[column], verbose=False, **cut)
    rows = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
    rows["word_ids"] = [[-1 if word is None else word for word in one.word_ids] for one in encoded.encodings]
    return rows


def masking_blocks(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int) -> Dataset:
    """Token ids of documents in blocks of one length, each a text of its own, and what whole-word masking asks for.

    A block holds a part of one document, between a beginning and a separator; what is left over at the end of a
    document makes a shorter one.

    Args:
        dataset: with the string column `text`.
        tokenizer: a fast one with beginning and separator (`cls_token`, `sep_token`).
        block_size: tokens of a block, these two included.

    Returns:
        A dataset of `input_ids` and `word_ids`.

    Raises:
        ValueError: if `block_size` leaves no room, the tokenizer lacks a token, or there are no tokens in the texts.
    """
    if block_size < 3:
        raise ValueError(f"block_size={block_size} must be at least 3: a token and what stands around it")
    for name in ("cls_token_id", "sep_token_id"):
        if getattr(tokenizer, name) is None:
            raise ValueError(f"tokenizer has no {name}")
    blocks: dict[str, list[list[int]]] = {"input_ids": [], "word_ids": []}
    for text in dataset["text"]:
        # No word goes on in the next line, and lines are faster than a book at once.
        document = _joined(_sentences([line for line in text.splitlines(keepends=True) if line.strip()], tokenizer))
        for first in range(0, len(document), block_size - 2):
            block = document[first : first + block_size - 2]
            ids, words = ([pair[side] for pair in block] for side in (0, 1))
            blocks["input_ids"].append([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id])
            blocks["word_ids"].append([-1, *words, -1])
    if not blocks["input_ids"]:
        raise ValueError("dataset has texts without a single token")
    return Dataset.from_dict(blocks)


def masked_once(dataset: Dataset, collator: MaskingCollator) -> Dataset:
    """Rows with masks that stay the same, to score models on.

    Args:
        dataset: rows of `input_ids`, and perhaps `word_ids` and `token_type_ids`.
        collator: whose masks of this epoch they become.

    Returns:
        A dataset of `input_ids`, masked, `labels`, -100 where nothing is, and `token_type_ids` if there are any.
    """
    columns: dict[str, list] = {"input_ids": [], "labels": []}
    for row in dataset:
        for name, values in collator.mask(row).items():
            columns[name].append(values.tolist())
    if "token_type_ids" in dataset.column_names:
        columns["token_type_ids"] = list(dataset["token_type_ids"])
    return Dataset.from_dict(columns)


def next_sentence_pairs(
    documents: Iterable[Sequence[str]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 128,
    random_share: float = 0.5,
    short_share: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Pairs of texts for next-sentence prediction (Devlin et al. 2019, section 3.1, task 2, and appendix A.2).

    The sentences of a document are gathered until they fill a row. The first some of them are the first text; the
    second is what follows, or what stands somewhere in another document.

    Args:
        documents: lists of sentences, two documents at least. They are read once.
        tokenizer: a fast one with beginning and separator (`cls_token`, `sep_token`).
        max_length: most tokens of a row, special tokens included; both texts are cut to fit, the longer one first.
        random_share: share of the pairs whose second text doesn't follow.
        short_share: share of the rows that are meant to be short, of a random length.
        seed: of all choices.

    Returns:
        A dataset of `input_ids`, `token_type_ids`, `word_ids` and `next_sentence_label`: 0 where the second text
        follows, 1 where it doesn't.

    Raises:
        ValueError: if there are fewer than two documents with sentences, a share or length is out of range, or the
            tokenizer lacks a token.
    """
    for name, value in (("random_share", random_share), ("short_share", short_share)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value} must be from 0 to 1")
    if max_length < 5:
        raise ValueError(f"max_length={max_length} must be at least 5: two tokens and what stands around them")
    for name in ("cls_token_id", "sep_token_id"):
        if getattr(tokenizer, name) is None:
            raise ValueError(f"tokenizer has no {name}")
    read = [_sentences(document, tokenizer) for document in documents]
    read = [document for document in read if document]
    if len(read) < 2:
        raise ValueError(f"documents has {len(read)} with a sentence in it, and a second text may come from another")
    generator = np.random.Generator(np.random.PCG64(seed))
    rows = [
        _assembled(first, second, label, tokenizer, max_length - 3, generator)
        for number in range(len(read))
        for first, second, label in _pairs(read, number, max_length - 3, random_share, short_share, generator)
    ]
    return Dataset.from_list(rows)


# The ids of a sentence, each with the number of its word in the sentence.
_Sentence = list[tuple[int, int]]


def _sentences(document: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[_Sentence]:
    if isinstance(document, str):
        raise ValueError(f"a document must be a list of sentences, got one string: {document[:40]!r}")
    if len(document) == 0:
        return []
    encoded = tokenizer(list(document), add_special_tokens=False, verbose=False)
    sentences = [
        [(token, -1 if word is None else word) for token, word in zip(one.ids, one.word_ids, strict=True)]
        for one in encoded.encodings
    ]
    return [sentence for sentence in sentences if sentence]


def _pairs(
    documents: list[list[_Sentence]],
    number: int,
    room: int,
    random_share: float,
    short_share: float,
    generator: np.random.Generator,
) -> Iterator[tuple[list[_Sentence], list[_Sentence], int]]:
    """First texts, second texts, and labels, from one document."""
    document, start = documents[number], 0
    while start < len(document):
        target = int(generator.integers(2, room + 1)) if generator.random() < short_share else room
        chunk, length = [], 0
        while start + len(chunk) < len(document) and (not chunk or length < target):
            chunk.append(document[start + len(chunk)])
            length += len(chunk[-1])
        cut = 1 if len(chunk) == 1 else int(generator.integers(1, len(chunk)))
        if len(chunk) > 1 and generator.random() >= random_share:
            yield chunk[:cut], chunk[cut:], 0
            start += len(chunk)
            continue
        other = documents[(number + int(generator.integers(1, len(documents)))) % len(documents)]
        begin = int(generator.integers(len(other)))
        wanted = max(1, target - sum(map(len, chunk[:cut])))
        second: list[_Sentence] = []
        while begin + len(second) < len(other) and sum(map(len, second)) < wanted:
            second.append(other[begin + len(second)])
        yield chunk[:cut], second, 1
        # What would have followed begins the next row.
        start += cut


def _assembled(
    first: list[_Sentence],
    second: list[_Sentence],
    label: int,
    tokenizer: PreTrainedTokenizerBase,
    room: int,
    generator: np.random.Generator,
) -> dict[str, Any]:
    texts = [_joined(first), _joined(second)]
    while sum(map(len, texts)) > room:
        # From either end, so that beginnings are not seen more often than ends.
        texts[len(texts[1]) > len(texts[0])].pop(0 if generator.random() < 0.5 else -1)
    first_ids, second_ids = ([token for token, _ in text] for text in texts)
    first_words, second_words = ([word for _, word in text] for text in texts)
    return {
        "input_ids": [tokenizer.cls_token_id, *first_ids, tokenizer.sep_token_id, *second_ids, tokenizer.sep_token_id],
        "token_type_ids": [0] * (len(first_ids) + 2) + [1] * (len(second_ids) + 1),
        "word_ids": [-1, *first_words, -1, *second_words, -1],
        "next_sentence_label": label,
    }


def _joined(sentences: list[_Sentence]) -> _Sentence:
    """Sentences one after the other, their words numbered on."""
    joined: _Sentence = []
    for sentence in sentences:
        offset = joined[-1][1] + 1 if joined else 0
        joined += [(token, word + offset) for token, word in sentence]
    return joined
