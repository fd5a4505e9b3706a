"""BPE-dropout in a run: in training batches, every epoch anew, gone on with to the bit, and nowhere else."""

import json

import pytest
from rich.console import Console
from safetensors.torch import load_file

from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes.trainer import ZooTrainer

# Texts of one kind each, so that every batch of an epoch is known by its words.
TEXTS = ["the lowest", "the newest", "the widest", "the lower one", "the newer one", "the wider one"]


class Killed(BaseException):
    """Nobody else's."""


@pytest.fixture
def run(recipe_content, tmp_path, monkeypatch):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{text}\t{text}\n" for text in TEXTS * 2))
    seen, state = [], {"kill_at": None}
    step = ZooTrainer.training_step

    def spy(trainer, model, inputs, *args, **kwargs):
        if trainer.state.global_step + 1 == state["kill_at"]:
            raise Killed
        seen.append(inputs["input_ids"].tolist())
        return step(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(ZooTrainer, "training_step", spy)

    def run(name="run", kill_at=None, **changes):
        state["kill_at"] = kill_at
        splits = {split: {"source": str(pairs)} for split in ("train", "validation", "test")}
        changes = {"tokenizer": {"kind": "bpe", "shared": True, "vocab_size": 320}, **changes}
        length = {"training__max_steps": 6, "training__eval_steps": 2, "training__batch_tokens": 60}
        content = recipe_content(tmp_path / name, data=splits, **(length | changes))
        return run_recipe(build_recipe(content), Console(quiet=True))

    return run, seen


def rows(batches):
    return sorted(tuple(token for token in row if token != 1) for batch in batches for row in batch)


def test_a_run_is_cut_anew_every_epoch_and_gone_on_with_to_the_bit(run):
    run, seen = run
    dropped = {"training__bpe_dropout": 0.3}
    whole = run("whole", **dropped)
    batches = seen.copy()
    # Three batches an epoch, the same texts in each.
    first, second = rows(batches[:3]), rows(batches[3:])
    assert first != second
    assert len(set(first)) > len(TEXTS)
    saved = json.loads((whole.model / "tokenizer.json").read_text())
    assert saved["model"]["dropout"] is None

    seen.clear()
    with pytest.raises(Killed):
        run("again", kill_at=6, **dropped)
    again = run("again", **dropped)
    # From the checkpoint in the middle of the second epoch
    assert seen == batches[:5] + batches[4:]
    weights = [load_file(result.model / "model.safetensors") for result in (whole, again)]
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())
    assert whole.samples == again.samples


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"kind": "symbol"}}, "bpe_dropout=0.3 is for tokenizers of the kinds bpe and byte-bpe"),
        (
            {"tokenizer": {"kind": "bpe", "vocab_size": 320, "copy_slots": 0}, "model__copy": True},
            "tokenizer.copy_slots=0 copies whole ones: leave out one of them",
        ),
    ],
)
def test_what_has_no_merges_is_refused(run, changes, message):
    with pytest.raises(ValueError, match=message):
        run[0](training__bpe_dropout=0.3, **changes)
