"""LoRA in recipes: adapters alone are trained, both they and the merged model are saved, and a killed run goes on."""

import json
import re

import pytest
import torch
import transformers
from rich.console import Console
from safetensors.torch import load_file

from hf_attnzoo.recipes import build_recipe, dry_run, run_recipe
from hf_attnzoo.recipes import run as run_module

peft = pytest.importorskip("peft")
QUIET = Console(quiet=True)
LAYERS = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.5}
LORA = {"rank": 2, "dropout": 0.1}
TRAINING = {"max_steps": 6, "eval_steps": 2, "learning_rate": 0.05, "warmup_steps": 0, "batch_tokens": 60}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    rows = [{"text": f"{word} house {word} tree", "label": len(word)} for word in ("red", "blue", "pink") * 4]
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "all.txt").write_text("\n".join(row["text"] for row in rows))
    return folder


def content_of(family, output, recipe_content, texts):
    """A recipe of a family: pairs for rnnsearch, text for gpt, classes for bert."""
    content = recipe_content(output, family=family, name=f"tiny-{family}", evaluation__samples=2)
    content["training"] |= TRAINING
    if family != "rnnsearch":
        content |= {"model": dict(LAYERS), "generation": {}, "tokenizer": {"kind": "character"}}
        content["evaluation"] = {"metrics": ["cross_entropy"], "best_metric": "cross_entropy", "samples": 2, "maps": 1}
        content["data"] = {"source": str(texts / "all.txt"), "block_size": 12, "options": {"shares": [0.6, 0.2, 0.2]}}
    if family == "bert":
        content |= {"task": "masked-lm", "tokenizer": {"kind": "wordpiece", "vocab_size": 40}}
    return content


@pytest.fixture(scope="module")
def starts(tmp_path_factory, recipe_content, texts):
    folder, starts = tmp_path_factory.mktemp("starts"), {}
    for family in ("rnnsearch", "gpt", "bert"):
        content = content_of(family, folder / family, recipe_content, texts)
        content["training"] |= {"max_steps": 1, "eval_steps": 1}
        starts[family] = run_recipe(build_recipe(content), QUIET).model
    return starts


def adapted(family, output, recipe_content, texts, starts, **changes):
    content = content_of(family, output, recipe_content, texts)
    content |= {"model": {}, "pretrained": {"model": str(starts[family])}}
    content["training"] |= {"lora": dict(LORA)}
    if family == "bert":
        content |= {"task": "text-classification", "data": {"source": str(texts)}}
        content["evaluation"] |= {"metrics": ["accuracy"], "best_metric": "accuracy"}
    for path, value in changes.items():
        section, _, name = path.partition("__")
        content[section][name] = value
    return build_recipe(content)


class Killed(BaseException):
    """Like a KeyboardInterrupt, but nobody else's."""


HEADS = {
    "rnnsearch": transformers.AutoModelForSeq2SeqLM,
    "gpt": transformers.AutoModelForCausalLM,
    "bert": transformers.AutoModelForSequenceClassification,
}
# What BERT's checkpoint of masked words lacks is trained in full: a pooler of 8 x 8 and a classifier of 2 x 8.
NEW = {"rnnsearch": {}, "gpt": {}, "bert": {"model.pooler.dense": 72, "classifier": 18}}


@pytest.mark.parametrize("family", HEADS)
def test_adapters_alone_are_trained_and_a_killed_run_goes_on(
    family, recipe_content, texts, starts, tmp_path, monkeypatch
):
    result = run_recipe(adapted(family, tmp_path / "run", recipe_content, texts, starts), QUIET)
    base, merged = (load_file(folder / "model.safetensors") for folder in (starts[family], result.model))
    adapter = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    config = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (2, 4, "model")
    factors = {}
    for name, tensor in adapter.items():
        module, _, factor = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        factors.setdefault(module, {})[factor] = tensor
    factors = {module: both for module, both in factors.items() if set(both) == {"lora_A", "lora_B"}}
    assert len(factors) > 3
    # W + alpha / r B A, by hand; what has no factors is the checkpoint's.
    for name, tensor in merged.items():
        module = name.removesuffix(".weight")
        if module in factors:
            both = factors[module]
            expected = base[name].double() + 4 / 2 * both["lora_B"].double() @ both["lora_A"].double()
            torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-6)
            assert not tensor.equal(base[name])
        elif module.removesuffix(".bias") not in NEW[family]:
            assert tensor.equal(base[name]), name
    trained = sum(tensor.numel() for both in factors.values() for tensor in both.values()) + sum(NEW[family].values())
    card = (result.model / "README.md").read_text()
    assert f"Trained with LoRA (Hu et al. 2022) of rank 2: {trained:,} parameters" in card
    # What a dry run has told
    told = dry_run(adapted(family, tmp_path / "run", recipe_content, texts, starts))
    assert told.trained_parameters == trained
    # peft makes the same model of the checkpoint and the adapter.
    whole = HEADS[family].from_pretrained(result.model)
    assert not any("lora" in name for name in whole.state_dict())
    plain = HEADS[family].from_pretrained(starts[family])
    joined = peft.PeftModel.from_pretrained(plain, tmp_path / "run" / "adapter").merge_and_unload()
    for name, tensor in joined.state_dict().items():
        torch.testing.assert_close(tensor, whole.state_dict()[name], rtol=0, atol=1e-6)

    step, kill_at = run_module.ZooTrainer.training_step, [4]

    def killed(trainer, *args, **kwargs):
        if trainer.state.global_step + 1 == kill_at[0]:
            raise Killed
        return step(trainer, *args, **kwargs)

    monkeypatch.setattr(run_module.ZooTrainer, "training_step", killed)
    with pytest.raises(Killed):
        run_recipe(adapted(family, tmp_path / "again", recipe_content, texts, starts), QUIET)
    kill_at[0] = None
    again = run_recipe(adapted(family, tmp_path / "again", recipe_content, texts, starts), QUIET)
    weights = load_file(again.model / "model.safetensors")
    assert [name for name in merged if not merged[name].equal(weights[name])] == []
    folders = [tmp_path / name / "adapter" / "adapter_model.safetensors" for name in ("run", "again")]
    assert folders[0].read_bytes() == folders[1].read_bytes()


def test_layers_are_chosen_by_name_and_averages_are_of_factors(recipe_content, texts, starts, tmp_path, capsys):
    changes = {"training__lora": {"rank": 3, "alpha": 6, "target_modules": ["qkv_proj"]}, "training__ema_decay": 0.5}
    changes |= {"training__gradient_checkpointing": True}
    made = adapted("gpt", tmp_path / "run", recipe_content, texts, starts, **changes)
    result = run_recipe(made, Console(width=200))
    assert "LoRA of rank 3 on 1 linear layer: 96 parameters are trained" in capsys.readouterr().out
    base, merged = (load_file(folder / "model.safetensors") for folder in (starts["gpt"], result.model))
    changed = [name for name in base if not base[name].equal(merged[name])]
    assert len(changed) == 1
    assert "qkv_proj" in changed[0]
    # Another run in the same place, without LoRA, leaves no adapter behind that isn't its own.
    assert (tmp_path / "run" / "adapter").is_dir()
    run_recipe(adapted("gpt", tmp_path / "run", recipe_content, texts, starts, training__lora={}), QUIET)
    assert not (tmp_path / "run" / "adapter").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrained__model": None}, "training.lora.rank=2 is for the weights of a checkpoint"),
        ({"pretrained__tokenizer": "extend"}, "pretrained.tokenizer=extend makes embeddings that have to be trained"),
        ({"training__average_last": 2}, "training.average_last=2 is the mean of weights"),
        ({"training__lora": {"alpha": 3}}, "training.lora.alpha=3 takes training.lora.rank, which is missing"),
        ({"training__lora": {"rank": 0}}, "training.lora.rank=0 must be at least 1"),
        ({"training__lora": {"rank": 2, "alpha": 0}}, "training.lora.alpha=0 must be above 0"),
        ({"training__lora": {"rank": 2, "target_modules": []}}, "training.lora.target_modules=[] must name a layer"),
        ({"training__lora": {"rank": 2, "dropout": 1}}, "training.lora.dropout=1 must be below 1"),
        ({"training__lora": {"rank": 2, "target_modules": ["embed_tokens"]}}, "has 'embed_tokens', which is the name"),
    ],
)
def test_what_makes_no_sense_is_refused(recipe_content, texts, starts, tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run_recipe(adapted("gpt", tmp_path / "run", recipe_content, texts, starts, **changes), QUIET)


def test_folders_of_others_are_left_alone(recipe_content, texts, starts, tmp_path):
    (tmp_path / "run" / "adapter").mkdir(parents=True)
    # As peft writes them, but not of a run
    (tmp_path / "run" / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "run" / "adapter" / "README.md").write_text("# Mine")
    with pytest.raises(ValueError, match="adapter holds something that no run has written"):
        run_recipe(adapted("gpt", tmp_path / "run", recipe_content, texts, starts), QUIET)
