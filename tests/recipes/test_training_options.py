"""What `training` can say beside how long and how fast, each against what its paper's formula gives."""

import copy
import math
import re
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file
from transformers import Seq2SeqTrainer, TrainerCallback

from hf_attnzoo.recipes import build_recipe
from hf_attnzoo.recipes.building import build_model, build_trainer, generation_config
from hf_attnzoo.recipes.scheduled_sampling import ScheduledSampling, true_share
from hf_attnzoo.recipes.schema import ScheduledSamplingSection
from hf_attnzoo.recipes.tasks import make_task
from hf_attnzoo.registry import FAMILIES
from hf_attnzoo.testing.batches import aligned_logits, is_encoder, ragged_batch, scattered, source_of, training_batch

UNDROPPED = {"dropout": 0.0, "attention_dropout": 0.0}
SIZES = {
    "rnnsearch": {"embedding_size": 8, "hidden_size": 10, "maxout_size": 6, "source_vocab_size": 20},
    "luong": {"embedding_size": 8, "hidden_size": 10},
    "transformer": {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "dropout": 0.0,
    },
    "bert": {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, **UNDROPPED},
    "rnnlm": {"embedding_size": 8, "hidden_size": 10},
    "show_attend_tell": {
        "embedding_size": 8,
        "hidden_size": 10,
        "image_size": 13,
        "encoder_channels": [4, 7],
        "doubly_stochastic_weight": 0.0,
    },
    "gpt": {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, **UNDROPPED},
}


def tiny(name, **options):
    family = FAMILIES[name]
    return scattered(family.model_class(family.head)(family.config_class(vocab_size=20, **SIZES[name], **options)))


# Eight pairs, two to a batch.
PAIRS = Dataset.from_dict(
    {
        "source": ["a a", "a b", "a c", "b a", "b b", "b c", "c a", "c b"],
        "target": ["c a", "c c", "c b", "a a", "a c", "a b", "b a", "b c"],
    }
)


@pytest.fixture
def trainer_for(recipe_content, tmp_path):
    def make(name="run", rows=PAIRS, **changes):
        plain = {"batch_tokens": 12, "eval_steps": 2, "max_steps": 6, "warmup_steps": 0}
        plain = {"model__dropout": 0.3, **{f"training__{key}": value for key, value in plain.items()}}
        recipe = build_recipe(recipe_content(tmp_path / name, **{**plain, **changes}))
        torch.manual_seed(0)
        task = make_task("seq2seq", recipe)
        tokenizer = task.build_processor(rows)
        model = build_model(recipe, FAMILIES["rnnsearch"], task, tokenizer)
        model.generation_config = generation_config(recipe, model, 10)
        prepared, _ = task.prepare(rows, tokenizer)
        datasets = {"train": prepared, "validation": prepared}
        return build_trainer(recipe, task, model, tokenizer, datasets, rows, Console(quiet=True))

    return make


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class Recorder(TrainerCallback):
    """Keeps the weights after every step."""

    def __init__(self, trainer):
        self.steps = [weights_of(trainer.model)]
        trainer.add_callback(self)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps.append(weights_of(model))


def same(one, other):
    assert one.keys() == other.keys()
    return all(one[name].equal(other[name]) for name in one)


def checkpoint(trainer, step, file="model.safetensors"):
    return load_file(f"{trainer.args.output_dir}/checkpoint-{step}/{file}")


class TestLabelSmoothing:
    @pytest.mark.parametrize("name", SIZES)
    def test_every_family_spreads_its_share_in_training_alone(self, name):
        smoothing = 0.3
        model = tiny(name, label_smoothing=smoothing)
        batch = training_batch(model)
        for training, share in ((True, smoothing), (False, 0.0)):
            model.train(training)
            with torch.no_grad():
                logits = model(**batch, skip_logits=False).logits
                losses = [model(**batch).loss, model(**batch, num_items_in_batch=100).loss * 100]
            labels = batch["labels"]
            if not is_encoder(model):
                logits, labels = aligned_logits(model, logits, labels)
            logs = logits.double().log_softmax(dim=-1)
            total = count = 0
            for row, column in (labels != -100).nonzero().tolist():
                word = logs[row, column]
                total -= (1 - share) * word[labels[row, column]] + share * word.mean()
                count += 1
            assert losses[0].item() == pytest.approx(total.item() / count, rel=1e-5)
            assert losses[1].item() == pytest.approx(total.item(), rel=1e-5)

    def test_a_recipe_sets_it_once(self, trainer_for):
        assert trainer_for(training__label_smoothing=0.2).model.config.label_smoothing == 0.2
        assert trainer_for(model__label_smoothing=0.3).model.config.label_smoothing == 0.3
        with pytest.raises(ValueError, match=r"training.label_smoothing=0.2 and model.label_smoothing=0.3 differ"):
            trainer_for(training__label_smoothing=0.2, model__label_smoothing=0.3)
        with pytest.raises(ValueError, match=r"label_smoothing=0.2 is for words of a softmax"):
            trainer_for(training__label_smoothing=0.2, model__copy=True)
        with pytest.raises(ValueError, match=r"training.label_smoothing=1 must be below 1"):
            trainer_for(training__label_smoothing=1)


class TestGuard:
    @pytest.fixture
    def spoilt(self, monkeypatch):
        """Makes the loss of some batches NaN, and keeps all of them."""
        seen, bad = [], set()
        compute_loss = Seq2SeqTrainer.compute_loss

        def compute(trainer, model, inputs, *args, **kwargs):
            seen.append(inputs["input_ids"])
            loss = compute_loss(trainer, model, inputs, *args, **kwargs)
            return loss * math.nan if len(seen) in bad else loss

        monkeypatch.setattr(Seq2SeqTrainer, "compute_loss", compute)
        return SimpleNamespace(seen=seen, bad=bad)

    @pytest.mark.parametrize(("batches_a_step", "step"), [(1, 6), (2, 3)])
    def test_a_step_is_named_with_its_rows(self, trainer_for, spoilt, batches_a_step, step):
        # The second batch of the second epoch, which has four.
        spoilt.bad.add(6)
        trainer = trainer_for(training__gradient_accumulation_steps=batches_a_step)
        with pytest.raises(ValueError, match="the loss is nan") as error:
            trainer.train()
        assert trainer.state.global_step == step - 1
        sides = trainer.processing_class
        texts = [sides.decode(row, skip_special_tokens=True) for row in spoilt.seen[5]]
        rows = [PAIRS["source"].index(text) for text in texts]
        assert len(rows) == 2
        assert str(error.value).startswith(
            f"step {step}: the loss is nan, with the rows {rows[0]}, {rows[1]} of the training data, which begin with "
            f"{texts[0]!r} → {PAIRS['target'][rows[0]]!r}; {texts[1]!r} → {PAIRS['target'][rows[1]]!r}."
        )

    def test_skipped_pairs_are_counted_in_the_rows(self, trainer_for, spoilt):
        longer = Dataset.from_dict({"source": ["a b c", *PAIRS["source"]], "target": ["a", *PAIRS["target"]]})
        spoilt.bad.add(1)
        trainer = trainer_for(rows=longer, data__max_source_length=3)
        with pytest.raises(ValueError, match="with the rows") as error:
            trainer.train()
        first = trainer.processing_class.decode(spoilt.seen[0][0], skip_special_tokens=True)
        assert f"with the rows {longer['source'].index(first)}, " in str(error.value)

    def test_a_gradient_is_looked_at_too(self, trainer_for):
        trainer = trainer_for()
        trainer.model.lm_head.weight.register_hook(lambda gradient: gradient * math.inf)
        with pytest.raises(ValueError, match=r"step 1: the gradient's norm is (inf|nan), with the rows"):
            trainer.train()

    def test_a_step_can_be_left_out(self, trainer_for, spoilt):
        spoilt.bad.update({3, 5})
        skip = {"training__on_nonfinite": "skip", "training__max_skipped_steps": 2}
        trainer = trainer_for(**skip)
        recorder = Recorder(trainer)
        trainer.train()
        changed = [not same(*pair) for pair in zip(recorder.steps, recorder.steps[1:], strict=False)]
        assert changed == [True, True, False, True, False, True]
        assert [entry["step"] for entry in trainer.state.log_history if "skipped_steps" in entry] == [3, 5]
        assert all(tensor.isfinite().all() for tensor in recorder.steps[-1].values())
        # Adam's moments have not heard of it either.
        steps = {int(state["step"]) for state in trainer.optimizer.state.values()}
        assert steps == {4}

    def test_too_many_are_an_error_also_after_going_on(self, trainer_for, spoilt):
        skip = {"training__on_nonfinite": "skip", "training__max_skipped_steps": 1}
        spoilt.bad.update({1, 4})
        with pytest.raises(ValueError, match=r"training\.max_skipped_steps=1 such steps"):
            trainer_for(**skip).train()
        again = trainer_for(**skip)
        spoilt.seen.clear()
        spoilt.bad.clear()
        spoilt.bad.add(1)
        with pytest.raises(ValueError, match=r"^step 3: .*training.max_skipped_steps=1"):
            again.train(resume_from_checkpoint=f"{again.args.output_dir}/checkpoint-2")

    def test_all_processes_stop_where_one_is_at_fault(self, trainer_for, monkeypatch):
        trainer = trainer_for()
        trainer.guard.see(torch.tensor(1.0))
        trainer.accelerator = SimpleNamespace(reduce=lambda flag: flag + 1)
        gather = "hf_attnzoo.recipes.guarding.gather_object"
        monkeypatch.setattr(gather, lambda told: [*told, (True, "step 1: the loss is nan, with the rows 5, 6")])
        several = SimpleNamespace(world_size=2, fp16=False)
        with pytest.raises(ValueError, match=r"^step 1: the loss is nan, with the rows 5, 6\. A lower"):
            trainer.guard.on_pre_optimizer_step(several, trainer.state, trainer.control)

    def test_the_norm_is_in_the_history(self, trainer_for):
        trainer = trainer_for(training__max_steps=1, training__max_grad_norm=0.001, training__optimizer="sgd")
        trainer.train()
        (entry,) = (entry for entry in trainer.state.log_history if "loss" in entry)
        # As it was before it was scaled down.
        assert entry["grad_norm"] > 0.01


class TestAverage:
    # Less than that of step 4, 5 / 14
    DECAY = 0.34

    def expected(self, steps):
        averages = [{name: tensor.double() for name, tensor in steps[0].items()}]
        for step, weights in enumerate(steps[1:], start=1):
            decay = min(self.DECAY, (1 + step) / (10 + step))
            before = averages[-1]
            averages.append({n: decay * before[n] + (1 - decay) * weights[n].double() for n in weights})
        return averages

    def test_evaluations_and_checkpoints_are_of_the_average(self, trainer_for):
        trainer = trainer_for(training__ema_decay=self.DECAY)
        recorder = Recorder(trainer)
        evaluated, score = [], trainer.compute_metrics

        def compute(prediction):
            evaluated.append(weights_of(trainer.model))
            # The first evaluation is the best one.
            return {**score(prediction), "token_accuracy": 1 / len(evaluated)}

        trainer.compute_metrics = compute
        trainer.train()
        averages = self.expected(recorder.steps)
        for evaluation, step in zip(evaluated, (2, 4, 6), strict=True):
            for name, tensor in averages[step].items():
                torch.testing.assert_close(evaluation[name].double(), tensor, rtol=0, atol=1e-6)
            assert not evaluation["lm_head.weight"].equal(recorder.steps[step]["lm_head.weight"])
            if step != 4:
                # save_total_limit of 2 keeps the best one and the last ones
                assert same(checkpoint(trainer, step), evaluation)
                assert same(checkpoint(trainer, step, "trained.safetensors"), recorder.steps[step])
        # The best checkpoint is what is left.
        assert same(weights_of(trainer.model), evaluated[0])

    def test_without_an_evaluation_the_last_average_is_left(self, trainer_for):
        trainer = trainer_for(training__ema_decay=self.DECAY, training__eval_steps=100)
        recorder = Recorder(trainer)
        trainer.train()
        for name, tensor in self.expected(recorder.steps)[-1].items():
            torch.testing.assert_close(weights_of(trainer.model)[name].double(), tensor, rtol=0, atol=1e-6)

    def test_gone_on_with_equals_never_stopped(self, trainer_for):
        whole = trainer_for("whole", training__ema_decay=self.DECAY)
        whole.train()
        first = trainer_for("parts", training__ema_decay=self.DECAY)

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop = state.global_step == 3

        first.add_callback(Stop())
        first.train()
        second = trainer_for("parts", training__ema_decay=self.DECAY)
        with torch.no_grad():
            for parameter in second.model.parameters():
                parameter.zero_()
        second.train(resume_from_checkpoint=f"{second.args.output_dir}/checkpoint-2")
        for file in ("model.safetensors", "trained.safetensors"):
            assert same(checkpoint(whole, 6, file), checkpoint(second, 6, file))


class TestScheduledSampling:
    @pytest.mark.parametrize(
        ("settings", "step", "expected"),
        [
            ({"schedule": "linear", "k": 0.9, "c": 0.1}, 0, 0.9),
            ({"schedule": "linear", "k": 0.9, "c": 0.1}, 5, 0.4),
            ({"schedule": "linear", "k": 0.9, "c": 0.1, "minimum": 0.25}, 50, 0.25),
            ({"schedule": "linear", "k": 1, "c": 0.1}, 50, 0.0),
            ({"schedule": "exponential", "k": 0.5}, 3, 0.125),
            ({"schedule": "inverse_sigmoid", "k": 10}, 0, 10 / 11),
            ({"schedule": "inverse_sigmoid", "k": 10}, 23, 10 / (10 + math.e**2.3)),
            ({"schedule": "inverse_sigmoid", "k": 10}, 10**6, 0.0),
        ],
    )
    def test_the_share_of_true_words(self, settings, step, expected):
        assert true_share(ScheduledSamplingSection(**settings), step) == pytest.approx(expected)

    def naive(self, model, batch, own):
        """Word by word and row by row, without a cache: what a mixed input should be."""
        causal = not model.config.is_encoder_decoder
        labels = batch["labels"]
        mixed = batch["input_ids"].clone() if causal else torch.full_like(labels, model.config.pad_token_id)
        for row in range(len(labels)):
            real = (batch["input_ids"][row] != model.config.pad_token_id) if causal else labels[row] != -100
            words = batch["input_ids"][row][real].tolist() if causal else [2, *labels[row][real].tolist()[:-1]]
            coins = own[row][real if causal else slice(None)].tolist()
            source = {name: batch[name][row, None] for name in ("input_ids", "pixel_values") if name in batch}
            for place in range(1, len(words)):
                prefix = torch.tensor([words[:place]])
                given = {"input_ids": prefix, "attention_mask": torch.ones_like(prefix)}
                if not causal:
                    given = {**source, "decoder_input_ids": prefix}
                if not causal and "input_ids" in batch:
                    given["attention_mask"] = batch["attention_mask"][row, None]
                written = model(**given, use_cache=False).logits[0, -1].argmax().item()
                words[place] = written if coins[place] else words[place]
            if causal:
                mixed[row][real] = torch.tensor(words)
            else:
                mixed[row, : len(words)] = torch.tensor(words)
        return mixed

    @pytest.mark.parametrize("share", [0.5, 1.0])
    @pytest.mark.parametrize("name", [name for name in SIZES if name != "bert"])
    def test_words_are_those_of_a_loop(self, name, share):
        model = tiny(name, **({"input_feeding": True} if name == "luong" else {}))
        source, labels = ragged_batch(model)
        batch = {**source_of(model, source), "labels": labels}
        if "input_ids" in batch:
            batch["attention_mask"] = (batch["input_ids"] != model.config.pad_token_id).long()
        torch.manual_seed(3)
        own = torch.rand(labels.shape) < share
        with torch.no_grad():
            expected = self.naive(model.eval(), batch, own)
        model.train()
        torch.manual_seed(3)
        sampling = ScheduledSampling(ScheduledSamplingSection(schedule="linear", k=1.0, c=share))
        given = copy.deepcopy(batch)
        mixed = sampling(model, given, 1)
        assert model.training
        assert all(given[key].equal(batch[key]) for key in batch)
        assert mixed["labels"].equal(labels)
        causal = not model.config.is_encoder_decoder
        words = mixed["input_ids"] if causal else mixed["decoder_input_ids"]
        # What is fed where no label counts, is of no matter.
        counts = torch.ones_like(words, dtype=torch.bool) if causal else labels != -100
        assert words[counts].tolist() == expected[counts].tolist()
        true = batch["input_ids"] if causal else model.prepare_decoder_input_ids_from_labels(labels=labels)
        assert not words[counts].equal(true[counts])

    def test_a_drawn_word_is_drawn_from_the_model(self):
        model = tiny("rnnsearch")
        source = torch.tensor([[5, 6, 7, 3]])
        with torch.no_grad():
            likely = model.eval()(input_ids=source, decoder_input_ids=torch.tensor([[2]])).logits[0, 0].softmax(-1)
        rows = 4000
        batch = {"input_ids": source.repeat(rows, 1), "attention_mask": torch.ones(rows, 4, dtype=torch.long)}
        batch["labels"] = torch.full((rows, 2), 4)
        torch.manual_seed(0)
        sampling = ScheduledSampling(ScheduledSamplingSection(schedule="linear", c=1.0, choice="sample"))
        words = sampling(model, batch, 1)["decoder_input_ids"]
        assert words[:, 0].tolist() == [2] * rows
        shares = words[:, 1].bincount(minlength=20) / rows
        assert ((shares - likely).abs() < 5 * (likely / rows).sqrt() + 1e-3).all()

    def test_no_probability_is_plain_training_to_the_bit(self, trainer_for):
        def trained(name, **sampling):
            trainer = trainer_for(name, training__max_steps=3, training__scheduled_sampling=sampling)
            trainer.train()
            return weights_of(trainer.model)

        plain = trained("plain", schedule="none")
        assert same(plain, trained("zero", schedule="linear", k=1.0, c=0.0))
        assert not same(plain, trained("some", schedule="linear", k=1.0, c=0.5))

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"schedule": "sigmoid"}, "schedule='sigmoid' is none of none, linear, exponential, inverse_sigmoid"),
            ({"schedule": "exponential"}, "k=1.0 must be in (0, 1) for training.scheduled_sampling.schedule="),
            ({"schedule": "inverse_sigmoid", "k": 0.5}, "training.scheduled_sampling.k=0.5 must be at least 1"),
            ({"schedule": "linear", "k": 2}, "training.scheduled_sampling.k=2 must be in (0, 1]"),
            ({"schedule": "linear", "minimum": 1.5}, "training.scheduled_sampling.minimum=1.5 must be at most 1"),
            ({"schedule": "linear", "speed": 1}, "unknown key training.scheduled_sampling.speed; did you mean"),
            ({"choice": "best"}, "training.scheduled_sampling.choice='best' is none of argmax, sample"),
        ],
    )
    def test_what_is_wrong_is_named(self, recipe_content, tmp_path, settings, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            build_recipe(recipe_content(tmp_path, training__scheduled_sampling=settings))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["tensorbord"], "training.report_to=['tensorbord']: tensorbord is not supported, only "),
        (["wandb"], "training.report_to=['wandb']: WandbCallback requires wandb to be installed"),
    ],
)
def test_a_program_to_report_to_is_there_or_refused(trainer_for, monkeypatch, names, message):
    monkeypatch.setattr("transformers.integrations.integration_utils.is_wandb_available", lambda: False)
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_for(training__report_to=names)


def test_tensorboard_gets_the_curves(trainer_for, tmp_path):
    pytest.importorskip("tensorboard")
    trainer = trainer_for(training__report_to=["tensorboard"], training__max_steps=1)
    trainer.train()
    # Not among the checkpoints, which a run removes
    (file,) = (tmp_path / "run" / "logs").iterdir()
    assert b"train/grad_norm" in file.read_bytes()
