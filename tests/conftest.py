"""Quiet, offline, one thread, before torch is imported; and a small trained model for whoever needs one."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# pytest imports this before any test, and so before torch.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    # Spinning threads make everything slow where several processes share the cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TQDM_DISABLE": "1",
}.items():
    os.environ.setdefault(_name, _value)

# Reverses one to four letters, in about a second.
_RECIPE = {
    "name": "tiny-reversal",
    "family": "rnnsearch",
    "data": {
        "source": "reverse",
        "options": {"min_length": 1, "max_length": 4, "symbols": 5},
        "train": {"size": 80},
        "validation": {"size": 4},
        "test": {"size": 5},
    },
    "tokenizer": {"kind": "symbol", "shared": True},
    "model": {"embedding_size": 8, "hidden_size": 16, "maxout_size": 8, "initializer_range": 0.3},
    "training": {
        "max_steps": 4,
        "batch_tokens": 64,
        "learning_rate": 0.02,
        "warmup_steps": 1,
        "eval_steps": 2,
        "eval_batch_size": 2,
        "logging_steps": 1,
    },
    "generation": {"max_new_tokens": 6},
    "evaluation": {
        "metrics": ["token_accuracy", "exact_match", "token_error_rate"],
        "best_metric": "token_accuracy",
        "tokenize": "none",
        "samples": 4,
        "maps": 0,
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The one test that takes minutes comes first: at the end one process would wait for it."""
    items.sort(key=lambda item: "test_readme_runs" not in item.nodeid)


@pytest.fixture(scope="session")
def recipe_content() -> Callable[..., dict[str, Any]]:
    """Function that makes the content of a tiny recipe: an output folder, and `section__key=value` for changes."""

    def make(output: Path, **changes: Any) -> dict[str, Any]:
        content = {**copy.deepcopy(_RECIPE), "output": str(output)}
        for path, value in changes.items():
            *sections, name = path.split("__")
            place = content
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = value
        return content

    return make


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, recipe_content: Callable[..., dict[str, Any]]) -> Any:
    """The result of a run of the tiny recipe, trained long enough to say different things about different texts."""
    from hf_attnzoo.recipes import build_recipe, run_recipe

    output = tmp_path_factory.mktemp("tiny") / "run"
    changes = {"training__max_steps": 100, "training__eval_steps": 50, "evaluation__maps": 2}
    return run_recipe(build_recipe(recipe_content(output, **changes)))
