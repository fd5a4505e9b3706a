"""Where a word stands: position numbers, and the vectors that stand for them (Vaswani et al. 2017, section 3.5)."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .attention import source_positions
from .pretrained import check_mask


def read_positions(
    vectors: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    seen: int | Tensor = 0,
    side: str = "",
) -> tuple[Tensor, Tensor | None]:
    """Numbers of the positions of a text, and of the documents that are packed into it: as given, or from its mask.

    Args:
        vectors: anything of shape `(B, T, ...)` that has a vector for each position.
        attention_mask: 1 or True where a position is real, shape `(B, seen + T)`. Default: `None`, or a mask of four
            dimensions, all are real.
        position_ids: as a caller gave them, shape `(B, T)` or `(1, T)`. Numbers that start anew within a row begin
            another document. Default: `None`, real positions are counted from 0, wherever padding stands.
        seen: positions before these, which a cache holds.
        side: what the names of the arguments begin with, such as `"decoder_"`, for errors.

    Returns:
        Numbers of shape `(B, T)` or, if they are the same for all, `(1, T)`; and of the documents, shape `(B, T)`, or
        None if every row is one.

    Raises:
        ValueError: if the mask or the numbers have another shape.
    """
    rows, length = vectors.shape[:2]
    mask = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
    if mask is not None and not torch.compiler.is_compiling():
        check_mask(f"{side}attention_mask", mask, (rows, int(seen) + length))
    if position_ids is not None:
        if position_ids.shape[0] == 1:
            position_ids = position_ids.expand(rows, -1)
        check_mask(f"{side}position_ids", position_ids, (rows, length))
        # What goes on from a cache is no beginning, and a mask of four dimensions doesn't say what is padding.
        told = attention_mask is mask and isinstance(seen, int) and seen == 0
        return position_ids, documents_of(position_ids, mask) if told else None
    if mask is None:
        return torch.arange(length, device=vectors.device)[None] + seen, None
    return source_positions(mask)[:, -length:].clamp(min=0), None


def documents_of(position_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
    """Which of the documents that are packed into a row each position belongs to: a new one begins where numbers do.

    Args:
        position_ids: shape `(B, T)`.
        attention_mask: 1 or True where a position is real, shape `(B, T)`; numbers on padding mean nothing. Default:
            `None`, all are real.

    Returns:
        Number of the document, from 0, shape `(B, T)`; None if every row is one document.
    """
    real = torch.ones_like(position_ids) if attention_mask is None else attention_mask
    real = real.bool()
    places = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    # The last real position before each but the first, -1 if there is none.
    before = places.masked_fill(~real, -1).cummax(dim=1).values[:, :-1]
    begins = position_ids[:, 1:] <= position_ids.gather(1, before.clamp(min=0))
    begins = begins & real[:, 1:] & (before >= 0)
    if not torch.compiler.is_compiling() and not begins.any():
        return None
    return nn.functional.pad(begins.long().cumsum(dim=1), (1, 0))


def sinusoids(num_positions: int, size: int, layout: str = "interleaved") -> Tensor:
    """`PE(pos, 2i) = sin(pos / 10000^(2i/d))` and `PE(pos, 2i+1) = cos(pos / 10000^(2i/d))` (section 3.5).

    Args:
        num_positions: rows.
        size: d, columns.
        layout: `"interleaved"` as in the paper, or `"halves"`: all sines, then all cosines, as Marian has them.

    Returns:
        Shape `(num_positions, size)`.
    """
    positions = torch.arange(num_positions, dtype=torch.float64)[:, None]
    angles = positions / 10000 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    # Of an odd size the last sine has no cosine.
    sines, cosines = angles.sin(), angles.cos()[:, : size // 2]
    if layout == "halves":
        return torch.cat([sines, cosines], dim=1)
    table = torch.empty(num_positions, size, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table


class SinusoidalPositions(nn.Module):
    """Fixed position vectors.

    Args:
        num_positions: positions there are vectors for.
        size: of a vector.
        layout: see `sinusoids`.
    """

    def __init__(self, num_positions: int, size: int, layout: str = "interleaved"):
        super().__init__()
        self.num_positions, self.size, self.layout = num_positions, size, layout
        # It isn't saved, so it has to be written again after loading, which builds a model without values.
        table = sinusoids(num_positions, size, layout).to(torch.get_default_dtype())
        self.register_buffer("table", table, persistent=False)

    def initialize(self) -> None:
        """Write the table."""
        init.copy_(self.table, sinusoids(self.num_positions, self.size, self.layout))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Vectors of numbers `(B, T)`: shape `(B, T, size)`.

        Raises:
            ValueError: if a number is not in the table.
        """
        check_positions(position_ids, self.num_positions)
        return self.table[position_ids]


class LearnedPositions(nn.Module):
    """Learned position vectors (Gehring et al. 2017; the alternative in Vaswani et al. 2017, table 3, row E).

    Args:
        num_positions: positions there are vectors for.
        size: of a vector.
    """

    def __init__(self, num_positions: int, size: int):
        super().__init__()
        self.num_positions = num_positions
        self.table = nn.Embedding(num_positions, size)

    def forward(self, position_ids: Tensor) -> Tensor:
        """Vectors of numbers `(B, T)`: shape `(B, T, size)`.

        Raises:
            ValueError: if a number is not in the table.
        """
        check_positions(position_ids, self.num_positions)
        return self.table(position_ids)


def check_positions(position_ids: Tensor, num_positions: int) -> None:
    """Refuse positions that have no vector.

    Raises:
        ValueError: naming the position and the last one there is.
    """
    # A graph can't raise an error that depends on data.
    if torch.compiler.is_compiling() or position_ids.numel() == 0:
        return
    low, high = (bound.item() for bound in torch.aminmax(position_ids))
    if low < 0 or high >= num_positions:
        culprit, reason = (low, "none is negative") if low < 0 else (high, "the text is too long")
        raise ValueError(
            f"position_ids reach {culprit}, but positions go from 0 to {num_positions - 1} "
            f"(max_position_embeddings={num_positions}): {reason}"
        )
