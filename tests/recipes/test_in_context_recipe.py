"""The recipe that learns from prompts, cut short, and what is measured of its model."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attnzoo.data import in_context_episodes
from hf_attnzoo.evaluation import in_context_accuracy
from hf_attnzoo.recipes import find_recipe, load_recipe, run_recipe


def test_the_recipe_trains_a_model_that_can_be_asked(tmp_path):
    small = ["data.train.size=60", "data.validation.size=4", "data.test.size=4", "training.max_steps=2"]
    small += ["training.eval_steps=2", "model.hidden_size=16", "model.num_hidden_layers=1", "evaluation.samples=1"]
    small += ["training.batch_tokens=512", "training.eval_batch_size=4", "generation.max_new_tokens=3"]
    result = run_recipe(load_recipe(find_recipe("in-context"), [*small, f"output={tmp_path / 'run'}"]))
    assert result.metrics["cross_entropy"] > 0
    model, tokenizer = (each.from_pretrained(result.model) for each in (AutoModelForCausalLM, AutoTokenizer))
    scores = in_context_accuracy(model, tokenizer, in_context_episodes("test", 5))
    assert [(score.shots, score.total) for score in scores] == [(shots, 5) for shots in (0, 1, 2, 4, 8, 16)]
    # Every character of the prompts is known
    text = in_context_episodes("test", 1)[0].text
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]
