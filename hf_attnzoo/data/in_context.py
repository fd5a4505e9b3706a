"""The built-in source `in_context`: prompts that show a task on strings by example, for models that learn from them.

What a task is can only be told from the examples in front of a query, so a model that gets new tasks right has learnt
to learn from its prompt (Brown et al. 2020, figure 1.1).
"""

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datasets import Dataset, Features, Value

from .splits import check_split, draw_rows, pick, split_of

IN_CONTEXT_TEMPLATE = "{source}>{target}"
"""How an example is written, each on a line of its own."""

KINDS = ("simple", "shift", "composed", "map")
"""Kinds of tasks: the named ones, shifts in the alphabet, two tasks one after the other, and letter maps."""

# Letters of the shortest words that are dealt to the splits
_DEALT = 3

_SIMPLE: dict[str, Callable[[str], str]] = {
    "copy": lambda word: word,
    "reverse": lambda word: word[::-1],
    "first": lambda word: word[0],
    "last": lambda word: word[-1],
    "swap-case": str.swapcase,
    "duplicate": lambda word: word * 2,
    "double-letters": lambda word: "".join(2 * letter for letter in word),
    "rotate": lambda word: word[1:] + word[0],
    "rotate-back": lambda word: word[-1] + word[:-1],
    "swap-ends": lambda word: word[-1] + word[1:-1] + word[0],
    "without-first": lambda word: word[1:],
    "without-last": lambda word: word[:-1],
    "sorted": lambda word: "".join(sorted(word)),
    "first-and-last": lambda word: word[0] + word[-1],
}


@dataclass(frozen=True)
class StringTask:
    """A map of strings.

    Args:
        name: what it does, in words.
        kind: one of `KINDS`.
        apply: the map.
    """

    name: str
    kind: str
    apply: Callable[[str], str]


@dataclass(frozen=True)
class Episode:
    """Examples of one task.

    Args:
        task: the task.
        pairs: words and what it makes of them.
    """

    task: StringTask
    pairs: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The examples as a prompt, every one a line."""
        return "".join(f"{source}>{target}\n" for source, target in self.pairs)


def in_context(
    split: str,
    size: int,
    seed: int = 0,
    shots: int = 17,
    letters: int = 12,
    min_length: int = 3,
    max_length: int = 5,
    kinds: Sequence[str] = KINDS,
    same_length: bool = False,
    own_letters: bool = False,
) -> Dataset:
    """Prompts of several examples of a task that is told by nothing else: `"abc>cba\\nfad>daf\\n..."`.

    Tasks are dealt to the splits by a hash of what they do to strings that show it, and words by a hash of their
    letters: no task and no word of `test` is ever in `train`, under whatever name and seed. A language model that
    trains on these texts has its loss on all of their characters, the words too, which can't be foreseen: it never
    comes near 0.

    Looking up is learnt all at once after a long time in which nothing happens. Rows that are easy shorten it: words
    of one letter, and few letters in a row (`own_letters`), which come back soon and often.

    Args:
        split: `train` (90 % of all tasks and of all words), `validation` or `test` (5 % each).
        size: number of rows, which are distinct.
        seed: another seed, other rows of the same split.
        shots: examples of a row.
        letters: how many letters of `a..z` words are made of, and shifts and maps know.
        min_length: fewest letters of a word, at least 1 in `train` and at least 3 elsewhere: words of one or two
            letters are too few to be dealt out, and all of them are in `train`.
        max_length: most; lengths are drawn uniformly.
        kinds: of the tasks, each as likely, one that is named twice twice so: see `KINDS`; a simple one also by its
            own name, such as `copy`. Few of the simple ones are in `validation` and `test`, or none.
        same_length: whether all words of a row have one length, so that its examples stand at equal distances.
        own_letters: whether each row uses some of the letters only, 2 or more of them. Its words are then drawn with
            replacement, and may come back; else they are distinct.

    Returns:
        A dataset with string columns `text` and `task`, the name of the task.

    Raises:
        ValueError: an argument out of range, or fewer words in a split than a prompt needs.
    """
    wanted = _Wanted(split, shots, letters, min_length, max_length, tuple(kinds), same_length, own_letters)

    def propose(generator: random.Random) -> dict[str, str] | None:
        episode = wanted.draw(generator)
        # The key by which rows are told apart
        return None if episode is None else {"source": episode.text, "text": episode.text, "task": episode.task.name}

    rows = [{"text": row["text"], "task": row["task"]} for row in draw_rows("in_context", split, size, seed, propose)]
    return Dataset.from_list(rows, features=Features(dict.fromkeys(("text", "task"), Value("string"))))


def in_context_episodes(
    split: str,
    size: int,
    seed: int = 0,
    shots: int = 17,
    letters: int = 12,
    min_length: int = 3,
    max_length: int = 5,
    kinds: Sequence[str] = KINDS,
    same_length: bool = False,
    own_letters: bool = False,
) -> list[Episode]:
    """The rows of `in_context` with the tasks themselves; arguments and errors are the same."""
    wanted = _Wanted(split, shots, letters, min_length, max_length, tuple(kinds), same_length, own_letters)

    def propose(generator: random.Random) -> dict[str, Episode | str] | None:
        episode = wanted.draw(generator)
        return None if episode is None else {"source": episode.text, "episode": episode}

    return [row["episode"] for row in draw_rows("in_context", split, size, seed, propose)]


def draw_task(generator: random.Random, kind: str, letters: int = 12) -> StringTask:
    """A task of one kind.

    Args:
        generator: that draws it.
        kind: one of `KINDS`, or the name of a simple task.
        letters: of the alphabet that shifts and maps know.
    """
    alphabet = string.ascii_lowercase[:letters]
    if kind in _SIMPLE:
        return StringTask(kind, "simple", _SIMPLE[kind])
    if kind == "composed":
        first, second = (draw_task(generator, ("simple", "shift")[pick(generator, 2)], letters) for _ in range(2))
        return StringTask(f"{first.name}, then {second.name}", kind, lambda word: second.apply(first.apply(word)))
    if kind == "simple":
        name = list(_SIMPLE)[pick(generator, len(_SIMPLE))]
        return StringTask(name, kind, _SIMPLE[name])
    if kind == "shift":
        step = 1 + pick(generator, letters - 1)
        name, image = f"shift by {step}", alphabet[step:] + alphabet[:step]
    else:
        rest, image = list(alphabet), ""
        while rest:
            image += rest.pop(pick(generator, len(rest)))
        name = f"map to {image}"
    table = str.maketrans(alphabet + alphabet.upper(), image + image.upper())
    return StringTask(name, kind, lambda word: word.translate(table))


def task_split(task: StringTask, letters: int = 12) -> str | None:
    """The split that a task is in by what it does; None if it is no task: it loses words, or makes them too long.

    Two tasks that do the same, such as reversing twice and copying, are in the same split.
    """
    alphabet = string.ascii_lowercase[:letters]
    # Together they hold every letter, in an order that isn't the alphabet's
    probes = [alphabet[start::2] for start in (0, 1)] + [alphabet[::-1], alphabet[2] + alphabet[0] + alphabet[1]]
    shown = [task.apply(probe) for probe in probes]
    if not all(shown) or len(shown[-1]) > 2 * len(probes[-1]):
        return None
    return split_of("\n".join(shown))


@dataclass(frozen=True)
class _Wanted:
    """What the rows shall be like; see `in_context`."""

    split: str
    shots: int
    letters: int
    min_length: int
    max_length: int
    kinds: tuple[str, ...]
    same_length: bool
    own_letters: bool

    def __post_init__(self):
        check_split(self.split)
        if not 3 <= self.letters <= 26:
            raise ValueError(f"letters={self.letters} must lie in 3..26")
        if self.shots < 1:
            raise ValueError(f"shots={self.shots} must be at least 1")
        least = 1 if self.split == "train" else _DEALT
        if not least <= self.min_length <= self.max_length:
            raise ValueError(
                f"min_length={self.min_length}, max_length={self.max_length}: lengths must ascend from at least "
                f"{least} in split {self.split!r}"
            )
        if not self.kinds or not set(self.kinds) <= {*KINDS, *_SIMPLE}:
            raise ValueError(
                f"kinds={list(self.kinds)!r} must be a list of some of {', '.join(KINDS)}, or names of simple tasks: "
                f"{', '.join(_SIMPLE)}"
            )

    def draw(self, generator: random.Random) -> Episode | None:
        """Examples of a task, or None where it is in another split."""
        task = draw_task(generator, self.kinds[pick(generator, len(self.kinds))], self.letters)
        if task_split(task, self.letters) != self.split:
            return None
        alphabet = string.ascii_lowercase[: self.letters]
        if self.own_letters:
            rest, size = list(alphabet), 2 + pick(generator, self.letters - 1)
            alphabet = "".join(rest.pop(pick(generator, len(rest))) for _ in range(size))
        lengths = range(self.min_length, self.max_length + 1)
        if self.same_length:
            lengths = [lengths[pick(generator, len(lengths))]]
        words: list[str] = []
        for _ in range(1000 * self.shots):
            length = lengths[pick(generator, len(lengths))]
            word = "".join(alphabet[pick(generator, len(alphabet))] for _ in range(length))
            known = word in words and not self.own_letters
            if not known and (length < _DEALT or split_of(word) == self.split):
                words.append(word)
            if len(words) == self.shots:
                return Episode(task, tuple((word, task.apply(word)) for word in words))
        if len(alphabet) < self.letters or lengths[-1] < self.max_length:
            # Another row has more letters, or longer words
            return None
        raise ValueError(
            f"shots={self.shots} is more than there are words of {self.min_length} to {self.max_length} of "
            f"{self.letters} letters in split {self.split!r}"
        )
