"""`"attnzoo-question-answering"`: a question and a text in, the part of the text that answers it out.

`pipe.save_pretrained` copies this file into a checkpoint that carries its model's code, where it works without the
package: so it imports only torch, transformers and its neighbour.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline
from transformers.utils import logging

from .generating import SavedWithCodeMixin

logger = logging.get_logger(__name__)

# Tokens of a question that are read where nobody says otherwise, as in the program of Devlin et al. (2019) for SQuAD
LONGEST_QUESTION = 64

# Where a token stands in the text, and its word.
Token = tuple[tuple[int, int] | None, tuple[int, int] | None]


class QuestionAnsweringPipeline(SavedWithCodeMixin, ChunkPipeline):
    """Finds answers with any model for question answering, of this package or of transformers (Devlin 2019, 4.2, 4.3).

    ```python
    >>> import hf_attnzoo
    >>> from transformers import pipeline

    >>> pipe = pipeline("attnzoo-question-answering", model="my-squad")
    >>> pipe(question="Where do they live?", context="Ann and Bo live in Malmo.")
    {'score': 0.91, 'start': 19, 'end': 24, 'answer': 'Malmo'}
    ```

    A text that is too long for the model is read in windows that overlap. Every span that may be an answer has the
    score start logit + end logit, the highest of the windows it stands in; a softmax over all spans of all windows
    makes a probability of it. So the scores of a text's answers, wherever they stand, are comparable and sum to 1.

    Arguments of the pipeline, at construction or in a call, where the call's win:

    Args:
        top_k: Answers to return, best first. Default: `1`.
        max_seq_len: Longest window in tokens, question and special tokens included. Default: `None`, 384, or as many
            as model and tokenizer allow.
        doc_stride: Tokens of the text that a window shares with the next. Default: `None`, 128, or half of what a
            window has room for, if that is less.
        max_question_len: Tokens of a question, which is cut there, with a warning. Default: `64`.
        max_answer_len: Longest answer in tokens. Default: `15`.
        handle_impossible_answer: Whether "there is no answer" is one: the empty text, with the score of the first
            token, the lowest of the windows'. Default: `False`.
        align_to_words: Whether an answer that ends within a word is widened to the whole word. Default: `True`.

    Returns:
        For one question a dict, or a list of dicts if `top_k` isn't 1; for several a list of these. The dicts hold
        `answer`, its place in the text, `start` and `end`, as in `context[start:end]`, and `score`, a probability.

    Raises:
        ValueError: if question or context are missing or empty, an argument is out of range, or a question leaves no
            room for the text.
    """

    task_name = "attnzoo-question-answering"
    auto_class = "AutoModelForQuestionAnswering"

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.tokenizer is None or not self.tokenizer.is_fast:
            raise ValueError(f"tokenizer={self.tokenizer!r}: {self.task_name} needs a tokenizer that tells offsets")
        # A model that is handed over may come from training, and dropout would change every answer
        self.model.eval()
        # Padding in front would move the places that answers are told by
        self.tokenizer.padding_side = "right"
        self._parameters = set(inspect.signature(self.model.forward).parameters)

    def _sanitize_parameters(
        self,
        top_k: int | None = None,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
        max_answer_len: int | None = None,
        handle_impossible_answer: bool | None = None,
        align_to_words: bool | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        sizes = {"max_seq_len": max_seq_len, "max_question_len": max_question_len}
        answers = {"top_k": top_k, "max_answer_len": max_answer_len}
        for name, value in (sizes | answers).items():
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if doc_stride is not None and doc_stride < 0:
            raise ValueError(f"doc_stride={doc_stride} must be at least 0")
        before = sizes | {"doc_stride": doc_stride}
        after = answers | {"handle_impossible_answer": handle_impossible_answer, "align_to_words": align_to_words}
        return (
            {name: value for name, value in before.items() if value is not None},
            {},
            {name: value for name, value in after.items() if value is not None},
        )

    def __call__(
        self,
        inputs: Any = None,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Answer questions.

        Args:
            inputs: a dict with `question` and `context`, a list of them, or an iterator or a dataset of them.
            question: in place of that, a question, or several.
            context: the text to look in, or one for each question.
            kwargs: see the class.

        Returns:
            See the class.
        """
        if inputs is None:
            inputs = _pairs(question, context)
        elif question is not None or context is not None:
            raise ValueError("pass inputs, or question and context, not both")
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = list(inputs)
            return super().__call__(inputs, **kwargs) if inputs else []
        if not isinstance(inputs, (Mapping, str, Dataset, GeneratorType)) and isinstance(inputs, Iterable):
            # Pipeline streams what a generator gives, and takes other iterators, and a table, for one input
            inputs = (one for one in inputs)
        return super().__call__(inputs, **kwargs)

    def preprocess(
        self,
        inputs: Mapping[str, str],
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int = LONGEST_QUESTION,
    ) -> Iterator[dict[str, Any]]:
        """Windows of one text: what the model reads, shape `(1, T)`, and where in the text the tokens stand."""
        question, context = _checked(inputs)
        asked = len(self.tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"])
        if asked > max_question_len:
            logger.warning(
                f"The question that starts with {question[:40]!r} has {asked} tokens and is cut at "
                f"max_question_len={max_question_len}."
            )
        length = longest_window(self.model, self.tokenizer) if max_seq_len is None else max_seq_len
        encoded, places = question_windows(self.tokenizer, question, context, length, doc_stride, max_question_len)
        for number, tokens in enumerate(places):
            tensors = {
                name: torch.tensor([encoded[name][number]])
                for name in self.tokenizer.model_input_names
                if name in encoded and name in self._parameters
            }
            yield {"is_last": number + 1 == len(places), "tokens": tokens, "context": context, **tensors}

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        kept = {name: model_inputs.pop(name) for name in ("is_last", "tokens", "context")}
        outputs = self.model(**model_inputs)
        return {"start_logits": outputs.start_logits, "end_logits": outputs.end_logits, **kept}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        top_k: int = 1,
        max_answer_len: int = 15,
        handle_impossible_answer: bool = False,
        align_to_words: bool = True,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The best answers of all windows of a text."""
        windows = [
            (window["start_logits"][0].double().numpy(), window["end_logits"][0].double().numpy(), window["tokens"])
            for window in model_outputs
        ]
        context = model_outputs[0]["context"]
        answers = ranked_answers(context, windows, max_answer_len, handle_impossible_answer, align_to_words, top_k)
        return answers[0] if top_k == 1 else answers


def longest_window(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens of a window where nobody says otherwise: 384, or as many as model and tokenizer allow."""
    return min(384, most_tokens(model, tokenizer))


def most_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens of the longest text that model and tokenizer allow."""
    config = model.config
    limits = [tokenizer.model_max_length]
    table = getattr(config, "max_position_embeddings", None)
    if isinstance(table, int) and table > 0:
        # The positions of RoBERTa's kin begin after that of padding.
        offset = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
        limits.append(table - (0 if offset is None else offset + 1))
    return min(limits)


def question_windows(
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    context: str,
    max_seq_len: int,
    doc_stride: int | None = None,
    max_question_len: int = LONGEST_QUESTION,
) -> tuple[BatchEncoding, list[list[Token]]]:
    """A question with the parts of a text, in windows that overlap.

    Args:
        tokenizer: a fast one.
        question: cut at `max_question_len` tokens.
        context: the text.
        max_seq_len: longest window in tokens, question and special tokens included.
        doc_stride: tokens of the text that a window shares with the next. Default: `None`, 128, or half of what a
            window has room for, if that is less.
        max_question_len: tokens of the question.

    Returns:
        Token ids, one list for each of the W windows, and what else the tokenizer makes; and for each window, for each
        of its tokens, where in the text the token stands, and its word, both None if it is none of the text's.

    Raises:
        ValueError: if the question leaves no room for the text.
    """
    cut = tokenizer(
        question,
        add_special_tokens=False,
        truncation=True,
        max_length=max_question_len,
        return_offsets_mapping=True,
    )
    if cut["offset_mapping"]:
        question = question[: cut["offset_mapping"][-1][1]]
    taken = len(tokenizer(question, "", verbose=False)["input_ids"])
    room = max_seq_len - taken
    stride = min(128, max(0, room // 2)) if doc_stride is None else doc_stride
    if not stride < room:
        raise ValueError(
            f"max_seq_len={max_seq_len} leaves {room} tokens for the text beside a question of {taken} with its "
            f"special tokens, and windows that share doc_stride={stride} need more than that"
        )
    encoded = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=max_seq_len,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = []
    # What the pipeline calls a window is an encoding of the tokenizers library.
    for window in encoded.encodings:
        places = [
            _trimmed(context, *span) if sequence == 1 else None
            for span, sequence in zip(window.offsets, window.sequence_ids, strict=True)
        ]
        words = [
            None if place is None or word is None else _trimmed(context, *window.word_to_chars(word, 1))
            for place, word in zip(places, window.word_ids, strict=True)
        ]
        windows.append(list(zip(places, words, strict=True)))
    return encoded, windows


def ranked_answers(
    context: str,
    windows: Sequence[tuple[np.ndarray, np.ndarray, Sequence[Token]]],
    max_answer_len: int = 15,
    handle_impossible_answer: bool = False,
    align_to_words: bool = True,
    top_k: int = 1,
) -> list[dict[str, Any]]:
    """What may be an answer, best first, of equal ones the first in the text.

    Args:
        context: the text.
        windows: start logits and end logits, shape `(T,)` each, and tokens, from `question_windows`, of each window.
        max_answer_len: see the pipeline, as for the other two.
        handle_impossible_answer: whether there may be none.
        align_to_words: whether answers are whole words.
        top_k: most answers.

    Returns:
        Dicts of `score`, `start`, `end` and `answer`.

    Raises:
        ValueError: if no token of the text could be an answer.
    """
    best: dict[tuple[int, int], float] = {}
    nothing = np.inf
    for starts, ends, tokens in windows:
        nothing = min(nothing, starts[0] + ends[0])
        for span, score in _spans(starts, ends, tokens, max_answer_len, align_to_words):
            best[span] = max(score, best.get(span, -np.inf))
    if handle_impossible_answer:
        best[0, 0] = nothing
    if not best:
        raise ValueError(f"context={context[:40]!r} has no tokens that could be an answer")
    scores = np.array(list(best.values()))
    scores = np.exp(scores - scores.max())
    scores /= scores.sum()
    ranked = sorted(zip(best, scores.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))[:top_k]
    return [
        {"score": score, "start": start, "end": end, "answer": context[start:end]} for (start, end), score in ranked
    ]


def _pairs(question: Any, context: Any) -> dict[str, Any] | list[dict[str, Any]]:
    if question is None or context is None:
        raise ValueError(f"question={question!r} and context={context!r}: both are needed")
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    size = len(context) if isinstance(question, str) else len(question)
    questions = [question] * size if isinstance(question, str) else list(question)
    contexts = [context] * size if isinstance(context, str) else list(context)
    if len(questions) != len(contexts):
        raise ValueError(f"there are {len(questions)} questions and {len(contexts)} contexts")
    return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]


def _checked(inputs: Any) -> tuple[str, str]:
    if not isinstance(inputs, Mapping):
        raise ValueError(f"an input must be a dict with question and context, got {type(inputs).__name__}")
    for name in ("question", "context"):
        value = inputs.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name} must be a text with something in it, got {value!r}")
    return inputs["question"], inputs["context"]


def _trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """A token's place without the white space that some tokenizers count to it; nothing is left of white space."""
    text = context[start:end]
    return start + len(text) - len(text.lstrip()), max(start, end - len(text) + len(text.rstrip()))


def _spans(
    starts: np.ndarray,
    ends: np.ndarray,
    tokens: Sequence[Token],
    longest: int,
    align_to_words: bool,
) -> Iterator[tuple[tuple[int, int], float]]:
    """Spans of one window that may be an answer, as places in the text, and their scores."""
    for first, (place, _) in enumerate(tokens):
        if place is None or place[0] >= place[1]:
            continue
        for last in range(first, min(first + longest, len(tokens))):
            if tokens[last][0] is None:
                break
            if tokens[last][0][0] >= tokens[last][0][1]:
                continue
            (begin, _), (_, end) = tokens[first][0], tokens[last][0]
            if align_to_words:
                begin = min(begin, (tokens[first][1] or tokens[first][0])[0])
                end = max(end, (tokens[last][1] or tokens[last][0])[1])
            yield (begin, end), float(starts[first] + ends[last])
