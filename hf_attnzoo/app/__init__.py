"""A page on which a person types a text or drops a picture, and sees what a model makes of it and where it looks.

`load_demo` and what it gives need no gradio; the others do: `pip install 'hf-attnzoo[app]'`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .demo import Answer, Demo, Field, Setting
    from .loading import load_demo
    from .page import build_page, import_gradio, serve
    from .space import export_space

_HOMES = {
    "Answer": "demo",
    "Demo": "demo",
    "Field": "demo",
    "Setting": "demo",
    "load_demo": "loading",
    "build_page": "page",
    "serve": "page",
    "import_gradio": "page",
    "export_space": "space",
}

__all__ = ["load_demo", "build_page", "serve", "export_space", "import_gradio", "Demo", "Answer", "Field", "Setting"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
