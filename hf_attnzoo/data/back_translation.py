"""Back-translation: training pairs out of texts of the target language alone (Sennrich, Haddow and Birch 2016)."""

import os
from collections.abc import Iterable, Iterator
from itertools import tee
from pathlib import Path
from typing import Any

from ..folders import check_new_file

# What would be another column or another line of a TSV file, which has no quoting
_BREAKS = "\t\n\r\0"


def back_translate(
    translator: Any, texts: Iterable[str], path: Path, *, tag: str | None = None, **options: Any
) -> tuple[int, int]:
    """Write pairs of a translated source and a true target, as a file that `load_pairs` reads.

    Args:
        translator: `pipeline("attnzoo-translation")` of a model that translates from the target language.
        texts: of the target language. They are read once, as they are translated.
        path: TSV file to write, which appears whole or not at all; it begins with the names of its columns.
        tag: word to put in front of every source, such as `<bt>`, so that a model can tell these sources from true
            ones (Caswell, Chelba and Grangier 2019). Default: `None`, none.
        options: of the call of `translator`, `batch_size` among them.

    Returns:
        Pairs that were written, and texts that were left out: the empty ones, those with a tab, and those whose
        translation is such a text.

    Raises:
        ValueError: if the tag is empty or holds white space, `path` is a folder, or no pair is left.
    """
    if tag is not None and tag.split() != [tag]:
        raise ValueError(f"tag={tag!r} must be one word, without white space")
    path = Path(path)
    check_new_file(path, "path")
    counts = {"pairs": 0, "left_out": 0}

    def usable(text: str) -> bool:
        good = bool(text.strip()) and not any(character in text for character in _BREAKS)
        counts["left_out"] += not good
        return good

    def pairs() -> Iterator[tuple[str, str]]:
        targets, sources = tee(filter(usable, texts))
        for target, outputs in zip(targets, translator(sources, **options), strict=False):
            source = (outputs[0] if isinstance(outputs, list) else outputs)["translation_text"]
            if usable(source):
                yield source if tag is None else f"{tag} {source}", target

    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8", newline="\n") as file:
            file.write("source\ttarget\n")
            for source, target in pairs():
                file.write(f"{source}\t{target}\n")
                counts["pairs"] += 1
        if not counts["pairs"]:
            raise ValueError(f"no pair is left for {path}: {counts['left_out']} texts or translations are empty")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return counts["pairs"], counts["left_out"]
