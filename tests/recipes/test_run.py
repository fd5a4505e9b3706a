"""A run from end to end: what it leaves, and whether what it says about it is true."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from datasets import Dataset
from huggingface_hub import ModelCard
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, pipeline

from hf_attnzoo.data import load_source
from hf_attnzoo.recipes import build_recipe, dry_run, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.run import data_name, languages, load_splits
from hf_attnzoo.recipes.saving import check_reload
from hf_attnzoo.recipes.scoring import score
from hf_attnzoo.recipes.tasks import make_task
from hf_attnzoo.registry import FAMILIES

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@pytest.fixture
def run(recipe_content, tmp_path, capsys):
    """Runs the tiny recipe with changes; returns the result and what was printed."""

    def run(**changes):
        result = run_recipe(build_recipe(recipe_content(tmp_path / "run", **changes)))
        return result, capsys.readouterr().out

    return run


def translations(folder, sources):
    return [item["translation_text"] for item in pipeline("attnzoo-translation", model=str(folder))(sources)]


def test_the_folder_holds_the_model_and_nothing_unsafe(tiny_run):
    names = {path.name for path in tiny_run.model.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert {"metrics.json", "attention.png", "modeling_rnnsearch.py", "configuration_rnnsearch.py"} <= names
    assert (tiny_run.model / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not [name for name in names if name.endswith(PICKLES)]
    # No checkpoints, no scratch folder.
    assert [path.name for path in tiny_run.model.parent.iterdir()] == ["model"]
    assert (tiny_run.model / "attention.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_every_accepted_target_counts_as_right(recipe_content, tmp_path):
    evaluation = {
        "metrics": ["sequence_error_rate", "token_error_rate"],
        "best_metric": "sequence_error_rate",
        "tokenize": "none",
    }
    recipe = build_recipe(recipe_content(tmp_path, evaluation=evaluation))
    # The first is its second reference; the second is one edit from its nearer reference, which has two tokens.
    metrics, intervals = score(recipe, ["K AE T", "D"], [["K AH T", "K AE T"], ["D AO G Z", "D AO"]])
    assert metrics["sequence_error_rate"] == 0.5
    assert metrics["token_error_rate"] == 1 / 5
    # Wilson, n = 2, p = 1/2: 1/2 -+ z sqrt(1/8 + z^2 / 16) / (1 + z^2 / 2)
    assert intervals["sequence_error_rate"] == pytest.approx((0.0945, 0.9055), abs=1e-4)


def test_the_scores_are_those_of_the_saved_model(tiny_run, recipe_content, tmp_path):
    data = recipe_content(tmp_path)["data"]
    rows = load_source(data["source"], "test", **data["options"], **data["test"])
    sources, references = list(rows["source"]), list(rows["target"])
    outputs = translations(tiny_run.model, sources)
    assert len(set(outputs)) > 1
    pairs = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    right = sum(ours == theirs for output, reference in pairs for ours, theirs in zip(output, reference, strict=False))
    places = sum(max(len(output), len(reference)) for output, reference in pairs)
    saved = json.loads((tiny_run.model / "metrics.json").read_text())
    assert saved["metrics"] == tiny_run.metrics
    assert saved["metrics"]["token_accuracy"] == right / places
    assert saved["metrics"]["exact_match"] == sum(output == reference for output, reference in pairs) / 5
    assert saved["steps"] == 100
    low, high = saved["intervals"]["token_error_rate"]
    assert low <= saved["metrics"]["token_error_rate"] <= high
    assert tiny_run.samples == list(zip(sources, references, outputs, strict=True))[:4]
    # The card says the same.
    card = ModelCard.load(tiny_run.model / "README.md")
    shown = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert shown == {
        name: round(value, 4) for name, value in tiny_run.metrics.items() if not name.endswith("_signature")
    }


def test_the_saved_model_generates_as_the_recipe_says(tiny_run):
    saved = GenerationConfig.from_pretrained(tiny_run.model)
    assert saved.max_new_tokens == 6
    assert saved.max_length is None
    assert saved.decoder_start_token_id == 2
    assert saved.pad_token_id == 1
    assert saved.eos_token_id == 3


def test_progress_is_told_in_whole_lines(run, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    result, printed = run(evaluation__samples=2)
    lines = printed.splitlines()
    assert lines[0] == "train: 80 pairs, such as 'd' → 'd'"
    for step in (1, 2, 3, 4):
        pattern = rf"step {step}/4 · loss \d+\.\d{{4}} · gradient norm \d+\.\d\d · [\d,]+ target tokens/s"
        pattern += r" · 0:\d\d left"
        assert [line for line in lines if re.fullmatch(pattern, line)]
    evaluations = [line for line in lines if "· validation:" in line]
    assert [line.split(" ·")[0] for line in evaluations] == ["step 2/4", "step 4/4"]
    assert all("token_accuracy 0." in line and "token_error_rate" in line for line in evaluations)
    loaded = f"loaded back from {result.model}: AutoModelForSeq2SeqLM, AutoTokenizer and pipeline"
    assert lines[-1].startswith(loaded)
    assert lines[-1].endswith("agree")


def test_tied_weights_are_not_missed(run, caplog):
    # transformers' logger doesn't hand on what it says
    logging.getLogger("transformers").addHandler(caplog.handler)
    tiny = {"preset": "tiny", "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 16}
    result, _ = run(family="transformer", model=tiny)
    assert AutoModelForSeq2SeqLM.from_pretrained(result.model).config.tie_word_embeddings
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert "missing" not in caplog.text


def test_without_attention_there_is_no_picture(run):
    result, _ = run(model__attention="none", evaluation__maps=2)
    assert not (result.model / "attention.png").exists()
    assert "attention.png" not in (result.model / "README.md").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(result.model).config.attention == "none"


def test_no_samples_no_table(run):
    result, printed = run(evaluation__samples=0, evaluation__maps=2)
    assert result.samples == []
    assert "of the test pairs" not in printed
    assert not (result.model / "attention.png").exists()


def test_texts_may_hold_markup_of_any_kind(run):
    symbols = ["[/b]", "[red]", ":smile:", "$x_", "|", "<b>"]
    result, printed = run(data__options__symbols=symbols, data__options__max_length=3, evaluation__maps=1)
    for text in result.samples[0][:2]:
        assert text in printed
    assert (result.model / "attention.png").is_file()


def test_validation_is_against_the_texts_and_not_what_is_left_of_them(run, tmp_path):
    rows = [f"{word}\t{word}" for word in ("eins", "zwei", "drei", "vier") for _ in range(3)]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    # Nothing of this is in the vocabulary: to a decoder without mercy, `<unk> <unk>` is an empty text.
    (tmp_path / "rare.tsv").write_text("eins\tfoo bar\n" * 2)
    seen = []

    def spy(outputs, references, **kwargs):
        seen.append(list(references))
        return {"exact_match": 0.0, "exact_match_signature": ""}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_attnzoo.recipes.trainer.generation_metrics", spy)
        run(
            data={
                "train": {"source": str(tmp_path / "train.tsv"), "split": None},
                "validation": {"source": str(tmp_path / "rare.tsv"), "split": None},
                "test": {"source": str(tmp_path / "train.tsv"), "split": None},
            },
            tokenizer={"kind": "word"},
            evaluation={"metrics": ["exact_match"], "best_metric": "exact_match", "samples": 1, "maps": 0},
        )
    assert seen == [["foo bar", "foo bar"]] * 2


def test_early_stopping(run, monkeypatch):
    scores = iter([0.5, 0.7, 0.6, 0.65, 0.1])
    monkeypatch.setattr(
        "hf_attnzoo.recipes.trainer.generation_metrics",
        lambda *args, **kwargs: {"token_accuracy": next(scores), "token_accuracy_signature": ""},
    )
    result, printed = run(training__max_steps=50, training__patience=2, training__eval_steps=2)
    # Steps 2 and 4 are better than what was before them, 6 and 8 are not.
    assert json.loads((result.model / "metrics.json").read_text())["steps"] == 8
    assert "8 steps in" in printed
    lines = printed.splitlines()
    assert "stopped at step 8 of 50: no better token_accuracy for 2 evaluations" in lines
    assert "the model has the weights of step 4, chosen by token_accuracy on the validation split" in lines
    card = (result.model / "README.md").read_text()
    assert "Training stopped early, at step 8 of 50: no better token accuracy for 2 evaluations." in card
    assert "The model has the weights of step 4, chosen by token accuracy on the validation split." in card
    assert "\n| **4** |" in card


@pytest.mark.parametrize(("steps", "evaluations"), [(5, [2, 4, 5]), (1, [1])])
def test_the_last_step_is_evaluated_too(run, steps, evaluations):
    _, printed = run(training__max_steps=steps)
    assert [int(step) for step in re.findall(r"step (\d+)/\d+ · validation", printed)] == evaluations


def test_a_part_of_an_epoch(run):
    result, _ = run(training__max_steps=-1, training__epochs=0.5, training__batch_tokens=20, data__train__size=20)
    # 20 rows of 4 to 10 tokens, at most 20 a batch: 5 to 10 batches, half of them rounded up.
    assert 3 <= json.loads((result.model / "metrics.json").read_text())["steps"] <= 5


def test_without_a_limit_outputs_have_twice_the_longest_target(run):
    result, _ = run(generation=None, data__options={"min_length": 15, "max_length": 15, "symbols": 5})
    # 15 symbols and </s>
    assert GenerationConfig.from_pretrained(result.model).max_new_tokens == 32


def test_sampling_is_no_reason_to_fail(run):
    result, printed = run(generation__do_sample=True, model__initializer_range=2.0)
    assert "agree" in printed.splitlines()[-1]
    assert GenerationConfig.from_pretrained(result.model).do_sample is True


def test_bf16_on_a_processor(run):
    result, _ = run(training__precision="bf16")
    assert {tensor.dtype.itemsize for tensor in load_file(result.model / "model.safetensors").values()} == {4}


def test_a_damaged_model_is_noticed(tiny_run, recipe_content, tmp_path):
    folder = shutil.copytree(tiny_run.model, tmp_path / "model")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = Dataset.from_list([{"source": source, "target": target} for source, target, _ in tiny_run.samples])
    outputs = [output for _, _, output in tiny_run.samples]
    task = make_task("seq2seq", build_recipe(recipe_content(tmp_path)))
    check = (FAMILIES["rnnsearch"], task, model, tokenizer, rows, outputs, Console(quiet=True))
    check_reload(folder, *check)
    name, parameter = next(iter(model.named_parameters()))
    parameter.data.view(-1)[0] += 1
    with pytest.raises(RuntimeError, match=f"{name} is not what was saved"):
        check_reload(folder, *check)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "rnsearch"}, "; did you mean 'rnnsearch'?"),
        ({"data__source": None}, "data.source is missing"),
        ({"data__sources": "x"}, "unknown key data.sources; did you mean data.source?"),
        ({"data__test": {"sise": 3}}, "has no option 'sise'; did you mean 'size'?"),
        (
            {"data__validation": {"size": 0}},
            "size=0 must be an integer of at least 1 (in a recipe: data.validation.size)",
        ),
        ({"data__options": {"min_length": 5, "max_length": 4}}, "data.options.min_length, data.options.max_length)"),
        ({"tokenizer__vocab_size": 3}, "got 3 (in a recipe: tokenizer.vocab_size, tokenizer.kind)"),
        ({"model__dropout": 2}, "(in a recipe: model.dropout)"),
        ({"model__vocab_size": 9}, "model.vocab_size follows from the tokenizer: set tokenizer.vocab_size"),
        ({"model__source_vocab_size": 9}, "model.source_vocab_size follows from the tokenizer"),
        ({"model__hiden_size": 9}, "model.hiden_size is no field of RNNSearchConfig; did you mean 'hidden_size'?"),
        ({"model__hidden_size": "big"}, "model.hidden_size='big' must be of type int"),
        ({"model__attention": "dots"}, "attention='dots' is none of"),
        ({"model": {"preset": "tinny"}}, "rnnsearch-50, tiny (in a recipe: model.preset)"),
        ({"tokenizer__kind": "wrod"}, "kind must be one of"),
        ({"generation__num_beans": 2}, "generation.num_beans is unknown; did you mean 'num_beams'?"),
        ({"generation__validate": 2}, "generation.validate is unknown"),
        ({"generation__num_beams": 0}, "generation: "),
        ({"generation__num_beams": "two"}, "generation: "),
        ({"evaluation__metrics": ["blue"], "evaluation__best_metric": "blue"}, "'blue'"),
        ({"evaluation__tokenize": "words"}, "'words'"),
        ({"training__optimizer": "adamant"}, "adamant"),
        ({"training__scheduler": "linea"}, "linea"),
        ({"training__batch_tokens": 3}, "such rows) (in a recipe: training.batch_tokens)"),
        ({"data__max_source_length": 1}, "None (in a recipe: data.max_source_length, data.max_target_length)"),
    ],
)
def test_what_can_not_be_done_is_refused_before_training(recipe_content, tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("it went as far as training"))
    with pytest.raises(ValueError, match=re.escape(message)):
        run_recipe(build_recipe(recipe_content(tmp_path / "run", **changes)), Console(quiet=True))
    assert not (tmp_path / "run" / "model").exists()


def test_a_model_of_another_family_is_refused_before_its_data(recipe_content, tmp_path):
    # There is no such file, which nobody notices.
    recipe = build_recipe(recipe_content(tmp_path, family="transformer", data={"source": "missing.tsv"}))
    message = (
        r"model\.embedding_size is no field of TransformerConfig; it is one of rnnsearch, luong, .*: for "
        r"family=transformer take one of its recipes, .*parallel-text-transformer.*, or say "
        r'model="\{preset: NAME\}", one of base, big, tiny$'
    )
    with pytest.raises(ValueError, match=message):
        run_recipe(recipe, Console(quiet=True))
    with pytest.raises(ValueError, match=message):
        dry_run(recipe)


def test_options_of_files_are_told_as_keys(recipe_content, tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("a\tb\n")

    def refused(message, **data):
        content = recipe_content(tmp_path, data={"source": str(file), **data}, tokenizer__train_rows=1)
        recipe = build_recipe(content)
        with pytest.raises(ValueError, match=f"{message}$"):
            load_splits(recipe, make_task("seq2seq", recipe))

    refused(r"\(in a recipe: data\.options\.format, data\.options\.target_path\)")
    tsv = {"format": "tsv"}
    named = {**tsv, "source_column": "a", "header": False}
    refused(r"header=False \(in a recipe: data\.options\.header\)", options=named)
    wrong = {"source_column": 5, "target_column": 0}
    refused(r"\(in a recipe: data\.train\.source_column\)", options=tsv, train=wrong)
    stream = {"streaming": True, "max_source_length": 9, "max_target_length": 9}
    refused(r"\(in a recipe: data\.validation\.source_column\)", **stream, options=tsv, validation=wrong)
    file.write_text("a\tb\n\tc\n")
    # What is wrong with a row is no option's fault.
    refused(r"pairs\.txt:2: the source is empty", options={**tsv, "header": False})


def test_an_empty_split_is_named(recipe_content, tmp_path, monkeypatch):
    recipe = build_recipe(recipe_content(tmp_path))
    task = make_task("seq2seq", recipe)
    monkeypatch.setattr(task, "load", lambda *args, **kwargs: Dataset.from_dict({"source": []}))
    with pytest.raises(ValueError, match="the train split of 'reverse' is empty"):
        load_splits(recipe, task)


def test_a_streamed_split_is_refused(recipe_content, tmp_path):
    (tmp_path / "pairs.tsv").write_text("source\ttarget\na\tb\n")
    data = {"source": str(tmp_path / "pairs.tsv"), "options": {"streaming": True, "split": None}}
    recipe = build_recipe(recipe_content(tmp_path, data=data))
    with pytest.raises(ValueError, match="is streamed"):
        load_splits(recipe, make_task("seq2seq", recipe))


def test_splits_may_come_from_several_sources(run):
    data = {
        "source": "copy",
        "options": {"max_length": 4, "min_length": 1, "symbols": 5},
        "train": {"size": 50},
        "validation": {"size": 4},
        "test": {"source": "reverse", "split": "validation", "size": 6},
    }
    result, printed = run(data=data)
    assert "`copy, reverse`: 50 train, 4 validation, 6 test pairs" in (result.model / "README.md").read_text()
    assert any(source != target for source, target, _ in result.samples)
    assert "train: 50 pairs, such as" in printed


def test_the_data_is_named_once_where_all_splits_share_it(recipe_content, tmp_path):
    assert data_name(build_recipe(recipe_content(tmp_path))) == "reverse"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"options": {"source_column": "de", "target_column": "en"}}, ["de", "en"]),
        # Names of columns that are none of languages, numbers, one of the two alone, and splits that differ
        ({"options": {"source_column": "deutsch", "target_column": "en"}}, []),
        ({"options": {"source_column": "de", "target_column": "zz"}}, []),
        ({"options": {"source_column": 10, "target_column": 11}}, []),
        ({"options": {"source_column": "de"}}, []),
        ({"options": {"source_column": "de", "target_column": "en"}, "test": {"target_column": "fr"}}, []),
        ({}, []),
    ],
)
def test_languages_are_told_where_the_recipe_has_their_codes(recipe_content, tmp_path, data, expected):
    assert languages(build_recipe(recipe_content(tmp_path, data=data))) == expected


def test_the_recipe_in_the_card_makes_the_run_again(tiny_run, tmp_path, capsys):
    card = (tiny_run.model / "README.md").read_text()
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card, re.DOTALL)[1])
    again = run_recipe(build_recipe({**recipe, "output": str(tmp_path / "again")}))
    first, second = (load_file(folder / "model.safetensors") for folder in (tiny_run.model, again.model))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    assert again.metrics == tiny_run.metrics


def test_a_file_named_for_one_split_is_all_of_it(recipe_content, tmp_path):
    data = {}
    for split, count in (("train", 40), ("validation", 3), ("test", 5)):
        lines = [f"{split} {number}\tpair {number}\n" for number in range(count)]
        (tmp_path / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
        data[split] = {"source": str(tmp_path / f"{split}.tsv"), "header": False}
    recipe = build_recipe(recipe_content(tmp_path, data=data))
    splits = load_splits(recipe, make_task("seq2seq", recipe))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 40, "validation": 3, "test": 5}


def test_the_folder_is_a_pipeline_where_the_package_is_missing(tiny_run, tmp_path):
    source, _, output = tiny_run.samples[0]
    script = (
        "import sys; sys.modules['hf_attnzoo'] = None\n"
        "from transformers import pipeline\n"
        "pipe = pipeline(model=sys.argv[1], trust_remote_code=True)\n"
        "print(pipe(sys.argv[2])[0]['translation_text'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny_run.model), source],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == output


def test_the_saved_model_decodes_with_a_cache(tiny_run):
    assert json.loads((tiny_run.model / "config.json").read_text())["use_cache"] is True
    assert GenerationConfig.from_pretrained(tiny_run.model).use_cache is True
