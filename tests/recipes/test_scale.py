"""However many processes there are, a run does what one process does, and nothing of it is lost."""

import multiprocessing

import pytest
import scale_workers
import torch

SGD = {
    "optimizer": "sgd",
    "scheduler": "constant",
    "warmup_steps": 0,
    "max_grad_norm": 0.0,
    "learning_rate": 0.5,
    "max_steps": 3,
    "eval_steps": 3,
    "logging_steps": 1,
    "eval_batch_size": 2,
}
SMALL = {"hidden_size": 8, "dropout": 0.0}
LAYERS = {"num_attention_heads": 2, "attention_dropout": 0.0, "initializer_range": 0.5}
FAMILIES = {
    "rnnsearch": {**SMALL, "embedding_size": 8, "maxout_size": 8, "initializer_range": 0.5},
    "luong": {**SMALL, "embedding_size": 8, "initializer_range": 0.5},
    "transformer": {**SMALL, **LAYERS, "num_encoder_layers": 1, "num_decoder_layers": 1, "intermediate_size": 8},
    "rnnlm": {**SMALL, "embedding_size": 8, "num_layers": 1, "initializer_range": 0.5},
    "gpt": {**SMALL, **LAYERS, "num_hidden_layers": 1, "max_position_embeddings": 40},
    "show_attend_tell": {
        **SMALL,
        "embedding_size": 8,
        "attention_size": 8,
        "image_size": 16,
        "encoder_channels": [4, 8],
        "initializer_range": 0.5,
    },
    "bert": {},
}


def start(processes, work, folder, *args):
    """Run a function of `scale_workers` in several processes, which must all end well."""
    folder.mkdir(parents=True, exist_ok=True)
    # One server imports everything, once, and the processes are forks of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_attnzoo.recipes.run", "hf_attnzoo.models.modeling_bert"])
    group = [context.Process(target=work, args=(rank, processes, folder, *args)) for rank in range(processes)]
    for process in group:
        process.start()
    try:
        for process in group:
            process.join(timeout=240)
        assert [process.exitcode for process in group] == [0] * processes
    finally:
        for process in group:
            process.kill()


@pytest.fixture(scope="module")
def contents(tmp_path_factory, recipe_content):
    """A recipe for every family, by output folder; five rows to validate with in batches of two."""
    folder = tmp_path_factory.mktemp("data")
    text = folder / "text.txt"
    text.write_text("".join("abcd \n"[i * i % 6] + "abc"[i % 3] for i in range(90)))

    def make(family, output):
        content = recipe_content(output, family=family, model=dict(FAMILIES[family]))
        content["training"] |= SGD
        content["data"] |= {"train": {"size": 12}, "validation": {"size": 5}, "test": {"size": 2}}
        if family in ("rnnlm", "gpt"):
            options = {"shares": [0.5, 0.25, 0.25]}
            content["data"] = {"source": str(text), "options": options, "block_size": 9}
            content["tokenizer"] = {"kind": "character"}
            content["evaluation"] = {"metrics": ["cross_entropy"], "best_metric": "cross_entropy"}
        elif family == "show_attend_tell":
            content["data"] |= {"source": "shapes", "options": {"image_size": 32}}
            content["tokenizer"] = {"kind": "word"}
        return content

    return make


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, contents):
    """What two processes make of every family, read from the files of either."""
    folder = tmp_path_factory.mktemp("two")
    recipes = {family: contents(family, str(folder / "run" / family)) for family in FAMILIES}
    start(2, scale_workers.all_families, folder, recipes)
    return lambda family: [scale_workers.recall(folder / f"rank{rank}" / family) for rank in range(2)]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_two_batches_and_a_double_batch_are_one(two_processes, contents, tmp_path, family):
    two, other = two_processes(family)
    assert two["losses"] == other["losses"]
    assert all(other["weights"][name].equal(tensor) for name, tensor in two["weights"].items())

    accumulated = scale_workers.curve(contents(family, str(tmp_path / "a")), batches=2, accumulation=2)
    double = scale_workers.curve(contents(family, str(tmp_path / "b")), batches=1, accumulation=1)
    assert two["batches"] == accumulated["batches"] == 2
    assert double["batches"] == 1
    assert len(two["losses"]) == 3
    # It learns, so that equal curves say something.
    assert two["losses"][2] < two["losses"][0]
    moved = max(float((tensor - two["before"][name]).abs().max()) for name, tensor in two["weights"].items())
    assert moved > 0.01
    for one in (accumulated, double):
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
        assert two["before"].keys() == one["before"].keys()
        assert all(one["before"][name].equal(tensor) for name, tensor in two["before"].items())
        for name, tensor in two["weights"].items():
            torch.testing.assert_close(one["weights"][name], tensor, rtol=1e-4, atol=1e-5, msg=f"{family}: {name}")
        # Five rows in batches of two: one process has copies to fill up with, and nobody counts them.
        for score, expected in zip(two["scores"], one["scores"], strict=True):
            assert score == pytest.approx(expected, rel=1e-5)
