"""Optimisers and schedules: the rates that the papers' formulas give, and what is refused."""

import math
import re

import pytest
import torch
from datasets import Dataset
from rich.console import Console

from hf_attnzoo.data import tokenize_pairs
from hf_attnzoo.recipes import build_recipe
from hf_attnzoo.recipes.building import build_model, build_trainer, generation_config
from hf_attnzoo.recipes.tasks import make_task
from hf_attnzoo.registry import FAMILIES

# With `</s>` on either side 5 tokens a pair.
PAIRS = Dataset.from_dict({"source": ["a b", "b a", "a a", "b b", "c a"], "target": ["b", "a", "c", "b", "a"]})


@pytest.fixture
def trainer_for(recipe_content, tmp_path):
    def make(**changes):
        recipe = build_recipe(recipe_content(tmp_path / "run", **changes))
        torch.manual_seed(0)
        task = make_task("seq2seq", recipe)
        tokenizer = task.build_processor(PAIRS)
        model = build_model(recipe, FAMILIES["rnnsearch"], task, tokenizer)
        model.generation_config = generation_config(recipe, model, 10)
        tokens = tokenize_pairs(PAIRS, tokenizer)
        datasets = {"train": tokens, "validation": tokens}
        return build_trainer(recipe, task, model, tokenizer, datasets, PAIRS, Console(quiet=True))

    return make


def rates(trainer, steps):
    """The learning rate of each of so many steps."""
    trainer.create_optimizer_and_scheduler(steps)
    seen = []
    for _ in range(steps):
        seen.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    return seen


def test_noam_is_equation_3(trainer_for):
    noam = {"training__scheduler": "noam", "training__warmup_steps": 4, "training__learning_rate": 2.0}
    seen = rates(trainer_for(**noam), 16)
    # The tiny model's size is 16: 16^-0.5 is 1/4. The first step is number 1.
    assert seen[0] == pytest.approx(2 / 4 * 4**-1.5)
    assert seen[3] == pytest.approx(2 / 4 * 4**-0.5)
    assert seen[8] == pytest.approx(2 / 4 / 3)
    assert seen[15] == pytest.approx(2 / 4 / 4)
    assert max(seen) == seen[3]
    assert rates(trainer_for(**noam, training__scheduler_options={"size": 64}), 1)[0] == pytest.approx(seen[0] / 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Two steps an epoch.
        ({"start_epoch": 2}, [1, 1, 1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8]),
        ({"start_epoch": 1, "every": 0.5}, [1, 1, 1 / 2, 1 / 4, 1 / 8]),
        ({"start_epoch": 0, "every": 2, "factor": 0.1}, [0.1, 0.1, 0.1, 0.1, 0.01]),
    ],
)
def test_rates_are_cut_by_epochs(trainer_for, options, expected):
    # Five pairs of 5 tokens make three batches, and those two steps.
    trainer = trainer_for(
        training__scheduler="epoch_decay",
        training__scheduler_options=options,
        training__warmup_steps=None,
        training__learning_rate=1.0,
        training__batch_tokens=10,
        training__gradient_accumulation_steps=2,
    )
    assert len(trainer.get_train_dataloader()) == 3
    assert rates(trainer, len(expected)) == pytest.approx(expected)


def test_schedules_of_transformers_take_their_options(trainer_for):
    plain = {"training__learning_rate": 1.0, "training__warmup_steps": 4}
    cosine = trainer_for(
        training__scheduler="cosine_with_min_lr", training__scheduler_options={"min_lr": 0.1}, **plain
    )
    seen = rates(cosine, 25)
    assert seen[:5] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    # Half way down from step 4 to step 25, and nearly at the end of it.
    assert seen[14] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 10 / 21)) / 2)
    assert seen[24] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 20 / 21)) / 2)
    inverse = rates(trainer_for(training__scheduler="inverse_sqrt", **plain), 17)
    assert (inverse[4], inverse[16]) == (pytest.approx(1), pytest.approx(0.5))


# A rate that is a tenth after every evaluation that is no better; there are four of them.
PLATEAU = {
    "training__scheduler": "reduce_lr_on_plateau",
    "training__scheduler_options": {"factor": 0.1, "patience": 0},
    "training__warmup_steps": None,
    "training__eval_steps": 1,
    "training__max_steps": 4,
    "training__learning_rate": 0.5,
}


@pytest.mark.parametrize(("metric", "scores"), [("token_error_rate", [0.9, 0.5, 0.6]), ("bleu", [10.0, 20.0, 15.0])])
def test_a_plateau_is_one_of_the_metric(trainer_for, metric, scores):
    trainer = trainer_for(**PLATEAU, evaluation__metrics=[metric], evaluation__best_metric=metric)
    values = iter([*scores, scores[-1]])
    trainer.compute_metrics = lambda prediction: {metric: next(values)}
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    # The third score is worse than the second.
    assert logged == pytest.approx([0.5, 0.5, 0.5, 0.05])


def test_equal_scores_are_no_plateau_while_the_loss_falls(trainer_for, monkeypatch):
    trainer = trainer_for(**PLATEAU, evaluation__metrics=["bleu"], evaluation__best_metric="bleu")
    trainer.compute_metrics = lambda prediction: {"bleu": 0.0}
    losses, loop = iter([3.0, 2.0, 2.5, 1.0]), trainer.evaluation_loop

    def evaluation_loop(*args, **kwargs):
        output = loop(*args, **kwargs)
        output.metrics["eval_loss"] = next(losses)
        return output

    monkeypatch.setattr(trainer, "evaluation_loop", evaluation_loop)
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    # The third loss is above the second.
    assert logged == pytest.approx([0.5, 0.5, 0.5, 0.05])


def test_adadelta_is_that_of_the_paper(trainer_for):
    trainer = trainer_for(training__optimizer="adadelta", training__learning_rate=1.0)
    trainer.create_optimizer()
    parameter = trainer.model.lm_head.weight
    before = parameter.detach().clone()
    parameter.grad = torch.full_like(parameter, 2.0)
    trainer.optimizer.step()
    # RMS of no updates over that of one gradient of 2, of which 5 % counts.
    expected = before - 2 * math.sqrt(1e-6) / math.sqrt(0.05 * 4 + 1e-6)
    torch.testing.assert_close(parameter.detach(), expected)


def test_options_reach_the_optimizer(trainer_for):
    momentum = trainer_for(training__optimizer="sgd", training__optimizer_options={"momentum": 0.5})
    assert momentum.create_optimizer().defaults["momentum"] == 0.5
    trainer = trainer_for(training__optimizer="adafactor", training__optimizer_options={"eps": [1e-20, 1e-2]})
    defaults = trainer.create_optimizer().defaults
    assert (defaults["eps"], defaults["relative_step"], defaults["lr"]) == ((1e-20, 1e-2), False, 0.02)
    adam = trainer_for(training__adam_beta1=0.8, training__adam_beta2=0.7, training__adam_epsilon=0.1)
    defaults = adam.create_optimizer().defaults
    assert (defaults["betas"], defaults["eps"]) == ((0.8, 0.7), 0.1)


def test_matrices_alone_decay(trainer_for):
    trainer = trainer_for(
        training__optimizer="sgd",
        training__learning_rate=1.0,
        training__weight_decay=0.25,
        training__scheduler="linear",
    )
    optimizer = trainer.create_optimizer()
    for parameter in trainer.model.parameters():
        parameter.data.fill_(1)
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    values = {name: set(parameter.flatten().tolist()) for name, parameter in trainer.model.named_parameters()}
    assert values["lm_head.weight"] == values["model.encoder.embed_tokens.weight"] == {0.75}
    # The energy's vector has no name of a bias or a norm.
    assert values["model.decoder.step.attention.v"] == {1.0}
    shapes = {name: parameter.ndim for name, parameter in trainer.model.named_parameters()}
    assert all(values[name] == ({1.0} if ndim == 1 else {0.75}) for name, ndim in shapes.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduler": "constant"}, "training.warmup_steps=1: training.scheduler='constant' has no warm-up"),
        ({"scheduler": "noam", "warmup_steps": 0}, "training.warmup_steps=0 must be at least 1"),
        ({"scheduler": "noam", "scheduler_options": {"sise": 4}}, "sise is unknown to 'noam'; did you mean 'size'?"),
        ({"scheduler": "noam", "scheduler_options": {"size": 0}}, "options.size=0 must be a number above 0"),
        ({"scheduler": "epoch_decay", "warmup_steps": None}, "training.scheduler_options.start_epoch is missing"),
        (
            {"scheduler": "epoch_decay", "warmup_steps": 0, "scheduler_options": {"start_epoch": 1, "factor": 2}},
            "training.scheduler_options.factor=2 must be a number between 0 and 1",
        ),
        ({"scheduler_options": {"min_lr": 0.1}}, "training.scheduler_options={'min_lr': 0.1}: "),
        (
            {"scheduler": "constant", "warmup_steps": 0, "scheduler_options": {"a": 1}},
            "training.scheduler='constant' has none",
        ),
        (
            {"scheduler": "reduce_lr_on_plateau", "warmup_steps": 0, "scheduler_options": {"mode": "max"}},
            "training.scheduler_options.mode='max' follows from evaluation.best_metric",
        ),
        ({"scheduler": "cosinus"}, "training.scheduler='cosinus': cosinus is not a valid SchedulerType"),
        ({"optimizer_options": {"lr": 1}}, "training.optimizer_options.lr: set training.learning_rate"),
        ({"optimizer_options": {"betas": [0, 0]}}, "betas: set training.adam_beta1 and training.adam_beta2"),
        (
            {"optimizer": "sgd", "optimizer_options": {"momentun": 1}},
            "momentun is unknown to SGD; did you mean 'momentum'?",
        ),
        ({"optimizer": "adadelta", "optimizer_options": {"rho": 2}}, "training.optimizer_options={'rho': 2}: "),
        ({"optimizer": "lion_32bit", "optimizer_options": {"a": 2}}, "not for training.optimizer='lion_32bit'"),
        ({"optimizer": "adam"}, "adam is not a valid OptimizerNames"),
        ({"adam_beta1": 1}, "training.adam_beta1=1 must be below 1"),
        ({"adam_beta2": -0.1}, "training.adam_beta2=-0.1 must be at least 0"),
    ],
)
def test_what_is_wrong_is_named_before_training(trainer_for, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_for(**{f"training__{name}": value for name, value in changes.items()})
