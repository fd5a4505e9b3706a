"""Dry runs: every recipe that ships has one, and what is told is what a run would be."""

import json
import re
import socket

import pytest
from typer.testing import CliRunner

import hf_attnzoo
from hf_attnzoo.cli import app
from hf_attnzoo.recipes import build_recipe, dry_run, load_recipe, rehearsing, run_recipe, shipped_recipes, trial
from hf_attnzoo.recipes.planning import figures, notes

SHIPPED = shipped_recipes()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a dry run has asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_has_a_dry_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A smaller batch takes as long as it has rows.
    told = dry_run(load_recipe(SHIPPED[name]), devices=8, device_kind="h100")
    assert told.parameters > 10_000
    assert told.memory.total > 16 * told.parameters / (2 if told.memory.optimizer == 0 else 1)
    assert told.flops_per_step > 3 * 2 * told.parameters
    trained = told.trained
    assert all(0 < loss < 20 for loss in trained.losses)
    if trained.flops is not None and told.model.startswith(("Transformer", "GPT", "BERT")):
        assert trained.counted == pytest.approx(trained.flops, rel=0.01)
    elif trained.flops is not None:
        # What the first word is fed, and what a padded step would be, are left out where they are nothing.
        assert 0.6 < trained.counted / trained.flops < 1.05
    assert {"parameters", "tokens per step", "time"} <= {row[0] for row in figures(told)}
    assert notes(told)
    json.dumps(told.to_dict())
    # Nothing is left behind.
    assert list(tmp_path.iterdir()) == []


def test_what_is_told_is_what_a_run_is(recipe_content, tmp_path, monkeypatch):
    content = recipe_content(tmp_path / "run")
    told = dry_run(build_recipe(content), device_kind="cpu")
    seen = []
    from hf_attnzoo.recipes.trainer import ZooTrainer

    training_step = ZooTrainer.training_step

    def step(trainer, model, inputs, *args, **kwargs):
        seen.append(inputs["input_ids"].numel() + inputs["labels"].numel())
        return training_step(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(ZooTrainer, "training_step", step)
    result = run_recipe(build_recipe(content))
    card = (result.model / "README.md").read_text()
    assert f"{told.parameters:,}" in card
    assert told.steps == len(seen) == 4
    # The budget is 64 tokens, which rows of several lengths never fill.
    assert told.tokens_per_step <= 64
    assert told.tokens == 4 * told.tokens_per_step
    assert told.memory is None
    assert told.hours > 0


def test_more_devices_and_accumulation_are_more_tokens(recipe_content, tmp_path):
    one = dry_run(build_recipe(recipe_content(tmp_path)))
    many = dry_run(build_recipe(recipe_content(tmp_path, training__gradient_accumulation_steps=3)), devices=4)
    assert many.tokens_per_step == 12 * one.tokens_per_step
    assert many.flops_per_step == pytest.approx(12 * one.flops_per_step)
    assert many.hours == pytest.approx(3 * one.hours)
    # 8 bytes of Adam a parameter
    assert one.memory.optimizer == 8 * one.parameters
    shared = dry_run(build_recipe(recipe_content(tmp_path)), devices=4, strategy="zero3")
    assert shared.memory.optimizer == pytest.approx(2 * one.parameters, abs=1)
    assert shared.memory.gradients == pytest.approx(one.parameters, abs=1)


def test_a_configuration_of_accelerate_says_how(recipe_content, tmp_path):
    file = tmp_path / "zero.yaml"
    text = "distributed_type: {}\nnum_processes: 4\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 2\n"
    recipe = build_recipe(recipe_content(tmp_path))
    for kind, strategy in {"DEEPSPEED": "zero2", "FSDP": "fsdp", "MULTI_GPU": "ddp", "NO": "ddp"}.items():
        file.write_text(text.format(kind))
        told = dry_run(recipe, accelerate=file)
        assert (told.strategy, told.devices, told.precision) == (strategy, 4, "bf16")
    assert dry_run(recipe, accelerate=file, devices=2, strategy="zero1").strategy == "zero1"
    file.write_text(text.format("TPU"))
    with pytest.raises(ValueError, match="distributed_type='TPU' is none of"):
        dry_run(recipe, accelerate=file)


def test_processes_share_a_processor(recipe_content, tmp_path, monkeypatch):
    steps = trial.Steps(trial.BatchShape(1, 2, 2), 9, None, (1.0, 1.0), None, 10**9, 1.0, 8.0)
    monkeypatch.setattr(rehearsing, "try_steps", lambda *args: (steps, 0, []))
    recipe = build_recipe(recipe_content(tmp_path))
    one = dry_run(recipe, device_kind="cpu")
    file = tmp_path / "cpus.yaml"
    for machines, times in ((1, 4), (2, 2)):
        file.write_text(f"distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: {machines}\n")
        many = dry_run(recipe, device_kind="cpu", accelerate=file)
        # Of as many steps, each of four batches
        assert many.tokens_per_step == 4 * one.tokens_per_step
        assert many.hours == pytest.approx(times * one.hours)
        assert dry_run(recipe, device_kind="h100", accelerate=file).hours == pytest.approx(
            dry_run(recipe, device_kind="h100").hours
        )
    assert ("tokens per step", f"{many.tokens_per_step:,}", "4 processes of this machine") in figures(many)
    assert "note: 4 processes share the processors of 2 machines like this one" in notes(many)


def test_pairs_that_are_here_are_read(recipe_content, tmp_path, monkeypatch):
    file = tmp_path / "pairs.tsv"
    # Sources of 2 and 4 symbols and an end, targets of 1 and an end; one in ten is too long
    lines = ["a b\tx\n", "a b a b\tx\n"] * 9 + ["a b a b a b\tx\n"] * 2
    file.write_text("".join(lines))
    changes = {
        "data": {
            "source": str(tmp_path / "nowhere.tsv"),
            "train": {"source": str(file), "header": False},
            "max_source_length": 5,
        },
        "training__max_steps": -1,
        "training__epochs": 3,
        "training__batch_tokens": 24,
    }
    recipe = build_recipe(recipe_content(tmp_path, **changes))
    told = dry_run(recipe, device_kind="h100")
    assert (told.shape.source, told.shape.target, told.shape.rows) == (4, 2, 4)
    # 18 pairs, 4 a batch
    assert told.steps == 3 * 5
    # a, b, x, and four that every vocabulary has
    assert told.vocabulary == 7
    assert "note: vocabulary and lengths of 18 pairs for training, which were read" in notes(told)
    monkeypatch.setattr(rehearsing, "_OWN", 5)
    told = dry_run(recipe, device_kind="h100")
    assert told.vocabulary == 8000
    # Those at 0, 4, ... 16 are short, and none of them is left out
    assert (told.shape.source, told.steps) == (3, 3 * 5)
    assert "note: lengths of 5 of 20 pairs for training, which were read" in notes(told)
    changes |= {"training__batch_tokens": 100}
    changes["data"]["train"] = {"source": "someone/pairs"}
    told = dry_run(build_recipe(recipe_content(tmp_path, **changes)))
    assert told.steps is None
    assert any("--source-length and --target-length say otherwise" in note for note in notes(told))


def test_a_large_model_is_cut_for_the_steps_and_nothing_else(recipe_content, tmp_path, monkeypatch):
    model = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 8, "max_position_embeddings": 64}
    changes = {
        "family": "gpt",
        "model": model,
        "data": {"source": "someone/text", "block_size": 32},
        "tokenizer": {"kind": "byte-bpe", "vocab_size": 2000},
        "evaluation": {"metrics": ["cross_entropy"], "best_metric": "cross_entropy"},
    }
    recipe = build_recipe(recipe_content(tmp_path, **changes))
    whole = dry_run(recipe)
    monkeypatch.setattr(trial, "_STEP_PARAMETERS", 1000)
    cut = dry_run(recipe)
    assert cut.parameters == whole.parameters == whole.trained.parameters
    assert cut.trained.layers == 1
    # A layer of 8 x 32 + 8 x 8 x ... and a thousand words of 8
    assert cut.trained.parameters < 1000 * 8 + 64 * 8 + 1000
    assert cut.flops_per_step == whole.flops_per_step
    assert cut.memory.activations == pytest.approx(whole.memory.activations, rel=0.05)
    with pytest.raises(ValueError, match=r"target_length=9: data\.block_size=32 says it"):
        dry_run(recipe, target_length=9)
    with pytest.raises(ValueError, match="source_length=9 is for pairs of texts"):
        dry_run(recipe, source_length=9)

    training = {"gradient_checkpointing": True, "ema_decay": 0.9}
    changes |= {f"training__{name}": value for name, value in training.items()}
    again = dry_run(build_recipe(recipe_content(tmp_path, **changes)))
    assert again.flops_per_step == pytest.approx(4 / 3 * whole.flops_per_step)
    # One layer, and for each of the two others what it reads: 8 numbers of each of 64 tokens
    assert again.memory.activations < whole.memory.activations / 2
    # Two moments, and the average
    assert again.memory.optimizer == 12 * again.parameters


@pytest.fixture
def adapting(recipe_content, tmp_path):
    """A recipe of LoRA on a GPT of one layer, 8 wide, whose numbers are few enough to count."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    hf_attnzoo.GPTForCausalLM(hf_attnzoo.GPTConfig(vocab_size=30, **sizes)).save_pretrained(tmp_path / "start")

    def adapting(**lora):
        changes = {
            "family": "gpt",
            "model": {},
            "pretrained": {"model": str(tmp_path / "start")},
            "data": {"source": "someone/text", "block_size": 10},
            "tokenizer": {},
            "generation": {},
            "evaluation": {"metrics": ["cross_entropy"], "best_metric": "cross_entropy"},
        }
        content = recipe_content(tmp_path / "run", **changes)
        content["training"] |= {"batch_tokens": 40, "lora": lora}
        return build_recipe(content)

    return adapting


def test_lora_trains_its_factors_alone(adapting):
    told = dry_run(adapting(rank=2))
    # Words, positions, queries with keys and values, output, up, down, and three norms
    weights, biases = 24 * 8 + 8 * 8 + 32 * 8 + 8 * 32, 24 + 8 + 32 + 8
    assert told.parameters == 30 * 8 + 16 * 8 + weights + biases + 3 * 16 == 1256
    # Two rows as long as a layer's input, and two columns as long as its output
    factors = 2 * ((8 + 24) + (8 + 8) + (8 + 32) + (32 + 8))
    assert told.trained_parameters == factors == 256
    assert told.memory.weights == 4 * (1256 + 256)
    assert told.memory.gradients == 4 * 256
    assert told.memory.optimizer == 8 * 256
    assert dry_run(adapting(rank=2), devices=2).memory.gradients == 2 * 4 * 256
    # Frozen weights have no gradient: forward, and the gradient of what they read; no word is known before the first.
    rows, length = 4, 10
    products = length * (2 * weights + 3 * factors) + (length - 1) * 2 * 30 * 8
    assert told.flops_per_step == 2 * rows * products + 3 * 4 * rows * length * length * 8
    row = next(row for row in figures(told) if row[0] == "trained parameters")
    assert row[1:] == ("256", "LoRA of rank 2 on 4 linear layers")
    assert told.to_dict()["trained_parameters"] == 256

    one = dry_run(adapting(rank=3, target_modules=["down_proj"]))
    assert one.trained_parameters == 3 * (32 + 8)
    assert ("trained parameters", "120", "LoRA of rank 3 on 1 linear layer") in figures(one)


def test_lora_is_told_of_what_is_here_alone(adapting, tmp_path):
    with pytest.raises(ValueError, match=r"strategy='zero2' shards what is trained, and training\.lora\.rank=2"):
        dry_run(adapting(rank=2), strategy="zero2")
    recipe = adapting(rank=2)
    recipe.pretrained.model = "someone/model"
    with pytest.raises(ValueError, match=r"pretrained\.model='someone/model' is no folder here, and a dry run"):
        dry_run(recipe)
    hf_attnzoo.RNNLMConfig().save_pretrained(tmp_path / "other")
    recipe.pretrained.model = str(tmp_path / "other")
    with pytest.raises(ValueError, match=r"other' is of the type attnzoo_rnnlm, .*: it takes one of attnzoo_gpt"):
        dry_run(recipe)
    (tmp_path / "start" / "model.safetensors").write_bytes(b"noise")
    with pytest.raises(ValueError, match="its weights can't be read"):
        dry_run(adapting(rank=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_kind": "abacus"}, "device_kind='abacus' is none of h200, h100"),
        ({"strategy": "magic"}, "strategy='magic' is none of ddp"),
        ({"devices": -1}, "devices=-1 must be at least 1"),
        ({"target_length": 100}, "training.batch_tokens=64 holds no row of"),
        ({"utilization": 2.0}, "utilization=2.0 must be above 0 and up to 1"),
        ({"utilization": 0.5, "device_kind": "cpu"}, "utilization=0.5 is measured with device_kind='cpu'"),
    ],
)
def test_what_makes_no_sense_is_refused(recipe_content, tmp_path, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dry_run(build_recipe(recipe_content(tmp_path)), **options)


def test_the_command_prints_a_table_or_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    command = ["train", "reversal", "--dry-run", "--devices", "2"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert told["devices"] == 2
    assert told["memory"]["total"] == sum(value for name, value in told["memory"].items() if name != "total")
    assert f"{told['parameters']:,}" in done.stdout
    assert f"{told['tokens']:,}" in done.stdout
    assert "note: 10% of the peak of one a100-80gb" in done.stdout


def test_options_of_a_dry_run_are_for_one():
    for options in (["--devices", "2"], ["--json"]):
        done = CliRunner().invoke(app, ["train", "quickstart", *options])
        assert done.exit_code == 2
        assert f"{options[0]} is for --dry-run, which is missing" in done.output
