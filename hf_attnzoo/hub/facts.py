"""What a run knows of itself when it has ended, for its card to tell."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..evaluation import ShotScore


@dataclass(frozen=True)
class CardTexts:
    """What a card says of every model of one kind.

    Args:
        pipeline_tag: the Hub's name of the task.
        task_name: the same for people.
        tags: of the Hub, beside `hf-attnzoo` and `attention`.
        pipeline: task of `transformers.pipeline`.
        verb: what the pipeline is called in the example.
        unit: what rows are called, such as `pairs`.
        sample_columns: headings of a sample's cells.
    """

    pipeline_tag: str
    task_name: str
    tags: tuple[str, ...]
    pipeline: str
    verb: str
    unit: str
    sample_columns: tuple[str, ...]


@dataclass(frozen=True)
class EnergyEstimate:
    """What a machine took while it trained, as codecarbon estimates it.

    Args:
        parts: kWh, by words for a part of the machine and how its energy was had, such as `processor, measured by
            RAPL`.
        version: of codecarbon.
        country: name of the country that the machine is in, or None if nobody has said.
        grams: of CO2 equivalent, at the carbon intensity of that country; None without one.
    """

    parts: Mapping[str, float]
    version: str
    country: str | None = None
    grams: float | None = None


@dataclass(frozen=True)
class Ending:
    """How a training has ended, and which weights the model has.

    Args:
        step: of the checkpoint that the scores of the validation split have chosen, or None if they have chosen none.
        planned: steps that the training would have taken.
        patience: evaluations in a row that were no better, after which it stopped; None if it took all of its steps.
        averaged: steps of checkpoints whose mean the model is.
        ema_decay: of the moving average of the weights that every checkpoint is of, or None.
    """

    step: int | None
    planned: int
    patience: int | None = None
    averaged: tuple[int, ...] = ()
    ema_decay: float | None = None


@dataclass(frozen=True)
class RunFacts:
    """What a run knows about itself when it has ended.

    Args:
        kind: what the card says of every model of its kind.
        name: of the model.
        summary: what it is, one sentence.
        paper: where the architecture comes from.
        license: licence of the model, an identifier of the Hub.
        data_name: of the data, as the recipe names it.
        data_license: its licence, or None if the recipe doesn't say.
        rows: number of rows in each split.
        parameters: number of parameters.
        vocabulary: entries of each vocabulary, by what it is for.
        steps: optimiser steps.
        seconds: wall time of training, evaluations during it included.
        loss_curve: pairs of a step and the training loss reported there.
        metrics: scores on the test split, each `x` with its settings in `x_signature`.
        intervals: 95 % intervals of some of them, Wilson's for shares of rows, by bootstrap for the rest.
        samples: cells of some rows of the test split, those of `kind.sample_columns`.
        example: Python expression that the pipeline can be called with.
        recipe: the recipe as YAML.
        has_map: whether `attention.png` lies beside the card.
        pretrained: name of the checkpoint that training started from. Default: `None`, random weights.
        evaluations: scores of the validation split during training, each with its `step`, and `loss` among them. With
            them `curve.png` lies beside the card.
        best_metric: which of them chose the checkpoint.
        hub_datasets: names on the Hub of data that comes from there.
        attends: whether the model has attention.
        shots: how many queries it got right after so many examples in its prompt. With them `shots.png` lies beside
            the card.
        lora: rank of its factors and number of parameters that were trained, with LoRA. Default: `None`, all were.
        energy: what training took. Default: `None`, it was not estimated.
        ending: how training ended, and which weights the model has. Default: `None`, nothing is said of it.
        processes: that trained it, with a device each if there are several.
        accumulation: batches of each of them in a step.
        base_model: repository on the Hub that `pretrained` names. Default: `None`, it lies elsewhere.
        pretrained_tokenizer: what became of the tokenizer of `pretrained`: `keep`, `extend` or `train`.
        new_weights: names of the tensors that `pretrained` had nothing for.
        languages: codes of ISO 639-1, those of the sources first.
        split: name of the split that the scores are of.
        cuts: sentences on what of the data was cut for an evaluation.
        shared: sentences on rows of other splits that stand in the training split too.
        digests: of the rows of each split as they were read, by what they are called.
    """

    kind: CardTexts
    name: str
    summary: str
    paper: str
    license: str
    data_name: str
    data_license: str | None
    rows: Mapping[str, int]
    parameters: int
    vocabulary: Mapping[str, int]
    steps: int
    seconds: float
    loss_curve: Sequence[tuple[int, float]]
    metrics: Mapping[str, float | str]
    intervals: Mapping[str, tuple[float, float]]
    samples: Sequence[tuple[str, ...]]
    example: str
    recipe: str
    has_map: bool
    pretrained: str | None = None
    evaluations: Sequence[Mapping[str, float]] = ()
    best_metric: str = ""
    hub_datasets: Sequence[str] = ()
    attends: bool = True
    lora: tuple[int, int] | None = None
    shots: Sequence[ShotScore] = ()
    energy: EnergyEstimate | None = None
    ending: Ending | None = None
    processes: int = 1
    accumulation: int = 1
    base_model: str | None = None
    pretrained_tokenizer: str = "keep"
    new_weights: Collection[str] = ()
    languages: Sequence[str] = ()
    split: str = "test"
    cuts: Sequence[str] = ()
    shared: Sequence[str] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
