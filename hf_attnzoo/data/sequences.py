"""The built-in sources `reverse` and `copy`: random strings of symbols, for studies and tests."""

import random
import string
from collections.abc import Callable, Sequence

from datasets import Dataset, Features, Value

from .splits import draw_rows, pick, split_of


def reverse(
    split: str,
    size: int,
    seed: int = 0,
    min_length: int = 5,
    max_length: int = 15,
    symbols: int | str | Sequence[str] = 26,
    separator: str = " ",
) -> Dataset:
    """Random strings of symbols and their reversal: `"q a b"` -> `"b a q"`.

    A hash of the source string decides its split, so no test string is in training, whatever the seed and lengths.

    Args:
        split: `train` (90 % of all strings), `validation` or `test` (5 % each).
        size: number of rows; their sources are distinct.
        seed: another seed, other rows of the same split.
        min_length: fewest symbols, at least 1.
        max_length: most symbols; lengths are drawn uniformly.
        symbols: how many letters of `a..z` to use, or the symbols themselves (a string is its characters).
        separator: what stands between symbols: a space, for tokenizers of words and symbols, or `""`, for characters.

    Returns:
        A dataset with string columns `source` and `target`.

    Raises:
        ValueError: an argument out of range, symbols that cannot be told apart, or fewer strings than `size`.
    """
    return _sequences(
        "reverse", lambda items: items[::-1], split, size, seed, min_length, max_length, symbols, separator
    )


def copy(
    split: str,
    size: int,
    seed: int = 0,
    min_length: int = 5,
    max_length: int = 15,
    symbols: int | str | Sequence[str] = 26,
    separator: str = " ",
) -> Dataset:
    """Random strings of symbols, target equal to source; arguments, splits and errors as in `reverse`."""
    return _sequences("copy", lambda items: items, split, size, seed, min_length, max_length, symbols, separator)


def _sequences(
    name: str,
    answer: Callable[[list[str]], list[str]],
    split: str,
    size: int,
    seed: int,
    min_length: int,
    max_length: int,
    symbols: int | str | Sequence[str],
    separator: str,
) -> Dataset:
    if not 1 <= min_length <= max_length:
        raise ValueError(f"min_length={min_length}, max_length={max_length}: lengths must ascend from at least 1")
    alphabet = _alphabet(symbols, separator)

    def propose(generator: random.Random) -> dict[str, str] | None:
        length = min_length + pick(generator, max_length - min_length + 1)
        items = [alphabet[pick(generator, len(alphabet))] for _ in range(length)]
        source = separator.join(items)
        if split_of(source) != split:
            return None
        return {"source": source, "target": separator.join(answer(items))}

    rows = draw_rows(name, split, size, seed, propose)
    return Dataset.from_list(rows, features=Features(dict.fromkeys(("source", "target"), Value("string"))))


def _alphabet(symbols: int | str | Sequence[str], separator: str) -> list[str]:
    if isinstance(symbols, int):
        if not 1 <= symbols <= len(string.ascii_lowercase):
            raise ValueError(f"symbols={symbols} must lie in 1..26; give a list for other symbols")
        return list(string.ascii_lowercase[:symbols])
    alphabet = list(symbols)
    if not alphabet or len(set(alphabet)) != len(alphabet):
        raise ValueError(f"symbols={symbols!r} must be distinct, and at least one")
    for symbol in alphabet:
        if not symbol or symbol != symbol.strip() or (separator and separator in symbol):
            raise ValueError(f"symbols: {symbol!r} is blank, has space around it or holds the separator {separator!r}")
        if not separator and len(symbol) > 1:
            raise ValueError(f'symbols: {symbol!r} needs a separator; separator="" is for single characters')
    return alphabet
