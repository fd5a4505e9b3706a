"""Tokenizers trained on the user's own text, with one vocabulary or with one for each side.

One vocabulary gives a plain `PreTrainedTokenizerFast`, which anybody loads without this file. Two vocabularies give an
`AttnZooTokenizer`, and so does a vocabulary to copy words with. In all, `tokenizer(text, text_target=...)` makes
`input_ids`, `attention_mask` and `labels`, and `decode` reads what `generate` returns.
"""

import copy
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple

from tokenizers import AddedToken, Encoding, Regex, Tokenizer
from tokenizers.decoders import ByteFallback, Decoder, Fuse, Sequence
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import BPE, Model, WordLevel, WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordLevelTrainer, WordPieceTrainer
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils.generic import to_py_obj

UNK_TOKEN, PAD_TOKEN, BOS_TOKEN, EOS_TOKEN, MASK_TOKEN = "<unk>", "<pad>", "<s>", "</s>", "<mask>"

# The position is the id, in every vocabulary. Padding is not 0: beam search takes a 0 for "no padding token".
SPECIAL_TOKENS = (UNK_TOKEN, PAD_TOKEN, BOS_TOKEN, EOS_TOKEN)
# transformers saves a setting that is changed later only if it was given here.
_INIT_KWARGS = {
    "unk_token": UNK_TOKEN,
    "pad_token": PAD_TOKEN,
    "bos_token": BOS_TOKEN,
    "eos_token": EOS_TOKEN,
    "padding_side": "right",
    "truncation_side": "right",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
}

# A word keeps its inner apostrophes and hyphens, a number its separators; any other sign stands alone.
_WORD = (
    r"[\p{L}\p{M}\p{N}]+(?:['\x{2019}-][\p{L}\p{M}\p{N}]+|(?<=\p{N})[.,]\p{N}+)*"
    r"|[^\s\p{L}\p{M}\p{N}]"
)

# Merges stay inside a piece: a word with the space before it, one digit, a run of signs, or white space. The pieces
# cover the text, spaces included, so that joining them gives the text back.
_BPE_PIECE = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"

# WordPiece cuts a text into words and signs first, and never looks across.
_WORDPIECE_WORD = r"\p{Han}|[^\s\p{P}\p{S}\p{Han}]+|[\p{P}\p{S}]"

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

# No word: what doesn't count in a loss, and can't be copied.
_NOTHING = -100
# One printable character for each byte, in the order of GPT-2's vocabulary.
_BYTE_SIGNS = sorted(ByteLevel.alphabet())


class AttnZooTokenizer(PreTrainedTokenizerFast):
    """Two vocabularies behind one tokenizer: texts are encoded with the source's, everything else is the target's.

    `tokenizer(text)`, `encode` and `tokenize` read the source vocabulary; `text_target=` reads the target vocabulary.
    Ids and tokens belong to the target, as they come from `generate`: `decode`, `batch_decode`,
    `convert_ids_to_tokens`, `convert_tokens_to_ids`, `get_vocab`, `vocab_size` and `len(tokenizer)`.
    `source_tokenizer` and `target_tokenizer` are one side each, with every method of a tokenizer: source ids are read
    by `tokenizer.source_tokenizer.decode(ids)`.

    There is no mode to be in: nothing changes between calls. `add_tokens` and `add_special_tokens` add to both sides,
    each token at the end of each vocabulary; where that has slots (see below), which must stay the last, they refuse.

    With `copy_slots`, for models that copy words of the source (`copy=True`, See et al. 2017), `tokenizer(text)` makes
    `copy_ids` too: for each source position the target id of the same word. The last entries of the target vocabulary,
    `<copy_0>` and so on, stand in each text for its first, second, ... word that the target vocabulary lacks; `labels`
    have them where the target has such a word. `decode_copied` and `batch_decode(ids, sources=texts)` write the words
    themselves.

    Args:
        tokenizer_file, tokenizer_object:
            the source side, as the path of a `tokenizer.json` or as a `tokenizers.Tokenizer`.
        target_tokenizer_file, target_tokenizer_object:
            the target side, likewise; saved as `target_tokenizer.json`.
        copy_slots:
            how many entries `<copy_0>`, `<copy_1>`, ... the target vocabulary has. 0: only words of the target
            vocabulary can be copied. None: nothing is, and there are no `copy_ids`.
        kwargs:
            the arguments of `PreTrainedTokenizerFast`; they hold for both sides.
    """

    vocab_files_names = {  # noqa: RUF012 - transformers' own class attributes
        "tokenizer_file": "tokenizer.json",
        "target_tokenizer_file": "target_tokenizer.json",
    }

    def __init__(
        self,
        tokenizer_file: str | None = None,
        target_tokenizer_file: str | None = None,
        *,
        tokenizer_object: Tokenizer | None = None,
        target_tokenizer_object: Tokenizer | None = None,
        copy_slots: int | None = None,
        **kwargs: Any,
    ) -> None:
        source = _backend("tokenizer", tokenizer_object, tokenizer_file)
        target = _backend("target_tokenizer", target_tokenizer_object, target_tokenizer_file)
        for name in ("unk_token", "pad_token", "bos_token", "eos_token"):
            token = kwargs.get(name)
            ids = source.token_to_id(str(token)), target.token_to_id(str(token))
            if token is not None and ids[0] != ids[1]:
                raise ValueError(
                    f"{name}={str(token)!r} must have the same id in both vocabularies, "
                    f"got {ids[0]} in the source's and {ids[1]} in the target's"
                )
        # Each file knows its own added tokens; those of the source's are no business of the target's.
        kwargs.pop("added_tokens_decoder", None)
        self._source_backend = source
        self.copy_slots = copy_slots
        ids = [target.token_to_id(name) for name in _slot_names(copy_slots or 0)]
        if ids and (None in ids or ids != list(range(ids[0], ids[0] + len(ids)))):
            raise ValueError(f"copy_slots={copy_slots}: the target vocabulary has no such entries in a row, but {ids}")
        self.slot_ids = range(ids[0], ids[0] + len(ids)) if ids else range(0)
        if copy_slots is not None:
            # It is saved with what else the tokenizer was made with.
            kwargs["copy_slots"] = copy_slots
        super().__init__(tokenizer_object=target, **kwargs)

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Leave both files to `__init__`, where the base class would take the first one apart."""
        return kwargs

    @property
    def source_tokenizer(self) -> PreTrainedTokenizerFast:
        """The source side alone, with the settings of this moment; tokens added to it are added here too."""
        return self._side(self._source_backend)

    @property
    def target_tokenizer(self) -> PreTrainedTokenizerFast:
        """The target side alone, with the settings of this moment; tokens added to it are added here too."""
        return self._side(self._tokenizer)

    @property
    def source_vocab_size(self) -> int:
        """Number of source ids, added tokens included: the rows of the source embedding."""
        return self._source_backend.get_vocab_size()

    @property
    def target_vocab_size(self) -> int:
        """Number of target ids, added tokens included: the rows of the target embedding, `len(tokenizer)`."""
        return len(self)

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Encode source texts, target texts, or both (the target's ids are then `labels`), as any tokenizer does."""
        if self.copy_slots is not None and text is not None:
            return self._encode_to_copy(text, text_pair, text_target, text_pair_target, *args, **kwargs)
        if text_target is None:
            return super().__call__(text, text_pair, None, None, *args, **kwargs)
        targets = self.target_tokenizer(None, None, text_target, text_pair_target, *args, **kwargs)
        if text is None:
            return targets
        encoding = super().__call__(text, text_pair, None, None, *args, **kwargs)
        encoding["labels"] = targets["input_ids"]
        return encoding

    def decode_copied(self, token_ids: Any, source: str, skip_special_tokens: bool = False) -> str:
        """Text of target ids, the words of its source in the place of slots.

        Args:
            token_ids: ids of one text, shape `(T,)`.
            source: the text that it was written from; if it was truncated on the left, what was left of it.
            skip_special_tokens: leave special tokens out, `<unk>` among them, which is what an empty slot becomes.

        Returns:
            The text.
        """
        words, special = self.copied_words(source), set(self.all_special_ids) if skip_special_tokens else set()
        tokens = []
        for token_id in to_py_obj(token_ids):
            if token_id in self.slot_ids and token_id not in words:
                token_id = self.unk_token_id
            if token_id not in special:
                tokens.append(words.get(token_id) or self.convert_ids_to_tokens(token_id))
        return self.convert_tokens_to_string(tokens)

    def batch_decode(
        self, sequences: Any, *args: Any, sources: Iterable[str] | None = None, **kwargs: Any
    ) -> list[str]:
        """Texts of target ids, as any tokenizer makes them; with sources, by `decode_copied`.

        Args:
            sequences: ids of N texts.
            args: see `PreTrainedTokenizerBase.batch_decode`, as for `kwargs`.
            sources: what the texts were written from; N, or a divisor of N if each has several texts in a row.
            kwargs: with sources, `skip_special_tokens` alone.

        Returns:
            N texts.

        Raises:
            ValueError: if there is no whole number of texts for each source, or sources are one string.
        """
        if sources is None:
            return super().batch_decode(sequences, *args, **kwargs)
        if isinstance(sources, str):
            raise ValueError(f"sources must be a list of texts, got one string: {sources[:40]!r}")
        rows, sources = to_py_obj(sequences), list(sources)
        if not rows:
            return []
        if not sources or len(rows) % len(sources):
            raise ValueError(f"sources has {len(sources)} texts, which doesn't divide the {len(rows)} of sequences")
        each = len(rows) // len(sources)
        return [self.decode_copied(row, sources[index // each], *args, **kwargs) for index, row in enumerate(rows)]

    def copied_words(self, source: str) -> dict[int, str]:
        """What each slot stands for in a text: slot id -> the word as it is written where it comes first."""
        (encoding,) = super().__call__(source, verbose=False).encodings
        pieces = self._pieces(encoding, source)
        words = {}
        for piece, (start, end) in zip(pieces, encoding.offsets, strict=True):
            words.setdefault(piece, source[start:end])
        return {slot: words[piece] for piece, slot in self._slots_of(pieces).items()}

    def _encode_to_copy(
        self, text: Any, text_pair: Any, text_target: Any, text_pair_target: Any, *args: Any, **kwargs: Any
    ) -> BatchEncoding:
        if text_pair is not None or text_pair_target is not None or kwargs.get("is_split_into_words"):
            raise ValueError(
                f"copy_slots={self.copy_slots} needs texts that are strings: text_pair, text_pair_target and "
                f"is_split_into_words are not for it"
            )
        # Lists until the end: what is copied where is found out token by token.
        return_tensors = kwargs.pop("return_tensors", None)
        encoding = super().__call__(text, None, None, None, *args, **kwargs)
        sources = [text] if isinstance(text, str) else text
        if len(encoding.encodings) != len(sources):
            raise ValueError(f"copy_slots={self.copy_slots}: return_overflowing_tokens=True would cut texts apart")
        pieces = [self._pieces(*pair) for pair in zip(encoding.encodings, sources, strict=True)]
        slots = [self._slots_of(row) for row in pieces]
        made = {"copy_ids": [self._copy_ids(*pair) for pair in zip(pieces, slots, strict=True)]}
        if text_target is not None:
            targets = [text_target] if isinstance(text_target, str) else text_target
            encoded = self.target_tokenizer(None, None, text_target, None, *args, **kwargs).encodings
            if not len(encoded) == len(targets) == len(sources):
                raise ValueError(f"text_target has {len(targets)} texts, but text has {len(sources)}")
            made["labels"] = [self._labels(*triple) for triple in zip(encoded, targets, slots, strict=True)]
        for name, rows in made.items():
            encoding[name] = rows[0] if isinstance(text, str) else rows
        return encoding.convert_to_tensors(return_tensors, prepend_batch_axis=isinstance(text, str))

    def _pieces(self, encoding: Encoding, text: str) -> list[str | None]:
        """How the target vocabulary would spell what stands at each position of a text; None on padding."""
        # A word is looked up as it is written, also where the source's side has no entry for it or another case.
        # Sub-words have no spelling but their own.
        spelt, normalizer = isinstance(self._tokenizer.model, WordLevel), self._tokenizer.normalizer
        offsets, pieces = encoding.offsets, []
        for index, (token, real) in enumerate(zip(encoding.tokens, encoding.attention_mask, strict=True)):
            start, end = offsets[index]
            # Nor has a character that lower case makes two of, which both point at it.
            alone = (start, end) not in offsets[max(index - 1, 0) : index] + offsets[index + 1 : index + 2]
            if spelt and alone and start < end:
                token = text[start:end] if normalizer is None else normalizer.normalize_str(text[start:end])
            pieces.append(token if real else None)
        return pieces

    def _word_id(self, piece: str) -> int | None:
        word_id = self._tokenizer.token_to_id(piece)
        # A text may hold the name of a slot.
        return None if word_id in self.slot_ids else word_id

    def _slots_of(self, pieces: list[str | None]) -> dict[str, int]:
        missing = [piece for piece in pieces if piece is not None and self._word_id(piece) is None]
        return dict(zip(dict.fromkeys(missing), self.slot_ids, strict=False))

    def _copy_ids(self, pieces: list[str | None], slots: dict[str, int]) -> list[int]:
        ids = []
        for piece in pieces:
            word_id = _NOTHING if piece is None else self._word_id(piece)
            ids.append(slots.get(piece, self.unk_token_id) if word_id is None else word_id)
        return ids

    def _labels(self, encoding: Encoding, text: str, slots: dict[str, int]) -> list[int]:
        labels = []
        for token_id, piece in zip(encoding.ids, self._pieces(encoding, text), strict=True):
            is_word = token_id != self.unk_token_id and token_id not in self.slot_ids
            labels.append(token_id if is_word else slots.get(piece, self.unk_token_id))
        return labels

    def _pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        padded = super()._pad(encoded_inputs, *args, **kwargs)
        if "copy_ids" in padded:
            missing = [_NOTHING] * (len(padded["input_ids"]) - len(padded["copy_ids"]))
            left = (kwargs.get("padding_side") or self.padding_side) == "left"
            padded["copy_ids"] = missing + padded["copy_ids"] if left else padded["copy_ids"] + missing
        return padded

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write both vocabularies into a folder and return the two paths, source first."""
        backends = {"tokenizer_file": self._source_backend, "target_tokenizer_file": self._tokenizer}
        paths = []
        for key, backend in backends.items():
            # The last call's padding and truncation stay behind in a backend; they are no part of the vocabulary.
            backend = copy.deepcopy(backend)
            backend.no_padding()
            backend.no_truncation()
            prefix = f"{filename_prefix}-" if filename_prefix else ""
            paths.append(os.path.join(save_directory, prefix + self.vocab_files_names[key]))
            backend.save(paths[-1])
        return tuple(paths)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        return file_names + self.save_vocabulary(str(save_directory), filename_prefix)

    def _encode_plus(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        return self.source_tokenizer._encode_plus(*args, **kwargs)

    def _add_tokens(self, new_tokens: list[str | AddedToken], special_tokens: bool = False) -> int:
        if self.copy_slots:
            new = [str(token) for token in new_tokens if self._tokenizer.token_to_id(str(token)) is None]
            if new:
                raise ValueError(
                    f"tokens {', '.join(new)} would come behind the copy_slots={self.copy_slots} entries for copied "
                    f"words, which must stay the last: put them into the texts that the tokenizer is trained on"
                )
        self.source_tokenizer._add_tokens(new_tokens, special_tokens)
        return super()._add_tokens(new_tokens, special_tokens)

    def _side(self, backend: Tokenizer) -> PreTrainedTokenizerFast:
        # A view made for the moment follows later changes of padding_side and the like, and cannot go stale.
        side = object.__new__(PreTrainedTokenizerFast)
        init_kwargs = {key: value for key, value in self.init_kwargs.items() if key not in ("auto_map", "copy_slots")}
        side.__dict__.update(self.__dict__, _tokenizer=backend, init_kwargs=init_kwargs)
        return side


def train_tokenizer(
    kind: str | tuple[str, str],
    source_texts: Iterable[str],
    target_texts: Iterable[str] | None = None,
    *,
    shared: bool | None = None,
    vocab_size: int | tuple[int, int] = 30_000,
    min_frequency: int | tuple[int, int] = 1,
    lowercase: bool | tuple[bool, bool] = False,
    causal: bool = False,
    copy_slots: int | None = None,
) -> PreTrainedTokenizerFast:
    """Make a tokenizer from texts; it ends every text with `</s>` and puts nothing in front.

    With `causal=True` it is one for a language model: `<s>` in front, no end, so that a prompt is open, and padding on
    the left.

    Kinds: `"character"`, each Unicode character a token, white space too. `"word"`, words, numbers and signs; decoding
    puts one space between them. `"symbol"`, what stands between white space, for phonemes or text that is tokenized
    already. `"bpe"` (Sennrich et al., 2016, section 3.2), subwords that carry the space before them, with an unseen
    character written as its UTF-8 bytes: any text comes back from its ids unchanged. `"byte-bpe"` (Radford et al.,
    2019, section 2.2), the same with bytes in the place of characters, so that there are no characters to be unseen:
    any text comes back too. In the other kinds what is not in the vocabulary becomes `<unk>`; apart from that,
    `"character"` gives any text back unchanged too.

    `"wordpiece"` is BERT's: of every word its longest beginning that is an entry, then the longest `##continuation`,
    and so on. It is for encoders, with one vocabulary: `<s> text </s>`, where BERT has [CLS] and [SEP], or
    `<s> text </s> text </s>` with the segments 0 and 1 (`token_type_ids`); `<mask>` is id 4.

    An argument marked "or a pair" takes one value for both sides, or `(source's, target's)` for two vocabularies.

    Args:
        kind:
            one of `TOKENIZER_KINDS`, or a pair.
        source_texts:
            the texts of the source side. They are read once.
        target_texts:
            the texts of the target side. They are read once.
        shared:
            one vocabulary for both sides. None: two vocabularies if there are target texts, otherwise one.
        vocab_size:
            the most entries of a vocabulary, the special tokens included, or a pair. The most frequent are kept.
        min_frequency:
            how often something must occur to have an entry, or a pair. Of sub-words it counts pairs to
            be merged, and is at least 2.
        lowercase:
            turn texts to lower case first, in training and in use, or a pair.
        causal:
            for a decoder-only model, with one vocabulary.
        copy_slots:
            for a model that copies words of the source: how many different words of a text, that the target's
            vocabulary lacks, can be copied; see `AttnZooTokenizer`. They come on top of `vocab_size`. 0 is for any
            kind, more for one that has words it doesn't know: `"word"`, `"symbol"` or `"character"`, on both sides.

    Returns:
        A plain `PreTrainedTokenizerFast` with one vocabulary, an `AttnZooTokenizer` with two, or with `copy_slots`.

    Raises:
        ValueError: for an unknown kind, texts that are missing, empty or not strings, or numbers out of range.
    """
    if shared is None:
        shared = target_texts is None
    if target_texts is None and not shared:
        raise ValueError("shared=False needs target_texts, got None")
    if causal and not shared:
        raise ValueError("causal=True is for one vocabulary: leave out target_texts, or set shared=True")

    settings = {"kind": kind, "vocab_size": vocab_size, "min_frequency": min_frequency, "lowercase": lowercase}
    pairs = {name: _pair(name, value) for name, value in settings.items()}
    if shared:
        for name, (of_source, of_target) in pairs.items():
            if of_source != of_target:
                raise ValueError(f"{name} must be one value for a shared vocabulary, got {of_source!r}, {of_target!r}")
    source_settings, target_settings = (
        dict(zip(pairs, side, strict=True)) for side in zip(*pairs.values(), strict=True)
    )
    for side in (source_settings, target_settings):
        _check_settings(**side)
        if side["kind"] == "wordpiece" and (causal or target_texts is not None):
            raise ValueError("kind='wordpiece' is for encoders: leave out target_texts and causal")

    if copy_slots is not None:
        _check_slots(copy_slots, causal, *pairs["kind"])
    slots = {} if copy_slots is None else {"copy_slots": copy_slots}

    texts = _checked_texts("source_texts", source_texts)
    if shared:
        if target_texts is not None:
            texts = chain(texts, _checked_texts("target_texts", target_texts))
        backend = _train_backend(texts, **source_settings, **slots)
        if slots:
            return AttnZooTokenizer(tokenizer_object=backend, target_tokenizer_object=backend, **slots, **_INIT_KWARGS)
        if causal:
            backend.post_processor = TemplateProcessing(
                single=f"{BOS_TOKEN} $A",
                pair=f"{BOS_TOKEN} $A $B",
                special_tokens=[(BOS_TOKEN, SPECIAL_TOKENS.index(BOS_TOKEN))],
            )
        side = {"padding_side": "left"} if causal else {}
        if kind == "wordpiece":
            side = _dress_encoder(backend)
        return PreTrainedTokenizerFast(tokenizer_object=backend, **(_INIT_KWARGS | side))
    return AttnZooTokenizer(
        tokenizer_object=_train_backend(texts, **source_settings),
        target_tokenizer_object=_train_backend(
            _checked_texts("target_texts", target_texts), **target_settings, **slots
        ),
        **slots,
        **_INIT_KWARGS,
    )


def tokenizer_sides(tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """The tokenizers that read source ids and target ids: those of an `AttnZooTokenizer`, or the same one twice."""
    # By attribute, not by class: code that came with a checkpoint brings an AttnZooTokenizer of its own.
    return getattr(tokenizer, "source_tokenizer", tokenizer), getattr(tokenizer, "target_tokenizer", tokenizer)


def vocabulary_sizes(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Number of source and of target ids, added tokens included: a config's `source_vocab_size` and `vocab_size`."""
    source, target = tokenizer_sides(tokenizer)
    return len(source), len(target)


def _learn_word_level(tokenizer: Tokenizer, texts: Iterable[str], size: int, min_frequency: int) -> WordLevel:
    tokenizer.model = WordLevel()
    trainer = WordLevelTrainer(vocab_size=size, min_frequency=min_frequency, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return WordLevel(_numbered(_by_id(tokenizer.get_vocab())), unk_token=UNK_TOKEN)


def _learn_bpe(tokenizer: Tokenizer, texts: Iterable[str], size: int, min_frequency: int) -> BPE:
    tokenizer.model = BPE()
    # Without limit_alphabet a text with more characters than `size` would exceed it; the bytes cover the rare ones.
    trainer = BpeTrainer(
        vocab_size=size, limit_alphabet=size, min_frequency=max(min_frequency, 2), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    vocab = _numbered(_BYTES + _by_id(learned["vocab"]))
    return BPE(vocab, [tuple(merge) for merge in learned["merges"]], unk_token=UNK_TOKEN, byte_fallback=True)


def _learn_byte_bpe(tokenizer: Tokenizer, texts: Iterable[str], size: int, min_frequency: int) -> BPE:
    tokenizer.model = BPE()
    trainer = BpeTrainer(
        vocab_size=len(_BYTE_SIGNS) + size,
        initial_alphabet=_BYTE_SIGNS,
        min_frequency=max(min_frequency, 2),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    # A text may spell a special token, and shall not be merged into one.
    merges = [(left, right) for left, right in learned["merges"] if left + right not in SPECIAL_TOKENS]
    return BPE(_numbered(_by_id(learned["vocab"])), merges)


def _learn_wordpiece(tokenizer: Tokenizer, texts: Iterable[str], size: int, min_frequency: int) -> WordPiece:
    texts, inner = list(texts), Counter()
    for text in texts:
        text = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            inner.update(word[1:])
    # The trainer numbers characters inside words as a hash table has them, different every time, and ties between
    # merges go by number. Those it is told of beforehand keep their numbers.
    trainer = WordPieceTrainer(
        vocab_size=size,
        limit_alphabet=max(size // 2, 1),
        min_frequency=max(min_frequency, 2),
        show_progress=False,
        special_tokens=[f"##{character}" for character in sorted(inner, key=lambda c: (-inner[c], c))],
    )
    learner = Tokenizer(WordPiece())
    learner.pre_tokenizer = tokenizer.pre_tokenizer
    if tokenizer.normalizer is not None:
        learner.normalizer = tokenizer.normalizer
    learner.train_from_iterator(texts, trainer)
    return WordPiece(_numbered([MASK_TOKEN, *_by_id(learner.get_vocab())[:size]]), unk_token=UNK_TOKEN)


def _dress_encoder(backend: Tokenizer) -> dict[str, Any]:
    """Give a tokenizer what BERT wants around a text, and return the settings that tell of it."""
    backend.add_special_tokens([MASK_TOKEN])
    backend.post_processor = TemplateProcessing(
        single=f"{BOS_TOKEN} $A {EOS_TOKEN}",
        pair=f"{BOS_TOKEN} $A {EOS_TOKEN} $B:1 {EOS_TOKEN}:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in (BOS_TOKEN, EOS_TOKEN)],
    )
    return {
        "cls_token": BOS_TOKEN,
        "sep_token": EOS_TOKEN,
        "mask_token": MASK_TOKEN,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }


class _Kind(NamedTuple):
    """How a kind cuts a text into pieces, learns its entries, and joins tokens again (None: by single spaces)."""

    pre_tokenizer: PreTokenizer
    learn: Callable[[Tokenizer, Iterable[str], int, int], Model]
    decoder: Decoder | None = None
    fixed_entries: int = 0


_KINDS = {
    "character": _Kind(Split(Regex(r"[\s\S]"), "isolated"), _learn_word_level, Fuse()),
    "word": _Kind(Split(Regex(_WORD), "removed", invert=True), _learn_word_level),
    "symbol": _Kind(WhitespaceSplit(), _learn_word_level),
    "bpe": _Kind(
        Split(Regex(_BPE_PIECE), "isolated"), _learn_bpe, Sequence([ByteFallback(), Fuse()]), fixed_entries=len(_BYTES)
    ),
    "byte-bpe": _Kind(
        ByteLevel(add_prefix_space=False), _learn_byte_bpe, ByteLevelDecoder(), fixed_entries=len(_BYTE_SIGNS)
    ),
    "wordpiece": _Kind(
        Split(Regex(_WORDPIECE_WORD), "removed", invert=True),
        _learn_wordpiece,
        WordPieceDecoder(cleanup=False),
        fixed_entries=1,
    ),
}

TOKENIZER_KINDS = tuple(_KINDS)


def _train_backend(
    texts: Iterable[str], kind: str, vocab_size: int, min_frequency: int, lowercase: bool, copy_slots: int = 0
) -> Tokenizer:
    pre_tokenizer, learn, decoder, fixed_entries = _KINDS[kind]
    tokenizer = Tokenizer(WordLevel())
    if lowercase:
        tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        tokenizer.decoder = decoder
    free_entries = vocab_size - len(SPECIAL_TOKENS) - fixed_entries
    # The trainers know nothing of the special tokens: given them, they renumber one that also stands in the texts.
    tokenizer.model = learn(tokenizer, texts, free_entries, min_frequency)
    if tokenizer.get_vocab_size() == len(SPECIAL_TOKENS) + fixed_entries:
        raise ValueError(f"min_frequency={min_frequency}: nothing in the texts occurs so often as a {kind!r} entry")
    if copy_slots:
        names = _slot_names(copy_slots)
        words = [entry for entry in _by_id(tokenizer.get_vocab()) if entry not in names]
        tokenizer.model = WordLevel(_numbered(words + names), unk_token=UNK_TOKEN)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {EOS_TOKEN}",
        pair=f"$A {EOS_TOKEN} $B {EOS_TOKEN}",
        special_tokens=[(EOS_TOKEN, SPECIAL_TOKENS.index(EOS_TOKEN))],
    )
    return tokenizer


def _by_id(vocab: dict[str, int]) -> list[str]:
    return [entry for entry in sorted(vocab, key=vocab.__getitem__) if entry not in SPECIAL_TOKENS]


def _numbered(entries: list[str]) -> dict[str, int]:
    return {entry: index for index, entry in enumerate([*SPECIAL_TOKENS, *entries])}


def _slot_names(count: int) -> list[str]:
    return [f"<copy_{number}>" for number in range(count)]


def _backend(name: str, tokenizer_object: Tokenizer | None, tokenizer_file: str | None) -> Tokenizer:
    if tokenizer_object is not None:
        return copy.deepcopy(tokenizer_object)
    if tokenizer_file is None:
        raise ValueError(f"an AttnZooTokenizer needs two vocabularies: {name}_object and {name}_file are both None")
    return Tokenizer.from_file(tokenizer_file)


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)):
        return value, value
    if len(value) != 2:
        raise ValueError(f"{name} must be one value or a pair (source's, target's), got {value!r}")
    return tuple(value)


def _check_settings(kind: str, vocab_size: int, min_frequency: int, lowercase: bool) -> None:
    if kind not in _KINDS:
        near = get_close_matches(str(kind), _KINDS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, got {kind!r}{hint}")
    least = len(SPECIAL_TOKENS) + _KINDS[kind].fixed_entries + 1
    if not isinstance(vocab_size, int) or vocab_size < least:
        raise ValueError(f"vocab_size must be an int of at least {least} for kind={kind!r}, got {vocab_size!r}")
    if not isinstance(min_frequency, int) or min_frequency < 1:
        raise ValueError(f"min_frequency must be an int of at least 1, got {min_frequency!r}")


def _check_slots(copy_slots: int, causal: bool, source_kind: str, target_kind: str) -> None:
    if not isinstance(copy_slots, int) or isinstance(copy_slots, bool) or copy_slots < 0:
        raise ValueError(f"copy_slots must be an int of at least 0, or None, got {copy_slots!r}")
    if causal:
        raise ValueError(f"copy_slots={copy_slots} is for two sides, and causal=True has one")
    if copy_slots and (source_kind != target_kind or _KINDS[source_kind].learn is not _learn_word_level):
        raise ValueError(
            f"copy_slots={copy_slots} needs one kind for both sides, 'word', 'symbol' or 'character', whose unknown "
            f"tokens can be copied, got {source_kind!r} and {target_kind!r}"
        )


def _checked_texts(name: str, texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise ValueError(f"{name} must be an iterable of texts, got one string: {texts[:40]!r}")
    number = 0
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise ValueError(f"{name} must hold strings, got {text!r} as text number {number}")
        yield text
    if number == 0:
        raise ValueError(f"{name} must hold at least one text, got none")


AttnZooTokenizer.register_for_auto_class()
