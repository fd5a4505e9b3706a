"""Recipes: a YAML file says what to train, and `run_recipe` does it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalog import find_recipe, recipe_folder, shipped_recipes
    from .rehearsing import DryRun, dry_run
    from .run import RunResult, run_recipe
    from .schema import Recipe, build_recipe, load_recipe

_HOMES = {
    "find_recipe": "catalog",
    "recipe_folder": "catalog",
    "shipped_recipes": "catalog",
    "RunResult": "run",
    "run_recipe": "run",
    "dry_run": "rehearsing",
    "DryRun": "rehearsing",
    "Recipe": "schema",
    "build_recipe": "schema",
    "load_recipe": "schema",
}

__all__ = [
    "Recipe",
    "load_recipe",
    "build_recipe",
    "find_recipe",
    "recipe_folder",
    "shipped_recipes",
    "run_recipe",
    "dry_run",
    "DryRun",
    "RunResult",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
