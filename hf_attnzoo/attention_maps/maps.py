"""`AttentionMap`: which source token each target token looked at."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

import numpy as np
from matplotlib.figure import Figure

from .plotting import plot_grid, render


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention of one text over another, as in figure 3 of Bahdanau et al. (2015).

    The closing `</s>` of either side is kept: the model attends to it and from it, and without its column the
    rows would not sum to 1.

    Args:
        source:
            The S tokens attended to, as the tokenizer names them.
        target:
            The T tokens attended from; row i of `weights` is the attention with which token i was written.
        weights:
            Attention of shape `(T, S)`: values in [0, 1], rows sum to 1 up to the rounding of the model's dtype.
        source_text:
            The text that was read.
        target_text:
            The text that was written, or that the model was made to write.

    Raises:
        ValueError: `weights` has another shape than the tokens ask for, or there are no tokens.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray
    source_text: str = ""
    target_text: str = ""

    def __post_init__(self) -> None:
        expected = (len(self.target), len(self.source))
        if self.weights.shape != expected:
            raise ValueError(
                f"weights has shape {self.weights.shape}; the tokens ask for (target, source) = {expected}"
            )
        if 0 in expected:
            raise ValueError(f"weights has shape {expected}; at least one source and one target token are needed")

    def plot(self, path: str | PathLike | None = None, **options) -> Figure:
        """Draws the map: source along the top, target down the side, white for 1 and black for 0.

        Args:
            path:
                Where to write the picture, `.png`, `.svg` or `.pdf` by suffix; None only draws.
            **options:
                `title` (a string), and the options of [`plot_grid`]: `cmap`, `vmax`, `colorbar`, `dpi`.

        Returns:
            The matplotlib figure, free of pyplot's global state.
        """
        title = options.pop("title", None)
        return plot_grid([self], path, titles=None if title is None else [title], **options)

    def _repr_png_(self) -> bytes:
        # Jupyter shows a map that ends a cell through this hook
        return render(self.plot(), "png")
