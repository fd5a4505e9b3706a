"""The trainer: its arithmetic, its choice of a checkpoint, and several processes."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_attnzoo.data import load_source, tokenize_pairs
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes.building import build_model, build_trainer, generation_config
from hf_attnzoo.recipes.schema import EvaluationSection
from hf_attnzoo.recipes.tasks import make_task
from hf_attnzoo.recipes.trainer import decode_rows, text_metrics
from hf_attnzoo.registry import FAMILIES

ROOT = Path(__file__).parents[2]

# Sources of 13, 9 and 5 letters with targets of 1, 5 and 9: 16 tokens a pair, `</s>` on either side included.
RAGGED = Dataset.from_dict(
    {"source": ["a " * 12 + "b", "a b " * 4 + "b", "b b a a b"], "target": ["a", "b " * 4 + "a", "a " * 8 + "b"]}
)


@pytest.fixture
def trainer_for(recipe_content, tmp_path):
    """A trainer of the tiny recipe with changes, for the rows of a dataset."""

    def make(rows, name="run", **changes):
        recipe = build_recipe(recipe_content(tmp_path / name, **changes))
        torch.manual_seed(0)
        task = make_task("seq2seq", recipe)
        tokenizer = task.build_processor(rows)
        model = build_model(recipe, FAMILIES["rnnsearch"], task, tokenizer)
        model.generation_config = generation_config(recipe, model, 10)
        tokens = tokenize_pairs(rows, tokenizer)
        datasets = {"train": tokens, "validation": tokens}
        return build_trainer(recipe, task, model, tokenizer, datasets, rows, Console(quiet=True))

    return make


def test_predictions_are_one_for_each_row_and_in_order(tiny_run, recipe_content, tmp_path):
    rows = load_source("reverse", "test", size=5, min_length=1, max_length=4, symbols=5)
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny_run.model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_run.model)
    tokens = tokenize_pairs(rows, tokenizer)
    recipe = build_recipe(recipe_content(tmp_path, training__eval_batch_size=2))
    task = make_task("seq2seq", recipe)
    datasets = {"train": tokens, "validation": tokens}
    trainer = build_trainer(recipe, task, model, tokenizer, datasets, rows, Console(quiet=True))
    assert trainer.args.eval_batch_size == 2
    outputs = decode_rows(tokenizer, trainer.predict(tokens).predictions)
    alone = []
    for source in rows["source"]:
        ids = model.generate(**tokenizer(source, return_tensors="pt"))
        alone.append(tokenizer.decode(ids[0], skip_special_tokens=True))
    assert outputs == alone
    assert len(set(alone)) > 2
    # What the trainer wrote into them for itself is gone.
    assert model.generation_config.max_length is None
    assert model.generation_config.max_new_tokens == 6


def one_step(trainer):
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train()
    assert trainer.state.global_step == 1
    return {name: tensor - before[name] for name, tensor in trainer.model.state_dict().items()}


def test_three_batches_of_one_row_make_the_step_of_one_batch_of_three(trainer_for):
    plain = {"training__optimizer": "sgd", "training__scheduler": "constant", "training__max_grad_norm": 0}
    plain |= {"training__learning_rate": 1.0, "training__warmup_steps": 0, "training__max_steps": 1}
    # The longest source and the longest target are 14 and 10 tokens: three rows in a batch are 72.
    together = trainer_for(RAGGED, "together", training__batch_tokens=72, **plain)
    apart = trainer_for(RAGGED, "apart", training__batch_tokens=16, training__gradient_accumulation_steps=3, **plain)
    assert len(together.get_train_dataloader()) == 1
    assert len(apart.get_train_dataloader()) == 3
    together, apart = one_step(together), one_step(apart)
    assert max(float(change.abs().max()) for change in together.values()) > 0.01
    for name, change in together.items():
        torch.testing.assert_close(apart[name], change, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("token_error_rate", [0.9, 0.2, 0.5], 4),
        ("token_accuracy", [0.9, 0.2, 0.5], 2),
        ("bleu", [10.0, 10.5, 60.0], 6),
    ],
)
def test_the_best_checkpoint_is_the_lowest_error_or_the_highest_score(trainer_for, metric, scores, best):
    rows = load_source("reverse", "test", size=5, min_length=1, max_length=4, symbols=5)
    choice = {"evaluation__metrics": [metric], "evaluation__best_metric": metric}
    trainer = trainer_for(rows, training__max_steps=6, training__save_total_limit=1, **choice)
    scores = iter(scores)
    trainer.compute_metrics = lambda prediction: {metric: next(scores)}
    trainer.train()
    assert Path(trainer.state.best_model_checkpoint).name == f"checkpoint-{best}"
    saved = load_file(Path(trainer.args.output_dir) / f"checkpoint-{best}" / "model.safetensors")
    assert all(saved[name].equal(tensor) for name, tensor in trainer.model.state_dict().items())


def test_of_equal_scores_the_lower_loss_is_the_better_one(trainer_for, monkeypatch):
    rows = load_source("reverse", "test", size=5, min_length=1, max_length=4, symbols=5)
    # Steps 2 to 14: the score rises at 4; of those as good 8 has the lowest loss, and the three after it no lower one.
    scores, losses = iter([0, 1, 1, 1, 1, 0, 1]), iter([9.0, 5.0, 6.0, 4.0, 4.0, 3.0, float("nan")])
    metrics = {"evaluation__metrics": ["token_accuracy"], "evaluation__best_metric": "token_accuracy"}
    trainer = trainer_for(rows, training__max_steps=50, training__patience=3, training__eval_steps=2, **metrics)
    trainer.compute_metrics = lambda prediction: {"token_accuracy": next(scores)}
    loop = type(trainer).evaluation_loop

    def evaluation_loop(trainer, *args, **kwargs):
        output = loop(trainer, *args, **kwargs)
        output.metrics["eval_loss"] = next(losses)
        return output

    monkeypatch.setattr(type(trainer), "evaluation_loop", evaluation_loop)
    trainer.train()
    assert trainer.state.global_step == 14
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-8"
    saved = load_file(Path(trainer.args.output_dir) / "checkpoint-8" / "model.safetensors")
    assert all(saved[name].equal(tensor) for name, tensor in trainer.model.state_dict().items())


def test_scores_during_training_are_of_the_texts():
    # Ids of a made-up tokenizer: 1 is padding.
    class Letters:
        pad_token_id = 1

        def batch_decode(self, rows, skip_special_tokens):
            assert skip_special_tokens
            return ["".join(chr(token) for token in row if token > 3) for row in np.asarray(rows).tolist()]

    class Prediction:
        predictions = np.array([[2, 97, 98, 3, 1], [2, 97, 3, -100, -100]])

    evaluation = EvaluationSection(metrics=["exact_match", "token_error_rate"], tokenize="char")
    scores = text_metrics(Letters(), evaluation, ["ab", "abcd"])(Prediction())
    # `a` lacks three letters of `abcd`, of six in all.
    assert scores == {"exact_match": 0.5, "token_error_rate": 0.5}
    # Of corrections: the error is left in, as in the example of GLEU's own tests
    evaluation = EvaluationSection(metrics=["gleu"], best_metric="gleu", tokenize="char")
    Prediction.predictions = np.array([[97, 98, 99, 100, 101, 120]])
    scores = text_metrics(Letters(), evaluation, ["abcdef"], ["abcdex"])(Prediction())
    assert scores == {"gleu": pytest.approx(100 * (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)}
    with pytest.raises(ValueError, match="has 'gleu', which is for corrections"):
        text_metrics(Letters(), evaluation, ["abcdef"])


def test_a_terminal_gets_its_cursor_back_when_training_breaks(trainer_for, monkeypatch):
    trainer = trainer_for(RAGGED)
    screen = io.StringIO()
    trainer.progress_report.console = Console(file=screen, force_terminal=True, width=100)

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "training_step", fail)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert screen.getvalue().count(hide) == screen.getvalue().count(show) == 1
    assert screen.getvalue().index(hide) < screen.getvalue().index(show)


def test_a_terminal_sees_a_bar(trainer_for):
    trainer = trainer_for(RAGGED)
    screen = io.StringIO()
    trainer.progress_report.console = Console(file=screen, force_terminal=True, width=120)
    trainer.train()
    printed = re.sub(r"\x1b\[[\d;?]*\w", "", screen.getvalue())
    assert "training" in printed
    assert "4/4" in printed
    assert "target tokens/s" in printed
    assert "step 4/4 · validation: loss" in printed


def test_two_processes_do_what_one_does_with_twice_the_batches(recipe_content, tmp_path):
    # Five test rows in batches of two: the second process gets copies to fill up with.
    plain = {"training__optimizer": "sgd", "training__scheduler": "constant", "training__warmup_steps": 0}
    plain |= {"training__learning_rate": 0.5, "training__max_steps": 3, "training__eval_steps": 3}
    plain |= {"evaluation__samples": 5}
    content = recipe_content(tmp_path / "two", **plain)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(ROOT / "training" / "train.py"), str(tmp_path / "recipe.yaml")],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    # One of them speaks.
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.startswith("train: ")]) == 1
    assert len([line for line in lines if line.startswith("step 3/3 · loss")]) == 1
    assert len([line for line in lines if line.startswith("loaded back from")]) == 1

    one = run_recipe(build_recipe(recipe_content(tmp_path / "one", training__gradient_accumulation_steps=2, **plain)))
    half = run_recipe(build_recipe(recipe_content(tmp_path / "half", **plain)))
    two = tmp_path / "two" / "model"
    weights = {folder: load_file(folder / "model.safetensors") for folder in (one.model, two, half.model)}
    for name, tensor in weights[one.model].items():
        torch.testing.assert_close(weights[two][name], tensor, rtol=1e-4, atol=1e-6)
    # So close is nothing else.
    assert max(float((weights[half.model][name] - tensor).abs().max()) for name, tensor in weights[two].items()) > 1e-2
    card = (two / "README.md").read_text()
    assert "in 2 processes; the recipe's batch is that of one of them: a step takes 2 x 1 = 2 batches." in card
    assert "processes" not in (one.model / "README.md").read_text()
    scores = json.loads((two / "metrics.json").read_text())
    assert scores["metrics"] == one.metrics
    assert scores["steps"] == 3
    assert AutoModelForSeq2SeqLM.from_pretrained(two).config.vocab_size == len(AutoTokenizer.from_pretrained(two))
    sources = [source for source, _, _ in one.samples]
    assert [item["translation_text"] for item in pipeline("attnzoo-translation", model=str(two))(sources)] == [
        output for _, _, output in one.samples
    ]
