"""What all conversions share: which there are, what is refused, and that nothing is run."""

import importlib
import inspect
import json
import os

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from hf_attnzoo.cli import app
from hf_attnzoo.conversion import CONVERTERS, Weights, build_model, convert, read_checkpoint
from hf_attnzoo.registry import FAMILIES


@pytest.fixture
def saved(tmp_path):
    """A GPT-2 of transformers."""
    folder = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=4, n_layer=1, n_head=1)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", CONVERTERS)
def test_every_row_of_the_table_is_a_function(kind):
    module, name = CONVERTERS[kind]
    function = getattr(importlib.import_module(f"hf_attnzoo.conversion.{module}"), name)
    assert list(inspect.signature(function).parameters) == ["checkpoint"]
    if kind.startswith("attnzoo_"):
        assert kind in {family.config_class.model_type for family in FAMILIES.values()}


def test_a_direction_that_leads_nowhere_is_refused(saved, tmp_path):
    with pytest.raises(ValueError, match=r"'gpt2', which converts to='attnzoo', not to='transformers'"):
        convert(saved, tmp_path / "ours", to="transformers")
    convert(saved, tmp_path / "ours")
    with pytest.raises(ValueError, match=r"'attnzoo_gpt', which converts to='transformers', not to='attnzoo'"):
        convert(tmp_path / "ours", tmp_path / "again")
    with pytest.raises(ValueError, match="to='onnx' is none of 'attnzoo', 'transformers'"):
        convert(saved, tmp_path / "again", to="onnx")
    with pytest.raises(ValueError, match="is source_dir"):
        convert(saved, tmp_path / "ours" / ".." / "gpt2")
    assert not (tmp_path / "again").exists()


def test_unknown_kinds_are_refused(saved, tmp_path):
    for content, words in (
        ({"model_type": "llama"}, "'llama'; these can be converted: .*gpt2"),
        ({}, "names no model_type"),
        ([], "must hold a mapping, got list"),
    ):
        (saved / "config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words):
            convert(saved, tmp_path / "ours")
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        convert(saved, tmp_path / "ours")
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt is of no known program"):
        convert(tmp_path / "other.pt", tmp_path / "ours")


def test_what_is_missing_is_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        convert(tmp_path / "nowhere", tmp_path / "ours")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no config\.json, no best\.ckpt, and 0 files \.ckpt or \.pt"):
        convert(tmp_path / "empty", tmp_path / "ours")
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="safetensors alone, never from a pickle"):
        convert(saved, tmp_path / "ours")


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_is_run(tmp_path):
    torch.save({"model": {}, "model_args": Trap(tmp_path / "sprung")}, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match=r"ckpt\.pt can't be read as tensors and plain values"):
        convert(tmp_path / "ckpt.pt", tmp_path / "ours")
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "noise.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"noise\.pt can't be read"):
        convert(tmp_path / "noise.pt", tmp_path / "ours")


def test_parts_lie_beside_their_index(saved, tmp_path):
    (saved / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = {"weight_map": {"transformer.wte.weight": "../elsewhere.safetensors"}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"'\.\./elsewhere\.safetensors': parts must lie beside it"):
        read_checkpoint(saved)


def test_weights_that_are_none_are_refused(saved, tmp_path):
    weights = saved / "model.safetensors"
    content = weights.read_bytes()
    # Neither noise nor a file that was cut short on its way.
    for broken in (b"noise" * 20, content[:-1]):
        weights.write_bytes(broken)
        with pytest.raises(ValueError, match=r"model\.safetensors can't be read as safetensors"):
            convert(saved, tmp_path / "ours")
    for index in ({}, {"weight_map": ["model.safetensors"]}, {"weight_map": {"transformer.wte.weight": 3}}):
        (saved / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match=r"index\.json must have a weight_map"):
            convert(saved, tmp_path / "ours")


def test_a_setting_of_a_wrong_type_is_named(saved, tmp_path):
    config = json.loads((saved / "config.json").read_text())
    for change, words in (({"n_layer": "two"}, "wrong type: .*n_layer"), ({"model_type": ["gpt2"]}, "no model_type")):
        (saved / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=f"(?s){words}"):
            convert(saved, tmp_path / "ours")


def test_a_file_is_no_folder_to_write_to(saved, tmp_path):
    # save_pretrained only logs an error.
    (tmp_path / "file").write_text("mine")
    run = CliRunner().invoke(app, ["convert", str(saved), str(tmp_path / "file")])
    assert run.exit_code == 2
    assert "is a file, or a link: name a new folder" in " ".join(run.output.split())
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_is_never_written_over_or_half_written(saved, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "README.md").write_text("mine")
    with pytest.raises(ValueError, match="full holds something: name a new folder"):
        convert(saved, tmp_path / "full")
    monkeypatch.chdir(tmp_path)
    for target in (".", "..", "/"):
        with pytest.raises(ValueError, match=f"target_dir={target} has no name of its own"):
            convert(saved, target)

    def fail(*folders):
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("hf_attnzoo.conversion.carry_tokenizer", fail)
        with pytest.raises(OSError, match="no space left"):
            convert(saved, tmp_path / "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "gpt2"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": [1, 2], "model_args": {}}, "model must be a mapping, got .*list"),
        ({"model": {}, "model_args": [1]}, "model_args must be a mapping, got .*list"),
        ({"model": {"a": 3}, "model_args": {}}, "must hold tensors by their names"),
        ({"model": {1: torch.ones(1)}, "model_args": {}}, "must hold tensors by their names"),
    ],
)
def test_a_training_file_of_something_else(content, words, tmp_path):
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match=words):
        convert(tmp_path / "ckpt.pt", tmp_path / "ours")


def test_weights_are_taken_one_by_one():
    weights = Weights(a=torch.ones(1), b=torch.zeros(1))
    assert weights.take("a") == 1
    with pytest.raises(ValueError, match="lacks the parameter a"):
        weights.take("a")
    with pytest.raises(ValueError, match="no place for b"):
        weights.check_empty()
    weights.take("b")
    weights.check_empty()


def test_a_model_is_built_of_all_its_weights_and_no_others():
    config = GPT2Config(vocab_size=9, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    weights = {name: t.to(torch.float16) for name, t in GPT2LMHeadModel(config).state_dict().items()}
    del weights["lm_head.weight"]
    model = build_model(GPT2LMHeadModel, config, weights)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no place for more"):
        build_model(GPT2LMHeadModel, config, weights | {"more": torch.ones(1)})
    bias = weights.pop("transformer.ln_f.bias")
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel lacks transformer\.ln_f\.bias"):
        build_model(GPT2LMHeadModel, config, weights)
    with pytest.raises(ValueError, match=r"transformer\.ln_f\.bias must have the shape \(4,\), got \(3,\)"):
        build_model(GPT2LMHeadModel, config, weights | {"transformer.ln_f.bias": bias[:3]})


def test_the_command(saved, tmp_path):
    run = CliRunner().invoke(app, ["convert", str(saved), str(tmp_path / "ours")])
    assert run.exit_code == 0, run.output
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "attnzoo_gpt"
    run = CliRunner().invoke(app, ["convert", str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "transformers"])
    assert run.exit_code == 0, run.output
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "gpt2"
    run = CliRunner().invoke(app, ["convert", str(tmp_path / "nowhere"), str(tmp_path / "x")])
    assert run.exit_code == 2
    assert "no such file or folder" in run.output
