"""However many processes there are, a run does what one process does, and nothing of it is lost."""

import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import scale_workers
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_attnzoo.recipes import build_recipe
from hf_attnzoo.recipes.building import heed_launcher
from hf_attnzoo.recipes.resume import last_complete_checkpoint

ROOT = Path(__file__).parents[2]

SGD = {
    "optimizer": "sgd",
    "scheduler": "constant",
    "warmup_steps": 0,
    "max_grad_norm": 0.0,
    "learning_rate": 0.5,
    "max_steps": 3,
    "eval_steps": 3,
    "logging_steps": 1,
    "eval_batch_size": 2,
}
SMALL = {"hidden_size": 8, "dropout": 0.0}
LAYERS = {"num_attention_heads": 2, "attention_dropout": 0.0, "initializer_range": 0.5}
FAMILIES = {
    "rnnsearch": {**SMALL, "embedding_size": 8, "maxout_size": 8, "initializer_range": 0.5},
    "luong": {**SMALL, "embedding_size": 8, "initializer_range": 0.5},
    "transformer": {**SMALL, **LAYERS, "num_encoder_layers": 1, "num_decoder_layers": 1, "intermediate_size": 8},
    "rnnlm": {**SMALL, "embedding_size": 8, "num_layers": 1, "initializer_range": 0.5},
    "gpt": {**SMALL, **LAYERS, "num_hidden_layers": 1, "max_position_embeddings": 40},
    "show_attend_tell": {
        **SMALL,
        "embedding_size": 8,
        "attention_size": 8,
        "image_size": 16,
        "encoder_channels": [4, 8],
        "initializer_range": 0.5,
    },
    "bert": {},
}


def start(processes, work, folder, *args):
    """Run a function of `scale_workers` in several processes, which must all end well."""
    folder.mkdir(parents=True, exist_ok=True)
    # One server imports everything, once, and the processes are forks of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_attnzoo.recipes.run", "hf_attnzoo.models.modeling_bert"])
    group = [context.Process(target=work, args=(rank, processes, folder, *args)) for rank in range(processes)]
    for process in group:
        process.start()
    try:
        for process in group:
            process.join(timeout=900)
        assert [process.exitcode for process in group] == [0] * processes
    finally:
        for process in group:
            process.kill()


@pytest.fixture(scope="module")
def contents(tmp_path_factory, recipe_content):
    """A recipe for every family, by output folder; five rows to validate with in batches of two."""
    folder = tmp_path_factory.mktemp("data")
    text = folder / "text.txt"
    text.write_text("".join("abcd \n"[i * i % 6] + "abc"[i % 3] for i in range(90)))

    def make(family, output):
        content = recipe_content(output, family=family, model=dict(FAMILIES[family]))
        content["training"] |= SGD
        content["data"] |= {"train": {"size": 12}, "validation": {"size": 5}, "test": {"size": 2}}
        if family in ("rnnlm", "gpt"):
            options = {"shares": [0.5, 0.25, 0.25]}
            content["data"] = {"source": str(text), "options": options, "block_size": 9}
            content["tokenizer"] = {"kind": "character"}
            content["evaluation"] = {"metrics": ["cross_entropy"], "best_metric": "cross_entropy"}
        elif family == "show_attend_tell":
            content["data"] |= {"source": "shapes", "options": {"image_size": 32}}
            content["tokenizer"] = {"kind": "word"}
        return content

    return make


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, contents):
    """What two processes make of every family, read from the files of either."""
    folder = tmp_path_factory.mktemp("two")
    recipes = {family: contents(family, str(folder / "run" / family)) for family in FAMILIES}
    start(2, scale_workers.all_families, folder, recipes)
    return lambda family: [scale_workers.recall(folder / f"rank{rank}" / family) for rank in range(2)]


@pytest.fixture(scope="module")
def accumulated(tmp_path_factory, contents):
    """What one process makes of a family that takes two batches a step."""
    folder = tmp_path_factory.mktemp("accumulated")

    @functools.cache
    def train(family):
        return scale_workers.curve(contents(family, str(folder / family)), batches=2, accumulation=2)

    return train


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_two_batches_and_a_double_batch_are_one(two_processes, accumulated, contents, tmp_path, family):
    two, other = two_processes(family)
    assert two["losses"] == other["losses"]
    assert all(other["weights"][name].equal(tensor) for name, tensor in two["weights"].items())

    double = scale_workers.curve(contents(family, str(tmp_path / "b")), batches=1, accumulation=1)
    assert two["batches"] == accumulated(family)["batches"] == 2
    assert double["batches"] == 1
    assert len(two["losses"]) == 3
    # It learns, so that equal curves say something.
    assert two["losses"][2] < two["losses"][0]
    moved = max(float((tensor - two["before"][name]).abs().max()) for name, tensor in two["weights"].items())
    assert moved > 0.01
    for one in (accumulated(family), double):
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
        assert two["before"].keys() == one["before"].keys()
        assert all(one["before"][name].equal(tensor) for name, tensor in two["before"].items())
        for name, tensor in two["weights"].items():
            torch.testing.assert_close(one["weights"][name], tensor, rtol=1e-4, atol=1e-5, msg=f"{family}: {name}")
        # Five rows in batches of two: one process has copies to fill up with, and nobody counts them.
        for score, expected in zip(two["scores"], one["scores"], strict=True):
            assert score == pytest.approx(expected, rel=1e-5)


# Two epochs of five batches, two at a time: a checkpoint at 2 is in the middle of the first, the stop in the second.
STOPPED = {"max_steps": 5, "eval_steps": 2, "logging_steps": 1, "gradient_accumulation_steps": 2, "batch_tokens": 30}


def stoppable(content, **changes):
    content["data"] |= {"train": {"size": 20}, "validation": {"size": 2}, "test": {"size": 2}}
    content["training"] = STOPPED | {"learning_rate": 0.02, "warmup_steps": 1} | changes
    content["model"] |= {"dropout": 0.3}
    content["evaluation"]["samples"] = 0
    return content


def same_model(left, right):
    left, right = (load_file(Path(folder) / "model" / "model.safetensors") for folder in (left, right))
    assert left.keys() == right.keys()
    return all(left[name].equal(tensor) for name, tensor in right.items())


def test_two_processes_that_were_stopped_go_on_as_if_they_had_not_been(recipe_content, tmp_path):
    for family in ("rnnsearch", "transformer"):
        folder = tmp_path / family
        content = stoppable(recipe_content(folder / "whole", family=family, model=dict(FAMILIES[family])))
        start(2, scale_workers.resumed, folder, content, 3)
        assert same_model(folder / "whole", folder / "again")
        written = [json.loads((folder / f"written{rank}.json").read_text()) for rank in range(2)]
        # The second process makes folders for its random numbers, and writes nothing else.
        mine = {Path(path).name for path in written[1] if str(folder) in path}
        assert {name for name in mine if not name.startswith("checkpoint-")} == {"rng_state_1.pth"}
        assert {"run.json", "rng_state_0.pth", "trainer_state.json"} <= {Path(path).name for path in written[0]}


def test_two_processes_train_adapters_and_go_on(recipe_content, tmp_path):
    """Which reverse a word, from the checkpoint of another run."""
    start_from = scale_workers.whole_run(recipe_content(tmp_path / "start", training__max_steps=2))
    content = stoppable(recipe_content(tmp_path / "whole", model={}), lora={"rank": 2, "dropout": 0.2})
    start(2, scale_workers.resumed, tmp_path, content | {"pretrained": {"model": start_from}}, 3)
    assert same_model(tmp_path / "whole", tmp_path / "again")
    factors = [(tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("whole", "again")]
    assert factors[0] == factors[1]
    folders = (Path(start_from), tmp_path / "whole" / "model")
    before, after = (load_file(folder / "model.safetensors") for folder in folders)
    changed = {name for name in before if not before[name].equal(after[name])}
    assert len(changed) > 3
    assert not any("embed" in name or "bias" in name for name in changed)


def test_two_processes_share_out_a_stream_and_go_on(recipe_content, tmp_path):
    # Thirty words of three letters, none of them twice
    words = [f"{'abcde'[row % 5]} {'abcde'[row // 5 % 5]} {'abcde'[row // 25]}" for row in range(30)]
    for split, some in (("train", words), ("validation", words[:3]), ("test", words[:2])):
        lines = [json.dumps({"source": word, "target": word[::-1]}) for word in some]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    content = recipe_content(tmp_path / "whole", training__max_steps=9, training__eval_steps=3, evaluation__samples=0)
    limits = {"max_source_length": 4, "max_target_length": 4}
    content["data"] = {"source": str(tmp_path), "streaming": True, "buffer_size": 6, **limits}
    content["tokenizer"]["train_rows"] = 30
    content["training"]["batch_tokens"] = 24
    start(2, scale_workers.streamed, tmp_path, content, 7)
    assert same_model(tmp_path / "whole", tmp_path / "again")
    passes = []
    for rank in range(2):
        whole, killed, rest = json.loads((tmp_path / f"rows{rank}.json").read_text())
        # Checkpoints are at 3 and 6: it goes on with the batches that would have come.
        assert [number for number, _ in rest] == [6, 7, 8]
        assert killed == whole[:7]
        assert rest == whole[6:]
        texts = [text for _, some in whole for text in some]
        # Three rows a batch: five batches are a pass, and four more are begun of the next.
        assert len(texts) == 27
        passes.append((texts[:15], texts[15:]))
    first = [text for one in passes for text in one[0]]
    assert sorted(first) == sorted(words)
    # The next pass too gives no row to both, nor twice to one.
    again = [text for one in passes for text in one[1]]
    assert len(set(again)) == 24


def launched(name, *options):
    file = ROOT / "training" / "accelerate" / name
    arguments = launch_command_parser().parse_args(["--config_file", str(file), *options, "train.py", "quickstart"])
    arguments, defaults, _ = _validate_launch_command(arguments)
    return arguments, defaults


def test_shards_on_the_processor_train_the_same(contents, accumulated, tmp_path):
    arguments, _ = launched("fsdp2.yaml")
    environment = {
        name: value
        for name, value in prepare_multi_gpu_env(arguments).items()
        if name.startswith(("FSDP", "ACCELERATE_USE"))
    }
    assert environment["FSDP_VERSION"] == "2"
    folder = tmp_path / "group"
    recipes = {family: contents(family, str(tmp_path / family)) for family in FAMILIES}
    start(2, scale_workers.sharded, folder, environment, recipes, "gpt")
    shards = json.loads((folder / "shards0.json").read_text())
    for family in FAMILIES:
        assert shards[f"attnzoo_{family}"]["plain"] == []
        # The embedding, the head and the rest at least; and the layers of those that are made of layers.
        assert shards[f"attnzoo_{family}"]["units"] >= 2
        one, two = accumulated(family), scale_workers.recall(folder / family)
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
        for name, tensor in two["weights"].items():
            torch.testing.assert_close(one["weights"][name], tensor, rtol=1e-4, atol=1e-5, msg=f"{family}: {name}")
    # Embedding and head of GPT are one weight, which a single file holds once.
    saved = load_file(folder / "whole" / "model" / "model.safetensors")
    assert "lm_head.weight" not in saved
    model = AutoModelForCausalLM.from_pretrained(folder / "whole" / "model")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert (folder / "whole" / "model" / "README.md").is_file()


def test_killed_or_out_of_space_at_any_moment_of_saving(recipe_content, tmp_path):
    content = recipe_content("run", training__max_steps=6, evaluation__maps=1, evaluation__samples=1)
    content["training"]["save_total_limit"] = 1
    start(1, scale_workers.killed_while_saving, tmp_path, content)
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert min(counts["killed"].values()) > 20
    assert min(counts["full"].values()) > 1


GPUS = {"multi_gpu": True, "num_processes": 2, "num_machines": 1}


@pytest.mark.parametrize(
    ("name", "expected", "precision"),
    [
        ("cpu.yaml", {"multi_gpu": False, "num_processes": 1, "use_cpu": True}, "no"),
        ("cpus.yaml", {**GPUS, "use_cpu": True}, "no"),
        ("gpu.yaml", {"multi_gpu": False, "num_processes": 1, "use_cpu": False}, "no"),
        ("gpu-bf16.yaml", {"multi_gpu": False, "num_processes": 1}, "bf16"),
        ("gpu-fp16.yaml", {"multi_gpu": False, "num_processes": 1}, "fp16"),
        ("gpus.yaml", {**GPUS, "use_cpu": False, "gpu_ids": "all"}, "no"),
        ("gpus-bf16.yaml", GPUS, "bf16"),
        (
            "nodes.yaml",
            {"multi_gpu": True, "num_processes": 16, "num_machines": 2, "machine_rank": 0},
            "no",
        ),
        ("fsdp2.yaml", {"use_fsdp": True, "multi_gpu": False, "num_processes": 2, "fsdp_version": 2}, "bf16"),
        ("zero3.yaml", {"use_deepspeed": True, "zero_stage": 3, "zero3_save_16bit_model": True}, "bf16"),
    ],
)
def test_accelerate_reads_what_is_written_for_it(name, expected, precision, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    arguments, defaults = launched(name)
    assert {key: getattr(arguments, key) for key in expected} == expected
    assert arguments.mixed_precision == precision
    assert arguments.training_script_args == ["quickstart"]
    # What it doesn't know it would have refused.
    content = yaml.safe_load((ROOT / "training" / "accelerate" / name).read_text())
    read = defaults.to_dict()
    assert {key: read[key] for key in content} == content


def test_launch_files_are_all_tested_and_explained():
    tested = test_accelerate_reads_what_is_written_for_it.pytestmark[0].args[1]
    files = sorted((ROOT / "training" / "accelerate").glob("*.yaml"))
    assert [file.name for file in files] == sorted(name for name, *_ in tested)
    readme = (ROOT / "training" / "accelerate" / "README.md").read_text()
    for file in files:
        for line in file.read_text().splitlines():
            assert not line or line.startswith("#") or "  # " in line, f"{file.name}: {line}"
        assert f"`{file.name}`" in readme


def test_machines_meet_where_the_first_one_says():
    arguments, _ = launched("nodes.yaml", "--machine_rank", "1", "--main_process_ip", "10.0.0.7")
    # On another machine than this one, whose port nobody asks for.
    prepare_multi_gpu_env(arguments)
    assert (arguments.nnodes, arguments.nproc_per_node, arguments.node_rank) == ("2", "8", 1)
    assert (arguments.rdzv_backend, arguments.rdzv_endpoint) == ("static", "10.0.0.7:29500")


def test_deepspeed_is_told_what_the_file_says():
    arguments, _ = launched("zero3.yaml")
    arguments.deepspeed_fields_from_accelerate_config = ""
    _, environment = prepare_deepspeed_cmd_env(arguments)
    said = {name.removeprefix("ACCELERATE_"): value for name, value in environment.items()}
    assert said["USE_DEEPSPEED"] == "true"
    assert said["DEEPSPEED_ZERO_STAGE"] == "3"
    assert said["DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"] == "true"
    assert said["DEEPSPEED_ZERO3_INIT"] == "false"
    assert said["GRADIENT_ACCUMULATION_STEPS"] == said["GRADIENT_CLIPPING"] == "auto"
    assert said["MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize(
    ("environment", "precision", "expected"),
    [
        ({}, "fp32", "fp32"),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, "bf16", "bf16"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "fp32", "bf16"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "fp16", "fp16"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "bf16", "training.precision=bf16, but accelerate launch has"),
        ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "fp32", "has mixed_precision=fp8: set one of them, to fp32, bf16"),
        ({"ACCELERATE_USE_FSDP": "true"}, "fp32", "ACCELERATE_USE_FSDP=true: a model is sharded over accelerators"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "fp32", "ACCELERATE_USE_DEEPSPEED=true: a model is sharded"),
    ],
)
def test_the_recipe_is_that_of_what_is_trained(recipe_content, monkeypatch, environment, precision, expected):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    recipe = build_recipe(recipe_content("run", training__precision=precision))
    if expected in ("fp32", "bf16", "fp16"):
        assert heed_launcher(recipe).training.precision == expected
        assert recipe.training.precision == precision
    else:
        with pytest.raises(ValueError, match=re.escape(expected)):
            heed_launcher(recipe)


@pytest.mark.parametrize(("name", "value"), [("ema_decay", 0.9), ("average_last", 2)])
def test_shards_have_no_averages(recipe_content, monkeypatch, name, value):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    recipe = build_recipe(recipe_content("run", **{f"training__{name}": value}))
    with pytest.raises(ValueError, match=f"training.{name}={value} needs the whole model in every process"):
        heed_launcher(recipe)


FAILING = """
import os, sys
from hf_attnzoo.cli import app
from hf_attnzoo.recipes.trainer import ZooTrainer

step = ZooTrainer.training_step

def spoil(trainer, model, inputs, *args, **kwargs):
    if os.environ["RANK"] == "1" and trainer.state.global_step == 2:
        for parameter in trainer.model.parameters():
            parameter.data.fill_(float("nan"))
    return step(trainer, model, inputs, *args, **kwargs)

ZooTrainer.training_step = spoil
app(["train", *sys.argv[1:]])
"""


def test_an_error_in_one_process_ends_them_all(recipe_content, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe_content(tmp_path / "run", training__max_steps=8)))
    file = ROOT / "training" / "accelerate" / "cpus.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    done = subprocess.run(
        [*launch, str(tmp_path / "failing.py"), str(tmp_path / "recipe.yaml")],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
        check=False,
        # One that waited for the other for ever would be found out here.
        timeout=400,
    )
    assert done.returncode != 0
    assert "attnzoo: step 3: the loss" in done.stderr
    # There were two, and one of them spoke.
    assert len([line for line in done.stdout.splitlines() if line.startswith("train: ")]) == 1
    assert "step 2/8 · validation" in done.stdout
    assert last_complete_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-2"
