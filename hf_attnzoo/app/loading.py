"""From the name of a model to what a page can ask."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import transformers
from transformers import AutoConfig, PreTrainedConfig

from ..hub import find_model
from ..registry import FAMILIES
from .cards import card_examples, card_title, find_card
from .demo import Demo
from .reading import ClassificationDemo, FillMaskDemo, QuestionAnsweringDemo, TokenClassificationDemo
from .writing import CaptioningDemo, ContinuationDemo, TranslationDemo

# Auto class -> mapping of transformers that has its models, and what a page does with them
_HEADS: dict[str, tuple[str, type[Demo]]] = {
    "AutoModelForImageTextToText": ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", CaptioningDemo),
    "AutoModelForQuestionAnswering": ("MODEL_FOR_QUESTION_ANSWERING_MAPPING", QuestionAnsweringDemo),
    "AutoModelForSequenceClassification": ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING", ClassificationDemo),
    "AutoModelForTokenClassification": ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING", TokenClassificationDemo),
    "AutoModelForSeq2SeqLM": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", TranslationDemo),
    "AutoModelForMaskedLM": ("MODEL_FOR_MASKED_LM_MAPPING", FillMaskDemo),
    "AutoModelForCausalLM": ("MODEL_FOR_CAUSAL_LM_MAPPING", ContinuationDemo),
}

# Heads that a checkpoint without an architecture may have, or BERT's for pre-training, which holds one of them
_GUESSED = ("AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForCausalLM")


def load_demo(model: str | PathLike, name: str | None = None) -> Demo:
    """Load a model with its tokenizer or processor, ready to be asked.

    Args:
        model: folder of a saved model, name of a starter, or name on the Hub; of this package or of transformers.
        name: what a page calls it. Default: `None`, the title of its card, the folder's name, or
            that on the Hub.

    Returns:
        A demo of what the model's head is for: translations, captions, texts that go on, missing words, classes of
        texts or tokens, answers to questions.

    Raises:
        ValueError: the model's head is for something else, or it has none; or the model is of code of its own.
        OSError: there is no such model.
    """
    model = find_model(model)
    # Code that comes with a model is never run, and nobody is asked whether it may
    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    head, demo_class = _find_head(config, model)
    loaded, report = getattr(transformers, head).from_pretrained(
        model, output_loading_info=True, trust_remote_code=False
    )
    if report["missing_keys"]:
        raise ValueError(
            f"{model}: a {'/'.join(config.architectures or [config.model_type])} lacks what {head} needs, such as "
            f"{min(report['missing_keys'])}; what it wrote would be random"
        )
    auto_class = transformers.AutoProcessor if demo_class is CaptioningDemo else transformers.AutoTokenizer
    processor = auto_class.from_pretrained(model, trust_remote_code=False)
    card = find_card(model)
    if name is None:
        title = card_title(card) if card is not None and Path(model).is_dir() else None
        name = title or (Path(model).resolve().name if Path(model).is_dir() else model)
    demo = demo_class(loaded, processor, name, _summary(config))
    if card is not None:
        demo.examples = tuple(card_examples(card, demo.fields))
    return demo


def _find_head(config: PreTrainedConfig, model: str) -> tuple[str, type[Demo]]:
    for architecture in config.architectures or ():
        for head, (_, demo_class) in _HEADS.items():
            if architecture in _class_names(config, head):
                return head, demo_class
    for head in _GUESSED:
        if any(_class_names(config, head)) and config.is_encoder_decoder == _writes_from_source(head):
            return head, _HEADS[head][1]
    what = "/".join(config.architectures or [config.model_type])
    raise ValueError(f"{model}: a {what} is for none of the things that a page can ask: {', '.join(_HEADS)}")


def _writes_from_source(head: str) -> bool:
    return head in ("AutoModelForImageTextToText", "AutoModelForSeq2SeqLM")


def _class_names(config: PreTrainedConfig, head: str) -> Iterator[str]:
    """Names of the classes that an auto class has for a configuration, none or some."""
    mapping = getattr(transformers, _HEADS[head][0])
    if type(config) in mapping:
        classes = mapping[type(config)]
        yield from (one.__name__ for one in (classes if isinstance(classes, tuple) else (classes,)))


def _summary(config: PreTrainedConfig) -> str:
    for family in FAMILIES.values():
        if isinstance(config, family.config_class):
            return f"{family.name}: {family.summary} · {family.paper}"
    return config.model_type
