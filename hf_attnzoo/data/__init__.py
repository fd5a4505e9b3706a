"""Data: readers and generators that give `datasets.Dataset`s of `source` and `target`, or of `image` and `caption`.

And batches made of them. Names load when first used: `import hf_attnzoo.data` imports neither torch nor datasets.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .back_translation import back_translate
    from .batching import TokenBudgetBatchSampler, token_lengths
    from .blocks import cut_blocks
    from .bpe_dropout import BPEDropout, BPEDropoutCollator
    from .captions import load_captions, one_row_per_caption
    from .collators import CaptionCollator, Seq2SeqCollator, tokenize_buffer, tokenize_pairs, truncate_pairs
    from .dates import locale_names
    from .demonstrations import FEW_SHOT_TASKS, load_examples, load_few_shot_task
    from .in_context import IN_CONTEXT_TEMPLATE, Episode, StringTask, in_context_episodes
    from .labelled import load_labelled
    from .masking import (
        MaskingCallback,
        MaskingCollator,
        masked_once,
        masking_blocks,
        next_sentence_pairs,
        tokenize_texts,
    )
    from .questions import load_questions
    from .readers import load_pairs
    from .shifting import EpochBatchSampler, ShiftedBlocks
    from .sources import (
        CAPTION_SOURCES,
        SOURCES,
        TEXT_SOURCES,
        load_annotated_source,
        load_caption_source,
        load_source,
        load_text_source,
        references,
    )
    from .splits import SPLITS, split_of
    from .streaming import StreamedBatches
    from .tagged import first_tokens, load_tagged
    from .texts import join_parts, load_texts

_HOMES = {
    "load_source": "sources",
    "SOURCES": "sources",
    "references": "sources",
    "load_caption_source": "sources",
    "CAPTION_SOURCES": "sources",
    "load_text_source": "sources",
    "TEXT_SOURCES": "sources",
    "load_few_shot_task": "demonstrations",
    "FEW_SHOT_TASKS": "demonstrations",
    "load_examples": "demonstrations",
    "in_context_episodes": "in_context",
    "IN_CONTEXT_TEMPLATE": "in_context",
    "StringTask": "in_context",
    "Episode": "in_context",
    "load_pairs": "readers",
    "load_captions": "captions",
    "one_row_per_caption": "captions",
    "load_texts": "texts",
    "cut_blocks": "blocks",
    "join_parts": "texts",
    "ShiftedBlocks": "shifting",
    "EpochBatchSampler": "shifting",
    "locale_names": "dates",
    "SPLITS": "splits",
    "split_of": "splits",
    "tokenize_pairs": "collators",
    "tokenize_buffer": "collators",
    "truncate_pairs": "collators",
    "Seq2SeqCollator": "collators",
    "CaptionCollator": "collators",
    "MaskingCollator": "masking",
    "MaskingCallback": "masking",
    "tokenize_texts": "masking",
    "next_sentence_pairs": "masking",
    "BPEDropout": "bpe_dropout",
    "BPEDropoutCollator": "bpe_dropout",
    "back_translate": "back_translation",
    "masking_blocks": "masking",
    "masked_once": "masking",
    "load_labelled": "labelled",
    "load_tagged": "tagged",
    "first_tokens": "tagged",
    "load_annotated_source": "sources",
    "load_questions": "questions",
    "TokenBudgetBatchSampler": "batching",
    "StreamedBatches": "streaming",
    "token_lengths": "batching",
}

__all__ = [
    "load_source",
    "SOURCES",
    "references",
    "load_caption_source",
    "CAPTION_SOURCES",
    "load_text_source",
    "TEXT_SOURCES",
    "load_few_shot_task",
    "FEW_SHOT_TASKS",
    "load_examples",
    "in_context_episodes",
    "IN_CONTEXT_TEMPLATE",
    "StringTask",
    "Episode",
    "load_pairs",
    "load_captions",
    "one_row_per_caption",
    "load_texts",
    "cut_blocks",
    "join_parts",
    "ShiftedBlocks",
    "EpochBatchSampler",
    "locale_names",
    "SPLITS",
    "split_of",
    "tokenize_pairs",
    "tokenize_buffer",
    "truncate_pairs",
    "Seq2SeqCollator",
    "MaskingCollator",
    "MaskingCallback",
    "tokenize_texts",
    "next_sentence_pairs",
    "masking_blocks",
    "masked_once",
    "load_labelled",
    "load_tagged",
    "first_tokens",
    "load_annotated_source",
    "load_questions",
    "CaptionCollator",
    "BPEDropout",
    "BPEDropoutCollator",
    "back_translate",
    "TokenBudgetBatchSampler",
    "StreamedBatches",
    "token_lengths",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
