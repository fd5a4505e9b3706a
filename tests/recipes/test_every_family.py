"""Options of training for every family that recipes train: autocast stays finite, what has no sense is refused."""

import dataclasses

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module

SMALL = {"hidden_size": 8, "num_attention_heads": 2}
PAIRS = {
    "data": {
        "source": "reverse",
        "options": {"min_length": 1, "max_length": 4, "symbols": 5},
        "train": {"size": 30},
        "validation": {"size": 2},
        "test": {"size": 2},
    },
    "tokenizer": {"kind": "symbol", "shared": True},
    "evaluation": {"metrics": ["token_error_rate"], "best_metric": "token_error_rate", "tokenize": "none"},
}
PICTURES = {
    "data": {
        "source": "shapes",
        "options": {"image_size": 32},
        "train": {"size": 8},
        "validation": {"size": 2},
        "test": {"size": 2},
    },
    "tokenizer": {"kind": "word"},
    "evaluation": {"metrics": ["token_error_rate"], "best_metric": "token_error_rate"},
}
TEXT = {
    "data": {"options": {"shares": [0.8, 0.1, 0.1]}, "block_size": 8},
    "tokenizer": {"kind": "character"},
    "evaluation": {"metrics": ["cross_entropy"], "best_metric": "cross_entropy"},
}
RECIPES = {
    "rnnsearch": PAIRS | {"model": {"embedding_size": 8, "hidden_size": 8, "maxout_size": 8}},
    "luong": PAIRS | {"model": {"embedding_size": 8, "hidden_size": 8, "input_feeding": True}},
    "transformer": PAIRS
    | {"model": {**SMALL, "num_encoder_layers": 1, "num_decoder_layers": 1, "intermediate_size": 8}},
    "show_attend_tell": PICTURES
    | {"model": {"preset": "tiny", "image_size": 16, "encoder_channels": [4, 8], "hidden_size": 16}},
    "rnnlm": TEXT | {"model": {"embedding_size": 8, "hidden_size": 8}},
    "gpt": TEXT | {"model": {**SMALL, "num_hidden_layers": 1, "max_position_embeddings": 40}},
}


@pytest.fixture
def recipe_of(tmp_path):
    def make(family, **training):
        content = RECIPES[family] | {"name": "tiny", "family": family, "output": str(tmp_path / "run")}
        content["training"] = {"max_steps": 3, "batch_tokens": 120, "eval_steps": 3, "logging_steps": 1, **training}
        content["generation"] = {"max_new_tokens": 4}
        content["evaluation"] = content["evaluation"] | {"samples": 0, "maps": 0}
        if content["data"].get("source") is None:
            (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20)
            content["data"] = content["data"] | {"source": str(tmp_path / "text.txt")}
        return build_recipe(content)

    return make


@pytest.mark.parametrize("precision", ["bf16", *(["fp16"] if torch.accelerator.is_available() else [])])
@pytest.mark.parametrize("family", RECIPES)
def test_autocast_stays_finite(recipe_of, monkeypatch, family, precision):
    train, seen = run_module.train, {}

    def spy(trainer, checkpoint):
        head = trainer.model.get_output_embeddings()
        hook = head.register_forward_hook(lambda module, inputs, output: seen.update(dtype=output.dtype))
        train(trainer, checkpoint)
        hook.remove()
        seen["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    monkeypatch.setattr(run_module, "train", spy)
    result = run_recipe(recipe_of(family, precision=precision), Console(quiet=True))
    assert seen["dtype"] == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert len(seen["losses"]) == 3
    assert all(0 < loss < 20 for loss in seen["losses"])
    weights = load_file(result.model / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_fp16_on_a_cpu_is_refused(recipe_of):
    with pytest.raises(ValueError, match=r"training\.precision='fp16' needs an accelerator: set bf16 or fp32"):
        run_recipe(recipe_of("gpt", precision="fp16"), Console(quiet=True))


@pytest.mark.parametrize("family", ["show_attend_tell", "gpt"])
def test_bpe_dropout_is_for_pairs(recipe_of, family):
    with pytest.raises(ValueError, match=r"training\.bpe_dropout=0.1 is for pairs of texts: leave it out"):
        run_recipe(recipe_of(family, bpe_dropout=0.1), Console(quiet=True))


def encoder(make_recipe, **training):
    recipe = make_recipe("gpt", **training)
    return dataclasses.replace(
        recipe,
        family="bert",
        model={**SMALL, "num_hidden_layers": 1, "max_position_embeddings": 40},
        tokenizer=dataclasses.replace(recipe.tokenizer, kind="wordpiece", vocab_size=60),
        generation={},
    )


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"scheduled_sampling": {"schedule": "exponential", "k": 0.9}},
            "schedule='exponential' is for models that write",
        ),
        ({"bpe_dropout": 0.1}, "training.bpe_dropout=0.1 is for pairs of texts"),
    ],
)
def test_an_encoder_writes_nothing(recipe_of, training, message):
    with pytest.raises(ValueError, match=message):
        run_recipe(encoder(recipe_of, **training), Console(quiet=True))
