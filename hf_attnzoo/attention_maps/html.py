"""Attention as a page for a browser: one file that loads nothing, to hover over and to choose layers and heads in."""

from __future__ import annotations

import base64
import html
import json
from importlib import resources
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from .plotting import label_of, write_whole

if TYPE_CHECKING:
    from .image_maps import ImageAttentionMap
    from .maps import AttentionMap

# Longest side of a picture in a page, in pixels
_MOST_PIXELS = 640
_DECIMALS = 3


def text_page(attention: AttentionMap) -> str:
    """A page that shows the attention between the tokens of two texts, or of a text and itself.

    Args:
        attention:
            The map; its `layers`, if there are any, can be chosen from.
    """
    # The map's own weights come first: they may be a mean over layers, or a rollout
    views = [[_rounded(attention.weights)]]
    views += [[_rounded(layer.mean(0)), *map(_rounded, layer)] for layer in attention.layers]
    data = {
        "source": [label_of(token) for token in attention.source],
        "target": [label_of(token) for token in attention.target],
        "views": views,
        "first": "as captured",
    }
    title = attention.source_text
    if attention.kind == "cross":
        title = f"{title} → {attention.target_text}"
    return _page("text.html", title, data)


def image_page(attention: ImageAttentionMap) -> str:
    """A page that shows where on an image a model looked for each word.

    Args:
        attention:
            The map.
    """
    image = attention.image.convert("RGB")
    image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    buffer = BytesIO()
    image.save(buffer, "png")
    data = {
        "words": [label_of(word) for word in attention.words],
        "weights": [_rounded(grid, 5) for grid in attention.weights],
        "image": f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}",
    }
    return _page("image.html", attention.text, data)


def write_page(page: str, path: str | PathLike | None) -> str:
    """Writes a page, whole or not at all, and returns it.

    Args:
        page:
            HTML.
        path:
            `.html` file, its folders made as needed. None: nothing is written.

    Raises:
        ValueError: another suffix.
    """
    if path is not None:
        if Path(path).suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"path is {fspath(path)!r}; its suffix must be .html")
        write_whole(page.encode(), path)
    return page


def _rounded(weights: np.ndarray, decimals: int = _DECIMALS) -> list:
    return np.round(weights.astype(float), decimals).tolist()


def _page(template: str, title: str, data: dict[str, Any]) -> str:
    """A page of `pages/`, whose script finds the data in `data`."""
    text, style = (
        (resources.files(__package__) / "pages" / name).read_text(encoding="utf-8") for name in (template, "style.css")
    )
    # Inside a script nothing but `</script` and `<!--` would be taken for HTML
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template(text).substitute(title=html.escape(title), style=style, data=content)
