"""`pipeline(model=FOLDER)` knows what a folder's model is for, without a network, and with or without the package."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import pipeline
from transformers.pipelines import SUPPORTED_TASKS

import hf_attnzoo
from hf_attnzoo import FewShotPipeline, train_tokenizer
from hf_attnzoo.models.configuration_attnzoo import PIPELINE_TASKS
from hf_attnzoo.registry import FAMILIES, PIPELINES

TEXTS = ["a dog ate it", "the cat sat"]
SIZES = {
    "rnnsearch": {"embedding_size": 4, "hidden_size": 4, "maxout_size": 4},
    "luong": {"embedding_size": 4, "hidden_size": 4},
    "transformer": {"hidden_size": 8, "num_attention_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "bert": {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8},
    "rnnlm": {"embedding_size": 4, "hidden_size": 4},
    "gpt": {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1},
    "show_attend_tell": {"image_size": 8, "encoder_channels": [4], "embedding_size": 4, "hidden_size": 4},
}
HEADS = [
    (name, auto_class, PIPELINE_TASKS.get(auto_class))
    for name, family in FAMILIES.items()
    for auto_class in family.config_class.auto_classes
]


def saved(family: str, auto_class: str, folder) -> str:
    """A folder with a small model of that head, and what goes with it."""
    causal = {"causal": True} if FAMILIES[family].task == "causal-lm" else {}
    tokenizer = train_tokenizer("wordpiece" if family == "bert" else "character", TEXTS, **causal)
    config = FAMILIES[family].config_class(vocab_size=len(tokenizer), **SIZES[family])
    torch.manual_seed(0)
    FAMILIES[family].model_class(auto_class)(config).save_pretrained(folder)
    if FAMILIES[family].processor:
        images = hf_attnzoo.ShowAttendTellImageProcessor(size=8)
        hf_attnzoo.ShowAttendTellProcessor(images, tokenizer).save_pretrained(folder)
    else:
        tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("family", "auto_class", "task"), HEADS)
def test_a_head_says_what_it_is_for(family, auto_class, task, tmp_path):
    folder = saved(family, auto_class, tmp_path)
    assert "custom_pipelines" not in (tmp_path / "config.json").read_text()
    if task is None:
        # The message is transformers' own
        with pytest.raises(RuntimeError, match="infer task automatically"):
            pipeline(model=folder, device="cpu")
        return
    pipe = pipeline(model=folder, device="cpu")
    assert pipe.task == task
    assert type(pipe.model) is FAMILIES[family].model_class(auto_class)
    # A task that is said is taken at its word
    assert type(pipeline(task, model=folder, device="cpu")) is type(pipe)


def test_the_table_agrees_with_those_of_pipelines():
    for auto_class, task in PIPELINE_TASKS.items():
        if task in PIPELINES:
            assert PIPELINES[task][2] == auto_class
        else:
            assert [each.__name__ for each in SUPPORTED_TASKS[task]["pt"]] == [auto_class]
    for family in FAMILIES.values():
        tasks = {PIPELINE_TASKS[name] for name in family.config_class.auto_classes if name in PIPELINE_TASKS}
        assert tasks <= set(family.pipelines)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A GPT and an RNNsearch saved as models, and the GPT saved as a few-shot pipeline."""
    gpt, rnnsearch, few_shot = (tmp_path_factory.mktemp(name) for name in ("gpt", "rnnsearch", "few_shot"))
    saved("gpt", "AutoModelForCausalLM", gpt)
    saved("rnnsearch", "AutoModelForSeq2SeqLM", rnnsearch)
    pipeline("attnzoo-few-shot", model=str(gpt), device="cpu").save_pretrained(few_shot)
    return [str(gpt), str(rnnsearch), str(few_shot)]


def test_a_saved_pipeline_is_the_task(folders, tmp_path):
    pipe = pipeline(model=folders[2], device="cpu")
    assert type(pipe) is FewShotPipeline
    # The model alone is saved without a pipeline's name, which would stand for code that isn't there
    for config in (pipe.model.config, copy.deepcopy(pipe.model.config)):
        assert config.custom_pipelines == {"attnzoo-few-shot": {}}
        assert not {"custom_pipelines", "_saved_tasks"} & config.to_dict().keys()
    pipe.model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert not {"custom_pipelines", "_saved_tasks"} & content.keys()


def test_without_the_package(folders, tmp_path):
    script = """
import json, sys
sys.modules["hf_attnzoo"] = None
from transformers import pipeline
found = []
for folder in sys.argv[1:]:
    try:
        found.append(pipeline(model=folder, trust_remote_code=True, device="cpu").task)
    except RuntimeError as error:
        found.append("infer task" in str(error))
print(json.dumps(found))
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", script, *folders], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    # Nobody there knows the pipeline of a model that was saved alone
    assert json.loads(run.stdout.splitlines()[-1]) == ["text-generation", True, "attnzoo-few-shot"]
