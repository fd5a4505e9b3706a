"""What a page asks a model, and what it shows of the answer; no part of this knows how a page is made."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, ClassVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from ..attention_maps import AttentionMap, ImageAttentionMap
from ..pipelines.generating import position_limit
from ..pipelines.question_answering import most_tokens

Look = Callable[[], "AttentionMap | ImageAttentionMap"]


@dataclass(frozen=True)
class Field:
    """Something that a person gives.

    Args:
        name: key in what `Demo.ask` takes.
        label: what people call it.
        kind: `"text"`, or `"image"`: a path, or an image of Pillow.
        lines: that a text begins with on the page.
        hint: shown where nothing has been typed.
        optional: whether it may be left empty.
    """

    name: str
    label: str
    kind: str = "text"
    lines: int = 1
    hint: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Setting:
    """Something that a person may change.

    Args:
        name: key in what `Demo.ask` takes.
        label: what people call it.
        default: a bool for a box to tick, a number, or None for a number that the model chooses.
        minimum: smallest number.
        maximum: largest number. Default: `None`, there is none.
        step: between numbers; 1 for whole ones.
    """

    name: str
    label: str
    default: bool | float | None
    minimum: float | None = None
    maximum: float | None = None
    step: float = 1

    def check(self, value: Any) -> Any:
        """The value, or the default for None; a `ValueError` that names the limit."""
        if isinstance(self.default, bool):
            if value is not None and not isinstance(value, bool):
                raise ValueError(f"{self.label} is {value!r}; it must be true or false")
            return self.default if value is None else value
        if value is None:
            return self.default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{self.label} is {value!r}; it must be a number")
        if self.step == 1 and value != int(value):
            raise ValueError(f"{self.label} is {value}; it must be a whole number")
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"{self.label} is {value}; it must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"{self.label} is {value}; it must be at most {self.maximum}")
        return int(value) if self.step == 1 else float(value)


@dataclass(frozen=True)
class Answer:
    """What a model says to one input.

    Args:
        columns: headings of the rows, the last one that of the score.
        rows: best first; texts, and the score.
        looks: for each row what makes the map of its attention, or one for all rows, or none.
        shares: for each row a number from 0 to 1 to draw, or none.
        lead: text that each row's first cell goes on with.
        notes: what a person should know.
        meaning: what the score is, where its heading doesn't tell.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    looks: tuple[Look, ...] = ()
    shares: tuple[float, ...] = ()
    lead: str = ""
    notes: tuple[str, ...] = ()
    meaning: str = ""


class Demo(ABC):
    """A model with what it takes to ask it; one at a time is asked, however many people are at the page.

    Class attributes:
        verb: what the button says.
        fields: what a person gives.
        settings: what a person may change.

    Args:
        model: with the head of its task.
        processor: its tokenizer or processor.
        name: what the page calls it.
        summary: what it is, in a few words.
        examples: values of the fields to begin with.
    """

    verb: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]]
    settings: ClassVar[tuple[Setting, ...]]

    def __init__(
        self,
        model: PreTrainedModel,
        processor: PreTrainedTokenizerBase | ProcessorMixin,
        name: str = "",
        summary: str = "",
        examples: Sequence[Mapping[str, Any]] = (),
    ):
        self.model = model.eval()
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.name = name or type(model).__name__
        self.summary = summary
        self.examples = tuple(dict(example) for example in examples)
        self._turn = RLock()

    def ask(self, given: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Answer:
        """Ask the model.

        Args:
            given: value of each field by its name.
            settings: value of each setting by its name; what is missing or None has its default.

        Returns:
            The answer.

        Raises:
            ValueError: a field is empty, a setting out of range, or the input is none that the model can take; the
                message is for the person at the page.
        """
        inputs = {field.name: self._given(field, given.get(field.name)) for field in self.fields}
        chosen = {setting.name: setting.check((settings or {}).get(setting.name)) for setting in self.settings}
        with self._turn:
            return self.answer(inputs, chosen)

    @abstractmethod
    def answer(self, inputs: dict[str, Any], settings: dict[str, Any]) -> Answer:
        """What the model makes of checked inputs and settings."""

    def look(self, answer: Answer, row: int = 0) -> AttentionMap | ImageAttentionMap:
        """Where the model looked for one row of an answer.

        Args:
            answer: of this model.
            row: from 0.

        Returns:
            The map, with all layers and heads that are known.

        Raises:
            ValueError: there is no map, and why.
        """
        if not answer.looks:
            raise ValueError("this model has no attention to show")
        if not 0 <= row < max(len(answer.looks), len(answer.rows)):
            raise ValueError(f"row={row} is out of range; the answer has {len(answer.rows)}")
        with self._turn:
            return answer.looks[row if len(answer.looks) > 1 else 0]()

    def _given(self, field: Field, value: Any) -> Any:
        if field.kind == "image":
            if value is None:
                raise ValueError(f"{field.label} is missing: drop a picture first")
            return value
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{field.label} is a {type(value).__name__}; it must be a text")
        if not (value or "").strip():
            if not field.optional:
                raise ValueError(f"{field.label} is empty: write something first")
            return ""
        return value

    def _check_length(self, *texts: str, more: int = 0, name: str = "The text", side: str = "encoder") -> int:
        """Number of tokens of a text or a pair, which with `more` new ones must fit into the model."""
        tokens = len(self.tokenizer(*texts, verbose=False)["input_ids"])
        limits = [position_limit(self.model.config, side), most_tokens(self.model, self.tokenizer)]
        limit = min(limit for limit in limits if limit is not None)
        if tokens + more > limit:
            asked = f" and {more:,} new ones are asked for, {tokens + more:,} together" if more else ""
            raise ValueError(f"{name} has {tokens:,} tokens{asked}; the model takes at most {limit:,}")
        return tokens
