"""The recipe that learns from prompts, cut short, and what is measured of its model."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hf_attnzoo.cli import app
from hf_attnzoo.data import in_context_episodes
from hf_attnzoo.evaluation import in_context_accuracy, longest_prompt
from hf_attnzoo.recipes import find_recipe, load_recipe, run_recipe


def test_the_recipe_trains_a_model_that_is_asked_what_it_can_read(tmp_path):
    small = ["data.train.size=60", "data.validation.size=4", "data.test.size=8", "training.max_steps=2"]
    small += ["training.eval_steps=2", "model.hidden_size=16", "model.num_hidden_layers=1", "evaluation.samples=1"]
    small += ["training.batch_tokens=512", "training.eval_batch_size=4", "generation.max_new_tokens=3"]
    small += ["model.max_position_embeddings=64", "data.block_size=60", "data.test.skip=1", "data.test.take=3"]
    result = run_recipe(load_recipe(find_recipe("in-context"), [*small, f"output={tmp_path / 'run'}"]))
    assert result.metrics["cross_entropy"] > 0
    model, tokenizer = (each.from_pretrained(result.model) for each in (AutoModelForCausalLM, AutoTokenizer))
    episodes = in_context_episodes("test", 8, letters=8, max_length=3, same_length=True, kinds=["map"])[1:4]
    # `<s>`, eight characters an example, and of the query all but the last: 8 examples would be 72 tokens.
    assert [longest_prompt(tokenizer, episodes, shots) for shots in (4, 8)] == [40, 72]
    scores = in_context_accuracy(model, tokenizer, episodes, shots=(0, 1, 2, 4))
    saved = json.loads((result.model / "metrics.json").read_text())["shots"]
    assert [(each["shots"], each["total"]) for each in saved] == [(0, 3), (1, 3), (2, 3), (4, 3)]
    assert [each["right"] for each in saved] == [score.right for score in scores]
    # `attnzoo evaluate` reads each prompt by itself too, and counts the answers alone, as the folder tells it
    assert json.loads((result.model / "metrics.json").read_text())["reading"] == {
        "join_texts": False,
        "answers_after": ">",
        "block_size": 60,
    }
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"text": each.text}) + "\n" for each in episodes))
    command = ["evaluate", str(result.model), str(tmp_path / "prompts.jsonl"), "--json"]
    report = json.loads(CliRunner().invoke(app, command).stdout)
    assert report["cross_entropy"] == pytest.approx(result.metrics["cross_entropy"], rel=1e-5)
    assert report["cross_entropy_signature"] == result.metrics["cross_entropy_signature"]
    assert "|texts:apart|after:'>'|" in report["cross_entropy_signature"]
    assert "bits_per_byte" not in report
    told = json.loads(CliRunner().invoke(app, [*command, "--join-texts", "--answers-after", ""]).stdout)
    # All characters but the first `<s>`, and an end after all prompts but the last
    assert told["tokens"] == sum(len(each.text) + 1 for each in episodes) - 1
    assert told["bits_per_byte"] > 0
    refused = CliRunner().invoke(app, [*command, "--metrics", "bits_per_byte"])
    assert refused.exit_code == 2
    assert "is of all tokens" in refused.stderr
    assert (result.model / "shots.png").read_bytes().startswith(b"\x89PNG")
    assert "shots.png" in (result.model / "README.md").read_text()
    # Every character of the prompts is known
    assert tokenizer.unk_token_id not in tokenizer(episodes[0].text)["input_ids"]
