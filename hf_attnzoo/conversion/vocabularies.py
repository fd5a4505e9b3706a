"""Vocabularies of other programs as tokenizers of ours, and the rows of parameters that belong to their words."""

from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse, Replace, Sequence
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Replace as ReplaceText
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..models.tokenization_attnzoo import AttnZooTokenizer
from .checkpoints import Weights

# What stands for a space among characters.
_SPACE = "\u2581"


@dataclass
class Vocabulary:
    """Words of one side, and how a text becomes such words.

    Args:
        words: by their ids, in the program that they come from.
        special: of these the unknown word, padding, beginning and end.
        lowercase: whether a text is turned to lower case first.
        characters: whether words are single characters, spaces among them, and not what stands between spaces.
        ends: whether a text ends with the end, as a source doesn't everywhere.

    Raises:
        ValueError: if a special word is missing, or a word is there twice.
    """

    words: list[str]
    special: tuple[str, str, str, str]
    lowercase: bool = False
    characters: bool = False
    ends: bool = True

    def __post_init__(self):
        counted = set(self.words)
        missing = [word for word in self.special if word not in counted]
        if missing:
            raise ValueError(f"the vocabulary lacks the special words {', '.join(missing)}, which our models need")
        if len(set(self.special)) < len(self.special):
            raise ValueError(f"the special words {', '.join(self.special)} are not four different ones")
        if len(counted) < len(self.words):
            raise ValueError(f"the vocabulary has {len(self.words)} words, of which {len(counted)} are different")

    @property
    def ordered(self) -> list[str]:
        """The words by our ids: the special ones come first, as in every vocabulary of ours."""
        special = set(self.special)
        return [*self.special, *(word for word in self.words if word not in special)]

    def take_rows(self, weights: Weights, name: str) -> Tensor:
        """Take a parameter that has a row for each word, and put its rows into the order of our ids.

        Args:
            weights: where it is.
            name: its name there.

        Returns:
            Shape `(words, ...)`.

        Raises:
            ValueError: if it is not there, or has more or fewer rows.
        """
        rows = weights.take(name)
        if rows.shape[0] != len(self.words):
            raise ValueError(f"{name} has {rows.shape[0]} rows, but the vocabulary has {len(self.words)} words")
        ids = {word: index for index, word in enumerate(self.words)}
        return rows[torch.tensor([ids[word] for word in self.ordered])]

    def backend(self) -> Tokenizer:
        """A tokenizer of these words, with our ids."""
        unknown, *_, end = self.special
        words = {word: index for index, word in enumerate(self.ordered)}
        tokenizer = Tokenizer(WordLevel(words, unk_token=unknown))
        normalizers = [Lowercase()] if self.lowercase else []
        if self.characters:
            normalizers.append(ReplaceText(" ", _SPACE))
            tokenizer.decoder = Sequence([Replace(_SPACE, " "), Fuse()])
        if normalizers:
            tokenizer.normalizer = NormalizerSequence(normalizers)
        tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated") if self.characters else WhitespaceSplit()
        tokenizer.add_special_tokens(list(self.special))
        if self.ends:
            tokenizer.post_processor = TemplateProcessing(
                single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, words[end])]
            )
        return tokenizer


def make_tokenizer(source: Vocabulary, target: Vocabulary) -> PreTrainedTokenizerFast:
    """The tokenizer of a source and a target side, with `text_target=`.

    Args:
        source: vocabulary of the source.
        target: vocabulary of the target; its special words are called the same.

    Returns:
        A plain one if both sides do the same, otherwise an `AttnZooTokenizer`.

    Raises:
        ValueError: if special words are called otherwise on the other side.
    """
    if source.special != target.special:
        raise ValueError(
            f"the source's special words are {', '.join(source.special)}, the target's {', '.join(target.special)}: "
            f"a tokenizer has one name for each"
        )
    names = ("unk_token", "pad_token", "bos_token", "eos_token")
    settings = dict(zip(names, source.special, strict=True)) | {
        "padding_side": "right",
        "truncation_side": "right",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    if source == target:
        return PreTrainedTokenizerFast(tokenizer_object=source.backend(), **settings)
    return AttnZooTokenizer(tokenizer_object=source.backend(), target_tokenizer_object=target.backend(), **settings)
