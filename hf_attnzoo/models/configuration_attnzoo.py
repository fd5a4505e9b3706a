"""What the configurations of all families have in common."""

import dataclasses
from difflib import get_close_matches
from typing import Any, ClassVar

from transformers import PreTrainedConfig

# What `pipeline(model=...)` takes a head for, where nobody says
PIPELINE_TASKS: dict[str, str] = {
    "AutoModelForSeq2SeqLM": "attnzoo-translation",
    "AutoModelForImageTextToText": "attnzoo-captioning",
    "AutoModelForQuestionAnswering": "attnzoo-question-answering",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}


class _NameOfTask(dict):
    """A task whose code isn't the checkpoint's: `pipeline()` reads its name here, and looks elsewhere for the rest."""

    def __contains__(self, key: object) -> bool:
        return False


class AttnZooConfig(PreTrainedConfig):
    """Base of every family's configuration.

    Args:
        label_smoothing: share of a word's target that is spread over all words, in training alone (Szegedy et al.
            2016, section 7), in [0, 1). Evaluation has the loss without it.

    Class attributes:
        auto_classes: transformers' auto class -> the family's model class behind it. It goes into `auto_map` when a
            model is saved, so that every auto class finds the code that travels with a checkpoint.
        modeling_module: name of the file that holds those classes.
        presets: name -> arguments, for `from_preset`.
    """

    auto_classes: ClassVar[dict[str, str]] = {}
    modeling_module: ClassVar[str] = ""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    label_smoothing: float | int = 0.0

    def __post_init__(self, **kwargs: Any):
        check_probability(label_smoothing=self.label_smoothing)
        # Where the package is imported its own pipelines serve; transformers would ask for trust in the checkpoint's.
        if not self._is_remote():
            self._saved_tasks = tuple(kwargs.pop("custom_pipelines", None) or ())
        super().__post_init__(**kwargs)
        if self.id2label and not self.label2id:
            # Given the one, transformers leaves out the other, which some of its pipelines read.
            self.label2id = {label: index for index, label in self.id2label.items()}

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "AttnZooConfig":
        """Configuration of a published system, or of a small one to play with.

        Args:
            name: a key of `cls.presets`.
            overrides: fields that differ from the preset, `vocab_size` among them.

        Returns:
            The configuration.

        Raises:
            ValueError: if there is no preset or field of that name.
        """
        if name not in cls.presets:
            raise ValueError(f"name={name!r}: {cls.__name__} has the presets {', '.join(sorted(cls.presets))}")
        known = [field.name for field in dataclasses.fields(cls)]
        for override in overrides:
            check_choice("overrides", override, tuple(known))
        return cls(**{**cls.presets[name], **overrides})

    @property
    def custom_pipelines(self) -> dict[str, Any]:
        """Where `pipeline(model=...)` looks for its task.

        That is what a saved pipeline has written here, while its code beside the checkpoint is what runs. Else it is
        one name with nothing to run: the task of the saved pipeline, or what the saved head is for. Empty where
        nothing can be told.
        """
        if "custom_pipelines" in self.__dict__:
            return self.__dict__["custom_pipelines"]
        tasks = self.__dict__.get("_saved_tasks") or ()
        if not tasks:
            heads = {name: PIPELINE_TASKS.get(auto_class) for auto_class, name in self.auto_classes.items()}
            tasks = [heads[name] for name in self.architectures or () if heads.get(name)]
        # Without the package nobody knows its tasks
        known = [task for task in tasks if not (self._is_remote() and task.startswith("attnzoo-"))]
        return _NameOfTask({task: {} for task in known[:1]})

    @custom_pipelines.setter
    def custom_pipelines(self, value: dict[str, Any]) -> None:
        self.__dict__["custom_pipelines"] = value

    def _is_remote(self) -> bool:
        return type(self).__module__.startswith("transformers_modules.")

    def _remove_keys_not_serialized(self, d: dict[str, Any]) -> None:
        super()._remove_keys_not_serialized(d)
        d.pop("_saved_tasks", None)

    def auto_map_entries(self) -> dict[str, str]:
        """`auto_map` of a saved model: auto class -> `file.Class` beside the checkpoint."""
        configuration_module = self.modeling_module.replace("modeling_", "configuration_")
        entries = {"AutoConfig": f"{configuration_module}.{type(self).__name__}"}
        return entries | {auto: f"{self.modeling_module}.{name}" for auto, name in self.auto_classes.items()}


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        ValueError: naming the argument, the value, the choices, and the nearest of them.
    """
    if value not in choices:
        nearest = get_close_matches(value, choices, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}{hint}")


def check_token_ids(vocab_size: int, **ids: int | list[int] | None) -> None:
    """Refuse special tokens that have no row in the embedding; None passes.

    Args:
        vocab_size: rows of the embedding.
        ids: name -> id, or ids.

    Raises:
        ValueError: naming the first that is out of range.
    """
    for name, value in ids.items():
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not 0 <= token < vocab_size:
                raise ValueError(f"{name}={value}: a vocabulary of {vocab_size} has the ids 0 to {vocab_size - 1}")


def check_positive(**values: int | None) -> None:
    """Refuse sizes below 1; None passes.

    Raises:
        ValueError: naming the first argument that is too small.
    """
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


def check_not_negative(**values: float) -> None:
    """Refuse values below 0.

    Raises:
        ValueError: naming the first argument that is negative.
    """
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name}={value} must be at least 0")


def check_probability(**values: float) -> None:
    """Refuse dropout rates, and other shares, outside [0, 1).

    Raises:
        ValueError: naming the first argument out of range.
    """
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value} must be at least 0 and below 1")
