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
    """Which positions of a batch are real, and whether the others are taken out.

    Args:
        real: True where a position is real, shape `(B, T)`. Default: `None`, all are.
        places: of the real positions in the batch, row after row, shape `(N,)`. Default: `None`, nothing is taken out,
            and N is all of it: `remove` and `restore` leave things as they are.
    """

    real: Tensor | None = None
    places: Tensor | None = None

    @classmethod
    def of(cls, real: Tensor | None) -> "Padding":
        """Padding of a mask of real positions, shape `(B, T)`, or of None: all are.

        It is not taken out where there is hardly any; nor in a compiled graph, which can't have a size that depends on
        data.
        """
        if real is None or torch.compiler.is_compiling():
            return cls(real)
        # The one look at the data, for which a processor must wait for an accelerator.
        places = real.flatten().nonzero()[:, 0]
        if len(places) == real.numel():
            return cls()
        return cls(real, places if len(places) <= real.numel() * (1 - _LEAST) else None)

    def remove(self, batch: Tensor) -> Tensor:
        """`(B, T, ...)` to `(1, N, ...)`."""
        if self.places is None:
            return batch
        return batch.flatten(0, 1).index_select(0, self.places.to(batch.device))[None]

    def restore(self, row: Tensor) -> Tensor:
        """`(1, N, ...)` to `(B, T, ...)`, 0 on padding."""
        if self.places is None:
            return row
        batch = row.new_zeros(self.real.numel(), *row.shape[2:])
        return batch.index_copy_(0, self.places.to(row.device), row[0]).unflatten(0, self.real.shape)

    def clear(self, states: Tensor) -> Tensor:
        """`(1, N, H)` to `(B, T, H)`, 0 on padding also where it wasn't taken out."""
        if self.places is not None or self.real is None:
            return self.restore(states)
        return states.masked_fill(~self.real.to(states.device)[:, :, None], 0.0)


NO_PADDING = Padding()
