"""Models as commands take them: a folder, a name of `attnzoo starters`, or a name on the Hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# task of a family -> the pipeline that runs it, and the commands that take its models
_PIPELINES = {
    "seq2seq": ("attnzoo-translation", ("translate", "backtranslate", "attend", "evaluate")),
    "image-to-text": ("attnzoo-captioning", ("caption", "attend", "evaluate")),
    "causal-lm": ("text-generation", ("write", "few-shot", "attend", "evaluate")),
}


def load_model(model: str) -> tuple[Any, Any]:
    """A model of any family, with the head that writes where it has one, and its tokenizer or processor."""
    import transformers

    with named(model) as place:
        config = transformers.AutoConfig.from_pretrained(place)
        processor = transformers.AutoTokenizer
        if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            head, processor = transformers.AutoModelForImageTextToText, transformers.AutoProcessor
        elif config.is_encoder_decoder:
            head = transformers.AutoModelForSeq2SeqLM
        elif type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
            head = transformers.AutoModel
        else:
            head = transformers.AutoModelForCausalLM
        return head.from_pretrained(place), processor.from_pretrained(place)


def load_pipeline(model: str, task: str = "seq2seq") -> Any:
    from transformers import pipeline

    check_task(model, task)
    with named(model) as place:
        return pipeline(_PIPELINES[task][0], model=place)


def load_few_shot_pipeline(model: str) -> Any:
    from transformers import pipeline

    check_task(model, "causal-lm")
    with named(model) as place:
        return pipeline("attnzoo-few-shot", model=place)


def load_embedder(embed: str | None) -> Any:
    """What nearness is measured by: a name, or a model that gives vectors of tokens."""
    from transformers import pipeline

    from ..pipelines.prompting import SIMILARITIES

    if embed is None or embed in SIMILARITIES:
        return embed
    with named(embed) as place:
        return pipeline("feature-extraction", model=place)


def check_task(model: str, *tasks: str) -> str:
    """What a model is for, which must be one of `tasks` if the model is of a family of ours."""
    family = find_family(model)
    if family is None:
        return tasks[0]
    if family.task not in tasks:
        commands = ", ".join(f"attnzoo {command}" for command in _PIPELINES.get(family.task, ("", ("attend",)))[1])
        raise ValueError(f"{model}: a model of {family.name} is for {commands}")
    return family.task


def find_family(model: str) -> Any:
    """The row of the registry that a model's configuration is of, None for a model of others."""
    from transformers import AutoConfig

    from ..registry import FAMILIES

    with named(model) as place:
        config = AutoConfig.from_pretrained(place)
    return next((family for family in FAMILIES.values() if isinstance(config, family.config_class)), None)


@contextmanager
def named(model: str) -> Iterator[str]:
    """What to load quietly, a folder or a name on the Hub; a model that can't be had, or read, is named."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers.utils import logging

    from ..hub import find_model

    logging.disable_progress_bar()
    place = find_model(model)
    if not Path(place).exists() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise FileNotFoundError(f"{model}: no such folder")
    if Path(place).is_file():
        raise ValueError(f"{model}: a file, and a model is a folder")
    try:
        yield place
    except (ValueError, StrictDataclassError, SafetensorError) as error:
        # Of a file of the model's that isn't what it should be, and goes unnamed
        if isinstance(error, ValueError) and model in str(error):
            raise
        raise ValueError(f"{model}: {error}") from error
    except OSError as error:
        if Path(place).is_dir():
            raise
        raise FileNotFoundError(
            f"{model}: no such folder here, and no such model could be had from the Hub; "
            f"`attnzoo starters` has those of the package ({error})"
        ) from error
