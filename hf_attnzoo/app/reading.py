"""Models that read: words that are missing, classes of texts and of tokens, answers to questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, pipeline

from ..attention_maps import AttentionMap, attention_map
from ..attention_maps.encoder_maps import question_attention_map
from ..pipelines.question_answering import LONGEST_QUESTION
from .demo import Answer, Demo, Field, Setting

_PROBABILITY = "probability"

# Characters of a text that are shown around an answer
_AROUND = 40


class _ReadingDemo(Demo):
    task = ""

    def __init__(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, *args: Any, **kwargs: Any):
        super().__init__(model, processor, *args, **kwargs)
        self.pipe = pipeline(self.task, model=model, tokenizer=processor)

    def _look(self, text: str, text_pair: str | None = None) -> tuple[Callable[[], AttentionMap], ...]:
        if self.model.config.is_encoder_decoder:
            return ()
        return (lambda: attention_map(self.model, self.tokenizer, text, text_pair=text_pair),)


class FillMaskDemo(_ReadingDemo):
    """A model that tells words which are missing."""

    task = "fill-mask"
    verb = "Fill in"
    fields = (Field("text", "Text with a gap", lines=3),)
    settings = (Setting("top_k", "Words for a gap", 5, 1, 50),)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        gap = self.tokenizer.mask_token
        if gap is None:
            raise ValueError(f"{self.name}: its tokenizer has no mask_token, which stands for a word that is missing")
        hint = f"A text with {gap} where a word is missing"
        self.fields = (Field("text", f"Text, with {gap} for a missing word", lines=3, hint=hint),)

    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        text, gap = inputs["text"], self.tokenizer.mask_token
        self._check_length(text)
        gaps = self.tokenizer(text)["input_ids"].count(self.tokenizer.mask_token_id)
        if gaps == 0:
            raise ValueError(f"The text has no gap: write {gap} where a word is missing")
        found = self.pipe(text, top_k=settings["top_k"])
        places = [found] if gaps == 1 else found
        rows, shares = [], []
        for number, words in enumerate(places, 1):
            for word in words:
                place = () if gaps == 1 else (f"gap {number}",)
                rows.append((word["token_str"].strip() or word["token_str"], *place, word["score"]))
                shares.append(word["score"])
        columns = ("word", _PROBABILITY) if gaps == 1 else ("word", "for", _PROBABILITY)
        return Answer(columns, tuple(rows), self._look(text), tuple(shares))


class ClassificationDemo(_ReadingDemo):
    """A model that tells the class of a text, or of two."""

    task = "text-classification"
    verb = "Classify"
    fields = (
        Field("text", "Text", lines=3, hint="What the model reads"),
        Field("text_pair", "Second text, for a model that compares two", optional=True),
    )
    settings = ()

    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        text, pair = inputs["text"], inputs["text_pair"] or None
        self._check_length(*([text] if pair is None else [text, pair]))
        found = self.pipe({"text": text} if pair is None else {"text": text, "text_pair": pair}, top_k=None)
        scores = [one["score"] for one in found]
        # A regression gives any number, and one that lies between 0 and 1 is no probability either
        between = self.model.config.problem_type != "regression" and all(0 <= score <= 1 for score in scores)
        return Answer(
            ("class", _PROBABILITY if between else "value"),
            tuple((one["label"], one["score"]) for one in found),
            self._look(text, pair),
            tuple(scores) if between else (),
        )


class TokenClassificationDemo(_ReadingDemo):
    """A model that tells what the parts of a text are."""

    task = "token-classification"
    verb = "Mark"
    fields = (Field("text", "Text", lines=3, hint="What the model reads"),)
    settings = ()

    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        text = inputs["text"]
        self._check_length(text)
        found = self.pipe(text, aggregation_strategy="simple")
        rows = tuple((text[one["start"] : one["end"]], one["entity_group"], float(one["score"])) for one in found)
        notes = () if rows else ("Nothing in this text is marked.",)
        shares = tuple(row[-1] for row in rows)
        return Answer(("part", "class", _PROBABILITY), rows, self._look(text), shares, notes=notes)


class QuestionAnsweringDemo(_ReadingDemo):
    """A model that finds the answer to a question in a text."""

    task = "attnzoo-question-answering"
    verb = "Answer"
    fields = (
        Field("question", "Question", hint="Where do they live?"),
        Field("context", "Text to look in", lines=8, hint="Ann and Bo live in Malmo."),
    )
    settings = (
        Setting("top_k", "Answers", 3, 1, 20),
        Setting("max_answer_len", "Longest answer, in tokens", 15, 1, 100),
        Setting("no_answer", "There may be no answer", False),
    )

    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        question, context = inputs["question"], inputs["context"]
        asked = len(self.tokenizer(question, add_special_tokens=False)["input_ids"])
        if asked > LONGEST_QUESTION:
            raise ValueError(f"The question has {asked} tokens; at most {LONGEST_QUESTION} are read")
        found = self.pipe(
            question=question,
            context=context,
            top_k=settings["top_k"],
            max_answer_len=settings["max_answer_len"],
            handle_impossible_answer=settings["no_answer"],
        )
        found = [found] if isinstance(found, dict) else found
        rows = tuple((one["answer"] or "(no answer)", _around(context, one), one["score"]) for one in found)
        looks = tuple(self._question_look(question, context, one) for one in found)
        shares = tuple(one["score"] for one in found)
        return Answer(("answer", "in the text", _PROBABILITY), rows, looks, shares)

    def _question_look(self, question: str, context: str, found: dict[str, Any]) -> Callable[[], AttentionMap]:
        def look() -> AttentionMap:
            seen = question_attention_map(self.model, self.tokenizer, question, context, found["start"])
            # The map is of a part of the text
            return replace(seen, source_text=_around(context, found))

        return look


def _around(context: str, found: dict[str, Any]) -> str:
    start, end = found["start"], found["end"]
    before, after = context[max(0, start - _AROUND) : start], context[end : end + _AROUND]
    return f"{'…' * (start > _AROUND)}{before}{context[start:end]}{after}{'…' * (end + _AROUND < len(context))}"
