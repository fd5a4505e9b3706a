"""What a recipe may say: its sections, their types, and the reading of YAML files and `key=value` overrides."""

import dataclasses
import difflib
import inspect
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from ..data.formats import read_text
from .reading import read_yaml, write_yaml


@strict
@dataclass
class DataSection:
    """Where the pairs of texts come from.

    Args:
        source: a built-in source (`dates`, `g2p`, `reverse`, `copy`), a file, a folder, or the name of a dataset on
            the Hub.
        options: arguments of the source, for all splits; see `hf_attnzoo.data`.
        train: arguments for the training split alone, `source` and `split` among them if they differ. `source` can be
            a list of several with the same arguments, whose rows are put together: a corpus and what
            `attnzoo backtranslate` has written.
        validation: the same for the split that chooses the best checkpoint.
        test: the same for the split that is reported.
        max_source_length: longest source that is trained on, in tokens. None: no limit.
        max_target_length: longest target that is trained on, in tokens. None: no limit.
        block_size: tokens that a language model reads at a time; texts are cut into blocks of so many.
        join_texts: whether the texts of a language model follow each other in its blocks; otherwise every text begins
            a block.
        answers_after: what stands in front of the answer in each line of a language model's texts, such as `>`: the
            loss is of the answers alone. None: of all tokens.
        shift_blocks: whether the blocks of the training split begin elsewhere in every epoch.
        stride: tokens of a text that a window of it shares with the next, for question answering. None: 128, or half
            of what a window has room for, if that is less.
        on_too_long: `raise`, `skip` or `truncate` a longer pair. No row of the validation or the test split is
            skipped: what is longer is read to its end, or as far as the model has positions, and the card says how
            many were cut.
        license: licence of the data, for the model card; an identifier of the Hub, such as `cc-by-4.0`.
        streaming: read the training split while training, a buffer at a time, for what is larger than the memory; the
            other splits are read in full. Needs `training.max_steps`. Every split may have `skip` and `take`, how many
            rows to pass over at its beginning and to read then.
        buffer_size: rows of a streamed split that are read at a time, and shuffled and put into batches together.
    """

    source: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] = field(default_factory=dict)
    max_source_length: int | None = None
    max_target_length: int | None = None
    block_size: int | None = None
    join_texts: bool = True
    answers_after: str | None = None
    shift_blocks: bool = False
    stride: int | None = None
    on_too_long: str = "skip"
    license: str | None = None
    streaming: bool = False
    buffer_size: int = 10_000


@strict
@dataclass
class TokenizerSection:
    """How texts become ids; see `hf_attnzoo.models.tokenization_attnzoo.train_tokenizer`.

    Args:
        kind: `character`, `word`, `symbol`, `bpe` or `byte-bpe`, or two of them for source and target; `wordpiece` for
            encoders.
        shared: one vocabulary for both languages.
        vocab_size: most entries, or two numbers for source and target.
        min_frequency: rarer words and characters become `<unk>`; or two numbers.
        lowercase: whether case is dropped; or two values.
        copy_slots: for a model with `copy: true`, how many different unknown words of a source can be copied. None:
            no words are matched, which does for a shared vocabulary.
        train_rows: how many rows of the training split, the first ones, the vocabulary is learnt from. None: all,
            which a streamed split can't give.
    """

    kind: str | list[str] = "bpe"
    shared: bool = False
    vocab_size: int | list[int] = 8000
    min_frequency: int | list[int] = 1
    lowercase: bool | list[bool] = False
    copy_slots: int | None = None
    train_rows: int | None = None


@strict
@dataclass
class MaskingSection:
    """What a masked language model is made to guess; see `hf_attnzoo.data.MaskingCollator`.

    Args:
        unit: what is chosen at once: a `token`, a `word` with all its tokens, or a `span` of words.
        probability: share of the tokens that are chosen.
        mask_share: share of these that become the mask.
        random_share: share of these that become another word.
    """

    unit: str = "token"
    probability: float | int = 0.15
    mask_share: float | int = 0.8
    random_share: float | int = 0.1


@strict
@dataclass
class PretrainedSection:
    """A checkpoint that the run starts from, rather than from random weights.

    Args:
        model: folder, one of `attnzoo starters`, or name on the Hub, of a model of the family, its head for another
            task left aside; or of one in transformers' own format, or a training program's, that `attnzoo convert`
            reads. None: random weights. The sizes are the checkpoint's, and the `model` section holds what shall be
            otherwise, such as `dropout`.
        revision: commit, branch or tag on the Hub.
        tokenizer: `keep` the checkpoint's, and don't look at the `tokenizer` section; `extend` it with what it has no
            entry for in the training data; or `train` one as the `tokenizer` section says, with embeddings that start
            anew.
        added_tokens: most entries that `extend` adds to a vocabulary, those that occur most often, and at least
            `tokenizer.min_frequency` times.
    """

    model: str | None = None
    revision: str | None = None
    tokenizer: str = "keep"
    added_tokens: int = 1000


@strict
@dataclass
class ScheduledSamplingSection:
    """How often a model is fed words of its own in training (Bengio et al. 2015).

    At step i a word is the true one with the probability `k - c i` (`linear`), `k^i` (`exponential`) or
    `k / (k + exp(i / k))` (`inverse_sigmoid`), but never with less than `minimum`. Every batch is written out word by
    word first, as by `generate()`: training is slower.

    Args:
        schedule: `none`, `linear`, `exponential` or `inverse_sigmoid`.
        k: in (0, 1] for `linear`, in (0, 1) for `exponential`, at least 1 for `inverse_sigmoid`.
        c: what `linear` loses with every step.
        minimum: least probability of the true word, in [0, 1].
        choice: `argmax`, the likeliest word, or `sample`, one drawn from the model's probabilities.
    """

    schedule: str = "none"
    k: float | int = 1.0
    c: float | int = 0.0
    minimum: float | int = 0.0
    choice: str = "argmax"


@strict
@dataclass
class LoRASection:
    """Training of small factors beside the weights of a checkpoint, which stay as they are (Hu et al. 2022).

    It takes `pretrained.model`, and the package peft. What the checkpoint has no weights for, such as a head for other
    classes, is trained in full. In the end the factors are added to the weights, so that the saved model is an
    ordinary one, and the folder `adapter` of the output holds them by themselves, as peft reads them. With
    `training.ema_decay` it is the factors that are averaged.

    Args:
        rank: of the factors. None: all weights are trained.
        alpha: the factors' product is multiplied by `alpha / rank`, above 0. None: twice the rank.
        dropout: in front of the factors, below 1.
        target_modules: names of the linear layers that get factors, or ends of names, such as `qkv_proj`; at least
            one. None: all but the output layer.
    """

    rank: int | None = None
    alpha: float | int | None = None
    dropout: float | int = 0.0
    target_modules: list[str] | None = None


@strict
@dataclass
class TrainingSection:
    """How long and how fast.

    Args:
        max_steps: optimiser steps; -1 goes by `epochs`.
        epochs: passes over the training data, where `max_steps` is -1.
        batch_tokens: padded tokens of a batch on one device, source and target together.
        batch_rows: most rows of a batch on one device. None: as many as `batch_tokens` holds.
        gradient_accumulation_steps: batches per optimiser step.
        optimizer: name in transformers' `OptimizerNames`, such as `adamw_torch_fused`, `adafactor` or `sgd`; or
            `adadelta`, with rho 0.95 and epsilon 1e-6 as Bahdanau et al. (2015) had it, whose learning rate is 1.
        optimizer_options: other arguments of its class, such as `momentum` of `sgd`; for `adadelta`, `adafactor`,
            `adagrad`, `adamw_torch`, `adamw_torch_fused`, `rmsprop` and `sgd`.
        learning_rate: highest learning rate; for `noam` the factor on it, 1 in the paper.
        scheduler: name in transformers' `SchedulerType`, such as `linear`, `cosine`, `cosine_with_min_lr`,
            `inverse_sqrt`, `constant` or `reduce_lr_on_plateau`, which goes by `evaluation.best_metric`, and by the
            validation loss while that is the same; or `noam` (Vaswani et al. 2017, equation 3); or `epoch_decay`,
            constant and then cut again and again.
        scheduler_options: arguments of the schedule: `min_lr` of `cosine_with_min_lr`; `factor` and `patience` of
            `reduce_lr_on_plateau`; `size` of `noam`, in place of the model's; `start_epoch`, `every` (1 epoch) and
            `factor` (0.5) of `epoch_decay`, which by itself halves the rate every epoch after `start_epoch`.
        warmup_steps: steps that lead up to the highest rate. None: 100, or 0 where a schedule has no warm-up.
        weight_decay: decoupled weight decay, of matrices: no bias, gain or other vector decays.
        adam_beta1: decay of Adam's first moment, below 1.
        adam_beta2: decay of Adam's second moment, below 1.
        adam_epsilon: what Adam adds to the root of the second moment.
        label_smoothing: share of a word's target that is spread over all words, below 1; no part of an evaluation's
            loss. None: that of `model.label_smoothing`, or of its preset, else 0.
        max_grad_norm: gradients are scaled down to this norm.
        on_nonfinite: `raise` at a step whose loss or gradient is infinite or NaN, naming its rows, or `skip` the step.
        max_skipped_steps: steps that are skipped at most; one more stops the run.
        ema_decay: the model is the moving average of the weights with this decay, below 1: evaluations, checkpoints
            and what is saved in the end. In the first steps the decay is less, `(1 + step) / (10 + step)`. None: no
            average.
        lora: see `LoRASection`.
        scheduled_sampling: see `ScheduledSamplingSection`.
        bpe_dropout: probability that a merge of BPE is left out, so that words are cut in other ways every epoch
            (Provilkov et al. 2020), below 1; in training alone. `batch_tokens` counts tokens without it.
        precision: `fp32`, `bf16` or `fp16` autocast.
        gradient_checkpointing: compute layers a second time instead of keeping them.
        eval_steps: steps between evaluations, which are also checkpoints.
        eval_batch_size: pairs per batch of an evaluation.
        logging_steps: steps between reports of the loss.
        patience: evaluations without a better score, or the same one at a lower loss, until training stops. None:
            never.
        save_total_limit: checkpoints kept, the best one among them.
        average_last: the model is the mean of so many checkpoints, the last ones, rather than the best one. None: the
            best one.
        num_workers: processes that collate batches; 0 does it in the main one.
        torch_compile: compile the model's forward.
        report_to: where transformers reports losses and scores to besides, such as `tensorboard`, `trackio` or
            `wandb`, which must be installed. TensorBoard's files are in `logs` of the output.
        energy: estimate the energy of the training by codecarbon, which must be installed, and put it into the card
            with how it was had. It counts the whole machine, and takes nothing from the network.
        energy_country: where the machine is, three letters of ISO 3166 such as `FRA`, for emissions in the card. None:
            it has none.
        threads: CPU threads. None: torch's own choice.
    """

    max_steps: int = -1
    epochs: float | int = 10
    batch_tokens: int = 4000
    batch_rows: int | None = None
    gradient_accumulation_steps: int = 1
    optimizer: str = "adamw_torch_fused"
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | int = 1e-3
    scheduler: str = "linear"
    scheduler_options: dict[str, Any] = field(default_factory=dict)
    warmup_steps: int | None = None
    weight_decay: float | int = 0.0
    adam_beta1: float | int = 0.9
    adam_beta2: float | int = 0.98
    adam_epsilon: float | int = 1e-8
    label_smoothing: float | int | None = None
    max_grad_norm: float | int = 1.0
    on_nonfinite: str = "raise"
    max_skipped_steps: int = 10
    ema_decay: float | int | None = None
    lora: LoRASection = field(default_factory=LoRASection)
    scheduled_sampling: ScheduledSamplingSection = field(default_factory=ScheduledSamplingSection)
    bpe_dropout: float | int = 0.0
    precision: str = "fp32"
    gradient_checkpointing: bool = False
    eval_steps: int = 500
    eval_batch_size: int = 100
    logging_steps: int = 50
    patience: int | None = None
    save_total_limit: int = 2
    average_last: int | None = None
    num_workers: int = 0
    torch_compile: bool = False
    report_to: list[str] = field(default_factory=list)
    energy: bool = False
    energy_country: str | None = None
    threads: int | None = None


@strict
@dataclass
class EvaluationSection:
    """What is measured.

    Args:
        metrics: of a language model any of `cross_entropy`, `perplexity`, `bits_per_character`, `bits_per_byte`; of a
            masked one any of `cross_entropy`, `perplexity`, `masked_accuracy`; of a classifier any of `accuracy`,
            `f1`, `mcc`; of what tags words any of `accuracy`, `entity_f1`, `entity_precision`, `entity_recall`; of
            what answers questions `exact_match` and `f1`; of another any of `exact_match`, `sequence_error_rate`,
            `token_error_rate`, `word_error_rate`, `character_error_rate`, `phoneme_error_rate`, `token_accuracy`,
            `bleu`, `chrf`, `ter`, and `gleu` of models that correct texts.
        best_metric: which of them chooses the best checkpoint; of equal ones it is that of the lowest validation loss.
        tokenize: tokens of BLEU, GLEU and the token scores: `13a`, `intl`, `zh`, `char` or `none`.
        lowercase: whether case is left out of account.
        samples: translations to print and to put into the card.
        maps: how many of them to draw the attention of.
    """

    metrics: list[str] = field(default_factory=lambda: ["exact_match", "token_error_rate", "bleu", "chrf"])
    best_metric: str = "bleu"
    tokenize: str = "13a"
    lowercase: bool = False
    samples: int = 10
    maps: int = 4


@strict
@dataclass
class Recipe:
    """One training run, from data to card.

    Args:
        name: of the run, and of the model in its card.
        family: a row of `hf_attnzoo.FAMILIES`.
        output: folder that the run writes to.
        task: what it is trained for, one of `hf_attnzoo.recipes.tasks.trainable()`. None: what its family is for.
        seed: of weights, order and dropout.
        license: licence of the trained model, an identifier of the Hub.
        data: see `DataSection`.
        tokenizer: see `TokenizerSection`.
        model: fields of the family's configuration, and `preset` to start from one of its presets.
        pretrained: see `PretrainedSection`.
        masking: see `MaskingSection`.
        training: see `TrainingSection`.
        generation: what `generate()` is given, in evaluation and as the saved model's default. Without a limit of
            length, outputs have at most twice the tokens of the longest training target.
        evaluation: see `EvaluationSection`.
    """

    name: str
    family: str
    output: str
    task: str | None = None
    seed: int = 0
    license: str = "apache-2.0"
    data: DataSection = field(default_factory=DataSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: dict[str, Any] = field(default_factory=dict)
    pretrained: PretrainedSection = field(default_factory=PretrainedSection)
    masking: MaskingSection = field(default_factory=MaskingSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    generation: dict[str, Any] = field(default_factory=dict)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)

    def to_yaml(self, public: bool = False) -> str:
        """The recipe as YAML, every default written out.

        Args:
            public: name files and folders of this machine by their own names alone; see `without_folders`.
        """
        content = dataclasses.asdict(self)
        return write_yaml(without_folders(content) if public else content)


_CHOICES = {
    "data.on_too_long": ("raise", "skip", "truncate"),
    "pretrained.tokenizer": ("keep", "extend", "train"),
    "training.precision": ("fp32", "bf16", "fp16"),
    "training.on_nonfinite": ("raise", "skip"),
    "training.scheduled_sampling.schedule": ("none", "linear", "exponential", "inverse_sigmoid"),
    "training.scheduled_sampling.choice": ("argmax", "sample"),
}
_LEAST = {
    "data.max_source_length": 1,
    "data.max_target_length": 1,
    "data.block_size": 2,
    "data.stride": 0,
    "data.buffer_size": 1,
    "tokenizer.copy_slots": 0,
    "tokenizer.train_rows": 1,
    "pretrained.added_tokens": 1,
    "seed": 0,
    "training.batch_tokens": 1,
    "training.batch_rows": 1,
    "training.gradient_accumulation_steps": 1,
    "training.learning_rate": 0,
    "training.warmup_steps": 0,
    "training.weight_decay": 0,
    "training.adam_beta1": 0,
    "training.adam_beta2": 0,
    "training.adam_epsilon": 0,
    "training.label_smoothing": 0,
    "training.max_skipped_steps": 1,
    "training.ema_decay": 0,
    "training.lora.rank": 1,
    "training.lora.alpha": 0,
    "training.lora.dropout": 0,
    "training.scheduled_sampling.k": 0,
    "training.scheduled_sampling.c": 0,
    "training.scheduled_sampling.minimum": 0,
    "training.bpe_dropout": 0,
    "training.max_grad_norm": 0,
    "training.eval_steps": 1,
    "training.eval_batch_size": 1,
    "training.logging_steps": 1,
    "training.patience": 1,
    "training.save_total_limit": 1,
    "training.average_last": 2,
    "training.num_workers": 0,
    "training.threads": 1,
    "evaluation.samples": 0,
    "evaluation.maps": 0,
}
_BELOW = {
    # As far as numpy's generators go
    "seed": 2**32,
    "training.adam_beta1": 1,
    "training.adam_beta2": 1,
    "training.label_smoothing": 1,
    "training.ema_decay": 1,
    "training.lora.dropout": 1,
    "training.bpe_dropout": 1,
}


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: YAML file.
        overrides: `key=value` with dots for sections, such as `training.max_steps=100`; values are YAML.

    Returns:
        The recipe.

    Raises:
        ValueError: if the file isn't a YAML mapping, a key is unknown (the nearest one is named), missing or of the
            wrong type, a number is too small, or an override isn't of the form `key=value`.
    """
    content = read_yaml(read_text(path), str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a recipe is a mapping of keys to values, got {type(content).__name__}")
    for override in overrides:
        _override(content, override)
    return build_recipe(content, where=str(path))


def build_recipe(content: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from nested mappings.

    Args:
        content: keys of `Recipe`.
        where: what errors name.

    Returns:
        The recipe.

    Raises:
        ValueError: see `load_recipe`.
    """
    recipe = _build(Recipe, content, where, "")
    for key, choices in _CHOICES.items():
        if _value(recipe, key) not in choices:
            raise ValueError(f"{where}: {key}={_value(recipe, key)!r} is none of {', '.join(choices)}")
    for key, least in _LEAST.items():
        value = _value(recipe, key)
        if value is not None and not value >= least:
            raise ValueError(f"{where}: {key}={value} must be at least {least}")
    for key, limit in _BELOW.items():
        value = _value(recipe, key)
        if value is not None and not value < limit:
            raise ValueError(f"{where}: {key}={value} must be below {limit}")
    training = recipe.training
    if training.max_steps != -1 and training.max_steps < 1:
        raise ValueError(f"{where}: training.max_steps={training.max_steps} must be at least 1, or -1 to go by epochs")
    if training.max_steps == -1 and not training.epochs > 0:
        raise ValueError(f"{where}: training.epochs={training.epochs} must be above 0")
    sampling = training.scheduled_sampling
    if sampling.minimum > 1:
        raise ValueError(f"{where}: training.scheduled_sampling.minimum={sampling.minimum} must be at most 1")
    fits, limit = {
        "linear": (0 < sampling.k <= 1, "in (0, 1]"),
        "exponential": (0 < sampling.k < 1, "in (0, 1)"),
        "inverse_sigmoid": (sampling.k >= 1, "at least 1"),
    }.get(sampling.schedule, (True, ""))
    if not fits:
        raise ValueError(
            f"{where}: training.scheduled_sampling.k={sampling.k} must be {limit} for "
            f"training.scheduled_sampling.schedule={sampling.schedule!r}"
        )
    if training.energy_country is not None and not training.energy:
        raise ValueError(f"{where}: training.energy_country={training.energy_country!r} takes training.energy=true")
    check_lora(recipe, where)
    if recipe.data.streaming:
        check_stream(recipe, where)
    if recipe.evaluation.best_metric not in recipe.evaluation.metrics:
        raise ValueError(
            f"{where}: evaluation.best_metric={recipe.evaluation.best_metric!r} must be one of evaluation.metrics, "
            f"{', '.join(recipe.evaluation.metrics)}"
        )
    return recipe


def check_lora(recipe: Recipe, where: str = "recipe") -> None:
    """Refuse a `training.lora` section that means nothing, or what can't be done with it.

    Args:
        recipe: of the run.
        where: what errors name.

    Raises:
        ValueError: naming what has to be said, or left out.
    """
    section = recipe.training.lora
    if section.rank is None:
        for name, value in dataclasses.asdict(section).items():
            if value != getattr(LoRASection, name):
                raise ValueError(f"{where}: training.lora.{name}={value} takes training.lora.rank, which is missing")
        return
    if section.alpha == 0:
        raise ValueError(f"{where}: training.lora.alpha=0 must be above 0, or nothing is learnt")
    if section.target_modules == []:
        raise ValueError(f"{where}: training.lora.target_modules=[] must name a layer; leave it out to take all")
    if recipe.pretrained.model is None:
        raise ValueError(
            f"{where}: training.lora.rank={section.rank} is for the weights of a checkpoint, since random ones would "
            "stay random: set pretrained.model"
        )
    if recipe.pretrained.tokenizer != "keep":
        raise ValueError(
            f"{where}: pretrained.tokenizer={recipe.pretrained.tokenizer} makes embeddings that have to be trained, "
            "and training.lora leaves embeddings as they are: set it to keep, or leave training.lora out"
        )
    if recipe.training.average_last is not None:
        raise ValueError(
            f"{where}: training.average_last={recipe.training.average_last} is the mean of weights, and the mean of "
            "LoRA's factors is another thing: leave it out"
        )


def check_stream(recipe: Recipe, where: str = "recipe") -> None:
    """Refuse a recipe that wants to know of a stream what is known at its end alone.

    Args:
        recipe: with `data.streaming`.
        where: what errors name.

    Raises:
        ValueError: naming what has to be said, or left out.
    """
    training = recipe.training
    if training.max_steps == -1:
        raise ValueError(f"{where}: data.streaming=True needs training.max_steps, since a stream's length isn't known")
    if recipe.tokenizer.train_rows is None:
        raise ValueError(
            f"{where}: data.streaming=True needs tokenizer.train_rows, how many rows the vocabulary is learnt from"
        )
    for name, value in (
        ("data.shift_blocks", recipe.data.shift_blocks),
        ("training.bpe_dropout", training.bpe_dropout),
    ):
        if value:
            raise ValueError(f"{where}: {name}={value} needs all of the data: leave it out with data.streaming=True")
    if training.num_workers:
        raise ValueError(
            f"{where}: training.num_workers={training.num_workers} must be 0 with data.streaming=True: the process "
            "that trains reads the stream, so that its place in it is known when training is resumed"
        )


def without_folders(value: Any) -> Any:
    """A value with the last part of every absolute path in place of it: where things lie is nobody else's business.

    Args:
        value: a string, or lists and mappings of values.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).expanduser().is_absolute() else value


def both_sides(value: Any) -> Any:
    """A value for source and target, or the two of a list."""
    return tuple(value) if isinstance(value, list) else value


def nearest(name: str, names: Iterable[str]) -> str:
    """The one of `names` most like `name`, for error messages."""
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0)[0]


def wrong_type(error: StrictDataclassError, cls: type, values: Mapping[str, Any]) -> str:
    """Name, value and type of the field that a strict dataclass has refused.

    Args:
        error: what it raised.
        cls: the dataclass.
        values: what it was given.
    """
    match = re.search(r"error for field '(\w+)'", str(error))
    types = {item.name: item.type for item in dataclasses.fields(cls)}
    if match is None or match[1] not in values:
        return str(error)
    return f"{match[1]}={values[match[1]]!r} must be of type {inspect.formatannotation(types[match[1]])}"


def _value(recipe: Recipe, key: str) -> Any:
    return operator.attrgetter(key)(recipe)


def _build(cls: type, content: Any, where: str, prefix: str) -> Any:
    if content is None:
        # A section of which nothing but comments is left.
        content = {}
    if not isinstance(content, Mapping):
        raise ValueError(f"{where}: {prefix.rstrip('.')} must be a mapping, got {content!r}")
    fields = {item.name: item for item in dataclasses.fields(cls)}
    values = {}
    for key, value in content.items():
        if key not in fields:
            guess = nearest(str(key), fields)
            raise ValueError(f"{where}: unknown key {prefix}{key}; did you mean {prefix}{guess}?")
        kind = fields[key].type
        if dataclasses.is_dataclass(kind):
            value = _build(kind, value, where, f"{prefix}{key}.")
        values[key] = {} if value is None and get_origin(kind) is dict else value
    for name, item in fields.items():
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{where}: the key {prefix}{name} is missing")
    try:
        return cls(**values)
    except StrictDataclassError as error:
        raise ValueError(f"{where}: {prefix}{wrong_type(error, cls, values)}") from error


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ValueError(f"override {override!r} is not of the form key=value, such as training.max_steps=100")
    *sections, name = key.split(".")
    for section in sections:
        if content.get(section) is None:
            content[section] = {}
        content = content[section]
        if not isinstance(content, dict):
            raise ValueError(f"override {override!r}: {section} is not a section")
    content[name] = read_yaml(value, f"override {override!r}")
