"""From a recipe to words that no vocabulary has: a model that copies writes names it has never seen."""

import json
import random
import subprocess
import sys
import textwrap

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from typer.testing import CliRunner

from hf_attnzoo import attention_map
from hf_attnzoo.cli import app
from hf_attnzoo.recipes import build_recipe, run_recipe

TEMPLATES = {
    "call {} now": "{} called",
    "please call {}": "{} called politely",
    "{} and {} met": "{} saw {}",
}


def pairs(count, seed):
    """Requests with names that occur once, or in the third template twice."""
    generator = random.Random(seed)
    rows = []
    for index in range(count):
        source, target = list(TEMPLATES.items())[index % 3]
        names = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=6)).capitalize() for _ in range(2)]
        rows.append({"source": source.format(*names), "target": target.format(*reversed(names[: target.count("{}")]))})
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    for seed, (split, count) in enumerate({"train": 300, "validation": 12, "test": 30}.items()):
        lines = [json.dumps(row) for row in pairs(count, seed)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def recipe(data, output, **changes):
    content = {
        "name": "names",
        "family": "luong",
        "output": str(output),
        "data": {"source": str(data)},
        "tokenizer": {"kind": "word", "min_frequency": 3},
        "model": {"embedding_size": 16, "hidden_size": 24, "bidirectional": True, "score": "concat"},
        "training": {
            "max_steps": 120,
            "batch_tokens": 400,
            "learning_rate": 0.02,
            "warmup_steps": 10,
            "eval_steps": 60,
            "logging_steps": 60,
        },
        "generation": {"max_new_tokens": 8},
        "evaluation": {"metrics": ["exact_match"], "best_metric": "exact_match", "samples": 3, "maps": 1},
    }
    for section, values in changes.items():
        content[section] |= values
    return build_recipe(content)


@pytest.fixture(scope="module")
def copying(data, tmp_path_factory):
    options = {"tokenizer": {"copy_slots": 4}, "model": {"copy": True, "coverage": True}}
    return run_recipe(recipe(data, tmp_path_factory.mktemp("copying") / "run", **options))


def test_names_never_seen_are_written(copying, data):
    assert copying.metrics["exact_match"] == 1
    rows = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(copying.model)
    vocabulary = tokenizer.source_tokenizer.get_vocab().keys() | tokenizer.get_vocab().keys()
    assert all(row["target"].split()[0] not in vocabulary for row in rows)
    assert AutoModelForSeq2SeqLM.from_pretrained(copying.model).config.num_copy_slots == 4
    translate = pipeline("attnzoo-translation", model=str(copying.model))
    sources, targets = [row["source"] for row in rows], [row["target"] for row in rows]
    for options in ({}, {"batch_size": 4}, {"num_beams": 3, "batch_size": 7}, {"replace_unknown": True}):
        assert [item["translation_text"] for item in translate(sources, **options)] == targets
    several = translate(sources[:4], num_beams=3, num_return_sequences=2, batch_size=3)
    assert [best["translation_text"] for best, _ in several] == targets[:4]
    (aligned,) = translate("Anna and Bob met", return_alignments=True)
    assert aligned["translation_text"] == "Bob saw Anna"
    assert aligned["target_tokens"] == ["Bob", "saw", "Anna", "</s>"]


def test_an_ordinary_model_cannot(data, tmp_path):
    result = run_recipe(recipe(data, tmp_path / "run"))
    assert result.metrics["exact_match"] == 0
    words = {word for template in TEMPLATES.values() for word in template.split()}
    assert all(set(output.split()) <= words for _, _, output in result.samples)


def test_the_command_line_writes_them_too(copying, data, tmp_path):
    run = CliRunner().invoke(app, ["translate", str(copying.model), "Xylo and Zeno met", "--beams", "2"])
    assert run.stdout.splitlines()[-1] == "Zeno saw Xylo"
    run = CliRunner().invoke(app, ["evaluate", str(copying.model), str(data / "test.jsonl"), "--json"])
    assert json.loads(run.stdout.splitlines()[-1])["exact_match"] == 1


def test_attention_maps_show_them(copying):
    model = AutoModelForSeq2SeqLM.from_pretrained(copying.model)
    tokenizer = AutoTokenizer.from_pretrained(copying.model)
    written = attention_map(model, tokenizer, "Xylo and Zeno met")
    forced = attention_map(model, tokenizer, "Xylo and Zeno met", "Zeno saw Xylo")
    assert written.target == forced.target == ["Zeno", "saw", "Xylo", "</s>"]
    assert written.target_text == "Zeno saw Xylo"
    assert abs(written.weights - forced.weights).max() < 1e-5
    # What is copied is looked at.
    assert written.weights.argmax(axis=1)[[0, 2]].tolist() == [2, 0]


def test_a_folder_is_enough_where_the_package_is_missing(copying):
    script = """
        import sys
        sys.modules["hf_attnzoo"] = None
        import transformers
        translate = transformers.pipeline(model=sys.argv[1], trust_remote_code=True)
        print(translate("Xylo and Zeno met")[0]["translation_text"])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(copying.model)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=copying.model.parent)
    assert run.stdout.splitlines()[-1:] == ["Zeno saw Xylo"], run.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"copy": True}}, "set tokenizer.copy_slots"),
        ({"tokenizer": {"copy_slots": 3}}, "tokenizer.copy_slots=3 .*set model.copy=true"),
        ({"model": {"copy": True, "num_copy_slots": 3}}, "num_copy_slots follows .* set tokenizer.copy_slots"),
        ({"tokenizer": {"copy_slots": -1}}, "tokenizer.copy_slots=-1 must be at least 0"),
        ({"tokenizer": {"copy_slots": 3, "kind": "bpe"}}, "copy_slots=3 needs one kind"),
        ({"model": {"coverage": True, "score": "dot"}}, "coverage=True .*concat"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_recipe(recipe(data, tmp_path / "run", **changes))
