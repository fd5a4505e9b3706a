"""`attnzoo few-shot`, in process: what it prints is what the pipeline says."""

import json

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, pipeline
from typer.testing import CliRunner

import hf_attnzoo
from hf_attnzoo.cli import app
from hf_attnzoo.data import load_few_shot_task

TEMPLATE = 'template: "{source}: {target}"\nexamples:\n- {source: ab, target: x}\n- {source: cd, target: y}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2") / "model"
    tokenizer = hf_attnzoo.train_tokenizer("byte-bpe", ["Review: good film. Sentiment: positive"] * 2, causal=True)
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 1024}
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), initializer_range=0.5, **sizes, **ids))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pipe(folder):
    return pipeline("attnzoo-few-shot", model=str(folder), device="cpu")


def call(*arguments, stdin=None, fails=False):
    result = CliRunner().invoke(app, ["few-shot", *map(str, arguments)], input=stdin)
    assert result.exit_code == (2 if fails else 0), result.output
    return result.stderr if fails else result.stdout


def test_labels_of_a_built_in_task(folder, pipe):
    task = load_few_shot_task("sentiment")
    expected = pipe("a fine film", shots=2, calibrate=True, return_scores=True, **task)
    printed = call(folder, "sentiment", "a fine film", "--shots", 2, "--calibrate", "--scores")
    assert printed == "".join(f"{one['score']:.4f}\t{one['label']}\n" for one in expected)
    assert call(folder, "sentiment", "a fine film", "--shots", 2, "--calibrate") == f"{expected[0]['label']}\n"
    other = pipe("a fine film", shots=0, **(task | {"labels": ["good", "bad"]}))["label"]
    assert call(folder, "sentiment", "a fine film", "--shots", 0, "--labels", "good, bad") == f"{other}\n"


def test_a_file_lines_of_standard_input_and_other_examples(folder, pipe, tmp_path):
    (tmp_path / "task.yaml").write_text(TEMPLATE, encoding="utf-8")
    rows = [
        {"source": "film", "target": "good"},
        {"source": "Review", "target": "film"},
        {"source": "e", "target": "o"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = {"select": "nearest", "embed": "word-overlap", "shots": 1, "max_new_tokens": 4}
    expected = pipe(["a film", "e"], template="{source}: {target}", examples=rows, return_scores=True, **options)
    arguments = (folder, tmp_path / "task.yaml", "--examples", tmp_path / "rows.jsonl", "--select", "nearest")
    arguments += ("--embed", "word-overlap", "--shots", 1, "--max-new-tokens", 4, "--scores")
    printed = call(*arguments, stdin='a film\n{"source": "e"}\n')
    assert printed == "".join(f"{one['score']:.4f}\t{one['generated_text']}\n" for one in expected)


def test_embeds_with_a_model(folder, tmp_path):
    (tmp_path / "task.yaml").write_text(TEMPLATE, encoding="utf-8")
    arguments = (folder, tmp_path / "task.yaml", "ab", "--select", "nearest", "--embed", folder, "--labels", "x,y")
    assert call(*arguments) in ("x\n", "y\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gramar", "x"], "gramar: no such file, and none of the tasks grammar, article, dates, letters, sentiment"),
        (["grammar", "x", "--select", "nearest"], "embed=None: select='nearest' needs"),
        (["grammar", "x", "--shots", "99"], "shots=99 must lie between 0 and the number of examples, 8"),
        (["article", "x"], "the template has title, subtitle"),
        (["grammar", "x", "--examples", "rows.txt"], "rows.txt: examples are read from .jsonl, .tsv or .csv"),
        (["grammar", "x", "--calibrate"], "calibrate=True is for labels"),
    ],
)
def test_what_a_person_got_wrong_is_one_line(folder, arguments, message):
    error = call(folder, *arguments, fails=True)
    assert error.startswith("attnzoo: ")
    assert len(error.splitlines()) == 1
    assert message in error
