"""Pipelines: text or an image in, text out, under task names of our own in `transformers.pipeline`.

Names load when first used: `import hf_attnzoo.pipelines` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .captioning import CaptioningPipeline
    from .few_shot import FewShotPipeline
    from .prompting import ExampleSelector, PromptTemplate
    from .question_answering import QuestionAnsweringPipeline
    from .translation import TranslationPipeline

_HOMES = {
    "TranslationPipeline": "translation",
    "CaptioningPipeline": "captioning",
    "QuestionAnsweringPipeline": "question_answering",
    "FewShotPipeline": "few_shot",
    "PromptTemplate": "prompting",
    "ExampleSelector": "prompting",
}

__all__ = [
    "TranslationPipeline",
    "CaptioningPipeline",
    "QuestionAnsweringPipeline",
    "FewShotPipeline",
    "PromptTemplate",
    "ExampleSelector",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
