"""Rows that splits share, and schedules that are longer than the training."""

import re

import pytest
from datasets import Dataset
from PIL import Image
from rich.console import Console

from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes.run import reported_split
from hf_attnzoo.recipes.soundness import schedule_warnings, shared_inputs
from hf_attnzoo.recipes.tasks import make_task, trainable


def pairs(*sources):
    return Dataset.from_dict({"source": list(sources), "target": [str(number) for number in range(len(sources))]})


def test_rows_of_other_splits_that_are_in_training_are_counted(recipe_content, tmp_path):
    task = make_task("seq2seq", build_recipe(recipe_content(tmp_path)))
    # An e with its accent apart is the same letter, and white space is white space; case is not.
    train = pairs("caf\u00e9 noir", "a b", "a b", "Tea")
    rows = {"train": train, "validation": pairs("cafe\u0301  noir", "b"), "test": pairs("a\tb", "a b ", "tea", "x")}
    assert shared_inputs(task, rows) == [
        "1 of 2 validation sources also stands in the training data.",
        "2 of 4 test sources also stand in the training data.",
    ]
    assert shared_inputs(task, {"train": train, "validation": pairs("b"), "test": pairs("tea")}) == []


def one(**columns):
    return {name: [value] for name, value in columns.items()}


ROWS = {
    "seq2seq": (one(source="a", target="b"), one(source="a", target="c"), one(source="b", target="b")),
    "causal-lm": (one(text="a"), one(text="a"), one(text="b")),
    "masked-lm": (one(text="a"), one(text="a"), one(text="b")),
    "text-classification": (
        one(text="a", text_pair="b", label="x"),
        one(text="a", text_pair="b", label="y"),
        one(text="a", text_pair="c", label="x"),
    ),
    "token-classification": (
        one(tokens=["a", "b"], tags=["O", "O"]),
        one(tokens=["a", "b"], tags=["O", "X"]),
        one(tokens=["a", "c"], tags=["O", "O"]),
    ),
    "question-answering": (
        one(question="q", context="a", answers=["a"]),
        one(question="q", context="a", answers=[]),
        one(question="q", context="b", answers=["b"]),
    ),
    "image-to-text": (
        one(image=Image.new("RGB", (2, 2), "red"), caption="red"),
        one(image=Image.new("RGB", (2, 2), "red"), caption="a square"),
        one(image=Image.new("RGB", (2, 2), "blue"), caption="red"),
    ),
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_it_is_what_a_model_is_given_that_is_compared(recipe_content, tmp_path, name):
    assert set(ROWS) == set(trainable())
    task = make_task(name, build_recipe(recipe_content(tmp_path)))
    train, same, other = map(Dataset.from_dict, ROWS[name])
    (sentence,) = shared_inputs(task, {"train": train, "validation": other, "test": same})
    assert re.fullmatch(r"1 of 1 test \w+ also stands in the training data\.", sentence)


def test_a_run_tells_of_shared_rows_in_its_card_and_of_its_schedule(recipe_content, tmp_path, capsys):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{letter} {other}\t{other}\n" for letter in "abcde" for other in "abcde"))
    data = {"source": str(file), "options": {"split": None}, "test": {"take": 6}}
    changes = {"training__warmup_steps": 400, "training__eval_steps": 500, "training__logging_steps": 50}
    changes |= {"training__max_steps": -1, "training__epochs": 1.5, "training__batch_rows": 5}
    result = run_recipe(build_recipe(recipe_content(tmp_path / "run", data=data, **changes)))
    lines = capsys.readouterr().out.splitlines()
    assert "warning: 25 of 25 validation sources also stand in the training data." in lines
    assert "warning: 6 of 6 test sources also stand in the training data." in lines
    # 25 rows of one length in batches of five, one and a half times: 5 x 1.5, rounded up
    for line in (
        "warning: training.warmup_steps=400 of 8 steps: the rate never reaches its height.",
        "warning: training.eval_steps=500 of 8 steps: there is one evaluation, at the end.",
        "warning: training.logging_steps=50 of 8 steps: no loss is told.",
    ):
        assert line in lines
    card = (result.model / "README.md").read_text()
    data = card[card.index("## Data") : card.index("## Training")]
    assert "6 of 6 test sources also stand in the training data." in data
    # The training and the validation split are the same rows here, and the test split others.
    digests = re.search(r"read: train `(\w{32})`, validation `(\w{32})`, test `(\w{32})`\.", data).groups()
    assert digests[0] == digests[1] != digests[2]


def test_a_schedule_that_ends_in_time_is_not_told_of(recipe_content, tmp_path):
    recipe = build_recipe(recipe_content(tmp_path))
    assert schedule_warnings(recipe, 4) == []
    assert schedule_warnings(recipe, 1) == ["training.eval_steps=2 of 1 step: there is one evaluation, at the end."]


@pytest.mark.parametrize(
    ("data", "split"),
    [
        ({"source": "x"}, "test"),
        ({"source": "x", "options": {"split": None}}, "test"),
        ({"source": "x", "test": {"split": "test_2016_flickr"}}, "test_2016_flickr"),
    ],
)
def test_the_split_of_the_scores_is_the_recipe_s(recipe_content, tmp_path, data, split):
    assert reported_split(build_recipe(recipe_content(tmp_path, data=data))) == split


def test_nothing_is_told_of_a_run_that_is_sound(recipe_content, tmp_path, capsys):
    result = run_recipe(build_recipe(recipe_content(tmp_path / "run")), Console())
    assert "warning:" not in capsys.readouterr().out
    assert "in the training data" not in (result.model / "README.md").read_text()
