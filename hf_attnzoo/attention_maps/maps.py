"""`AttentionMap`: which source token each target token looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike

import numpy as np
from matplotlib.figure import Figure

from . import analysis
from .animation import animate_rows
from .html import text_page, write_page
from .plotting import plot_grid, render

Span = tuple[int, int]

KINDS = ("cross", "encoder", "decoder")


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention of one text over another, as in figure 3 of Bahdanau et al. (2015), or of a text over itself.

    The closing `</s>` of either side is kept: the model attends to it and from it, and without its column the
    rows would not sum to 1.

    Args:
        source:
            The S tokens attended to, as the tokenizer names them.
        target:
            The T tokens attended from. In cross-attention row i of `weights` is the attention with which token i was
            written, in self-attention that of the position where token i is read, and both sides are the same.
        weights:
            Attention of shape `(T, S)`: values in [0, 1], rows sum to 1 up to the rounding of the model's dtype.
        source_text:
            The text that was read.
        target_text:
            The text that was written, or that the model was made to write.
        kind:
            `"cross"`, or the self-attention of the `"encoder"` or the `"decoder"`.
        layers:
            All weights of the model, one array of shape `(heads, T, S)` a layer, where `weights` is made of them.
        source_spans:
            For each source token the characters of `source_text` that it stands for, first and one past the last;
            None for a special token.
        target_spans:
            The same of the target.

    Raises:
        ValueError: `weights`, `layers` or spans have another shape than the tokens ask for, `kind` is unknown, or
            there are no tokens.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray
    source_text: str = ""
    target_text: str = ""
    kind: str = "cross"
    layers: tuple[np.ndarray, ...] = ()
    source_spans: list[Span | None] | None = None
    target_spans: list[Span | None] | None = None

    def __post_init__(self) -> None:
        expected = (len(self.target), len(self.source))
        if self.weights.shape != expected:
            raise ValueError(
                f"weights has shape {self.weights.shape}; the tokens ask for (target, source) = {expected}"
            )
        if 0 in expected:
            raise ValueError(f"weights has shape {expected}; at least one source and one target token are needed")
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is none of {', '.join(KINDS)}")
        for number, layer in enumerate(self.layers):
            if layer.ndim != 3 or layer.shape[1:] != expected:
                raise ValueError(f"layers[{number}] has shape {layer.shape}; the tokens ask for (heads, *{expected})")
        for name, spans, tokens in (
            ("source_spans", self.source_spans, self.source),
            ("target_spans", self.target_spans, self.target),
        ):
            if spans is not None and len(spans) != len(tokens):
                raise ValueError(f"{name} has {len(spans)} entries; there are {len(tokens)} tokens")

    def select(self, layer: int | None = -1, head: int | None = None) -> AttentionMap:
        """The map of another layer or head.

        Args:
            layer:
                0-based, negative from the end; None averages all layers.
            head:
                Head of that layer, 0-based, negative from the end; None averages all heads.

        Raises:
            ValueError: the map has no `layers`, or a number is out of range.
        """
        return replace(self, weights=analysis.choose(self._all_layers("select"), layer, head))

    def by_words(self) -> AttentionMap:
        """The map between words, which are what white space separates, rather than between tokens.

        Attention to a word is the sum over its tokens, attention from a word their mean, as in section 4.1 of Clark et
        al. (2019), so that rows still sum to 1. White space belongs to the word after it; a special token stays as it
        is.

        Raises:
            ValueError: it is not known which characters the tokens stand for.
        """
        if self.source_spans is None or self.target_spans is None:
            raise ValueError("source_spans and target_spans are needed to tell which tokens make up a word")
        sources = analysis.words(self.source, self.source_spans, self.source_text)
        targets = analysis.words(self.target, self.target_spans, self.target_text)
        return replace(
            self,
            source=[word.text for word in sources],
            target=[word.text for word in targets],
            weights=analysis.merge(self.weights, targets, sources),
            layers=tuple(analysis.merge(layer, targets, sources) for layer in self.layers),
            source_spans=[word.span for word in sources],
            target_spans=[word.span for word in targets],
        )

    def to_pharaoh(self, threshold: float | None = None) -> str:
        """Alignment of the words in the format of Pharaoh: `0-0 1-2`, source and target word by number, from 0.

        Args:
            threshold:
                Every link with at least this weight, which may be none for a word or several. Default: `None`, for
                each target word the source word with the largest weight.

        Returns:
            Links in the order of the target, with spaces between them; special tokens take no part.

        Raises:
            ValueError: `threshold` is outside 0 to 1, or see [`by_words`].
        """
        if threshold is not None and not 0 < threshold <= 1:
            raise ValueError(f"threshold={threshold} must be above 0 and at most 1")
        words = self.by_words()
        links = analysis.links(words.weights, words.source_spans, words.target_spans, threshold)
        return " ".join(f"{source}-{target}" for source, target in links)

    def rollout(self) -> AttentionMap:
        """What each position has of each token of the input, through all layers (Abnar and Zuidema 2020, section 3).

        A layer passes on half of what a position has through its residual connection, and half through its attention,
        averaged over heads; the layers' matrices are multiplied.

        Raises:
            ValueError: the map is one of cross-attention, which doesn't stack, or has no `layers`.
        """
        if self.kind == "cross":
            raise ValueError("kind='cross': a rollout is of self-attention, kind='encoder' or kind='decoder'")
        return replace(self, weights=analysis.rollout(self._all_layers("rollout")), layers=())

    def entropy(self) -> list[np.ndarray]:
        """How widely each head spreads its attention: the mean entropy of its rows, in nats.

        Returns:
            For each layer an array of shape `(heads,)`: 0 where a head looks at one token at a time, log S where it
            looks at all alike.

        Raises:
            ValueError: the map has no `layers`.
        """
        return [analysis.entropy(layer).mean(-1) for layer in self._all_layers("entropy")]

    def head_summary(self) -> list[analysis.HeadSummary]:
        """What each head does, in a few numbers; see [`HeadSummary`].

        Raises:
            ValueError: the map has no `layers`.
        """
        special = [span is None for span in self.source_spans] if self.source_spans is not None else None
        return analysis.summarise(self._all_layers("head_summary"), special, self.kind)

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

    def plot_heads(self, path: str | PathLike | None = None, layer: int | None = None, **options) -> Figure:
        """Draws every head, a row of pictures for each layer.

        Args:
            path:
                As for [`plot`].
            layer:
                One layer alone, 0-based, negative from the end. Default: `None`, all of them.
            **options:
                Those of [`plot_grid`]: `cmap`, `vmax`, `colorbar`, `dpi`.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: the map has no `layers`, or `layer` is out of range.
        """
        layers = self._all_layers("plot_heads")
        analysis.choose(layers, layer, None)
        numbers = range(len(layers)) if layer is None else [layer % len(layers)]
        heads = [(number, head) for number in numbers for head in range(len(layers[number]))]
        return plot_grid(
            [self.select(number, head) for number, head in heads],
            path,
            titles=[f"layer {number}, head {head}" for number, head in heads],
            **{"columns": max(len(layers[number]) for number in numbers), **options},
        )

    def to_html(self, path: str | PathLike | None = None) -> str:
        """One file to look at in a browser: hover over tokens, choose a layer and a head.

        Args:
            path:
                File to write. Default: `None`, nothing is written.

        Returns:
            The page, which loads nothing from anywhere.
        """
        return write_page(text_page(self), path)

    def animate(self, path: str | PathLike, *, milliseconds: int = 400, **options) -> None:
        """Shows the target as it is written, a row at a time, in an animated picture.

        Args:
            path:
                `.gif`, `.webp` or `.png` (animated) file to write.
            milliseconds:
                How long a row is the last one.
            **options:
                Those of [`plot`].

        Raises:
            ValueError: another suffix, or `milliseconds` below 1.
        """
        animate_rows(self, path, milliseconds, **options)

    def _all_layers(self, what: str) -> tuple[np.ndarray, ...]:
        if not self.layers:
            raise ValueError(
                f"layers is empty; {what} needs the weights of all layers, as attention_map() captures them"
            )
        return self.layers

    def _repr_png_(self) -> bytes:
        # Jupyter shows a map that ends a cell through this hook
        return render(self.plot(), "png")
