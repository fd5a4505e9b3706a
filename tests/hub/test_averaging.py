"""The mean of checkpoints, as a function, as a folder, and at the end of a run."""

import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM
from typer.testing import CliRunner

from hf_attnzoo import TransformerConfig, TransformerForConditionalGeneration
from hf_attnzoo.cli import app
from hf_attnzoo.hub import average_checkpoints, average_weights
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module


@pytest.fixture
def folders(tmp_path):
    """Three checkpoints whose every weight is 1, 2 and 6."""
    config = TransformerConfig.from_preset("tiny", vocab_size=20, hidden_size=8, num_attention_heads=2)
    model = TransformerForConditionalGeneration(config)
    for number, value in enumerate((1.0, 2.0, 6.0)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        model.save_pretrained(tmp_path / f"checkpoint-{number}")
        (tmp_path / f"checkpoint-{number}" / "optimizer.pt").write_bytes(b"the trainer's")
        (tmp_path / f"checkpoint-{number}" / "tokenizer_config.json").write_text(json.dumps({"number": number}))
    return [tmp_path / f"checkpoint-{number}" for number in range(3)]


def test_mean_of_three(folders):
    average = average_weights(folders)
    assert average.keys() == load_file(folders[0] / "model.safetensors").keys()
    assert {float(value) for tensor in average.values() for value in (tensor.min(), tensor.max())} == {3.0}


def test_mean_of_shards_is_the_same(folders, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(folders[2])
    model.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    average = average_weights([folders[0], folders[1], tmp_path / "shards"])
    assert {float(tensor.mean()) for tensor in average.values()} == {3.0}


def test_folder_is_an_ordinary_model(folders, tmp_path):
    output = tmp_path / "new" / "average"
    for name in ("files.json", "trained.safetensors", "stream-0.json", "curve.png", "shots.png"):
        (folders[2] / name).write_text("of the one checkpoint")
    (folders[2] / "metrics.json").write_text('{"metrics": {"bleu": 1.0}, "reading": {"join_texts": false}}')
    assert average_checkpoints(folders, output) == output
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    assert {float(parameter.mean()) for parameter in model.parameters()} == {3.0}
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert json.loads((output / "tokenizer_config.json").read_text()) == {"number": 2}
    kept = {"config.json", "generation_config.json", "metrics.json", "model.safetensors", "tokenizer_config.json"}
    assert {path.name for path in output.iterdir() if path.suffix != ".py"} == kept
    # The score is not the mean's; how texts are read is
    assert json.loads((output / "metrics.json").read_text()) == {"reading": {"join_texts": False}}
    assert [path.name for path in output.parent.iterdir()] == ["average"]
    with pytest.raises(ValueError, match="holds something"):
        average_checkpoints(folders, output)


def test_a_place_that_is_no_new_folder_is_refused(folders, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "away")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for output, message in (
        (".", r"output=\. has no name of its own: name a new folder"),
        ("..", r"output=\.\. has no name of its own"),
        ("/", "output=/ has no name of its own"),
        ("../file", "file is a file, or a link: name a new folder"),
        ("../link", "link is a file, or a link: name a new folder"),
        ("../file/new", r"output=\.\./file/new can't be made, since .*/file is a file: name another place"),
        (folders[2] / "new", "new lies in the folder of the model, "),
    ):
        result = CliRunner().invoke(app, ["average", *map(str, folders), "-o", str(output)])
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert re.search(message, line), line
    assert not list((tmp_path / "here").iterdir())
    assert average_checkpoints(folders[:1], "new/") == Path("new")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["new"]


def test_command(folders, tmp_path):
    result = CliRunner().invoke(app, ["average", *map(str, folders[:2]), "-o", str(tmp_path / "two")])
    assert result.exit_code == 0, result.output
    assert {float(tensor.mean()) for tensor in load_file(tmp_path / "two" / "model.safetensors").values()} == {1.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(sorted(tensors)[0]), "have other weights"),
        (lambda tensors: tensors.update({sorted(tensors)[0]: torch.zeros(1, 2, 3)}), r"of shape \(1, 2, 3\), and in"),
    ],
)
def test_checkpoints_of_another_model_are_refused(folders, change, message):
    tensors = load_file(folders[1] / "model.safetensors")
    change(tensors)
    save_file(tensors, folders[1] / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        average_weights(folders)


def test_missing_files_are_named(folders, tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        average_weights([])
    (folders[1] / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint-1: no model\.safetensors"):
        average_weights(folders)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        average_checkpoints([tmp_path], tmp_path / "out")


def test_shards_outside_the_folder_are_refused(folders):
    (folders[0] / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with pytest.raises(ValueError, match="not a file of that folder"):
        average_weights(folders)


def test_a_run_ends_with_the_mean_of_its_last_checkpoints(tmp_path, recipe_content, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*args):
        raise Killed

    changes = {"training__average_last": 2, "training__max_steps": 5, "training__save_total_limit": 1}
    recipe = build_recipe(recipe_content(tmp_path / "run", **changes))
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_run", die)
        with pytest.raises(Killed):
            run_recipe(recipe, Console(quiet=True))
    checkpoints = tmp_path / "run" / "checkpoints"
    four, five = (load_file(checkpoints / f"checkpoint-{step}" / "model.safetensors") for step in (4, 5))
    # The killed run goes on from its end.
    trained = load_file(run_recipe(recipe, Console(quiet=True)).model / "model.safetensors")
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, (four[name] + five[name]) / 2)
    assert any(not four[name].equal(five[name]) for name in four)
