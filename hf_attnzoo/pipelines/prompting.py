"""Prompts made of a template, examples and a query: what they look like, and which examples they hold.

Travels with a pipeline's code, and so imports only torch and the standard library.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Fields = Mapping[str, str]

SELECTIONS = ("fixed", "random", "nearest")
"""How a query comes by its examples."""

SIMILARITIES = ("tf-idf", "word-overlap")
"""What texts can be compared by without a model."""

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class PromptTemplate:
    """How examples and a query are written one after the other (Brown et al. 2020, figure 2.1 and appendix G).

    Args:
        template: text of one example, with fields in braces: `"Q: {source}\\nA: {target}"`. The last field is the
            answer; a query is written up to there. Other braces stand for themselves.
        instruction: text in front of everything. Default: `""`, none.
        separator: text after every example. Default: a new line.

    Raises:
        ValueError: fewer than two fields, or one that stands twice as the answer.
    """

    template: str
    instruction: str = ""
    separator: str = "\n"

    def __post_init__(self) -> None:
        names = _FIELD.findall(self.template)
        if len(set(names)) < 2 or names.count(names[-1]) > 1:
            raise ValueError(
                f"template={self.template!r} must have a field for a query, such as {{source}}, and then one for the "
                "answer, such as {target}, which stands once"
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the fields of a query, in order."""
        return tuple(dict.fromkeys(_FIELD.findall(self.template)[:-1]))

    @property
    def answer(self) -> str:
        """Name of the last field."""
        return _FIELD.findall(self.template)[-1]

    @property
    def end(self) -> str:
        """What follows an answer in an example: the rest of the template, and the separator."""
        return self.template[[*_FIELD.finditer(self.template)][-1].end() :] + self.separator

    def as_fields(self, query: str | Fields) -> dict[str, str]:
        """A query by its fields; a text is one if there is a single field to fill.

        Raises:
            ValueError: if a field is missing or no text.
        """
        if isinstance(query, str):
            if len(self.inputs) > 1:
                raise ValueError(f"query={query[:40]!r} is one text, and the template has {', '.join(self.inputs)}")
            return {self.inputs[0]: query}
        if not isinstance(query, Mapping):
            raise ValueError(f"query={query!r} must be a text, or a dict with {', '.join(self.inputs)}")
        return _taken(query, self.inputs, "query")

    def shot(self, example: Fields) -> str:
        """An example in full, with what separates it from the next."""
        return _filled(self.template, _taken(example, (*self.inputs, self.answer), "example")) + self.separator

    def head(self, examples: Sequence[Fields]) -> str:
        """The instruction and the examples, in this order."""
        return self.instruction + "".join(self.shot(example) for example in examples)

    def asked(self, query: str | Fields) -> tuple[str, str]:
        """A query up to its answer.

        Returns:
            The text, and the spaces that stand between it and the answer. They are no part of the prompt: most
            vocabularies have a word together with the space before it.
        """
        text = self.template[: [*_FIELD.finditer(self.template)][-1].start()]
        prompt = text.rstrip(" ")
        return _filled(prompt, self.as_fields(query)), text[len(prompt) :]

    def without_content(self, content_free: str) -> dict[str, str]:
        """The query that says nothing: every field is the same empty phrase (Zhao et al. 2021, section 5)."""
        return dict.fromkeys(self.inputs, content_free)


class ExampleSelector:
    """Which examples a query gets, and in which order.

    Args:
        examples: the N there are.
        inputs: names of the fields that queries have too.
        shots: how many a query gets. Default: `None`, all.
        select: `"fixed"`, the first ones as they stand; `"random"`, drawn anew for every query by `seed` and the
            query's text alone, as Brown et al. (2020, section 2.4) do; `"nearest"`, those most like the query, the
            nearest last, next to it (Liu et al. 2022). Of equally near ones the first in the list goes first.
        seed: of what is drawn.
        embed: what nearness is measured by: `"tf-idf"`, the cosine of word counts weighted by
            `1 + ln((1 + N) / (1 + df))`; `"word-overlap"`, shared words over all words of the two; or a function of a
            list of texts that gives a vector for each. That can be a `feature-extraction` pipeline: where it gives
            vectors of tokens, their mean is taken; vectors are compared by their cosine.

    Raises:
        ValueError: if an argument is unknown or out of range, or there is nothing to measure nearness by.
    """

    def __init__(
        self,
        examples: Sequence[Fields],
        inputs: Sequence[str],
        shots: int | None = None,
        select: str = "fixed",
        seed: int = 0,
        embed: str | Callable[[list[str]], Any] | None = None,
    ):
        if select not in SELECTIONS:
            raise ValueError(f"select={select!r} must be one of {', '.join(SELECTIONS)}")
        if shots is not None and not 0 <= shots <= len(examples):
            raise ValueError(f"shots={shots} must lie between 0 and the number of examples, {len(examples)}")
        if select == "nearest" and embed is None:
            raise ValueError(
                f"embed=None: select='nearest' needs a function that embeds texts, or one of {', '.join(SIMILARITIES)}"
            )
        if select != "nearest" and embed is not None:
            raise ValueError(f"embed is for select='nearest', and select is {select!r}: leave it out")
        if isinstance(embed, str) and embed not in SIMILARITIES:
            raise ValueError(f"embed={embed!r} must be a function of texts, or one of {', '.join(SIMILARITIES)}")
        self.inputs = tuple(inputs)
        self.shots = len(examples) if shots is None else shots
        self.select, self.seed, self.embed = select, seed, embed
        self.size = len(examples)
        self._texts = [self._text(_taken(example, self.inputs, "example")) for example in examples]
        self._vectors = None
        if select == "nearest" and callable(embed) and self.shots:
            self._vectors = _vectors(embed, self._texts)

    def choose(self, queries: Sequence[Fields]) -> list[list[int]]:
        """Numbers of the examples of each query, in the order of the prompt."""
        if self.select == "fixed" or not self.shots:
            return [list(range(self.shots)) for _ in queries]
        texts = [self._text(query) for query in queries]
        if self.select == "random":
            return [random.Random(f"{self.seed}/{text}").sample(range(self.size), self.shots) for text in texts]
        return [
            sorted(range(self.size), key=lambda number: (-near[number], number))[: self.shots][::-1]
            for near in self.similarities(texts)
        ]

    def similarities(self, texts: Sequence[str]) -> list[list[float]]:
        """Nearness of B texts to the N examples, a list of N for each."""
        if self.embed == "word-overlap":
            return [[_overlap(text, other) for other in self._texts] for text in texts]
        if self.embed == "tf-idf":
            return _tf_idf(texts, self._texts)
        return (_vectors(self.embed, list(texts)) @ self._vectors.T).tolist()

    def _text(self, fields: Fields) -> str:
        return "\n".join(fields[name] for name in self.inputs)


def _taken(fields: Fields, names: Sequence[str], what: str) -> dict[str, str]:
    for name in names:
        if not isinstance(fields.get(name), str):
            raise ValueError(
                f"{what} {dict(fields)!r:.80} has {name}={fields.get(name)!r}, and the template needs a text there"
            )
    return {name: fields[name] for name in names}


def _filled(text: str, fields: Fields) -> str:
    return _FIELD.sub(lambda found: fields[found[1]], text)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _overlap(text: str, other: str) -> float:
    one, two = set(_words(text)), set(_words(other))
    return len(one & two) / max(1, len(one | two))


def _tf_idf(texts: Sequence[str], examples: Sequence[str]) -> list[list[float]]:
    counts = [Counter(_words(example)) for example in examples]
    found = Counter(word for count in counts for word in count)

    def weighted(count: Counter) -> dict[str, float]:
        weights = {word: n * (1 + math.log((1 + len(examples)) / (1 + found[word]))) for word, n in count.items()}
        length = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {word: weight / length for word, weight in weights.items()}

    table = [weighted(count) for count in counts]
    rows = []
    for text in texts:
        own = weighted(Counter(_words(text)))
        rows.append([sum(weight * other.get(word, 0.0) for word, weight in own.items()) for other in table])
    return rows


def _vectors(embed: Callable[[list[str]], Any], texts: list[str]) -> Tensor:
    """Unit vectors of texts, shape `(N, D)`."""
    found = list(embed(texts))
    if len(found) != len(texts):
        raise ValueError(f"embed gave {len(found)} vectors for {len(texts)} texts")
    rows = []
    for one in found:
        vector = torch.as_tensor(one, dtype=torch.float64).detach().cpu()
        # Vectors of tokens, maybe in a batch of one
        rows.append(vector.flatten(0, -2).mean(0) if vector.ndim > 1 else vector)
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1)
