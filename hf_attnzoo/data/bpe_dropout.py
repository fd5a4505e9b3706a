"""BPE-dropout: words cut in another way every time they are read (Provilkov, Emelianenko and Voita 2020)."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase


class BPEDropout:
    """Encodes texts as a BPE tokenizer does, but for merges that are left out at random.

    The `tokenizers` library has such a dropout of its own, which draws from a generator that can't be seeded: a
    training that is gone on with would read other cuts than one that was never interrupted. So merges are made here,
    and everything else, from lower case to special tokens, by the tokenizer.

    Args:
        tokenizer: of BPE, of a kind that `train_tokenizer` makes.
        rate: probability p with which each merge that could be made is left out, every time that one is chosen
            (algorithm 1), in [0, 1).

    Raises:
        ValueError: for another kind of tokenizer, or a rate out of range.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rate: float):
        if not 0 <= rate < 1:
            raise ValueError(f"rate={rate} must be at least 0 and below 1")
        self.tokenizer, self.rate = tokenizer, rate
        self.backend = tokenizer.backend_tokenizer
        model = json.loads(self.backend.to_str())["model"]
        marked = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        if model["type"] != "BPE" or marked or model.get("ignore_merges"):
            raise ValueError(f"tokenizer of {model['type']} must be of BPE, without marks on parts of words")
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(merges)}
        self.vocab, self.has_bytes = model["vocab"], model.get("byte_fallback", False)
        self.unknown = self.vocab.get(model.get("unk_token"))
        self.added = tuple(token.content for token in tokenizer.added_tokens_decoder.values())
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        dressed = tokenizer("a")["input_ids"]
        start = next(at for at in range(len(dressed)) if dressed[at : at + len(bare)] == bare)
        self.before, self.after = dressed[:start], dressed[start + len(bare) :]

    def __call__(self, text: str, draw: random.Random) -> list[int]:
        """Ids of a text, special tokens included.

        Args:
            text: to encode; one that holds a special token is encoded without dropout.
            draw: what merges are left out by.
        """
        if any(token in text for token in self.added):
            return self.tokenizer(text)["input_ids"]
        if self.backend.normalizer is not None:
            text = self.backend.normalizer.normalize_str(text)
        ids = []
        for piece, _ in self.backend.pre_tokenizer.pre_tokenize_str(text):
            ids.extend(self._ids(self._merge(self._symbols(piece), draw)))
        return [*self.before, *ids, *self.after]

    def _symbols(self, piece: str) -> list[str]:
        symbols = []
        for character in piece:
            if character in self.vocab or not self.has_bytes:
                symbols.append(character)
            else:
                symbols.extend(f"<0x{byte:02X}>" for byte in character.encode())
        return symbols

    def _merge(self, symbols: list[str], draw: random.Random) -> list[str]:
        while True:
            # The earliest merge that was learnt, and of its places the first, among those that aren't left out
            possible = [
                (self.ranks[pair], place)
                for place, pair in enumerate(pairwise(symbols))
                if pair in self.ranks and draw.random() >= self.rate
            ]
            if not possible:
                return symbols
            place = min(possible)[1]
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]

    def _ids(self, symbols: list[str]) -> list[int]:
        ids = [self.vocab.get(symbol, self.unknown) for symbol in symbols]
        return [token_id for token_id in ids if token_id is not None]


class BPEDropoutCollator:
    """Cuts the words of a batch anew, and then pads as another collator does.

    How a text is cut depends on the seed, the epoch and the row alone: it is the same in every process and worker, and
    again where training is gone on with. A text that would be longer than its limit is left as it is.

    Args:
        collator: called with rows of `input_ids` and `labels`.
        sides: tokenizers of the sources and of the targets; one that isn't of BPE leaves its texts as they are.
        rate: see `BPEDropout`.
        seed: of the cuts.
        limits: most tokens of a source and of a target. None: no limit.

    Raises:
        ValueError: if neither side is of BPE.
    """

    def __init__(
        self,
        collator: Callable[[list[dict[str, Any]]], dict[str, Tensor]],
        sides: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase],
        rate: float,
        *,
        seed: int,
        limits: tuple[int | None, int | None] = (None, None),
    ):
        kinds = [type(side.backend_tokenizer.model).__name__ for side in sides]
        if "BPE" not in kinds:
            raise ValueError(
                f"bpe_dropout={rate} is for tokenizers of the kinds bpe and byte-bpe; these are of {', '.join(kinds)}"
            )
        self.collator, self.seed, self.epoch, self.limits = collator, seed, 0, limits
        self.cutters = [
            BPEDropout(side, rate) if kind == "BPE" else None for side, kind in zip(sides, kinds, strict=True)
        ]

    def set_epoch(self, epoch: int) -> None:
        """Choose the cuts of the next pass; each epoch has its own."""
        self.epoch = epoch

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch of rows with the columns `source`, `target`, `row`, `input_ids` and `labels`."""
        return self.collator([self._cut(row) for row in rows])

    def _cut(self, row: Mapping[str, Any]) -> dict[str, Any]:
        cut = dict(row)
        columns = zip(("source", "target"), ("input_ids", "labels"), self.cutters, self.limits, strict=True)
        for side, column, cutter, limit in columns:
            if cutter is None:
                continue
            ids = cutter(row[side], random.Random(f"{self.seed} {self.epoch} {row['row']} {side}"))
            if limit is None or len(ids) <= limit:
                cut[column] = ids
        return cut
