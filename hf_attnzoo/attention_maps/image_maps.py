"""`ImageAttentionMap`: where on an image a model looked as it wrote each word."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from .animation import animate_words
from .html import image_page, write_page
from .overlay import plot_overlay
from .plotting import render

# Cells that a bump reaches to every side, that of Pillow's bicubic filter
_BUMP = 2


@dataclass(frozen=True, eq=False)
class ImageAttentionMap:
    """The attention of a caption over an image, as in figures 3 and 5 of Xu et al. (2015).

    The closing `</s>` is kept, as the model looks somewhere to write it too.

    Args:
        words:
            The T tokens attended from, as the tokenizer names them.
        weights:
            Attention of shape `(T, rows, columns)` over the cells of the model's grid, which lies on the whole image:
            values in [0, 1] that sum to 1 for each word, up to the rounding of the model's dtype.
        image:
            The image that was looked at, in RGB, upright and of its own size.
        text:
            The caption that was written, or that the model was made to write.

    Raises:
        ValueError: `weights` has another shape than the words ask for, or there are no words or cells.
    """

    words: list[str]
    weights: np.ndarray
    image: Image.Image
    text: str = ""

    def __post_init__(self) -> None:
        shape = self.weights.shape
        if len(shape) != 3 or shape[0] != len(self.words) or 0 in shape:
            raise ValueError(
                f"weights has shape {shape}; {len(self.words)} words ask for ({len(self.words)}, rows, columns),"
                " at least 1 of each"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the model's grid."""
        return self.weights.shape[1:]

    def upsampled(self, word: int, size: tuple[int, int] | None = None) -> np.ndarray:
        """The attention of one word as a smooth picture.

        Args:
            word:
                Number of the word, from 0.
            size:
                Width and height in pixels. Default: `None`, those of the image.

        Returns:
            Weights at the middles of pixels, shape `(height, width)`: bicubic interpolation between the middles of
            cells, as they lie on the image.
        """
        return upsample(self.weights[word], size or self.image.size)

    def peak(self, word: int) -> tuple[float, float]:
        """Where on the image the attention of one word is largest, x and y in pixels; see [`find_peak`]."""
        return find_peak(self.weights[word], self.image.size)

    def overlay(self, path: str | PathLike | None = None, **options) -> Figure:
        """Draws the image, and once more for each word, bright where the model looked.

        Args:
            path:
                Where to write the picture, `.png`, `.svg` or `.pdf` by suffix; None only draws.
            **options:
                Those of [`plot_overlay`]: `title`, `columns`, `vmax`, `dpi`.

        Returns:
            The matplotlib figure, free of pyplot's global state.
        """
        return plot_overlay(self, path, **options)

    # The name that it has for the map of a text
    plot = overlay

    def to_html(self, path: str | PathLike | None = None) -> str:
        """One file to look at in a browser: hover over a word to see where the model looked.

        Args:
            path:
                File to write. Default: `None`, nothing is written.

        Returns:
            The page, which loads nothing from anywhere.
        """
        return write_page(image_page(self), path)

    def animate(self, path: str | PathLike, *, milliseconds: int = 600, **options) -> None:
        """Shows the caption as it is written, a word at a time, in an animated picture.

        Args:
            path:
                `.gif`, `.webp` or `.png` (animated) file to write.
            milliseconds:
                How long a word is the last one.
            **options:
                Those of [`overlay`].

        Raises:
            ValueError: another suffix, or `milliseconds` below 1.
        """
        animate_words(self, path, milliseconds, **options)

    def _repr_png_(self) -> bytes:
        # Jupyter shows a map that ends a cell through this hook
        return render(self.overlay(), "png")


def upsample(weights: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Weights of a grid `(rows, columns)` as a smooth picture of a width and a height, shape `(height, width)`."""
    cells = Image.fromarray(np.asarray(weights, dtype=np.float32))
    # Bicubic curves fall a little below 0 beside a peak
    return np.asarray(cells.resize(size, Image.Resampling.BICUBIC)).clip(min=0)


def find_peak(weights: np.ndarray, size: tuple[int, int]) -> tuple[float, float]:
    """Where attention is largest on an image, which may be between the middles of cells.

    Every cell counts as a smooth bump around its middle, as high as its weight and two cells wide to every side, and
    the bumps are added up. That is bicubic interpolation as in [`upsample`], but for the border: `upsample` keeps even
    weights even there, and so would lift a lone bump towards it.

    Args:
        weights:
            Weights of a grid that lies on the whole image, shape `(rows, columns)`.
        size:
            Width and height of the image in pixels.

    Returns:
        x and y of the middle of the pixel with the largest sum.
    """
    rows, columns = weights.shape
    cells = Image.fromarray(np.pad(np.asarray(weights, dtype=np.float32), _BUMP))
    box = (_BUMP, _BUMP, _BUMP + columns, _BUMP + rows)
    bumps = np.asarray(cells.resize(size, Image.Resampling.BICUBIC, box=box))
    row, column = np.unravel_index(bumps.argmax(), bumps.shape)
    return float(column) + 0.5, float(row) + 0.5
