"""A language model from a recipe: its scores against those worked out by hand, and what is refused."""

import json
import math
import random
import re

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from typer.testing import CliRunner

from hf_attnzoo import train_tokenizer
from hf_attnzoo.cli import app
from hf_attnzoo.evaluation import TextLikelihood, row_losses
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.trainer import ZooTrainer

MODELS = {
    "gpt": {
        "max_position_embeddings": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": 8,
        "initializer_range": 0.5,
    },
    "rnnlm": {"embedding_size": 8, "hidden_size": 8, "num_layers": 1, "initializer_range": 0.5},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    draw = random.Random(0)
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(draw.choice("abcd \n") for _ in range(2000)))
    return file


def recipe(text, output, family="gpt", **changes):
    content = {
        "name": "tiny-text",
        "family": family,
        "output": str(output),
        "data": {"source": str(text), "options": {"shares": [0.8, 0.1, 0.1]}, "block_size": 9},
        "tokenizer": {"kind": "character"},
        "model": dict(MODELS[family]),
        "training": {
            "max_steps": 4,
            "batch_tokens": 60,
            "warmup_steps": 1,
            "eval_steps": 2,
            "eval_batch_size": 7,
            "logging_steps": 1,
        },
        "generation": {"max_new_tokens": 5},
        "evaluation": {
            "metrics": ["cross_entropy", "perplexity", "bits_per_character"],
            "best_metric": "cross_entropy",
            "samples": 3,
            "maps": 0,
        },
    }
    for path, value in changes.items():
        section, name = path.split("__")
        content[section][name] = value
    return build_recipe(content)


@pytest.fixture(scope="module")
def written(text, tmp_path_factory):
    """Folder of a small GPT that was trained a little."""
    return run_recipe(recipe(text, tmp_path_factory.mktemp("gpt") / "run"), Console(quiet=True)).model


@pytest.mark.parametrize("family", MODELS)
def test_the_scores_are_those_of_the_saved_model(text, tmp_path, family):
    result = run_recipe(recipe(text, tmp_path / "run", family), Console(quiet=True))
    model = AutoModelForCausalLM.from_pretrained(result.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    test = text.read_text()[1800:]
    ids = tokenizer(test, add_special_tokens=False)["input_ids"]
    assert len(ids) == 200
    # <s> and eight letters a block
    total = 0.0
    for first in range(0, 200, 8):
        block = torch.tensor([[2, *ids[first : first + 8]]])
        with torch.no_grad():
            log_probs = model(input_ids=block).logits[0, :-1].log_softmax(-1)
        total -= log_probs.gather(1, block[0, 1:, None]).sum().item()
    assert result.metrics["cross_entropy"] == pytest.approx(total / 200, rel=1e-5)
    assert result.metrics["perplexity"] == pytest.approx(math.exp(total / 200), rel=1e-4)
    assert result.metrics["bits_per_character"] == pytest.approx(total / 200 / math.log(2), rel=1e-5)
    assert result.metrics["cross_entropy_signature"] == "block:9|tokens:200"
    # The same by the command. A block at a time, and not all in one batch
    data = [str(text), "split=test", "shares=[0.8, 0.1, 0.1]"]
    options = ["--block-size", "9", "--batch-size", "3", "--json"]
    done = CliRunner().invoke(app, ["evaluate", str(result.model), *data, *options])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tokens"] == 200
    for name in ("cross_entropy", "perplexity", "bits_per_character", "bits_per_byte"):
        # Every letter of the text is a byte
        expected = result.metrics["bits_per_character" if name == "bits_per_byte" else name]
        assert report[name] == pytest.approx(expected, rel=1e-5)
        assert report[f"{name}_signature"] == "block:9|tokens:200"
        low, high = report["intervals"][name]
        assert low < expected < high

    prompt, goes_on, output = result.samples[0]
    # A block of the text: eight letters are no more than a prompt may have, so nothing is left to go on with.
    assert (prompt, goes_on) == (test[:8], "")
    write = pipeline("text-generation", model=str(result.model))
    assert write(prompt, return_full_text=False, do_sample=False)[0]["generated_text"] == output
    card = (result.model / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card
    assert 'write = pipeline("text-generation", model="path/to/this/folder")' in card
    assert not (result.model / "attention.png").exists()
    assert result.next_command[:2] == ["attnzoo", "write"]


@pytest.mark.parametrize("options", [[], ["--max-new-tokens", "3"], ["--temperature", "0"]], ids=" ".join)
def test_write_goes_on_as_the_model_would(written, options):
    # Settings of the model: greedy, five tokens
    model = AutoModelForCausalLM.from_pretrained(written)
    tokenizer = AutoTokenizer.from_pretrained(written)
    count = 3 if "3" in options else 5
    ids = model.generate(**tokenizer("ab ba", return_tensors="pt", return_token_type_ids=False), max_new_tokens=count)
    done = CliRunner().invoke(app, ["write", str(written), "ab ba", *options])
    assert done.exit_code == 0, done.output
    assert done.stdout == tokenizer.decode(ids[0], skip_special_tokens=True) + "\n"


def test_write_draws_by_its_seed(written):
    def write(*options: str) -> str:
        return CliRunner().invoke(app, ["write", str(written), "ab", "--temperature", "5", *options]).stdout

    assert write("--seed", "1") == write("--seed", "1")
    assert len({write("--seed", str(seed)) for seed in range(5)}) > 2


def test_row_losses_by_hand():
    # Two letters, the second e times as likely as the first: ln(1 + e) and ln(1 + e) - 1
    logits = torch.tensor([0.0, 1.0]).expand(2, 3, 2)
    labels = torch.tensor([[0, 0, 1], [1, 1, -100]])
    low, high = math.log(1 + math.e), math.log(1 + math.e) - 1
    torch.testing.assert_close(row_losses(logits, labels), torch.tensor([[low + high, 2.0], [high, 1.0]]))
    torch.testing.assert_close(row_losses((logits, None), labels), row_losses(logits, labels))


def test_a_lower_score_is_a_better_one(text, tmp_path, monkeypatch):
    # Rehearsed by nothing: the first is of step 2
    scores = iter([3.0, 2.0, 2.5, 2.1])
    monkeypatch.setattr(TextLikelihood, "score", lambda *args: next(scores))
    changes = {"training__max_steps": 50, "training__patience": 2, "evaluation__metrics": ["cross_entropy"]}
    result = run_recipe(recipe(text, tmp_path / "run", **changes), Console(quiet=True))
    # Steps 2 and 4 are better than what was before them, 6 and 8 are not.
    assert json.loads((result.model / "metrics.json").read_text())["steps"] == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__block_size": None}, "data.block_size is missing"),
        ({"data__block_size": 1}, "data.block_size=1 must be at least 2"),
        ({"data__block_size": 60}, "40"),
        ({"data__max_source_length": 9}, "data.max_source_length=9 means nothing to a language model"),
        ({"data__on_too_long": "raise"}, "data.on_too_long=raise means nothing to a language model"),
        ({"evaluation__lowercase": True}, "evaluation.lowercase=True means nothing to a language model"),
        ({"evaluation__tokenize": "char"}, "evaluation.tokenize=char means nothing to a language model"),
        ({"tokenizer__kind": ["word", "word"]}, "must be one value: there is one vocabulary"),
        ({"tokenizer__shared": True}, "tokenizer.shared=True is for pairs of texts"),
        ({"evaluation__metrics": ["bleu"], "evaluation__best_metric": "bleu"}, "those of a language model are"),
        ({"generation__max_new_tokens": 60}, "40"),
        ({"generation__num_beans": 2}, "generation.num_beans is unknown"),
        ({"model__vocab_size": 2}, "model.vocab_size follows from the tokenizer"),
    ],
)
def test_what_can_not_be_done_is_refused_before_training(text, tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("it went as far as training"))
    with pytest.raises(ValueError, match=re.escape(message)):
        run_recipe(recipe(text, tmp_path / "run", **changes), Console(quiet=True))


class Killed(BaseException):
    """Like a KeyboardInterrupt, but nobody else's."""


def test_shifted_blocks_differ_between_epochs_and_go_on_where_they_were(text, tmp_path, monkeypatch):
    seen, kill_at = [], None
    step = ZooTrainer.training_step

    def spy(trainer, model, inputs, *args, **kwargs):
        if trainer.state.global_step + 1 == kill_at:
            raise Killed
        seen.append(inputs["input_ids"].tolist())
        return step(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(ZooTrainer, "training_step", spy)
    # 1600 letters are 200 blocks of 8, of which 199 fit wherever they begin; 66 to a batch, four batches an epoch.
    changes = {"data__shift_blocks": True, "training__batch_tokens": 9 * 66, "training__max_steps": 10}
    run_recipe(recipe(text, tmp_path / "whole", **changes), Console(quiet=True))
    whole = seen.copy()
    assert [len(batch) for batch in whole] != [66] * 10
    epochs = [[tuple(row[1:]) for batch in whole[first : first + 4] for row in batch] for first in (0, 4)]
    letters = train_tokenizer("character", [text.read_text()[:1600]], causal=True)
    train = letters(text.read_text()[:1600], add_special_tokens=False)["input_ids"]
    shifts = []
    for rows in epochs:
        found = [
            shift
            for shift in range(8)
            if sorted(rows) == sorted(tuple(train[shift + 8 * row : shift + 8 * row + 8]) for row in range(199))
        ]
        assert len(found) == 1
        shifts += found
    assert shifts[0] != shifts[1]

    seen.clear()
    kill_at = 8
    with pytest.raises(Killed):
        run_recipe(recipe(text, tmp_path / "run", **changes), Console(quiet=True))
    kill_at = None
    run_recipe(recipe(text, tmp_path / "run", **changes), Console(quiet=True))
    # Steps 1 to 7, then from the checkpoint at 6, in the middle of the second epoch.
    assert seen == whole[:7] + whole[6:]


def test_pairs_have_no_blocks_to_shift(recipe_content, tmp_path):
    with pytest.raises(ValueError, match=r"data\.shift_blocks=True is for language models"):
        run_recipe(build_recipe(recipe_content(tmp_path / "run", data__shift_blocks=True)), Console(quiet=True))
