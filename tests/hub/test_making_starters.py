"""`training/starters.py`: weights in 16 bits, card and scores that are of these, a folder that is whole or none."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
import torch
import typer
import yaml
from huggingface_hub import ModelCard
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import pipeline
from typer.testing import CliRunner

from hf_attnzoo.data import load_source
from hf_attnzoo.hub import STARTERS, Starter

FILE = Path(__file__).parents[2] / "training" / "starters.py"
spec = importlib.util.spec_from_file_location("making_starters", FILE)
making = importlib.util.module_from_spec(spec)
spec.loader.exec_module(making)

QUIET = Console(quiet=True)


@pytest.fixture
def starter(tmp_path, recipe_content):
    """A row of the table for the tiny run of these tests."""
    content = recipe_content(tmp_path / "elsewhere", evaluation__maps=2)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    settings = ("training.max_steps=100", "training.eval_steps=50")
    recipe = str(tmp_path / "tiny.yaml")
    return Starter("tiny", "letters the other way round", recipe, settings, "translate", ("a b",))


def test_fractions_are_halved_and_nothing_else(tmp_path):
    # The nearest numbers with 11 bits: 1/3 is 1365/4096, and 2049 lies between 2048 and 2050
    tensors = {"third": torch.tensor([1 / 3, 2049.0, -65504.0]), "whole": torch.tensor([70000, 3])}
    save_file(tensors, tmp_path / "weights.safetensors")
    making.halve(tmp_path / "weights.safetensors", tmp_path / "halved.safetensors")
    halved = load_file(tmp_path / "halved.safetensors")
    assert halved["third"].dtype == torch.float16
    assert halved["third"].tolist() == [1365 / 4096, 2048.0, -65504.0]
    assert halved["whole"].equal(tensors["whole"])
    save_file({"large": torch.tensor([65520.0])}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="large has numbers beyond 65504"):
        making.halve(tmp_path / "weights.safetensors", tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


def test_a_starter_of_a_run(tiny_run, starter, tmp_path):
    target = tmp_path / "new" / "tiny"
    making.make_starter(tiny_run.model, starter, target, QUIET)
    assert [path.name for path in target.parent.iterdir()] == ["tiny"]
    assert {path.suffix for path in target.iterdir()} == {".json", ".md", ".png", ".safetensors"}
    assert {oct(path.stat().st_mode & 0o777) for path in target.iterdir()} == {"0o644"}
    trained, rounded = (load_file(folder / "model.safetensors") for folder in (tiny_run.model, target))
    assert trained.keys() == rounded.keys()
    assert all(tensor.equal(trained[name].half()) for name, tensor in rounded.items())
    # The scores are those of the rounded weights, on the same rows
    rows = load_source("reverse", "test", size=5, min_length=1, max_length=4, symbols=5)
    outputs = pipeline("attnzoo-translation", model=str(target))(rows["source"], max_new_tokens=6)
    exact = sum(out["translation_text"] == wanted for out, wanted in zip(outputs, rows["target"], strict=True)) / 5
    scores = json.loads((target / "metrics.json").read_text(encoding="utf-8"))
    assert scores["metrics"]["exact_match"] == exact
    assert scores["steps"] == 100
    card = ModelCard.load(target / "README.md")
    assert card.data.model_name == "tiny"
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert found["exact_match"] == pytest.approx(exact, abs=1e-4)
    assert card.text.startswith("\n# tiny\n") or card.text.startswith("# tiny\n")
    assert "its commands take the name `tiny`" in card.text
    assert "After training the weights were rounded to 16 bits" in card.text
    assert str(tmp_path) not in card.text

    with pytest.raises(ValueError, match="tiny holds something: name a new folder"):
        making.make_starter(tiny_run.model, starter, target, QUIET)
    with pytest.raises(ValueError, match="lies in the folder of the model"):
        making.make_starter(tiny_run.model, starter, tiny_run.model / "tiny", QUIET)


def test_a_starter_is_whole_and_of_its_recipe_or_none(tiny_run, starter, tmp_path, monkeypatch):
    other = dataclasses.replace(starter, settings=(*starter.settings, "model.hidden_size=32"))
    with pytest.raises(ValueError, match=r"model\.hidden_size was 16 in the run, and is 32 for tiny"):
        making.make_starter(tiny_run.model, other, tmp_path / "new", QUIET)
    monkeypatch.setattr(making, "LIMIT", 1_000)
    with pytest.raises(ValueError, match=r"tiny: [\d,]+ bytes, and a starter has 1,000 at most"):
        making.make_starter(tiny_run.model, starter, tmp_path / "new", QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_help_and_what_is_wrong_is_a_line(tmp_path, monkeypatch):
    script = typer.Typer()
    script.command()(making.main)

    def call(*arguments):
        return CliRunner().invoke(script, [str(argument) for argument in arguments], env={"COLUMNS": "200"})

    said = call("--help").stdout
    for part in (*STARTERS, "--run", "--output", "rounded to 16 bits", "Default: the package's own."):
        assert part in said
    unknown = call("dates")
    assert unknown.exit_code == 2
    assert "'dates' is none of dates-rnnsearch" in unknown.stderr
    monkeypatch.setattr(making, "run_recipe", lambda *_: pytest.fail("a model was trained"))
    (tmp_path / "mine").write_text("mine")
    for options, message in (
        (["--output", tmp_path], "holds something: name a new folder"),
        (["--output", "."], "output=. has no name of its own: name a new folder"),
        (["--output", tmp_path / "mine"], "mine is a file, or a link: name a new folder"),
        (["--run", tmp_path / "nothing", "--output", tmp_path / "new"], "nothing/model/README.md"),
    ):
        refused = call("dates-rnnsearch", *options)
        assert refused.exit_code == 2
        (line,) = refused.stderr.splitlines()
        assert line.startswith("starters.py: ")
        assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
