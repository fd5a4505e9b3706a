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
        pairs: words and what it makes of them, the words distinct.
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
) -> Dataset:
    """Prompts of several examples of a task that is told by nothing else: `"abc>cba\\nfad>daf\\n..."`.

    Tasks are dealt to the splits by a hash of what they do to strings that show it, and words by a hash of their
    letters: no task and no word of `test` is ever in `train`, under whatever name and seed. A language model that
    trains on these texts has its loss on all of their characters, the words too, which can't be foreseen: it never
    comes near 0.

    Args:
        split: `train` (90 % of all tasks and of all words), `validation` or `test` (5 % each).
        size: number of rows, which are distinct.
        seed: another seed, other rows of the same split.
        shots: examples of a row.
        letters: how many letters of `a..z` words are made of, and shifts and maps know.
        min_length: fewest letters of a word, at least 3.
        max_length: most; lengths are drawn uniformly.
        kinds: of the tasks, each as likely: see `KINDS`. Few of the simple ones are in `validation` and `test`, or
            none.

    Returns:
        A dataset with string columns `text` and `task`, the name of the task.

    Raises:
        ValueError: an argument out of range, or fewer words in a split than a prompt needs.
    """

    def propose(generator: random.Random) -> dict[str, str] | None:
        episode = _episode(generator, split, shots, letters, min_length, max_length, kinds)
        # The key by which rows are told apart
        return None if episode is None else {"source": episode.text, "text": episode.text, "task": episode.task.name}

    _check(split, shots, letters, min_length, max_length, kinds)
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
) -> list[Episode]:
    """The rows of `in_context` with the tasks themselves; arguments and errors are the same."""
    _check(split, shots, letters, min_length, max_length, kinds)

    def propose(generator: random.Random) -> dict[str, Episode | str] | None:
        episode = _episode(generator, split, shots, letters, min_length, max_length, kinds)
        return None if episode is None else {"source": episode.text, "episode": episode}

    return [row["episode"] for row in draw_rows("in_context", split, size, seed, propose)]


def draw_task(generator: random.Random, kind: str, letters: int = 12) -> StringTask:
    """A task of one kind.

    Args:
        generator: that draws it.
        kind: one of `KINDS`.
        letters: of the alphabet that shifts and maps know.
    """
    alphabet = string.ascii_lowercase[:letters]
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


def _episode(
    generator: random.Random,
    split: str,
    shots: int,
    letters: int,
    min_length: int,
    max_length: int,
    kinds: Sequence[str],
) -> Episode | None:
    task = draw_task(generator, kinds[pick(generator, len(kinds))], letters)
    if task_split(task, letters) != split:
        return None
    words: dict[str, None] = {}
    for _ in range(1000 * shots):
        length = min_length + pick(generator, max_length - min_length + 1)
        word = "".join(string.ascii_lowercase[pick(generator, letters)] for _ in range(length))
        if split_of(word) == split:
            words[word] = None
        if len(words) == shots:
            return Episode(task, tuple((word, task.apply(word)) for word in words))
    raise ValueError(
        f"shots={shots} is more than there are words of {min_length} to {max_length} of {letters} letters in split "
        f"{split!r}"
    )


def _check(split: str, shots: int, letters: int, min_length: int, max_length: int, kinds: Sequence[str]) -> None:
    check_split(split)
    if not 3 <= letters <= 26:
        raise ValueError(f"letters={letters} must lie in 3..26")
    if shots < 1:
        raise ValueError(f"shots={shots} must be at least 1")
    if not 3 <= min_length <= max_length:
        raise ValueError(f"min_length={min_length}, max_length={max_length}: lengths must ascend from at least 3")
    if not kinds or isinstance(kinds, str) or not set(kinds) <= set(KINDS):
        raise ValueError(f"kinds={kinds!r} must be a list of some of {', '.join(KINDS)}")
