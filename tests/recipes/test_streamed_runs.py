"""Runs on a stream: what they are trained on, what is known of them, and that they can be killed."""

import json
import re

import pytest
from rich.console import Console
from safetensors.torch import load_file

from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.run import load_splits
from hf_attnzoo.recipes.tasks import make_task
from hf_attnzoo.recipes.trainer import ZooTrainer


class Killed(BaseException):
    """Like a KeyboardInterrupt, but nobody else's."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A folder of splits: 30 pairs to train on, of 1 to 5 letters."""
    folder = tmp_path_factory.mktemp("pairs")
    for split, rows in (("train", 30), ("validation", 3), ("test", 4)):
        lines = [json.dumps({"en": " ".join("abcde"[: 1 + row % 5]), "de": f"{row % 7}"}) for row in range(rows)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def streamed(recipe_content, tmp_path, pairs):
    """Function that makes a recipe of a stream, with changes."""

    def make(**changes):
        data = {
            "source": str(pairs),
            "options": {"source_column": "en", "target_column": "de"},
            "streaming": True,
            "buffer_size": 8,
            "max_source_length": 5,
            "max_target_length": 3,
        }
        tokenizer = {"kind": "symbol", "shared": True, "train_rows": 30}
        changes = {"data": data, "tokenizer": tokenizer, "training__batch_tokens": 24, "model__dropout": 0.3} | changes
        return build_recipe(recipe_content(tmp_path / changes.pop("name", "run"), **changes))

    return make


def run(recipe):
    return run_recipe(recipe, Console(quiet=True))


def test_every_row_that_fits_is_trained_on_once_a_pass(streamed, monkeypatch):
    seen = []
    training_step = ZooTrainer.training_step

    def step(trainer, model, inputs, *args, **kwargs):
        assert inputs["input_ids"].shape[0] * (inputs["input_ids"].shape[1] + inputs["labels"].shape[1]) <= 24
        seen.extend(map(tuple, inputs["input_ids"].tolist()))
        return training_step(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(ZooTrainer, "training_step", step)
    result = run(streamed(training__max_steps=9))
    # Five letters and an end are too long: 24 of 30 rows are left, 6 of each length; the longest take five ids.
    assert len(seen) > 24
    lengths = [sum(token != 1 for token in row) for row in seen[:24]]
    assert sorted(lengths) == sorted([2, 3, 4, 5] * 6)
    # The first buffer of eight had 2, 2, 2, 1 of the lengths.
    assert sorted(lengths[:7]) == [2, 2, 3, 3, 4, 4, 5]
    card = (result.model / "README.md").read_text()
    # Of the second pass as many as were in the buffers that are done with.
    count = int(re.search(r"`: ([\d,]+) train, 3 validation, 4 test pairs", card)[1])
    assert count in (24, 30, 38)


# One in the middle of a buffer, one in the second pass; batches are two a step.
@pytest.mark.parametrize("kill_at", [4, 8])
def test_killed_and_gone_on_with_equals_never_killed(streamed, monkeypatch, kill_at):
    length = {"training__max_steps": 9, "training__eval_steps": 3, "training__gradient_accumulation_steps": 2}
    whole = run(streamed(name="whole", **length))
    training_step, tried, again = ZooTrainer.training_step, [], []

    def die(trainer, *args, **kwargs):
        if trainer.state.global_step + 1 == kill_at:
            raise Killed
        tried.append(trainer.state.global_step)
        return training_step(trainer, *args, **kwargs)

    def count(trainer, *args, **kwargs):
        again.append(trainer.state.global_step)
        return training_step(trainer, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ZooTrainer, "training_step", die)
        with pytest.raises(Killed):
            run(streamed(**length))
        patch.setattr(ZooTrainer, "training_step", count)
        result = run(streamed(**length))
    assert again == [step for step in range((kill_at - 1) // 3 * 3, 9) for _ in range(2)]
    left, right = load_file(whole.model / "model.safetensors"), load_file(result.model / "model.safetensors")
    assert [name for name in left if not left[name].equal(right[name])] == []
    assert whole.samples == result.samples


def test_a_run_killed_before_it_saved_knows_what_it_had_read(streamed, monkeypatch):
    def die(*args):
        raise Killed

    whole = run(streamed(name="whole", training__max_steps=9))
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_run", die)
        with pytest.raises(Killed):
            run(streamed(training__max_steps=9))
    again = run(streamed(training__max_steps=9))
    counts = [re.search(r"`: ([\d,]+) train", (each.model / "README.md").read_text())[1] for each in (whole, again)]
    assert counts[0] == counts[1] != "0"


def test_a_language_model_is_trained_on_a_stream(tmp_path, recipe_content):
    text = "".join(f"{number % 7} lines, " for number in range(300)) + "\n"
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.txt").write_text(text)
    data = {"source": str(tmp_path), "streaming": True, "buffer_size": 3, "block_size": 16}
    model = {"max_position_embeddings": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}
    evaluation = {"metrics": ["cross_entropy"], "best_metric": "cross_entropy", "samples": 1, "maps": 0}
    changes = {"data": data, "model": model, "evaluation": evaluation, "generation": {"max_new_tokens": 4}}
    tokenizer = {"kind": "character", "train_rows": 1}
    recipe = build_recipe(recipe_content(tmp_path / "run", family="gpt", tokenizer=tokenizer, **changes))
    result = run(recipe)
    # Every letter of the test text, and its blocks are those of a run that isn't streamed
    assert f"tokens:{len(text)}" in (result.model / "README.md").read_text()


def test_a_masked_language_model_is_trained_on_a_stream(tmp_path, recipe_content, monkeypatch):
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.txt").write_text("".join(f"some words and word {row % 5}\n" for row in range(40)))
    data = {"source": str(tmp_path), "streaming": True, "buffer_size": 2, "block_size": 12}
    model = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16}
    evaluation = {"metrics": ["cross_entropy"], "best_metric": "cross_entropy", "samples": 1, "maps": 0}
    tokenizer = {"kind": "wordpiece", "vocab_size": 60, "train_rows": 1}
    changes = {"data": data, "model": model, "evaluation": evaluation, "tokenizer": tokenizer, "generation": {}}
    seen = []
    training_step = ZooTrainer.training_step

    def step(trainer, model, inputs, *args, **kwargs):
        seen.append({name: inputs[name].tolist() for name in ("input_ids", "labels")})
        return training_step(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(ZooTrainer, "training_step", step)
    # 200 words, ten a block, five blocks a batch: four batches a pass
    run(build_recipe(recipe_content(tmp_path / "run", family="bert", training__max_steps=8, **changes)))

    def texts(batches):
        rows = [zip(row, labels, strict=True) for one in batches for row, labels in zip(*one.values(), strict=True)]
        return sorted([word if label == -100 else label for word, label in row] for row in rows)

    def masks(batches):
        return sorted(labels for one in batches for labels in one["labels"])

    assert texts(seen[:4]) == texts(seen[4:])
    assert len(texts(seen[:4])) == 20
    # Other words are masked in the second pass.
    assert masks(seen[:4]) != masks(seen[4:])


def test_parts_of_a_split_may_stand_for_splits(streamed, pairs):
    splits = {
        "train": {"skip": 10},
        "validation": {"split": "train", "take": 4},
        "test": {"split": "train", "skip": 4, "take": 6},
    }
    for streaming in (True, False):
        recipe = streamed(data__streaming=streaming, **{f"data__{name}": value for name, value in splits.items()})
        loaded = load_splits(recipe, make_task("seq2seq", recipe))
        whole = [" ".join("abcde"[: 1 + row % 5]) for row in range(30)]
        assert [row["source"] for row in loaded["train"]] == whole[10:]
        assert loaded["validation"]["source"][:] == whole[:4]
        assert loaded["test"]["source"][:] == whole[4:10]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training__max_steps": -1}, "needs training.max_steps"),
        ({"training__num_workers": 2}, "training.num_workers=2 must be 0 with data.streaming=True"),
        ({"tokenizer__train_rows": None}, "needs tokenizer.train_rows"),
        ({"tokenizer__train_rows": 0}, "tokenizer.train_rows=0 must be at least 1"),
        ({"data__buffer_size": 0}, "data.buffer_size=0 must be at least 1"),
        ({"data__max_source_length": None}, "needs data.max_source_length"),
        ({"training__batch_tokens": 7}, "training.batch_tokens=7 must be at least data.max_source_length=5 plus"),
        ({"data__test": {"take": 0}}, "data.test.take=0 must be a number of rows"),
        ({"data__test": {"skip": "x"}}, "data.test.skip='x' must be a number of rows"),
        ({"data__validation": {"skip": 3}}, "the validation split of .* is empty"),
        ({"data__source": "reverse", "data__options": {}}, "has no option 'streaming'"),
        ({"family": "show_attend_tell"}, "can't train on a stream"),
    ],
)
def test_what_can_not_be_done_is_refused(streamed, changes, message):
    def load():
        recipe = streamed(**changes)
        load_splits(recipe, make_task("image-to-text" if "family" in changes else "seq2seq", recipe))

    with pytest.raises(ValueError, match=message):
        load()


def test_a_vocabulary_may_be_learnt_from_the_first_rows(recipe_content, tmp_path):
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"w{row}\tx\n" for row in range(200)))
    data = {"source": str(tmp_path / "pairs.tsv")}
    result = run(build_recipe(recipe_content(tmp_path / "run", data=data, tokenizer__train_rows=5)))
    # The first five of the training split, x, and the four special tokens
    assert json.loads((result.model / "config.json").read_text())["vocab_size"] == 10
