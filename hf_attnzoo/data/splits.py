"""Splits that cannot leak, and the one sampler behind every generated source."""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

SPLITS = ("train", "validation", "test")

# Draws in a row that bring nothing new before a space counts as used up. A split of 5 % needs 20 draws a row.
_PATIENCE = 50_000


def check_split(split: str) -> str:
    """Return `split`, or raise a `ValueError` that lists the three names."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is not one of {', '.join(SPLITS)}")
    return split


def check_seed(seed: int) -> int:
    """Return `seed`, or raise a `ValueError` that says what a seed is."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed={seed!r} must be an integer")
    return seed


def split_of(text: str, shares: Sequence[float] = (0.9, 0.05, 0.05)) -> str:
    """The split a text belongs to: by default 90 % `train`, 5 % `validation`, 5 % `test`.

    It depends on the text alone, not on a seed, a size or a machine, so no text is ever in two splits.

    Args:
        text: whatever shall not be torn apart.
        shares: of the three splits.

    Raises:
        ValueError: if the shares don't add up to 1.
    """
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares={list(shares)} must be three numbers of at least 0 that add up to 1")
    bucket = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 100
    # Shares of 0.7 and 0.1 add up to a little less than 0.8.
    first, second = round(100 * shares[0]), round(100 * (shares[0] + shares[1]))
    return "train" if bucket < first else "validation" if bucket < second else "test"


def draw_rows(
    name: str, split: str, size: int, seed: int, propose: Callable[[random.Random], dict[str, Any] | None]
) -> list[dict[str, Any]]:
    """Draw `size` rows with distinct sources; a larger `size` begins with the rows of a smaller one.

    Args:
        name: name of the source of data, for messages and so that two sources draw differently.
        split: `train`, `validation` or `test`.
        size: number of rows, at least 1.
        seed: with the arguments of the source, the only thing the rows depend on.
        propose: makes one row from a generator, or None where the draw is not in the split.

    Raises:
        ValueError: a bad argument, or a split that holds fewer distinct sources than `size`.
    """
    check_split(split)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r} must be an integer of at least 1")
    check_seed(seed)
    # Seeding with text goes through SHA-512: equal on every machine, and splits share no stream
    generator = random.Random(f"{name}/{split}/{seed}")
    rows: dict[str, dict[str, Any]] = {}
    misses = 0
    while len(rows) < size:
        row = propose(generator)
        if row is not None and row["source"] not in rows:
            rows[row["source"]] = row
            misses = 0
            continue
        misses += 1
        if misses == _PATIENCE:
            raise ValueError(
                f"size={size} is more than source {name!r} can give: {len(rows)} distinct strings were found"
                f" in split {split!r}. Ask for fewer rows or widen the source."
            )
    return list(rows.values())


def pick(generator: random.Random, count: int) -> int:
    """A uniform index below `count`: `random()` is the one method whose stream Python promises to keep."""
    return int(generator.random() * count)
