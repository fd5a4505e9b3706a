"""The source `g2p`: English words -> the phonemes of CMUdict, without stress.

The dictionary comes with the BSD-licensed package `pocketsphinx`: `pip install "hf-attnzoo[g2p]"`.
"""

import functools
import importlib.metadata
import random
import re
from collections import defaultdict

from datasets import Dataset, Features, List, Value

from .splits import check_seed, check_split, split_of

_FILE = "model/en-us/cmudict-en-us.dict"
_WORD = re.compile(r"[a-z']*[a-z][a-z']*")
_VARIANT = re.compile(r"\(\d+\)$")


def g2p(split: str, size: int | None = None, seed: int = 0) -> Dataset:
    """Words of CMUdict and how they are said: `"attention"` -> `"AH T EH N SH AH N"`.

    Whole words are dealt to the splits by a hash, a possessive along with its noun, so no word of `test` is in
    `train`. Words with a hyphen or a full stop, abbreviations for the most part, are left out.

    Args:
        split: `train` (90 % of the words), `validation` or `test` (5 % each).
        size: number of words. Default: `None`, all of the split.
        seed: another seed, another order, and with `size` other words of the same split.

    Returns:
        A dataset with string columns `source` (lower-case letters and apostrophes) and `target` (phonemes of the
        ARPAbet with spaces between them), and `references`, the list of all pronunciations of the word. `train` has a
        row for each pronunciation, the other splits one for each word with the first that the dictionary lists.

    Raises:
        ValueError: an argument out of range.
        FileNotFoundError: `pocketsphinx` is not installed.
    """
    check_split(split)
    check_seed(seed)
    words = [word for word in pronunciations() if split_of(word.strip("'").removesuffix("'s")) == split]
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= len(words)):
        raise ValueError(f"size={size!r} must be an integer from 1 to {len(words)}, the words of split {split!r}")
    random.Random(f"g2p/{split}/{seed}").shuffle(words)
    rows = []
    for word in words[:size]:
        references = list(pronunciations()[word])
        targets = references if split == "train" else references[:1]
        rows.extend({"source": word, "target": target, "references": references} for target in targets)
    features = {"source": Value("string"), "target": Value("string"), "references": List(Value("string"))}
    return Dataset.from_list(rows, features=Features(features))


@functools.cache
def pronunciations() -> dict[str, tuple[str, ...]]:
    """CMUdict: every word of letters and apostrophes with its pronunciations, in the dictionary's order.

    Raises:
        FileNotFoundError: `pocketsphinx` is not installed.
    """
    # The package itself needs not be imported for a file that lies in it.
    try:
        path = importlib.metadata.distribution("pocketsphinx").locate_file(f"pocketsphinx/{_FILE}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (importlib.metadata.PackageNotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(
            'the source "g2p" reads the dictionary in the package pocketsphinx: pip install "hf-attnzoo[g2p]"'
        ) from error
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for line in lines:
        entry, *phonemes = line.split()
        word = _VARIANT.sub("", entry)
        if _WORD.fullmatch(word):
            found[word][" ".join(phonemes)] = None
    return {word: tuple(variants) for word, variants in found.items()}
