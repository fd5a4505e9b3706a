"""hf_attnzoo: the attention models, from RNNsearch to GPT and BERT, as first-class citizens of transformers.

Importing this package makes every family known to `AutoConfig`, `AutoModel...`, `AutoTokenizer` and `pipeline`. It is
quick: torch is imported when something needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .registry import FAMILIES, Family, register

if TYPE_CHECKING:
    from .attention_maps import AttentionMap, ImageAttentionMap, attention_map
    from .hub.starters import pretrained
    from .models.configuration_bert import BERTConfig
    from .models.configuration_gpt import GPTConfig
    from .models.configuration_luong import LuongConfig
    from .models.configuration_rnnlm import RNNLMConfig
    from .models.configuration_rnnsearch import RNNSearchConfig
    from .models.configuration_show_attend_tell import ShowAttendTellConfig
    from .models.configuration_transformer import TransformerConfig
    from .models.image_processing_show_attend_tell import ShowAttendTellImageProcessor
    from .models.modeling_bert import (
        BERTForMaskedLM,
        BERTForMultipleChoice,
        BERTForNextSentencePrediction,
        BERTForPreTraining,
        BERTForQuestionAnswering,
        BERTForSequenceClassification,
        BERTForTokenClassification,
        BERTModel,
    )
    from .models.modeling_gpt import (
        GPTForCausalLM,
        GPTForSequenceClassification,
        GPTForTokenClassification,
        GPTModel,
    )
    from .models.modeling_luong import LuongForConditionalGeneration, LuongModel
    from .models.modeling_rnnlm import RNNLMForCausalLM, RNNLMModel
    from .models.modeling_rnnsearch import RNNSearchForConditionalGeneration, RNNSearchModel
    from .models.modeling_show_attend_tell import ShowAttendTellForConditionalGeneration, ShowAttendTellModel
    from .models.modeling_transformer import TransformerForConditionalGeneration, TransformerModel
    from .models.processing_show_attend_tell import ShowAttendTellProcessor
    from .models.tokenization_attnzoo import AttnZooTokenizer, train_tokenizer
    from .pipelines import CaptioningPipeline, FewShotPipeline, QuestionAnsweringPipeline, TranslationPipeline

__version__ = "0.1.0"
__all__ = [
    "FAMILIES",
    "Family",
    "RNNSearchConfig",
    "RNNSearchModel",
    "RNNSearchForConditionalGeneration",
    "LuongConfig",
    "LuongModel",
    "LuongForConditionalGeneration",
    "TransformerConfig",
    "TransformerModel",
    "TransformerForConditionalGeneration",
    "BERTConfig",
    "BERTModel",
    "BERTForMaskedLM",
    "BERTForPreTraining",
    "BERTForSequenceClassification",
    "BERTForTokenClassification",
    "BERTForQuestionAnswering",
    "BERTForMultipleChoice",
    "BERTForNextSentencePrediction",
    "RNNLMConfig",
    "RNNLMModel",
    "RNNLMForCausalLM",
    "ShowAttendTellConfig",
    "ShowAttendTellModel",
    "ShowAttendTellForConditionalGeneration",
    "ShowAttendTellImageProcessor",
    "ShowAttendTellProcessor",
    "GPTConfig",
    "GPTModel",
    "GPTForCausalLM",
    "GPTForSequenceClassification",
    "GPTForTokenClassification",
    "AttnZooTokenizer",
    "train_tokenizer",
    "TranslationPipeline",
    "CaptioningPipeline",
    "QuestionAnsweringPipeline",
    "FewShotPipeline",
    "AttentionMap",
    "ImageAttentionMap",
    "attention_map",
    "pretrained",
]

_LAZY = {
    "AttentionMap": "attention_maps",
    "ImageAttentionMap": "attention_maps",
    "attention_map": "attention_maps",
    "AttnZooTokenizer": "models.tokenization_attnzoo",
    "train_tokenizer": "models.tokenization_attnzoo",
    "ShowAttendTellImageProcessor": "models.image_processing_show_attend_tell",
    "ShowAttendTellProcessor": "models.processing_show_attend_tell",
    "TranslationPipeline": "pipelines",
    "CaptioningPipeline": "pipelines",
    "QuestionAnsweringPipeline": "pipelines",
    "FewShotPipeline": "pipelines",
    "pretrained": "hub.starters",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    # Dunder names are asked for by all kinds of tools, and are no reason to load a model.
    if not name.startswith("_"):
        for family in FAMILIES.values():
            if name == family.config:
                return family.config_class
            for auto_class, class_name in family.config_class.auto_classes.items():
                if name == class_name:
                    return family.model_class(auto_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
