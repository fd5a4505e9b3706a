"""The table of families, and that transformers knows it whatever is imported first."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

import hf_attnzoo
from hf_attnzoo.registry import FAMILIES, PIPELINES

MODELS = Path(hf_attnzoo.__file__).parent / "models"

# Each in a process of its own, forked from one that has imported what takes long and is not in the table.
ORDERS = {
    "the package, then a model of transformers": """
import hf_attnzoo
from transformers import BartForConditionalGeneration""",
    "auto classes, then the package": """
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
import hf_attnzoo""",
    "pipelines, then the package": "from transformers import pipeline; import hf_attnzoo",
    "a model's module": "from hf_attnzoo.models.modeling_rnnsearch import RNNSearchModel",
    "the pipeline's module": "from hf_attnzoo.pipelines.translation import TranslationPipeline",
    "the other pipeline's module": "from hf_attnzoo.pipelines.captioning import CaptioningPipeline",
    "what pipelines share": "import hf_attnzoo.pipelines.generating",
    "the few-shot pipeline's module": "from hf_attnzoo.pipelines.few_shot import FewShotPipeline",
}

QUESTIONS = """
import hf_attnzoo
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers.pipelines import PIPELINE_REGISTRY
import tempfile

config = AutoConfig.for_model("attnzoo_rnnsearch", vocab_size=9, hidden_size=4, embedding_size=4, maxout_size=4)
# Gone before the process ends by os._exit
with tempfile.TemporaryDirectory() as folder:
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    hf_attnzoo.train_tokenizer("character", ["abc"], ["abc"]).save_pretrained(folder)
    pipe = pipeline("attnzoo-translation", model=folder)
    answers = [
        type(config) is hf_attnzoo.RNNSearchConfig,
        type(AutoConfig.from_pretrained(folder)) is hf_attnzoo.RNNSearchConfig,
        type(AutoModel.from_config(config)) is hf_attnzoo.RNNSearchModel,
        type(AutoModelForSeq2SeqLM.from_pretrained(folder)) is hf_attnzoo.RNNSearchForConditionalGeneration,
        type(AutoTokenizer.from_pretrained(folder)) is hf_attnzoo.AttnZooTokenizer,
        type(pipe) is hf_attnzoo.TranslationPipeline,
        type(pipe.model) is hf_attnzoo.RNNSearchForConditionalGeneration,
        "attnzoo-translation" in PIPELINE_REGISTRY.get_supported_tasks(),
        PIPELINE_REGISTRY.check_task("attnzoo-captioning")[1]["impl"] is hf_attnzoo.CaptioningPipeline,
    ]
"""

PARENT = """
import json, os, sys

orders, questions = json.loads(sys.stdin.read())

def fork(code):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            space = {}
            exec(code, space)
            answer = space["answers"]
        except BaseException as error:
            answer = repr(error)
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        return json.loads(stream.read())

light = fork('''
import sys
import hf_attnzoo
heavy = {"torch", "transformers", "numpy", "datasets", "matplotlib", "rich", "typer", "yaml"}
answers = sorted(heavy & set(sys.modules))
''')
import torch.distributed.tensor, transformers.configuration_utils
print(json.dumps({"light": light, **{name: fork(order + questions) for name, order in orders.items()}}))
"""


@pytest.fixture(scope="module")
def answers():
    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        input=json.dumps([ORDERS, QUESTIONS]),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_package_imports_nothing_heavy(answers):
    assert answers["light"] == []


@pytest.mark.parametrize("order", ORDERS)
def test_transformers_knows_the_families_in_every_order_of_imports(answers, order):
    assert answers[order] == [True] * 9


def test_names_are_lazy_and_listed():
    assert set(hf_attnzoo.__all__) <= set(dir(hf_attnzoo))
    for name in set(hf_attnzoo.__all__) - {"FAMILIES"}:
        assert getattr(hf_attnzoo, name).__name__ == name
    from hf_attnzoo.models.modeling_rnnsearch import RNNSearchModel

    assert hf_attnzoo.RNNSearchModel is RNNSearchModel


@pytest.mark.parametrize("name", ["RNNSearchForCausalLM", "rnnsearch", "__wrapped__", "_private"])
def test_unknown_names_are_attribute_errors(name):
    assert not hasattr(hf_attnzoo, name)
    with pytest.raises(AttributeError, match=f"'hf_attnzoo' has no attribute '{name}'"):
        getattr(hf_attnzoo, name)


def test_unknown_names_can_not_be_imported():
    with pytest.raises(ImportError, match="RNNSearchForCausalLM"):
        from hf_attnzoo import RNNSearchForCausalLM  # noqa: F401


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_of_the_table_is_true(name):
    family = FAMILIES[name]
    assert family.name == name
    config_class = family.config_class
    assert config_class.__name__ == family.config
    assert config_class.__module__ == f"hf_attnzoo.models.configuration_{name}"
    assert config_class.model_type == f"attnzoo_{name}"
    assert family.head in config_class.auto_classes
    for auto_class, class_name in config_class.auto_classes.items():
        model_class = family.model_class(auto_class)
        assert model_class.__name__ == class_name
        assert model_class.__module__ == f"hf_attnzoo.models.modeling_{name}"
        assert model_class.config_class is config_class
        assert class_name in hf_attnzoo.__all__
        mapping = getattr(transformers, auto_class)._model_mapping
        assert mapping[config_class] is model_class
    assert family.config in hf_attnzoo.__all__
    if family.image_processor:
        classes = transformers.IMAGE_PROCESSOR_MAPPING[config_class]
        assert classes == {"pil": getattr(hf_attnzoo, family.image_processor)}
    if family.processor:
        assert transformers.PROCESSOR_MAPPING[config_class] is getattr(hf_attnzoo, family.processor)
    for text in (family.paper, family.summary, family.task):
        assert text.strip() == text != ""
    assert family.pipelines
    for task in family.pipelines:
        if task not in PIPELINES:
            # One of transformers' own.
            loaders = {getattr(transformers, auto_class) for auto_class in config_class.auto_classes}
            assert loaders & set(transformers.pipelines.SUPPORTED_TASKS[task]["pt"])
            continue
        module, class_name, auto_class = PIPELINES[task]
        assert task.startswith("attnzoo-")
        assert auto_class in config_class.auto_classes
        pipeline_class = getattr(__import__(module, fromlist=[class_name]), class_name)
        assert issubclass(pipeline_class, transformers.Pipeline)
        assert transformers.pipelines.PIPELINE_REGISTRY.check_task(task)[1]["impl"] is pipeline_class


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.py")), ids=lambda path: path.stem)
def test_model_files_stand_alone(path):
    """What travels with a checkpoint imports nothing that may be missing where it arrives."""
    allowed = {"torch", "transformers", "tokenizers", "safetensors", "huggingface_hub"} | sys.stdlib_module_names
    if path.stem.startswith("image_processing_"):
        # transformers' own image processors need no less
        allowed |= {"numpy", "PIL"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1
            if node.level == 1:
                assert node.module is not None
                assert (MODELS / f"{node.module}.py").is_file()
            else:
                assert node.module.split(".")[0] in allowed
