"""`cut_blocks`: what causal language models read, documents cut into blocks of tokens."""

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

# Label of a token that is not predicted, as torch's cross-entropy has it
_IGNORED = -100

# Characters that a tokenizer reads at a time, those after which it may begin anew, and where it must not matter.
_BATCH, _PIECE, _AROUND = 500_000, 50_000, 100


def cut_blocks(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    join: bool = True,
    answers_after: str | None = None,
) -> Dataset:
    """Token ids of documents, one after the other with an end between them, in blocks of one length.

    Every token is predicted once. Where the tokenizer begins a text with special tokens, so does every block, and a
    prompt looks like what the model has learnt from. Where it doesn't, the first token of a block is the last of the
    one before, and the very first of all is not predicted. What is left over at the end makes a shorter block.

    Args:
        dataset: with the string column `text`.
        tokenizer: for a causal language model.
        block_size: tokens of a block.
        join: whether documents follow each other in a block. Otherwise each begins one, and its last is shorter, with
            the end that follows the document.
        answers_after: what stands in front of the answer in a line, such as `">"`. Only answers, with what ends their
            lines, and the ends of documents are predicted then: in a prompt, the questions can't be foreseen. It takes
            a fast tokenizer. Default: `None`, all tokens are.

    Returns:
        A dataset of `input_ids` and `labels`, up to `block_size` each: the same, but -100 where nothing is predicted.

    Raises:
        ValueError: `block_size` leaves no room for a token to predict, or there is none in the texts.
    """
    # Ids, and below them labels where they are others
    rows = 1 if answers_after is None else 2
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    start, end = (np.tile(np.array(ids, np.int64), (rows, 1)) for ids in (tokenizer("")["input_ids"], ends))
    overlap = 0 if start.shape[1] else 1
    step = block_size - start.shape[1] - overlap
    if step < 1:
        raise ValueError(f"block_size={block_size} must be at least {start.shape[1] + overlap + 1}")
    streams = _documents(dataset["text"], tokenizer, answers_after)
    if join:
        parts = [part for document in streams for part in (end, document)][1:]
        streams = [np.concatenate([end[:, :0], *parts], axis=1)]
        del parts
    else:
        streams = [np.concatenate([document, end], axis=1) for document in streams]
    blocks = [
        stream[:, first : first + step + overlap]
        for stream in streams
        for first in range(0, stream.shape[1] - overlap, step)
    ]
    offsets = np.cumsum([0, *(start.shape[1] + block.shape[1] for block in blocks)])
    tokens = np.concatenate([end[:, :0], *(part for block in blocks for part in (start, block))], axis=1)
    predicted = tokens[-1] != _IGNORED
    predicted[offsets[:-1]] = False
    if not predicted.any():
        raise ValueError(
            f"the texts have {sum(stream.shape[1] for stream in streams)} tokens, none of which can be predicted"
        )
    # Two columns of one array take the room of one
    columns = {"input_ids": tokens[0], "labels": tokens[-1]}
    return Dataset.from_dict(
        {name: pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values) for name, values in columns.items()},
        features=Features({name: List(Value("int64")) for name in columns}),
    )


def _documents(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, answers_after: str | None
) -> list[np.ndarray]:
    """Of each text the ids of its N tokens, shape `(1, N)`, or these and their labels, `(2, N)`."""
    found: list[list[np.ndarray]] = []
    for batch in _batches(texts, tokenizer, whole=answers_after is not None):
        pieces = [piece for _, piece in batch]
        encoded = tokenizer(
            pieces,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=answers_after is not None,
            verbose=False,
        )
        for place, (number, piece) in enumerate(batch):
            tokens = np.array([encoded["input_ids"][place]], np.int64)
            if answers_after is not None:
                begins = np.array(encoded["offset_mapping"][place], np.int64).reshape(-1, 2)[:, 0]
                answers = np.where(_in_answers(piece, answers_after)[begins], tokens, _IGNORED)
                tokens = np.concatenate([tokens, answers])
            if number == len(found):
                found.append([])
            found[number].append(tokens)
    return [parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1) for parts in found]


def _in_answers(text: str, answers_after: str) -> np.ndarray:
    """Whether each character is one of an answer, and no for what follows the last."""
    answer = np.zeros(len(text) + 1, dtype=bool)
    for found in re.finditer(f"(?<={re.escape(answers_after)}).*\n?", text):
        answer[found.start() : found.end()] = True
    return answer


def _batches(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, whole: bool) -> Iterator[list[tuple[int, str]]]:
    """What a tokenizer reads at a time, as much as keeps all cores busy: texts or pieces, with the texts' numbers."""
    batch, length = [], 0
    for number, text in enumerate(texts):
        for piece in [text] if whole else _pieces(text, tokenizer):
            batch.append((number, piece))
            length += len(piece)
            if length >= _BATCH:
                yield batch
                batch, length = [], 0
    if batch:
        yield batch


def _pieces(text: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """A text, cut after some of its lines, where the tokenizer sees no difference: it holds ten times as much as ids
    of what it reads at once."""
    first = place = 0
    while 0 < (cut := text.find("\n", place + _PIECE) + 1) < len(text):
        before, after = text[max(0, cut - _AROUND) : cut], text[cut : cut + _AROUND]
        joined, *apart = tokenizer([before + after, before, after], add_special_tokens=False)["input_ids"]
        if joined == [*apart[0], *apart[1]]:
            yield text[first:cut]
            first = cut
        place = cut
    yield text[first:]
