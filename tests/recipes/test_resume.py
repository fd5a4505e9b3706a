"""A run that was killed, at any moment, ends as if it had not been."""

import errno
import io
import itertools
import json
import random
import re
import resource
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.data_loader import DataLoaderShard
from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from hf_attnzoo.data import TokenBudgetBatchSampler
from hf_attnzoo.recipes import build_recipe, resume, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.resume import claim_output, last_complete_checkpoint, list_files
from hf_attnzoo.recipes.tasks.captioning import CaptioningTask
from hf_attnzoo.recipes.tasks.translation import TranslationTask
from hf_attnzoo.recipes.trainer import ZooTrainer

# Five batches an epoch
DATA = {"data__train": {"size": 20}, "training__batch_tokens": 40, "model__dropout": 0.3}


class Killed(BaseException):
    """Like a KeyboardInterrupt, but nobody else's."""


class World:
    """Runs recipes in `folder` on a clock that goes ten seconds a step, and kills them."""

    def __init__(self, folder, recipe_content, monkeypatch):
        self.folder, self.recipe_content, self.patch = folder, recipe_content, monkeypatch
        self.now, self.steps, self.kill_at = 0.0, 0, None
        training_step = ZooTrainer.training_step

        def step(trainer, *args, **kwargs):
            if trainer.state.global_step + 1 == self.kill_at:
                raise Killed
            self.now += 10
            self.steps += 1
            return training_step(trainer, *args, **kwargs)

        monkeypatch.setattr(ZooTrainer, "training_step", step)
        monkeypatch.setattr("hf_attnzoo.recipes.trainer.time", SimpleNamespace(perf_counter=lambda: self.now))

    def scores(self, values):
        """What evaluations will say of the model, one after the other."""
        values = iter(values)

        def score(*args, **kwargs):
            return {"token_accuracy": next(values), "token_accuracy_signature": ""}

        self.patch.setattr("hf_attnzoo.recipes.trainer.generation_metrics", score)

    def validation_losses(self, values):
        """The same of its loss."""
        values, loop = iter(values), ZooTrainer.evaluation_loop

        def evaluation_loop(*args, **kwargs):
            output = loop(*args, **kwargs)
            if "eval_loss" in output.metrics:
                output.metrics["eval_loss"] = next(values)
            return output

        self.patch.setattr(ZooTrainer, "evaluation_loop", evaluation_loop)

    def run(self, name="run", kill_at=None, console=None, **changes):
        self.kill_at = kill_at
        recipe = build_recipe(self.recipe_content(self.folder / name, **{**DATA, **changes}))
        return run_recipe(recipe, console or Console(quiet=True))

    def kill(self, kill_at, **changes):
        with pytest.raises(Killed):
            self.run(kill_at=kill_at, **changes)

    def kill_before_saving(self, **changes):
        with self.patch.context() as patch:

            def die(*args):
                raise Killed

            patch.setattr(run_module, "save_run", die)
            with pytest.raises(Killed):
                self.run(**changes)


@pytest.fixture
def world(tmp_path, recipe_content, monkeypatch):
    return World(tmp_path, recipe_content, monkeypatch)


def weights(result):
    return load_file(result.model / "model.safetensors")


def losses(result):
    return re.findall(r"^\| (\d+) \| (\d\.\d{4}) \|$", (result.model / "README.md").read_text(), re.MULTILINE)


def assert_same(left, right):
    assert losses(left) == losses(right)
    assert left.samples == right.samples
    left, right = weights(left), weights(right)
    assert left.keys() == right.keys()
    assert [name for name in left if not left[name].equal(right[name])] == []


# The checkpoints at 3 and 6 are in the middle of the first epoch and of the second.
@pytest.mark.parametrize(("kill_at", "checkpoint"), [(5, 3), (9, 6), (2, None)])
def test_killed_and_gone_on_with_equals_never_killed(world, kill_at, checkpoint):
    length = {"training__max_steps": 9, "training__eval_steps": 3}
    world.scores(itertools.count())
    whole = world.run("whole", **length)
    assert len(losses(whole)) == 9
    assert len(set(losses(whole))) == 9

    world.kill(kill_at, **length)
    checkpoints = world.folder / "run" / "checkpoints"
    assert (checkpoints / f"checkpoint-{checkpoint}").is_dir() == (checkpoint is not None)
    # A checkpoint that was being written, and two that a full disk has spoilt.
    for step, text in ((7, None), (8, ""), (9, '{"global_step": 3}')):
        (checkpoints / f"checkpoint-{step}").mkdir()
        if text is not None:
            (checkpoints / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    if checkpoint is None:
        shutil.rmtree(checkpoints)
    world.steps = 0
    again = world.run(**length)
    assert world.steps == 9 - (checkpoint or 0)
    assert_same(whole, again)
    # The time that the killed run spent up to the checkpoint counts, its last steps are lost.
    assert whole.seconds == again.seconds == 90
    assert not checkpoints.exists()


def test_batches_differ_from_epoch_to_epoch_and_go_on_in_order(world, monkeypatch):
    seen = []
    step = ZooTrainer.training_step

    def spy(trainer, model, inputs, *args, **kwargs):
        seen.append(inputs["input_ids"].tolist())
        return step(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(ZooTrainer, "training_step", spy)
    length = {"training__max_steps": 10, "training__eval_steps": 3}
    world.run("whole", **length)
    whole = seen.copy()

    def rows(batches):
        return sorted(tuple(token for token in row if token != 1) for batch in batches for row in batch)

    assert len(rows(whole[:5])) == len(set(rows(whole[:5]))) == 20
    assert rows(whole[:5]) == rows(whole[5:])
    assert whole[:5] != whole[5:]

    seen.clear()
    world.kill(8, **length)
    world.run(**length)
    # Steps 1 to 8, of which the last is not taken, then from the checkpoint at 6.
    assert seen == whole[:8] + whole[6:]


def test_the_epoch_reaches_the_batches_through_any_wrapper(world, monkeypatch):
    # In several processes accelerate's loaders don't pass it on when they go on in the middle of an epoch.
    monkeypatch.setattr(DataLoaderShard, "set_epoch", lambda loader, epoch: None)
    order = []
    sample = TokenBudgetBatchSampler.__iter__

    def spy(sampler):
        order.append(list(sample(sampler)))
        return iter(order[-1])

    monkeypatch.setattr(TokenBudgetBatchSampler, "__iter__", spy)
    world.run(training__max_steps=10, training__eval_steps=10)
    assert len(order) == 2
    assert order[0] != order[1]


def test_what_had_been_trained_but_not_saved_is_saved_without_another_step(world):
    length = {"training__max_steps": 6}
    world.scores([0.1, 0.9, 0.5] * 2)
    whole = world.run("whole", **length)
    best = world.folder / "run" / "checkpoints" / "checkpoint-4" / "model.safetensors"
    world.kill_before_saving(**length)
    best = load_file(best)
    world.steps = 0
    again = world.run(**length)
    assert world.steps == 0
    assert_same(whole, again)
    # The second of three evaluations was the best.
    assert all(best[name].equal(tensor) for name, tensor in weights(again).items())
    assert again.seconds == whole.seconds == 60
    assert json.loads((again.model / "metrics.json").read_text())["steps"] == 6


@pytest.mark.parametrize("ended", [False, True])
def test_a_moved_folder_keeps_its_best_checkpoint(world, ended):
    length = {"training__max_steps": 6}
    world.scores([0.9, 0.1, 0.2])
    if ended:
        world.kill_before_saving(**length)
    else:
        world.kill(6, **length)
    best = load_file(world.folder / "run" / "checkpoints" / "checkpoint-2" / "model.safetensors")
    (world.folder / "run").rename(world.folder / "elsewhere")
    result = world.run("elsewhere", **length)
    assert all(best[name].equal(tensor) for name, tensor in weights(result).items())


def test_patience_goes_on_where_it_was(world):
    stopping = {"training__max_steps": 20, "training__patience": 2}
    # Best at step 2, worse at 4; killed; worse at 6: enough.
    world.scores([0.9, 0.5, 0.4, 0.3, 0.2, 0.1])
    world.kill(6, **stopping)
    world.steps = 0
    result = world.run(**stopping)
    assert world.steps == 2
    assert json.loads((result.model / "metrics.json").read_text())["steps"] == 6


def test_the_best_loss_of_equal_scores_is_remembered(world):
    stopping = {"training__max_steps": 20, "training__patience": 2}
    world.scores(itertools.repeat(0.0))
    # Best at step 2, worse at 4; killed; at 6 better than the last one, but not than the best: enough.
    world.validation_losses([2.0, 3.0, 2.5] * 2)
    whole = world.run("whole", **stopping)
    best = world.folder / "run" / "checkpoints" / "checkpoint-2" / "model.safetensors"
    world.kill(6, **stopping)
    best = load_file(best)
    world.steps = 0
    again = world.run(**stopping)
    assert world.steps == 2
    assert json.loads((again.model / "metrics.json").read_text())["steps"] == 6
    assert_same(whole, again)
    assert all(best[name].equal(tensor) for name, tensor in weights(again).items())


def test_a_run_that_patience_had_ended_does_not_go_on(world):
    stopping = {"training__max_steps": 20, "training__patience": 1}
    world.scores([0.9, 0.5])
    world.kill_before_saving(**stopping)
    best = load_file(world.folder / "run" / "checkpoints" / "checkpoint-2" / "model.safetensors")
    world.steps = 0
    result = world.run(**stopping)
    assert world.steps == 0
    assert all(best[name].equal(tensor) for name, tensor in weights(result).items())
    card = (result.model / "README.md").read_text()
    assert "stopped early, at step 4 of 20: no better token accuracy for 1 evaluation." in card
    assert "The model has the weights of step 2, chosen by" in card


def test_a_run_that_has_ended_starts_afresh(world):
    first = world.run()
    world.steps = 0
    told = Console(file=io.StringIO(), width=1000)
    second = world.run(name="run", console=told, seed=1)
    assert world.steps == 4
    assert first.model == second.model
    output = world.folder / "run"
    assert told.file.getvalue().startswith(
        f"{output} has the model of a run that has ended, at step 4: it is trained anew, and replaced in the end. "
        f"To keep it choose another output; to go on from it, there, set pretrained.model={output}/model\n"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model__hidden_size": 8}, "is of a run with model.hidden_size=16, not 8"),
        ({"training__max_steps": 8}, "is of a run with training.max_steps=4, not 8"),
        ({"seed": 1}, "is of a run with seed=0, not 1"),
        ({"model__reset_after": True}, "is of a run with model.reset_after=None, not True"),
        ({"data__train": {"size": 21}}, "is of a run with data.train.size=20, not 21"),
    ],
)
def test_another_recipe_does_not_go_on_with_it(world, change, message):
    world.kill(4)
    with pytest.raises(ValueError, match=re.escape(message)):
        world.run(**change)
    assert (world.folder / "run" / "checkpoints" / "checkpoint-2").is_dir()


def test_what_no_weight_hangs_on_may_change(world):
    world.kill(4)
    world.steps = 0
    result = world.run(name="run", license="mit", evaluation__samples=1, training__logging_steps=2)
    assert world.steps == 2
    assert len(result.samples) == 1


def test_changed_data_is_noticed(world):
    pairs = world.folder / "pairs.tsv"
    pairs.write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "abcdefgh"))
    data = {"data": {"source": str(pairs)}}
    world.kill(4, **data)
    pairs.write_text(pairs.read_text().replace("a b\tb a", "a b\ta b"))
    with pytest.raises(ValueError, match="is of a run with digest of the data="):
        world.run(**data)


def test_a_reference_that_changed_is_noticed_though_the_first_is_the_same():
    class Section:
        recipe = None

    pairs = {"source": ["a"], "target": ["b"]}
    digests = {
        TranslationTask.digest(Section, Dataset.from_dict(pairs | more))
        for more in ({}, {"references": [["b", "c"]]}, {"references": [["b", "d"]]}, {"references": [["b"]]})
    }
    assert len(digests) == 4
    # Texts that run into each other are different texts.
    assert TranslationTask.digest(Section, Dataset.from_dict({"source": ["a", "b"], "target": ["c", "d"]})) != (
        TranslationTask.digest(Section, Dataset.from_dict({"source": ["a", "b\0c"], "target": ["d", ""]}))
    )
    picture = io.BytesIO()
    Image.new("RGB", (1, 1)).save(picture, "png")
    features = Features({"image": ImageFeature(), "caption": Value("string"), "captions": List(Value("string"))})
    digests = set()
    for captions in (["a", "b"], ["a", "c"], ["a"]):
        row = {"image": [{"bytes": picture.getvalue()}], "caption": ["a"], "captions": [captions]}
        digests.add(CaptioningTask.digest(Section, Dataset.from_dict(row, features=features)))
    assert len(digests) == 3


def test_every_kind_of_chance_goes_on_where_it_was(world, monkeypatch):
    drawn = []
    step = ZooTrainer.training_step

    def spy(trainer, *args, **kwargs):
        # The draws are of the run, as those of a data collator or a model would be.
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))  # noqa: NPY002
        return step(trainer, *args, **kwargs)

    monkeypatch.setattr(ZooTrainer, "training_step", spy)
    # A model made of attention; five batches an epoch, two of them a step: the checkpoint at 2 is in the first epoch.
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    attentive = {"family": "transformer", "model": {"hidden_size": 8, "dropout": 0.3, **sizes}}
    length = {"training__max_steps": 5, "training__gradient_accumulation_steps": 2, **attentive}
    whole = world.run("whole", **length)
    before = drawn.copy()
    assert len(before) == len(set(before)) == 9
    drawn.clear()
    world.kill(4, **length)
    killed = drawn.copy()
    drawn.clear()
    again = world.run(**length)
    # Steps of two batches, the last of an epoch with one: killed in the fourth, gone on with after the second.
    assert killed[:5] == before[:5]
    assert drawn == before[4:]
    assert_same(whole, again)


def test_another_number_of_processes_does_not_go_on_with_it(world):
    world.kill(4)
    run = world.folder / "run" / "checkpoints" / "run.json"
    run.write_text(run.read_text().replace('"number of processes": 1', '"number of processes": 2'))
    with pytest.raises(ValueError, match="is of a run with number of processes=2, not 1"):
        world.run()


def test_a_key_that_there_was_not_yet_has_had_its_default(recipe_content, tmp_path):
    content = recipe_content(tmp_path / "run")
    claim_output(build_recipe(content), {})
    file = tmp_path / "run" / "checkpoints" / "run.json"
    identity = json.loads(file.read_text())
    assert identity.pop("training.lora.dropout") == 0.0
    file.write_text(json.dumps(identity))
    assert claim_output(build_recipe(content), {}) is None
    del identity["training.on_nonfinite"]
    file.write_text(json.dumps(identity))
    content["training"]["on_nonfinite"] = "skip"
    with pytest.raises(ValueError, match=r"is of a run with training\.on_nonfinite='raise', not 'skip'"):
        claim_output(build_recipe(content), {})


def test_processes_that_share_no_disk_are_told(tmp_path, recipe_content):
    recipe = build_recipe(recipe_content(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"run\.json, which the first process has written, is not to be seen here"):
        claim_output(recipe, {}, main_process=False, processes=2)


@pytest.mark.parametrize("limit", [300, 3000, 30000])
def test_writers_of_every_kind_name_what_they_could_not_write(world, limit):
    # A file can't grow beyond the limit: Python, safetensors and torch each fail in their own words.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    save = ZooTrainer._save_checkpoint

    def limited(trainer, *args, **kwargs):
        if trainer.state.global_step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            save(trainer, *args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with world.patch.context() as patch:
        patch.setattr(ZooTrainer, "_save_checkpoint", limited)
        checkpoints = world.folder / "run" / "checkpoints"
        with pytest.raises(OSError, match=re.escape(f"{checkpoints / 'checkpoint-4'} can't be written: ")):
            world.run()
    assert last_complete_checkpoint(checkpoints) == checkpoints / "checkpoint-2"
    world.steps = 0
    world.run()
    assert world.steps == 2


@pytest.mark.parametrize("name", ["checkpoints", "model"])
def test_folders_of_others_are_left_alone(world, name):
    mine = world.folder / "run" / name
    mine.mkdir(parents=True)
    (mine / "thesis.tex").write_text("three years of work")
    (mine / "checkpoint-100").mkdir()
    with pytest.raises(ValueError, match=f"{name} holds something that no run has written") as refused:
        world.run()
    assert str(refused.value).endswith("; move or remove that folder, or choose another output")
    assert (mine / "thesis.tex").read_text() == "three years of work"
    assert (mine / "checkpoint-100").is_dir()
    assert world.steps == 0


def test_a_file_in_place_of_the_folder_is_left_alone(world):
    (world.folder / "run").write_text("mine")
    with pytest.raises(OSError, match="run"):
        world.run()
    assert (world.folder / "run").read_text() == "mine"


def test_the_last_complete_checkpoint(tmp_path, caplog):
    assert last_complete_checkpoint(tmp_path) is None
    for step, text in ((9, '{"global_step": 9}'), (10, '{"global_step": 10}'), (100, "[]"), (101, '{"global_st')):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("0.1")
        (tmp_path / f"checkpoint-{step}" / "files.json").write_text('{"weights": 3}')
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    for step, files in ((103, '{"weights": 4}'), (104, '{"weights": 3, "optimizer": 3}'), (105, None)):
        shutil.copytree(tmp_path / "checkpoint-10", tmp_path / f"checkpoint-{step}")
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
        (tmp_path / f"checkpoint-{step}" / "files.json").unlink()
        if files is not None:
            (tmp_path / f"checkpoint-{step}" / "files.json").write_text(files)
    shutil.copytree(tmp_path / "checkpoint-10", tmp_path / "checkpoint-102")
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "checkpoint-200").mkdir()
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    told = [record.getMessage() for record in caplog.records]
    for step, lack in (
        (200, "trainer_state.json is missing or cut off"),
        (105, "files.json is missing or cut off"),
        (104, "optimizer is missing or cut off"),
        (103, "weights is missing or cut off"),
        (102, "trainer_state.json is of step 10"),
        (101, "trainer_state.json is missing or cut off"),
        (100, "trainer_state.json is missing or cut off"),
    ):
        folder = tmp_path / f"checkpoint-{step}"
        assert told.pop(0) == f"{folder} is left out, since it is not whole: {lack}"
    assert told == []
    assert (tmp_path / "checkpoint-200").is_dir()
    assert last_complete_checkpoint(tmp_path, remove_others=True) == tmp_path / "checkpoint-10"
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-9", "checkpoint-10", "checkpoint-final"}


def write_checkpoint(folder, step, best=None, **state):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "config.json"):
        (checkpoint / name).write_text("123456789")
    list_files(checkpoint)
    state |= {"global_step": step, "best_model_checkpoint": best and f"elsewhere/checkpoint-{best}"}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    return checkpoint


def test_a_changed_byte_is_found_at_the_same_size(tmp_path, caplog):
    earlier, later = write_checkpoint(tmp_path, 2), write_checkpoint(tmp_path, 4)
    # The check value of CRC-32
    assert json.loads((later / "files.json").read_text())["optimizer.pt"] == [9, 0xCBF43926]
    assert last_complete_checkpoint(tmp_path) == later
    (later / "optimizer.pt").write_text("123406789")
    assert last_complete_checkpoint(tmp_path, read=False) == later
    assert last_complete_checkpoint(tmp_path, remove_others=True) == earlier
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{later} is left out, since it is not whole: optimizer.pt is not what was written"
    assert not later.exists()
    # To begin anew is for the user to decide.
    (earlier / "optimizer.pt").write_text("")
    with pytest.raises(ValueError, match=f"remove {tmp_path} to train anew$"):
        last_complete_checkpoint(tmp_path, remove_others=True)
    assert earlier.is_dir()


def test_a_file_that_can_not_be_read_is_a_damaged_one(tmp_path, monkeypatch, caplog):
    earlier, later = write_checkpoint(tmp_path, 2), write_checkpoint(tmp_path, 4)
    digest = resume._digest

    def fail(file):
        if file == later / "optimizer.pt":
            raise OSError(errno.EIO, "Input/output error")
        return digest(file)

    monkeypatch.setattr(resume, "_digest", fail)
    assert last_complete_checkpoint(tmp_path) == earlier
    assert "optimizer.pt can't be read ([Errno 5] Input/output error)" in caplog.text


def test_a_mean_needs_no_best_one(tmp_path):
    for step, best in ((2, None), (4, 2), (6, 2)):
        write_checkpoint(tmp_path, step, best, save_steps=2, max_steps=6)
    shutil.rmtree(tmp_path / "checkpoint-2")
    assert last_complete_checkpoint(tmp_path, average_last=2).name == "checkpoint-6"


def test_a_checkpoint_whose_best_one_is_damaged_is_left_out(tmp_path, caplog):
    for step, best in ((2, None), (4, 4), (6, 4)):
        write_checkpoint(tmp_path, step, best)
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-6"
    (tmp_path / "checkpoint-4" / "model.safetensors").unlink()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-2"
    lack = "not whole: model.safetensors is missing or cut off"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/checkpoint-6 is left out, since checkpoint-4, its best one so far, is {lack}",
        f"{tmp_path}/checkpoint-4 is left out, since it is {lack}",
    ]
    shutil.rmtree(tmp_path / "checkpoint-2")
    shutil.rmtree(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match="checkpoint-4, its best one so far, is not whole: the folder is m") as error:
        last_complete_checkpoint(tmp_path, remove_others=True)
    assert str(error.value).endswith(f"with the weights of pretrained.model={tmp_path}/checkpoint-6")
    assert (tmp_path / "checkpoint-6").is_dir()


@pytest.mark.parametrize(("damaged", "found"), [(None, 8), (4, 8), (6, 4), (2, 8)])
def test_what_the_mean_of_the_end_needs_must_be_whole(tmp_path, damaged, found):
    # The last of three are those at 6, 8 and 9.
    for step in (2, 4, 6, 8):
        write_checkpoint(tmp_path, step, save_steps=2, max_steps=9)
    if damaged is not None:
        (tmp_path / f"checkpoint-{damaged}" / "model.safetensors").write_text("123456780")
    assert last_complete_checkpoint(tmp_path, average_last=3).name == f"checkpoint-{found}"


def test_no_mean_without_one_of_its_checkpoints(tmp_path):
    for step in (2, 6):
        write_checkpoint(tmp_path, step)
    state = SimpleNamespace(save_steps=2, global_step=6)
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path)), state=state)
    missing = f"{tmp_path}/checkpoint-4, which training.average_last=2 needs, is not whole: the folder is missing"
    with pytest.raises(ValueError, match=re.escape(missing)):
        run_module.average_last(trainer, 2)


def test_a_best_checkpoint_that_is_lost_ends_the_run(world):
    length = {"training__max_steps": 6}
    world.scores([0.9, 0.1, 0.2])
    weights = world.folder / "run" / "checkpoints" / "checkpoint-2" / "model.safetensors"
    step = ZooTrainer.training_step

    def lose(trainer, *args, **kwargs):
        if trainer.state.global_step == 5:
            weights.unlink()
        return step(trainer, *args, **kwargs)

    world.patch.setattr(ZooTrainer, "training_step", lose)
    lost = f"{weights.parent}, the best one by token_accuracy, is not whole: model.safetensors is missing"
    with pytest.raises(ValueError, match=re.escape(lost)):
        world.run(**length)
    assert not (world.folder / "run" / "model").exists()


def test_goes_on_from_the_checkpoint_before_a_damaged_optimizer(world):
    length = {"training__max_steps": 6}
    world.scores(itertools.count())
    world.kill(6, **length)
    file = world.folder / "run" / "checkpoints" / "checkpoint-4" / "optimizer.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :][:64] = bytes(64)
    content[-64:] = bytes(64)
    file.write_bytes(content)
    world.steps = 0
    world.run(**length)
    assert world.steps == 4
