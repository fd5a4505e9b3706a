"""What a run starts from that is not random: the weights of a checkpoint, and its tokenizer or another."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from rich.console import Console
from safetensors import SafetensorError, safe_open
from tokenizers.models import WordLevel, WordPiece
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from ..conversion import convert
from ..data.readers import HUB_NAME
from ..hub import find_model
from ..models.configuration_attnzoo import AttnZooConfig
from ..models.tokenization_attnzoo import tokenizer_sides, vocabulary_sizes
from ..registry import Family
from .building import model_settings
from .keys import TOKENIZER_KEYS, told_by_keys
from .reporting import say
from .schema import PretrainedSection, Recipe, both_sides, wrong_type
from .tasks.base import Processor, Task

# What a model and its tokenizer are made of: no code, and no pickle.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm")

# Fields of a configuration that a new vocabulary decides on.
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class StartingPoint:
    """A checkpoint that a run starts from.

    Args:
        name: as the recipe has it.
        folder: where it lies, as a model of the family; while `starting_point` is open.
    """

    name: str
    folder: Path

    def digest(self) -> str:
        """What differs where weights, configuration or tokenizer do."""
        digest = hashlib.blake2b(digest_size=16)
        for file in sorted(self.folder.iterdir()):
            if file.suffix in (".json", ".safetensors", ".txt", ".model", ".spm"):
                digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
                digest.update(file.read_bytes())
        return digest.hexdigest()


@contextmanager
def starting_point(recipe: Recipe, family: Family) -> Iterator[StartingPoint | None]:
    """The checkpoint of a recipe's `pretrained` section, fetched and converted if need be; None if it names none.

    Code that lies beside a checkpoint is not run, and not even fetched.

    Args:
        recipe: of the run.
        family: that the checkpoint must be of.

    Raises:
        ValueError: if there is no such checkpoint, it is of another family, or can't be converted; or the section says
            something else, and no checkpoint.
    """
    section = recipe.pretrained
    if section.model is None:
        for name, default in (("revision", None), ("tokenizer", "keep")):
            value = getattr(section, name)
            if value != default:
                raise ValueError(f"pretrained.{name}={value} is for a checkpoint: set pretrained.model")
        yield None
        return
    folder = _fetched(section)
    ours = family.config_class.model_type
    with TemporaryDirectory() as scratch:
        kind = _config(folder).get("model_type")
        if kind is None or not str(kind).startswith("attnzoo_"):
            try:
                folder = convert(folder, Path(scratch) / "converted")
            except (ValueError, OSError) as error:
                raise ValueError(
                    f"pretrained.model={section.model}: of no family, and not to be converted: {error}"
                ) from error
            kind = _config(folder)["model_type"]
        if kind != ours:
            raise ValueError(
                f"pretrained.model={section.model} is of the type {kind}, but family={family.name} has {ours}"
            )
        yield StartingPoint(section.model, folder)


def checkpoint_here(recipe: Recipe, family: Family) -> StartingPoint:
    """The checkpoint of a recipe's `pretrained` section where it lies, without fetching or converting anything.

    Args:
        recipe: whose section names one.
        family: that it must be of.

    Raises:
        ValueError: if it isn't a folder on this machine, or of another type.
    """
    name = recipe.pretrained.model
    folder = Path(find_model(name)).expanduser()
    if not folder.is_dir():
        raise ValueError(f"pretrained.model={name!r} is no folder here, and a dry run fetches nothing")
    kind, ours = _config(folder).get("model_type"), family.config_class.model_type
    if kind != ours:
        raise ValueError(
            f"pretrained.model={name!r} is of the type {kind}, and a dry run converts nothing: it takes one of {ours}"
        )
    return StartingPoint(name, folder)


def missing_weights(start: StartingPoint, model: PreTrainedModel) -> set[str]:
    """Names of a model's parameters that a checkpoint lacks, of which only the names are read.

    Args:
        start: the checkpoint, in safetensors.
        model: on any device, the meta device too.

    Raises:
        ValueError: if the checkpoint's weights can't be read.
    """
    index, single = start.folder / SAFE_WEIGHTS_INDEX_NAME, start.folder / SAFE_WEIGHTS_NAME
    try:
        if index.is_file():
            stored = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        else:
            with safe_open(single, framework="pt") as tensors:
                stored = set(tensors.keys())
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(f"pretrained.model={start.name}: its weights can't be read ({error})") from error
    # A checkpoint of the base model has its names without the prefix
    stored |= {f"{model.base_model_prefix}.{name}" for name in stored}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    # A tied weight is stored by one of its names
    return {name for tied in names.values() if not stored & set(tied) for name in tied}


def from_hub(name: str | None) -> bool:
    """Whether a checkpoint that training starts from is a repository of the Hub, and neither here nor a starter.

    Args:
        name: `pretrained.model` of a recipe.
    """
    if name is None or not HUB_NAME.fullmatch(name):
        return False
    return not Path(find_model(name)).expanduser().exists()


def _fetched(section: PretrainedSection) -> Path:
    path = Path(find_model(section.model)).expanduser()
    if path.exists():
        if section.revision is not None:
            raise ValueError(
                f"pretrained.revision={section.revision} is for the Hub, and {path} is here: leave it out"
            )
        return path
    if not HUB_NAME.fullmatch(section.model):
        raise ValueError(f"pretrained.model={section.model}: no such file or folder")
    try:
        return Path(snapshot_download(section.model, revision=section.revision, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, OSError) as error:
        raise ValueError(
            f"pretrained.model={section.model}: no such folder here, and none could be had from the Hub ({error})"
        ) from error


def _config(folder: Path) -> dict[str, Any]:
    """What `config.json` says; nothing where there is none."""
    file = folder / "config.json"
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def starting_processor(start: StartingPoint, recipe: Recipe, task: Task, rows: Dataset, console: Console) -> Processor:
    """The tokenizer or processor of a run that starts from a checkpoint.

    Args:
        start: the checkpoint.
        recipe: whose `pretrained` section says what becomes of its tokenizer.
        task: of the recipe.
        rows: the training split.
        console: where to report to.

    Returns:
        The checkpoint's own, perhaps with more entries, or a new one.

    Raises:
        ValueError: if the checkpoint has none, or it can't be extended.
    """
    how, config = recipe.pretrained.tokenizer, _config(start.folder)
    if how == "train":
        with told_by_keys(TOKENIZER_KEYS):
            processor = task.build_processor(rows)
        task.adopt(processor, config)
        say(console, f"tokenizer: trained anew, its embeddings don't come from {start.name}")
        return processor
    try:
        processor = task.processor_class.from_pretrained(start.folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"pretrained.model={start.name} has no tokenizer that can be loaded; pretrained.tokenizer=train makes one "
            f"({error})"
        ) from error
    task.adopt(processor, config)
    if how == "extend":
        added = extend_vocabulary(
            getattr(processor, "tokenizer", processor),
            task.texts(rows),
            recipe.pretrained.added_tokens,
            both_sides(recipe.tokenizer.min_frequency),
        )
        numbers = ", ".join(f"{len(words):,} ({', '.join(words[:5])}{', ...' * (len(words) > 5)})" for words in added)
        say(console, f"tokenizer: that of {start.name}; entries added: {numbers.replace(' ()', '')}")
    else:
        say(console, f"tokenizer: that of {start.name}")
    return processor


def extend_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    texts: tuple[Iterable[str], ...],
    most: int,
    min_frequency: int | tuple[int, int] = 1,
) -> list[list[str]]:
    """Give a tokenizer entries for what it has none for, at the end of its vocabulary.

    Words, symbols, characters and WordPiece tokenizers come to cut a text as if they had been trained with these
    entries; others take them as added tokens. A vocabulary of bytes has an entry for everything, and stays.

    Args:
        tokenizer: a fast one, with one vocabulary or two.
        texts: those of each side; or of one, for one vocabulary.
        most: entries that are added to a vocabulary, those that occur most often.
        min_frequency: how often they must occur; or a pair.

    Returns:
        For each vocabulary the new entries.

    Raises:
        ValueError: if the tokenizer isn't a fast one, or its last entries are slots for copied words.
    """
    if getattr(tokenizer, "copy_slots", None):
        raise ValueError(
            f"pretrained.tokenizer=extend: the last entries are slots for copied words (copy_slots="
            f"{tokenizer.copy_slots}), and must stay the last"
        )
    if not tokenizer.is_fast:
        raise ValueError(
            f"pretrained.tokenizer=extend: a {type(tokenizer).__name__} doesn't tell which words it lacks"
        )
    sides = tokenizer_sides(tokenizer)
    frequencies = min_frequency if isinstance(min_frequency, tuple) else (min_frequency, min_frequency)
    if sides[0] is sides[1]:
        return [_extended(tokenizer, chain(*texts), most, frequencies[0])]
    # New views, of which each has its own vocabulary inside.
    return [_extended(*side) for side in zip(sides, texts, (most, most), frequencies, strict=True)]


def _extended(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], most: int, min_frequency: int) -> list[str]:
    backend, unknown = tokenizer.backend_tokenizer, tokenizer.unk_token_id
    counts: Counter[str] = Counter()
    for text in texts:
        spelt = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        # What the vocabulary has to spell is what is left of a text when it has been normalised.
        encoding = backend.encode(spelt, add_special_tokens=False)
        counts.update(
            spelt[start:end]
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if token == unknown
        )
    # A text may spell the unknown token itself.
    frequent = sorted(
        (item for item in counts.items() if item[1] >= min_frequency), key=lambda item: (-item[1], item[0])
    )
    words = [word for word, _ in frequent if backend.token_to_id(word) is None][:most]
    if not words:
        return []
    vocabulary = backend.get_vocab(with_added_tokens=False)
    first = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    vocabulary |= {word: first + number for number, word in enumerate(words)}
    if isinstance(backend.model, WordLevel):
        backend.model = WordLevel(vocabulary, unk_token=backend.model.unk_token)
    elif isinstance(backend.model, WordPiece):
        old = backend.model
        backend.model = WordPiece(
            vocabulary,
            unk_token=old.unk_token,
            max_input_chars_per_word=old.max_input_chars_per_word,
            continuing_subword_prefix=old.continuing_subword_prefix,
        )
    else:
        tokenizer.add_tokens(words)
    return words


def starting_config(start: StartingPoint, recipe: Recipe, family: Family, task: Task) -> AttnZooConfig:
    """The configuration of a model with a checkpoint's weights.

    Args:
        start: the checkpoint.
        recipe: whose `model` section has fields that shall be otherwise.
        family: row of the registry.
        task: of the recipe, whose classes count.

    Raises:
        ValueError: if a field is unknown or of the wrong type, or there is a preset.
    """
    fields = model_settings(recipe, family)
    if "preset" in fields:
        raise ValueError(
            f"model.preset={fields['preset']!r} and pretrained.model={start.name} exclude each other: sizes are the "
            "checkpoint's (on a command line, model={} empties the section)"
        )
    config_class = family.config_class
    stored = config_class.from_pretrained(start.folder).to_dict()
    try:
        return config_class.from_dict(stored | fields | task.label_fields())
    except StrictDataclassError as error:
        raise ValueError(f"model.{wrong_type(error, config_class, fields)}") from error


def starting_model(
    start: StartingPoint, recipe: Recipe, family: Family, task: Task, processor: Processor, console: Console
) -> tuple[PreTrainedModel, set[str]]:
    """A model with a checkpoint's weights, and random ones where the task has a head that the checkpoint lacks.

    Args:
        start: the checkpoint.
        recipe: whose `model` section has fields of the configuration that shall be otherwise.
        family: row of the registry.
        task: of the recipe.
        processor: from `starting_processor`.
        console: where to report what is new, and what of the checkpoint is left aside.

    Returns:
        The model, its embeddings resized where the vocabulary has grown, and the names of the tensors that aren't the
        checkpoint's.

    Raises:
        ValueError: if a field is unknown or of the wrong type, or a parameter has another shape than the checkpoint's.
    """
    config = starting_config(start, recipe, family, task)
    config_class = family.config_class
    model_class = family.model_class(task.head)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, found = model_class.from_pretrained(
            start.folder, config=config, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
        )
    finally:
        logging.set_verbosity(verbosity)
    for name, theirs, wanted in sorted(found["mismatched_keys"]):
        if name.startswith(f"{model.base_model_prefix}."):
            raise ValueError(
                f"pretrained.model={start.name}: {name} has the shape {tuple(theirs)}, but by the model section it "
                f"would be {tuple(wanted)}: leave sizes out (on a command line, model={{}} empties the section)"
            )
    new = {*found["missing_keys"], *(name for name, _, _ in found["mismatched_keys"])}
    if task.label_fields() and config.id2label != config_class.from_pretrained(start.folder).id2label:
        # A head for other classes is no head for these, even where it has the shape.
        fresh = model_class(config).state_dict()
        heads = {name: fresh[name] for name in fresh if not name.startswith(f"{model.base_model_prefix}.")}
        model.load_state_dict(heads, strict=False)
        new |= heads.keys()
    if recipe.pretrained.tokenizer == "train":
        model, anew = _with_new_vocabulary(model, task.model_fields(processor), start)
        new |= anew
    else:
        _resize(model, processor)
    total = len(model.state_dict())
    say(
        console,
        f"weights: {total - len(new & model.state_dict().keys())} of {total} tensors are those of {start.name}",
    )
    for what, names in (("new", new), ("left aside", found["unexpected_keys"])):
        if names:
            say(console, f"  {what}: {', '.join(sorted(names))}")
    return model.train(), new


def _resize(model: PreTrainedModel, processor: Processor) -> None:
    source_size, target_size = vocabulary_sizes(getattr(processor, "tokenizer", processor))
    # A checkpoint may have more rows than its vocabulary has entries, which do no harm.
    if target_size > model.config.vocab_size:
        model.resize_token_embeddings(target_size)
    rows = getattr(model.config, "source_vocab_size", None)
    if rows is not None and source_size > rows:
        model.resize_source_token_embeddings(source_size)


def _with_new_vocabulary(
    model: PreTrainedModel, fields: dict[str, Any], start: StartingPoint
) -> tuple[PreTrainedModel, set[str]]:
    """A model with other vocabularies and its old weights, those of words aside; and the names of what is new."""
    config_class = type(model.config)
    ids = {name: getattr(config_class, name) for name in _TOKEN_IDS if hasattr(config_class, name)}
    fresh = type(model)(config_class.from_dict(model.config.to_dict() | ids | fields))
    modules = [fresh.get_input_embeddings(), fresh.get_output_embeddings()]
    if hasattr(fresh, "get_decoder_input_embeddings"):
        modules.append(fresh.get_decoder_input_embeddings())
    of_words = {id(parameter) for module in modules if module is not None for parameter in module.parameters()}
    anew = {name for name, parameter in fresh.named_parameters(remove_duplicate=False) if id(parameter) in of_words}
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in anew}
    try:
        missing = set(fresh.load_state_dict(weights, strict=False).missing_keys)
    except RuntimeError as error:
        raise ValueError(f"pretrained.model={start.name}: {error}") from error
    return fresh, anew | missing
