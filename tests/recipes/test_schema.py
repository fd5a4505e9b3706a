"""Recipes as text: what is read, what is refused, and in which words."""

import dataclasses
import inspect
import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnzoo.recipes import build_recipe, load_recipe
from hf_attnzoo.recipes.reading import read_yaml, write_yaml
from hf_attnzoo.recipes.schema import (
    DataSection,
    EvaluationSection,
    MaskingSection,
    PretrainedSection,
    Recipe,
    TokenizerSection,
    TrainingSection,
)

MINIMAL = {"name": "n", "family": "rnnsearch", "output": "o"}


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"nmae": 1}, "unknown key nmae; did you mean name?"),
        ({"trainig": {}}, "unknown key trainig; did you mean training?"),
        ({"training": {"max_step": 3}}, "unknown key training.max_step; did you mean training.max_steps?"),
        ({"training": {"lr": 3}}, "unknown key training.lr; did you mean training."),
        ({"data": {"on_to_long": "skip"}}, "unknown key data.on_to_long; did you mean data.on_too_long?"),
        ({"tokenizer": {"vocabsize": 1}}, "unknown key tokenizer.vocabsize; did you mean tokenizer.vocab_size?"),
        ({"evaluation": {"metric": []}}, "unknown key evaluation.metric; did you mean evaluation.metrics?"),
        ({3: 4}, "unknown key 3; did you mean"),
        ({"name": 3}, "name=3 must be of type str"),
        ({"seed": True}, "seed=True must be of type int"),
        ({"training": {"learning_rate": "fast"}}, "training.learning_rate='fast' must be of type float | int"),
        ({"training": {"patience": 1.5}}, "training.patience=1.5 must be of type int | None"),
        ({"tokenizer": {"kind": 3}}, "tokenizer.kind=3 must be of type str | list[str]"),
        ({"evaluation": {"metrics": "bleu"}}, "evaluation.metrics='bleu' must be of type list[str]"),
        ({"data": {"train": [1]}}, "data.train=[1] must be of type dict"),
        ({"data": 3}, "data must be a mapping, got 3"),
        ({"data": {"on_too_long": "cut"}}, "data.on_too_long='cut' is none of raise, skip, truncate"),
        ({"training": {"precision": "int8"}}, "training.precision='int8' is none of fp32, bf16, fp16"),
        ({"training": {"gradient_accumulation_steps": 0}}, "gradient_accumulation_steps=0 must be at least 1"),
        ({"training": {"eval_steps": 0}}, "training.eval_steps=0 must be at least 1"),
        ({"training": {"logging_steps": 0}}, "training.logging_steps=0 must be at least 1"),
        ({"training": {"eval_batch_size": 0}}, "training.eval_batch_size=0 must be at least 1"),
        ({"training": {"threads": 0}}, "training.threads=0 must be at least 1"),
        ({"training": {"learning_rate": -0.1}}, "training.learning_rate=-0.1 must be at least 0"),
        ({"training": {"learning_rate": math.nan}}, "training.learning_rate=nan must be at least 0"),
        ({"training": {"max_steps": 0}}, "training.max_steps=0 must be at least 1, or -1"),
        ({"training": {"max_steps": -2}}, "training.max_steps=-2 must be at least 1, or -1"),
        ({"training": {"epochs": 0}}, "training.epochs=0 must be above 0"),
        ({"evaluation": {"samples": -1}}, "evaluation.samples=-1 must be at least 0"),
        ({"evaluation": {"best_metric": "wer"}}, "evaluation.best_metric='wer' must be one of evaluation.metrics"),
    ],
)
def test_what_is_wrong_is_named(content, message):
    with pytest.raises(ValueError, match=r"^here: ") as error:
        build_recipe({**MINIMAL, **content}, where="here")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["name", "family", "output"])
def test_missing_keys_are_named(missing):
    content = {key: value for key, value in MINIMAL.items() if key != missing}
    with pytest.raises(ValueError, match=f"the key {missing} is missing"):
        build_recipe(content)


def test_epochs_do_not_matter_where_steps_are_set():
    recipe = build_recipe({**MINIMAL, "training": {"max_steps": 1, "epochs": 0}})
    assert recipe.training.max_steps == 1


def test_sections_of_which_only_comments_are_left_have_their_defaults(write):
    path = write("name: n\nfamily: f\noutput: o\nmodel:  # none\ntraining:\ndata:\n  options:\ngeneration:\n")
    assert load_recipe(path) == build_recipe({**MINIMAL, "family": "f"})


def test_overrides_reach_every_level(write):
    path = write("name: n\nfamily: rnnsearch\noutput: o\ntraining:\n  epochs: 3\nmodel:\n")
    overrides = ["seed=7", "training.max_steps=10", "training.learning_rate=1e-3", "data.train.size=5"]
    overrides += ["model.attention=none", "evaluation.metrics=[chrf, bleu]", "data.source=a=b.tsv", "license="]
    with pytest.raises(ValueError, match="license=None must be of type str"):
        load_recipe(path, overrides)
    recipe = load_recipe(path, overrides[:-1])
    assert recipe.seed == 7
    assert recipe.training.epochs == 3
    assert recipe.training.max_steps == 10
    assert recipe.training.learning_rate == 0.001
    assert recipe.data.train == {"size": 5}
    assert recipe.data.source == "a=b.tsv"
    assert recipe.model == {"attention": "none"}
    assert recipe.evaluation.metrics == ["chrf", "bleu"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.max_steps", "'training.max_steps' is not of the form key=value"),
        ("=3", "'=3' is not of the form key=value"),
        ("training.max_stepz=3", "unknown key training.max_stepz; did you mean training.max_steps?"),
        ("name.first=3", "name is not a section"),
        ("training=3", "training must be a mapping, got 3"),
        ("seed=[", "override 'seed=[':1: not valid YAML"),
        ("seed=!!python/name:os.system", "not valid YAML"),
    ],
)
def test_bad_overrides_are_refused(write, override, message):
    path = write("name: n\nfamily: rnnsearch\noutput: o\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        load_recipe(path, [override])


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "3"])
def test_a_recipe_is_a_mapping(write, text):
    with pytest.raises(ValueError, match="a recipe is a mapping"):
        load_recipe(write(text))


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.mkdir ['{folder}']",
        "!!python/object/new:os.mkdir ['{folder}']",
        "!!python/object/apply:subprocess.check_output [[mkdir, '{folder}']]",
        "!!python/object:argparse.Namespace {{a: 1}}",
        "!!python/name:os.mkdir",
        "!!python/module:antigravity",
        "!anything {{a: 1}}",
    ],
)
def test_tags_of_python_are_refused_and_never_run(write, tmp_path, tag):
    made = tmp_path / "made"
    text = f"name: {tag.format(folder=made)}\nfamily: rnnsearch\noutput: o\n"
    with pytest.raises(ValueError, match=r"recipe\.yaml:1: not valid YAML: could not determine a constructor"):
        load_recipe(write(text))
    assert not made.exists()


def test_the_tags_above_would_run_elsewhere(tmp_path):
    made = tmp_path / "made"
    yaml.unsafe_load(f"!!python/object/apply:os.mkdir ['{made}']")
    assert made.is_dir()


def test_the_place_of_a_mistake_is_named(write):
    with pytest.raises(ValueError, match=r"recipe\.yaml:3: not valid YAML"):
        load_recipe(write("name: n\nfamily: rnnsearch\noutput: ]\n"))


def test_a_key_that_stands_twice_is_refused(write):
    text = "name: n\nfamily: rnnsearch\noutput: o\ntraining:\n  epochs: 3\nseed: 1\ntraining:\n  max_steps: 1\n"
    with pytest.raises(ValueError, match=r"recipe\.yaml:7: .*'training' stands twice"):
        load_recipe(write(text))
    with pytest.raises(ValueError, match="'a' stands twice"):
        read_yaml("x: {y: [{a: 1, b: 2, a: 3}]}", "here")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5E4", 50000.0),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("3", 3),
        ("-0", 0),
        ("30_000", 30000),
        (".inf", math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        # Texts, though YAML 1.1 has other ideas: false, true, 150 minutes, eight, 31, a date.
        ("no", "no"),
        ("on", "on"),
        ("2:30", "2:30"),
        ("010", "010"),
        ("0x1f", "0x1f"),
        ("2019-03-12", "2019-03-12"),
        ("'3'", "3"),
        ("[de, no, nb]", ["de", "no", "nb"]),
    ],
)
def test_plain_words_and_numbers_mean_what_they_seem(text, value):
    read = read_yaml(text, "here")
    assert read == value
    assert type(read) is type(value)


# PyYAML folds the line ends of Unicode into spaces.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x85\u2028\u2029"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(VALUES | st.sampled_from(["1e-3", "no", "null", "~", "", "1_0", ".5", "-", "<<", "=", "0o7", "2019-03-12"]))
def test_what_is_written_is_read_again(value):
    assert read_yaml(write_yaml(value), "here") == value


def test_a_recipe_written_with_every_default_is_the_same_recipe(write):
    recipe = build_recipe({**MINIMAL, "model": {"attention": "none"}, "data": {"options": {"locales": ["no", "1e3"]}}})
    text = recipe.to_yaml()
    public = dataclasses.replace(
        recipe, output=str(Path.home() / "secret" / "run"), generation={"a": ["~/b/c", "d/e"]}
    )
    content = yaml.safe_load(public.to_yaml(public=True))
    assert (content["output"], content["generation"]) == ("run", {"a": ["c", "d/e"]})
    assert load_recipe(write(text)) == recipe
    # PyYAML's own reader finds every field there.
    written = yaml.safe_load(text)
    for name, section in SECTIONS.items():
        assert set(written[name]) == {field.name for field in dataclasses.fields(section)}
    assert set(written) == {field.name for field in dataclasses.fields(Recipe)}


SECTIONS = {
    "data": DataSection,
    "tokenizer": TokenizerSection,
    "pretrained": PretrainedSection,
    "masking": MaskingSection,
    "training": TrainingSection,
    "evaluation": EvaluationSection,
}


@pytest.mark.parametrize("section", [*SECTIONS.values(), Recipe])
def test_every_key_is_explained_where_it_is_defined(section):
    explained = re.findall(r"^    (\w+): \S", inspect.getdoc(section), re.MULTILINE)
    assert explained == [field.name for field in dataclasses.fields(section)]
