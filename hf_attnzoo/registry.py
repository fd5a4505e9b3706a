"""The table of families, and how transformers comes to know them.

A new family is a new row. Nothing here imports torch until transformers itself does: each part of the table is told to
transformers when the registry it belongs in is imported, or at once if that has happened already.
"""

import importlib
import importlib.abc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Args:
        name: `configuration_<name>.py` and `modeling_<name>.py` hold the family.
        config: class name of its configuration, which itself names the model classes (`auto_classes`).
        paper: where it comes from.
        summary: what it is, in a few words.
        task: what recipes train it for, and what its data looks like; `"seq2seq"` is pairs of texts,
            `"causal-lm"` and `"masked-lm"` plain text, `"image-to-text"` pictures and their captions.
        pipelines: tasks of `transformers.pipeline` that it serves.
        head: auto class that recipes and commands load it by.
        image_processor: class name in `image_processing_<name>.py`, if the family reads images.
        processor: class name in `processing_<name>.py`, if it has one.
    """

    name: str
    config: str
    paper: str
    summary: str
    task: str
    pipelines: tuple[str, ...]
    head: str
    image_processor: str | None = None
    processor: str | None = None

    @property
    def config_class(self) -> type:
        """The configuration class."""
        return getattr(importlib.import_module(f"hf_attnzoo.models.configuration_{self.name}"), self.config)

    def model_class(self, auto_class: str) -> type:
        """The model class behind one of transformers' auto classes.

        Args:
            auto_class: such as `"AutoModelForSeq2SeqLM"`.
        """
        config = self.config_class
        module = importlib.import_module(f"hf_attnzoo.models.{config.modeling_module}")
        return getattr(module, config.auto_classes[auto_class])


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="rnnsearch",
            config="RNNSearchConfig",
            paper="Bahdanau, Cho and Bengio (2015)",
            summary="recurrent encoder-decoder with additive attention, or with one vector for the source",
            task="seq2seq",
            pipelines=("attnzoo-translation",),
            head="AutoModelForSeq2SeqLM",
        ),
        Family(
            name="luong",
            config="LuongConfig",
            paper="Luong, Pham and Manning (2015)",
            summary="stacked LSTM or GRU encoder-decoder with global or local multiplicative attention",
            task="seq2seq",
            pipelines=("attnzoo-translation",),
            head="AutoModelForSeq2SeqLM",
        ),
        Family(
            name="transformer",
            config="TransformerConfig",
            paper="Vaswani et al. (2017)",
            summary="encoder-decoder made of multi-head attention",
            task="seq2seq",
            pipelines=("attnzoo-translation",),
            head="AutoModelForSeq2SeqLM",
        ),
        Family(
            name="bert",
            config="BERTConfig",
            paper="Devlin, Chang, Lee and Toutanova (2019)",
            summary="bidirectional encoder made of multi-head attention",
            task="masked-lm",
            pipelines=(
                "fill-mask",
                "text-classification",
                "token-classification",
                "zero-shot-classification",
                "feature-extraction",
                "attnzoo-question-answering",
            ),
            head="AutoModelForMaskedLM",
        ),
        Family(
            name="rnnlm",
            config="RNNLMConfig",
            paper="Zaremba, Sutskever and Vinyals (2014)",
            summary="stacked LSTM or GRU language model",
            task="causal-lm",
            pipelines=("text-generation", "attnzoo-few-shot"),
            head="AutoModelForCausalLM",
        ),
        Family(
            name="show_attend_tell",
            config="ShowAttendTellConfig",
            paper="Xu et al. (2015)",
            summary="captions of pictures: convolutions, and an LSTM with soft or hard attention over their grid",
            task="image-to-text",
            pipelines=("attnzoo-captioning",),
            head="AutoModelForImageTextToText",
            image_processor="ShowAttendTellImageProcessor",
            processor="ShowAttendTellProcessor",
        ),
        Family(
            name="gpt",
            config="GPTConfig",
            paper="Radford et al. (2018, 2019), Brown et al. (2020)",
            summary="language model made of multi-head attention",
            task="causal-lm",
            pipelines=("text-generation", "text-classification", "token-classification", "attnzoo-few-shot"),
            head="AutoModelForCausalLM",
        ),
    )
}

# task -> module and class of the pipeline, and the auto class it loads
PIPELINES: dict[str, tuple[str, str, str]] = {
    "attnzoo-translation": ("hf_attnzoo.pipelines.translation", "TranslationPipeline", "AutoModelForSeq2SeqLM"),
    "attnzoo-captioning": ("hf_attnzoo.pipelines.captioning", "CaptioningPipeline", "AutoModelForImageTextToText"),
    "attnzoo-question-answering": (
        "hf_attnzoo.pipelines.question_answering",
        "QuestionAnsweringPipeline",
        "AutoModelForQuestionAnswering",
    ),
    "attnzoo-few-shot": ("hf_attnzoo.pipelines.few_shot", "FewShotPipeline", "AutoModelForCausalLM"),
}


def _link_config(family: Family) -> Callable[[ModuleType, ModuleType], None]:
    def link(auto: ModuleType, ours: ModuleType) -> None:
        config_class = getattr(ours, family.config)
        auto.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        # Registered for an auto class, a configuration, model or tokenizer saves its code beside it.
        config_class.register_for_auto_class()

    return link


class _Deferred(NamedTuple):
    """A class that is imported when somebody asks for it."""

    module: str
    name: str


class _DeferringDict(dict):
    """A dict that imports a deferred class when it is read."""

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, _Deferred):
            value = self[key] = getattr(importlib.import_module(value.module), value.name)
        return value

    def values(self) -> list[Any]:
        return [self[key] for key in self]

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, self[key]) for key in self]


def _defer_models(auto: ModuleType) -> None:
    # Not `auto_class.register`, which wants the class itself: the auto classes are imported in the middle of many of
    # transformers' own modules, and our models could not import those yet.
    for family in FAMILIES.values():
        config_class = family.config_class
        for auto_class, name in config_class.auto_classes.items():
            mapping = getattr(auto, auto_class)._model_mapping
            if not isinstance(mapping._extra_content, _DeferringDict):
                mapping._extra_content = _DeferringDict(mapping._extra_content)
            module = f"hf_attnzoo.models.{config_class.modeling_module}"
            mapping._extra_content[config_class] = _Deferred(module, name)
            # Pipelines ask here whether they know a model, and Trainer's label smoothing whether it shifts labels.
            mapping._model_mapping[config_class.model_type] = name


def _mark_models(family: Family) -> Callable[[ModuleType], None]:
    def mark(ours: ModuleType) -> None:
        for auto_class, name in family.config_class.auto_classes.items():
            getattr(ours, name).register_for_auto_class(auto_class)

    return mark


def _link_tokenizer(auto: ModuleType, ours: ModuleType) -> None:
    ours.AttnZooTokenizer.register_for_auto_class("AutoTokenizer")
    for family in FAMILIES.values():
        auto.AutoTokenizer.register(family.config_class, tokenizer_class=ours.AttnZooTokenizer, exist_ok=True)


def _link_image_processor(family: Family) -> Callable[[ModuleType, ModuleType], None]:
    def link(auto: ModuleType, ours: ModuleType) -> None:
        classes = {"pil": getattr(ours, family.image_processor)}
        auto.AutoImageProcessor.register(family.config_class, image_processor_classes=classes, exist_ok=True)

    return link


def _link_processor(family: Family) -> Callable[[ModuleType, ModuleType], None]:
    def link(auto: ModuleType, ours: ModuleType) -> None:
        auto.AutoProcessor.register(family.config_class, getattr(ours, family.processor), exist_ok=True)

    return link


def _link_pipeline(task: str, name: str, auto_class: str) -> Callable[[ModuleType, ModuleType], None]:
    def link(pipelines: ModuleType, ours: ModuleType) -> None:
        import transformers

        pipeline_class = getattr(ours, name)
        pipelines.PIPELINE_REGISTRY.register_pipeline(
            task,
            pipeline_class=pipeline_class,
            pt_model=getattr(transformers, auto_class),
            type=pipeline_class.kind,
        )

    return link


# (module of transformers that holds a registry, module of ours that belongs in it, what to tell the one of the other)
_LINKS: list[tuple[str, str, Callable[[ModuleType, ModuleType], None]]] = [
    *(
        (
            "transformers.models.auto.configuration_auto",
            f"hf_attnzoo.models.configuration_{family.name}",
            _link_config(family),
        )
        for family in FAMILIES.values()
    ),
    ("transformers.models.auto.tokenization_auto", "hf_attnzoo.models.tokenization_attnzoo", _link_tokenizer),
    *(
        (
            "transformers.models.auto.image_processing_auto",
            f"hf_attnzoo.models.image_processing_{family.name}",
            _link_image_processor(family),
        )
        for family in FAMILIES.values()
        if family.image_processor
    ),
    *(
        (
            "transformers.models.auto.processing_auto",
            f"hf_attnzoo.models.processing_{family.name}",
            _link_processor(family),
        )
        for family in FAMILIES.values()
        if family.processor
    ),
    *(
        ("transformers.pipelines", module, _link_pipeline(task, name, auto_class))
        for task, (module, name, auto_class) in PIPELINES.items()
    ),
]

# A module that those of ours in a registry need: they can't be imported while it is in the middle of being imported.
_NEEDED: dict[str, str] = {"transformers.pipelines": "hf_attnzoo.pipelines.generating"}

# What to do with one module alone, as soon as it is there.
_FOLLOW_UPS: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.modeling_auto": _defer_models,
    **{f"hf_attnzoo.models.modeling_{family.name}": _mark_models(family) for family in FAMILIES.values()},
}

# Modules of the table that are in the middle of being imported. Ours import transformers', so the one may be half done
# when the other is complete; whichever ends last makes the link.
_loading: set[str] = set()

# Module that is being imported -> registry that waits for it.
_waiting: dict[str, str] = {}


def _is_loaded(name: str) -> bool:
    return name in sys.modules and name not in _loading


def _connect(name: str) -> None:
    """Do what the complete import of `name` has made possible."""
    if name in _FOLLOW_UPS:
        _FOLLOW_UPS[name](sys.modules[name])
    if name in _waiting:
        _connect(_waiting.pop(name))
    if _NEEDED.get(name) in _loading:
        _waiting[_NEEDED[name]] = name
        return
    for registry, ours, link in _LINKS:
        if name == registry and ours not in sys.modules:
            importlib.import_module(ours)
        elif name in (registry, ours) and _is_loaded(registry) and _is_loaded(ours):
            link(sys.modules[registry], sys.modules[ours])


class _ConnectingLoader(importlib.abc.Loader):
    """Executes a module as its own loader would, then connects it."""

    def __init__(self, loader: importlib.abc.Loader):
        self.loader = loader

    def create_module(self, spec: Any) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps the loader it would have had.
        module.__loader__ = module.__spec__.loader = self.loader
        _loading.add(module.__name__)
        try:
            self.loader.exec_module(module)
        finally:
            _loading.discard(module.__name__)
        _connect(module.__name__)


class _ConnectingFinder(importlib.abc.MetaPathFinder):
    """Notices the import of the modules in the table."""

    names = frozenset(name for registry, ours, _ in _LINKS for name in (registry, ours)) | {
        *_NEEDED.values(),
        *_FOLLOW_UPS,
    }

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname not in self.names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ConnectingLoader(spec.loader)
                return spec
        return None


def register() -> None:
    """Make every family known to transformers' auto classes and pipelines, now or when those are first imported."""
    if not any(isinstance(finder, _ConnectingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ConnectingFinder())
        for name in dict.fromkeys([*(registry for registry, _, _ in _LINKS), *_FOLLOW_UPS]):
            if name in sys.modules:
                _connect(name)
