"""What the Hub asks of a card, checked without asking the Hub; and the way of a run's card into a collection."""

import math
import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from ..attention_maps.plotting import write_whole
from ..folders import check_new_file
from .starters import find_model

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)")
# A bracket after a backslash is text: samples are full of them
_LINK = re.compile(r"(?<!\\)\]\(<?([^)\s>]+)>?\)")
_ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z+.-]*:|#|//")


def check_card(path: str | PathLike) -> ModelCard:
    """See that a card is fit for the Hub, as far as that can be told offline.

    Its front matter is YAML that huggingface_hub reads as a model card's, a model-index comes back as it was, licence,
    library, task and tags are named, no value is null, not a number or infinite, and all files that it links to are
    there, inside its folder.

    Args:
        path: of the card.

    Returns:
        The card.

    Raises:
        ValueError: what is wrong, with the path.
    """
    path = Path(path)
    try:
        card, metadata = ModelCard.load(path), metadata_load(path)
    except Exception as error:
        # Of YAML, of huggingface_hub's own checks, of bytes that are no text: all mean that this is no card
        raise ValueError(f"{path}: no model card ({error})") from error
    if not metadata:
        raise ValueError(f"{path}: no model card (it has no front matter)")
    for key in ("license", "library_name", "pipeline_tag"):
        if not isinstance(metadata.get(key), str) or not metadata[key]:
            raise ValueError(f"{path}: {key} is {metadata.get(key)!r}; it must be named")
    tags = metadata.get("tags")
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) and tag for tag in tags):
        raise ValueError(f"{path}: tags is {tags!r}; it must be a list of names")
    for where, value in _values(metadata):
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{path}: {where} is {value!r}; the Hub takes neither null nor what is no finite number")
    index = metadata.get("model-index")
    if index is not None and eval_results_to_model_index(*model_index_to_eval_results(index)) != index:
        raise ValueError(f"{path}: model-index is not as the Hub's own library writes it")
    for link in card_links(card.text):
        # Resolved as a page would be: what a link may not do is leave the folder of the card
        target = (path.parent / link).resolve()
        if not target.is_relative_to(path.parent.resolve()) or not target.is_file():
            raise ValueError(f"{path}: links to {link}, and there is no such file in its folder")
    return card


def card_links(text: str) -> list[str]:
    """Files that a card links to or shows, relative to it, in order and once; what stands in code is no link.

    Args:
        text: Markdown.
    """
    prose = _CODE.sub("", _FENCE.sub("", text))
    links = [link.split("#")[0] for link in _LINK.findall(prose) if not _ELSEWHERE.match(link)]
    return list(dict.fromkeys(links))


def export_card(folder: str | PathLike, target: str | PathLike) -> list[Path]:
    """Copy a run's card and its pictures out of the model's folder, into a collection where they need names.

    The card becomes `NAME.md`, its `attention.png` becomes `NAME.png`, and any other file `x.png` that it shows
    `NAME-x.png`; the links follow.

    Args:
        folder: of the model, with `README.md`; or a name of `STARTERS`.
        target: where to, `NAME` or `NAME.md` in any folder, which is made as needed.

    Returns:
        The files that were written, the card last.

    Raises:
        FileNotFoundError: there is no card.
        ValueError: one that is not fit for the Hub, see [`check_card`]; or `target` is a folder, or the card itself.
    """
    card_path, target = Path(find_model(folder)) / "README.md", Path(target)
    if target.is_dir() or target.name in ("", ".."):
        raise ValueError(f"target={target} is a folder: name the card in it, such as {target / 'NAME.md'}")
    check_new_file(target, "target")
    if not card_path.is_file():
        raise FileNotFoundError(f"{card_path}: no such card")
    check_card(card_path)
    content = card_path.read_text(encoding="utf-8")
    name = target.name.removesuffix(".md")
    if target.with_name(f"{name}.md").resolve() == card_path.resolve():
        raise ValueError(f"target={target} is the card that is to be copied: name another place")
    renamed = {}
    for link in card_links(content):
        stem, suffix = Path(link).stem, Path(link).suffix
        renamed[link] = f"{name}{suffix}" if stem == "attention" else f"{name}-{stem}{suffix}"
    if len(set(renamed.values())) < len(renamed):
        raise ValueError(f"{card_path}: links to files of one name in different folders, {', '.join(renamed)}")
    for link, other in renamed.items():
        write_whole((card_path.parent / link).read_bytes(), target.with_name(other))
    content = _LINK.sub(lambda link: f"]({renamed.get(link[1], link[1])})", content)
    write_whole(content.encode(), target.with_name(f"{name}.md"))
    check_card(target.with_name(f"{name}.md"))
    return [target.with_name(other) for other in (*renamed.values(), f"{name}.md")]


def _values(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """All values of nested data, with what leads to them."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _values(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _values(item, f"{where}[{number}]")
    else:
        yield where, value
