"""Configuration of Luong's attention models and of the sequence-to-sequence model without attention before them."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_attnzoo import check_choice, check_positive
from .configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig


@strict
class LuongConfig(RecurrentSeq2SeqConfig):
    """Sizes and choices of Luong, Pham and Manning (2015).

    Args:
        vocab_size: words of the target, one row of the output layer each.
        source_vocab_size: words of the source. Default: `None`, both languages share one vocabulary and one embedding.
        embedding_size: size of a word vector.
        hidden_size: size of a decoder state, and of the attentional state h~.
        encoder_hidden_size: size of an annotation; a bidirectional encoder has half of it in each direction.
            Default: `None`, `hidden_size`.
        num_encoder_layers: stacked encoder layers.
        num_decoder_layers: stacked decoder layers.
        cell: `"lstm"` or `"gru"`, on both sides.
        attention: `"none"` is Sutskever et al. (2014): nothing but the encoder's last states. Otherwise the scope:
            `"global"`, `"local-m"` (a window that moves with the target) or `"local-p"` (around a predicted position).
        score: `"dot"`, `"general"`, `"concat"` or `"location"` (equation 8 and section 3.1).
        window: D, how far a local window reaches to either side; the standard deviation of local-p is D / 2.
        max_source_length: longest source that `score="location"` has weights for.
        input_feeding: whether the attentional state goes into the next step (section 3.3). Slower: without it a
            whole target is one run of the recurrence.
        bidirectional: whether the encoder reads in both directions. The paper's reads in one.
        reverse_source: whether the encoder reads the source backwards (Sutskever et al. 2014). Attention is reported
            in the order of the text.
        attention_bias: whether the projections of decoder states in `score="concat"` and below h~ have biases.
        attentional_act: `"tanh"`, which makes h~ (equation 5), or `"linear"`, nothing.
        bridge: how the decoder's states begin: `"copy"` of the encoder's last states; `"linear"`, a projection of
            them; `"top"`, a projection of the upper layer's last h, the same for every state; or `"zeros"`.
        bridge_act: what a projecting bridge ends in, `"tanh"` or `"relu"`.
        residual: whether layers above the first add their input to their output.
        dropout: rate on word vectors, between layers and on the attentional state, in [0, 1).
        initializer_range: weights are uniform in plus or minus this.
        tie_word_embeddings: whether the output layer is the target's embedding; needs `hidden_size == embedding_size`.
        head_bias: whether the output layer has a bias. The paper's has none.
        coverage: see `RecurrentSeq2SeqConfig`, as for `coverage_loss_weight`, `copy` and `num_copy_slots`; needs
            `score="concat"`, the additive score that See et al. (2017) add it to.

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.
    """

    model_type = "attnzoo_luong"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "LuongModel",
        "AutoModelForSeq2SeqLM": "LuongForConditionalGeneration",
    }
    modeling_module: ClassVar[str] = "modeling_luong"
    # Section 4.1: 4 layers, 1000 cells and 1000-dimensional word vectors, 50,000 words, D = 10, dropout 0.2.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "luong-global": {
            "vocab_size": 50_000,
            "source_vocab_size": 50_000,
            "embedding_size": 1000,
            "hidden_size": 1000,
            "num_encoder_layers": 4,
            "num_decoder_layers": 4,
            "attention": "global",
            "score": "dot",
            "input_feeding": True,
            "reverse_source": True,
            "dropout": 0.2,
        },
        "luong-local-p": {
            "vocab_size": 50_000,
            "source_vocab_size": 50_000,
            "embedding_size": 1000,
            "hidden_size": 1000,
            "num_encoder_layers": 4,
            "num_decoder_layers": 4,
            "attention": "local-p",
            "score": "general",
            "input_feeding": True,
            "reverse_source": True,
            "dropout": 0.2,
        },
        "sutskever": {
            "vocab_size": 80_000,
            "source_vocab_size": 160_000,
            "embedding_size": 1000,
            "hidden_size": 1000,
            "num_encoder_layers": 4,
            "num_decoder_layers": 4,
            "attention": "none",
            "reverse_source": True,
            "initializer_range": 0.08,
        },
        "tiny": {"embedding_size": 32, "hidden_size": 64},
    }

    encoder_hidden_size: int | None = None
    cell: str = "lstm"
    attention: str = "global"
    score: str = "general"
    window: int = 10
    max_source_length: int | None = None
    input_feeding: bool = False
    reverse_source: bool = False
    attention_bias: bool = False
    attentional_act: str = "tanh"
    bridge: str = "copy"
    bridge_act: str = "tanh"
    residual: bool = False

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_choice("cell", self.cell, ("lstm", "gru"))
        check_choice("attention", self.attention, ("global", "local-m", "local-p", "none"))
        check_choice("score", self.score, ("dot", "general", "concat", "location"))
        check_choice("attentional_act", self.attentional_act, ("tanh", "linear"))
        check_choice("bridge", self.bridge, ("copy", "linear", "top", "zeros"))
        check_choice("bridge_act", self.bridge_act, ("tanh", "relu"))
        check_positive(
            encoder_hidden_size=self.encoder_hidden_size, window=self.window, max_source_length=self.max_source_length
        )
        self._check_combinations()

    def _check_combinations(self) -> None:
        size, annotation_size = self.hidden_size, self.annotation_size
        if self.bidirectional and annotation_size % 2:
            name = "hidden_size" if self.encoder_hidden_size is None else "encoder_hidden_size"
            raise ValueError(f"bidirectional=True needs an even size to halve, but {name}={annotation_size}")
        if self.bidirectional and self.reverse_source:
            raise ValueError("reverse_source=True means nothing to a bidirectional encoder, which reads both ways")
        if self.attention == "none" and self.input_feeding:
            raise ValueError('input_feeding=True feeds what attention makes, and attention="none" makes nothing')
        if self.attention == "none" and (self.attention_bias or self.attentional_act != "tanh"):
            raise ValueError(
                f'attention_bias={self.attention_bias} and attentional_act="{self.attentional_act}" are for what '
                f'attention="none" does not make; leave them out'
            )
        if self.attention == "none" and self.bridge == "zeros":
            raise ValueError('bridge="zeros" leaves a decoder with attention="none" nothing of the source')
        if self.bridge_act != "tanh" and self.bridge not in ("linear", "top"):
            raise ValueError(f'bridge_act="{self.bridge_act}" has no use with bridge="{self.bridge}"; leave it out')
        if self.attention != "none" and self.score == "dot" and annotation_size != size:
            raise ValueError(
                f'score="dot" needs annotations of the size of the decoder\'s states, but '
                f"encoder_hidden_size={annotation_size} and hidden_size={size}"
            )
        if (self.attention != "none" and self.score == "location") != (self.max_source_length is not None):
            raise ValueError(
                f'max_source_length={self.max_source_length}, but score="{self.score}", attention="{self.attention}": '
                f'score="location" needs it, and nothing else has a use for it'
            )
        if self.bridge == "copy" and (annotation_size, self.num_encoder_layers) != (size, self.num_decoder_layers):
            raise ValueError(
                f'bridge="copy" needs as many layers of the same size on both sides, but the encoder has '
                f"{self.num_encoder_layers} of {annotation_size}, the decoder {self.num_decoder_layers} of {size}: "
                f'take bridge="linear"'
            )
        if self.coverage and self.score != "concat":
            raise ValueError(
                f'coverage=True is a term of an additive score, and there is none for score="{self.score}": '
                f'take score="concat"'
            )

    @property
    def annotation_size(self) -> int:
        """Size of an annotation, all directions together."""
        return self.encoder_hidden_size or self.hidden_size

    @property
    def num_states(self) -> int:
        """State vectors of a cell: h and c, or h alone."""
        return 2 if self.cell == "lstm" else 1
