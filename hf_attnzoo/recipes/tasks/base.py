"""What a run does that hangs on the kind of its data: the steps that every kind of task takes in its own way."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from ...data import token_lengths
from ...evaluation import ShotScore, Statistics, parts_scores
from ...hub import CardTexts
from ..schema import Recipe
from ..trainer import ZooTrainer

Processor = PreTrainedTokenizerBase | ProcessorMixin


@dataclass(frozen=True)
class Outcome:
    """What a model is worth.

    Args:
        metrics: scores, each `x` with its settings in `x_signature`.
        intervals: 95 % intervals of some of them.
        outputs: what the model wrote, for the first rows or for all.
        shots: how many queries it got right after so many examples, where its data are prompts of examples.
    """

    metrics: dict[str, float | str]
    intervals: dict[str, tuple[float, float]]
    outputs: list[str]
    shots: Sequence[ShotScore] = ()


@dataclass(frozen=True)
class Cut:
    """Rows of a split that a model is scored on without their ends.

    Args:
        what: was cut, such as `sources`.
        limit: tokens that are left of each.
        rows: their numbers.
        of: rows of the split.
        read: whether the model reads it. What it doesn't read counts for the loss alone.
    """

    what: str
    limit: int
    rows: Sequence[int]
    of: int
    read: bool = True

    def told(self, split: str) -> str:
        """A sentence for people: `3 of 1,000 test sources were cut to 128 tokens.`"""
        were = "was" if len(self.rows) == 1 else "were"
        why = "" if self.read else ", for the loss alone"
        return f"{len(self.rows):,} of {self.of:,} {split} {self.what} {were} cut to {self.limit:,} tokens{why}."


@dataclass(frozen=True)
class Evaluated:
    """A split that a model is scored on.

    Args:
        prepared: its rows as the collator takes them, with a column `labels`.
        rows: what samples are taken from; see `Task.prepare`.
        cuts: what of it was cut.
    """

    prepared: Dataset
    rows: Dataset
    cuts: Sequence[Cut] = ()


def one_vocabulary(recipe: Recipe) -> dict[str, Any]:
    """Arguments of `train_tokenizer` for data with one vocabulary.

    Args:
        recipe: whose `tokenizer` section counts.

    Raises:
        ValueError: if it says something that is for pairs of texts.
    """
    section = recipe.tokenizer
    for name in ("shared", "copy_slots"):
        value = getattr(section, name)
        if value not in (False, None):
            raise ValueError(f"tokenizer.{name}={value} is for pairs of texts: leave it out")
    settings = {name: getattr(section, name) for name in ("kind", "vocab_size", "min_frequency", "lowercase")}
    for name, value in settings.items():
        if isinstance(value, list):
            raise ValueError(f"tokenizer.{name}={value} must be one value: there is one vocabulary")
    return settings


class Task(ABC):
    """One kind of data, and what a run does with it.

    Args:
        recipe: of the run.
    """

    card: ClassVar[CardTexts]
    """What a model card says of every model of this kind. The last two cells of a sample are a target, and the
    output."""

    writes: ClassVar[bool] = True
    """Whether evaluation lets the model write, rather than looks at its loss."""

    generates: ClassVar[bool] = True
    """Whether the models have a `generate()` whose settings are the recipe's."""

    counted: ClassVar[str] = "target tokens"
    """What the speed of training is told in; see `ZooTrainer`."""

    own_data: ClassVar[str]
    """Command that trains on a person's own data."""

    cuts: ClassVar[bool] = False
    """Whether `inputs`, `ask` and `draw` cut rows where `prepare_evaluation` does, rather than refuse them."""

    given: ClassVar[str] = "texts"
    """What `inputs_of` gives, to people."""

    head: ClassVar[str]
    """Auto class of the models."""

    processor_class: ClassVar[type]
    """Auto class that loads what `build_processor` makes."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def check(self) -> None:
        """Refuse what the recipe says that means nothing to the task.

        Raises:
            ValueError: naming the key.
        """
        return

    @abstractmethod
    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        """Rows of a source that the recipe names, with the recipe's options for it; one for each target in training,
        one for each source elsewhere."""

    @abstractmethod
    def show(self, row: dict[str, Any]) -> str:
        """A row, in a line of a report."""

    @abstractmethod
    def digest(self, rows: Dataset) -> str:
        """What differs where the rows do."""

    @abstractmethod
    def inputs_of(self, rows: Dataset) -> Iterable[str]:
        """What the model is given in each row, to tell which rows two splits have in common."""

    @abstractmethod
    def build_processor(self, rows: Dataset) -> Processor:
        """What makes tensors of rows, learnt from the training split and from nothing else."""

    def adopt(self, processor: Processor, config: dict[str, Any]) -> None:
        """Make the processor of a checkpoint what the task needs, as far as it isn't; and learn from its configuration
        what the task goes on with."""
        return

    @abstractmethod
    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        """What a tokenizer is trained on: texts of one vocabulary, or of source and target."""

    @abstractmethod
    def vocabulary(self, processor: Processor) -> dict[str, int]:
        """Entries of each vocabulary, by what it is for."""

    @abstractmethod
    def model_fields(self, processor: Processor) -> dict[str, Any]:
        """Fields of the model's configuration that follow from the processor and from nothing else."""

    def label_fields(self) -> dict[str, Any]:
        """Fields of the model's configuration that follow from the classes in the training split; none."""
        return {}

    @abstractmethod
    def prepare(self, rows: Dataset, processor: Processor) -> tuple[Dataset, Dataset]:
        """Rows as the collator takes them, with a column `labels`, and rows that samples are taken from: those that
        they were made of, one for each, where a row is a thing of its own. Rows of the training split: longer ones
        than the recipe's limits may be left out."""

    def prepare_evaluation(
        self, rows: Dataset, processor: Processor, model: PreTrainedModel, split: str = "test"
    ) -> Evaluated:
        """All rows of the validation or the test split, also what is longer than rows of the training split may be.

        What the model has no positions for is cut.

        Raises:
            ValueError: if a row is too long, and the recipe says that none may be.
        """
        return Evaluated(*self.prepare(rows, processor))

    def prepare_buffer(self, rows: Dataset, processor: Processor) -> Dataset:
        """Some rows of a stream as the collator takes them, with a column `labels`; maybe none are left."""
        return self.prepare(rows, processor)[0]

    def check_stream(self) -> None:
        """Refuse to stream what may hold a row too long for a batch: it would stop a run that is under way.

        Raises:
            ValueError: naming the limit that is missing or too high.
        """
        raise ValueError(f"data.streaming=True: a family of {self.card.task_name.lower()} can't train on a stream")

    @abstractmethod
    def collator(self, processor: Processor) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        """What makes a batch of prepared rows."""

    def dropout_collator(
        self, processor: Processor, model: PreTrainedModel
    ) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        """What makes a batch of prepared training rows whose words are cut in other ways every epoch.

        Raises:
            ValueError: if this kind of data has no such thing.
        """
        raise ValueError(
            f"training.bpe_dropout={self.recipe.training.bpe_dropout} is for pairs of texts: leave it out"
        )

    @abstractmethod
    def source_lengths(self, prepared: Dataset, model: PreTrainedModel) -> np.ndarray:
        """How many positions the encoder makes of each row, which with the target's fill the budget of a batch."""

    def target_lengths(self, prepared: Dataset) -> np.ndarray:
        """How many positions each row's target fills of the budget of a batch."""
        return token_lengths(prepared, "labels")

    def for_evaluation(self, prepared: Dataset, processor: Processor) -> Dataset:
        """Prepared rows of the validation or the test split as they are scored."""
        return prepared

    def reading(self) -> dict[str, Any]:
        """What an evaluation must know to read texts as training did, for the folder of the model; nothing."""
        return {}

    def size(self, prepared: Dataset, rows: Dataset) -> int:
        """How many of `card.unit` there are."""
        return len(prepared)

    @abstractmethod
    def trainer_options(self, processor: Processor, validation: Dataset) -> dict[str, Any]:
        """Arguments of `Seq2SeqTrainer` that say how the validation split is scored."""

    @abstractmethod
    def rehearse(self, trainer: ZooTrainer) -> None:
        """Score once, so that what would stop the first evaluation stops the run before any training.

        Raises:
            ValueError: if the recipe asks for something that doesn't exist.
        """

    @abstractmethod
    def measure(self, trainer: ZooTrainer, processor: Processor, prepared: Dataset, rows: Dataset) -> Outcome | None:
        """Scores on the test split; None in every process but the one that writes."""

    def outcome(self, parts: Mapping[str, Statistics], outputs: list[str], shots: Sequence[ShotScore] = ()) -> Outcome:
        """What a model is worth by the parts of its scores."""
        return Outcome(*parts_scores(parts, seed=self.recipe.seed), outputs, shots)

    @abstractmethod
    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        """Cells of `card.sample_columns` for a row and what was written for it."""

    @abstractmethod
    def example(self, rows: Dataset) -> str:
        """A Python expression to call the pipeline with, such as the first source."""

    @abstractmethod
    def next_command(self, folder: Path, rows: Dataset) -> list[str]:
        """The words of a command to try a saved model with."""

    @abstractmethod
    def write_extras(self, rows: Dataset, folder: Path) -> None:
        """Write what the example and the next command need into the model's folder."""

    def has_map(self, model: PreTrainedModel) -> bool:
        """Whether there is attention to draw."""
        return getattr(model.config, "attention", None) != "none"

    @abstractmethod
    def draw(self, model: PreTrainedModel, processor: Processor, rows: Dataset, path: Path) -> None:
        """Draw the model's attention over some rows."""

    @abstractmethod
    def parts(self, processor: Processor) -> dict[str, Any]:
        """What `pipeline()` wants beside a model that isn't saved yet."""

    @abstractmethod
    def inputs(self, processor: Processor, rows: Dataset) -> dict[str, torch.Tensor]:
        """What the encoder reads for some rows, as a person would make it by hand."""

    @abstractmethod
    def read(self, processor: Processor, ids: torch.Tensor, rows: Dataset) -> list[str]:
        """The texts of what `generate()` gives for `inputs`."""

    def answer(
        self, model: PreTrainedModel, processor: Processor, inputs: dict[str, torch.Tensor], rows: Dataset
    ) -> list[str]:
        """What a model says of rows, by hand, from their `inputs` on its device."""
        return self.read(processor, model.generate(**inputs), rows)

    @abstractmethod
    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        """What a pipeline writes for some rows."""
