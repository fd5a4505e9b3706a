"""Padding taken out of a batch at the door, and put back at the exit.

What a model does at every position by itself (linear layers, normalisations, dropout) is then done at real positions
alone, in one long row; attention sees the batch as it was. Shapes: B texts, T positions, N real positions in all.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Less padding than this share isn't worth the copies.
_LEAST = 1 / 16


class Padding(NamedTuple):
    """Where the real positions of a batch stand.

    Args:
        places: their places in the batch, row after row, shape `(N,)`.
        rows: B.
        length: T.
    """

    places: Tensor
    rows: int
    length: int

    @classmethod
    def of(cls, real: Tensor) -> "Padding | None":
        """Padding of a mask of real positions, shape `(B, T)`.

        Returns:
            None where taking it out gains nothing: there is hardly any, or nothing else. And in a compiled graph,
            which can't have a size that depends on data.
        """
        if torch.compiler.is_compiling():
            return None
        places = real.flatten().nonzero()[:, 0]
        if not 0 < len(places) <= real.numel() * (1 - _LEAST):
            return None
        return cls(places, *real.shape)

    def remove(self, batch: Tensor) -> Tensor:
        """`(B, T, ...)` to `(1, N, ...)`."""
        return batch.flatten(0, 1).index_select(0, self.places)[None]

    def restore(self, row: Tensor) -> Tensor:
        """`(1, N, ...)` to `(B, T, ...)`, 0 on padding."""
        batch = row.new_zeros(self.rows * self.length, *row.shape[2:])
        return batch.index_copy(0, self.places, row[0]).unflatten(0, (self.rows, self.length))
