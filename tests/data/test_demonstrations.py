"""Built-in demonstrations, and those of files."""

import re

import pytest

from hf_attnzoo.data import FEW_SHOT_TASKS, load_examples, load_few_shot_task, split_of
from hf_attnzoo.pipelines import PromptTemplate


@pytest.mark.parametrize("name", FEW_SHOT_TASKS)
def test_built_in_tasks_are_whole(name):
    task = load_few_shot_task(name)
    template = PromptTemplate(task["template"], separator=task.get("separator", "\n"))
    assert len(task["examples"]) >= 3
    prompt = template.head(task["examples"])
    answers = [example[template.answer] for example in task["examples"]]
    assert len({template.shot(example) for example in task["examples"]}) == len(answers)
    for answer in answers:
        # Whoever stops at what ends an example has all of the answer
        assert template.end not in answer
        assert answer in prompt
    if "labels" in task:
        assert set(answers) == set(task["labels"])
        assert len({answers.count(label) for label in task["labels"]}) == 1


def test_letters_stand_for_letters_everywhere_the_same():
    examples = load_few_shot_task("letters")["examples"]
    assert len({example["source"] for example in examples}) == 12
    pairs = {pair for example in examples for pair in zip(example["source"], example["target"], strict=True)}
    assert {one for one, _ in pairs} == {other for _, other in pairs} == {*"abcdefgh"}
    assert len(pairs) == 8


def test_grammar_is_laid_out_as_in_the_paper():
    task = load_few_shot_task("grammar")
    lines = PromptTemplate(task["template"]).head(task["examples"][:1]).split("\n")
    assert lines[0].startswith("Poor English input: ")
    assert lines[1].startswith("Good English output: ")
    assert all(example["source"] != example["target"] for example in task["examples"])


def test_dates_are_those_of_the_training_split():
    for example in load_few_shot_task("dates")["examples"]:
        assert re.fullmatch(r"(19|20)\d\d-\d\d-\d\d", example["target"])
        assert example["target"][:4] in example["source"]
        assert split_of(example["target"]) == "train"


def test_a_task_of_a_file(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text('template: "{a} = {b}"\nlabels: [x, y]\nexamples:\n- {a: one, b: x}\n', encoding="utf-8")
    assert load_few_shot_task(file) == {
        "template": "{a} = {b}",
        "labels": ["x", "y"],
        "examples": [{"a": "one", "b": "x"}],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1", "must be a mapping with the key template"),
        ("instruction: x", "must be a mapping with the key template"),
        ("template: '{a} {b}'\nshots: 3", "key 'shots' is none of template"),
        ("template: [1]", "template=.* is of the wrong type"),
        ("template: '{a} {b}'\nexamples:\n- {a: 1}", "example 1: must be a mapping of names to texts"),
        ("template: !!python/object/apply:os.getcwd []", "no YAML in UTF-8"),
    ],
)
def test_files_that_say_something_else(tmp_path, content, message):
    (tmp_path / "task.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_few_shot_task(tmp_path / "task.yaml")


def test_nothing_of_that_name():
    with pytest.raises(FileNotFoundError, match="gramar: no such file, and none of the tasks grammar, article"):
        load_few_shot_task("gramar")


def test_examples_of_files(tmp_path):
    expected = [{"a": "1", "b": "x, y"}, {"a": "é", "b": "z"}]
    contents = {
        "rows.jsonl": '{"a": "1", "b": "x, y"}\n\n{"a": "é", "b": "z"}\n',
        "rows.tsv": "a\tb\n1\tx, y\né\tz\n",
        "rows.csv": '\ufeffa,b\n1,"x, y"\né,z\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert load_examples(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.txt", "a", "read from .jsonl, .tsv or .csv"),
        ("rows.jsonl", '{"a": "1"}\n{', "rows.jsonl:2: no JSON"),
        ("rows.jsonl", '{"a": 1}', "rows.jsonl:1: must be a mapping"),
        ("rows.tsv", "a\tb\n1\n", "rows.tsv:2: not as many fields"),
        ("rows.csv", "a,b\n1,2,3\n", "rows.csv:2: not as many fields"),
        ("rows.csv", "a,b\n", "no examples"),
    ],
)
def test_examples_that_are_none(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_examples(tmp_path / name)
