"""Configuration of RNNsearch and of its fixed-vector baseline."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_attnzoo import check_choice, check_positive
from .configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig


@strict
class RNNSearchConfig(RecurrentSeq2SeqConfig):
    """Sizes and choices of RNNsearch (Bahdanau, Cho and Bengio 2015, appendix A).

    Args:
        vocab_size: words of the target, one row of the output layer each.
        source_vocab_size: words of the source. Default: `None`, both languages share one vocabulary and one embedding.
        embedding_size: size m of a word vector.
        hidden_size: size n of a decoder state, and of an encoder state in each direction.
        attention_size: hidden size n' of the alignment model. Default: `None`, `hidden_size`.
        maxout_size: size l of the maxout layer below the output layer.
        num_encoder_layers: stacked bidirectional layers; the paper has 1.
        num_decoder_layers: stacked decoder layers; the first reads the context, the last one asks for it. The paper
            has 1.
        attention: `"additive"` is RNNsearch; `"none"` is RNNencdec, which sees one vector for the whole source.
        bidirectional: whether the encoder reads in both directions. The paper's RNNencdec reads in one.
        reset_after: True is the GRU of PyTorch and cuDNN, False that of the paper.
        dropout: rate on word vectors, between layers and on the maxout layer, in [0, 1). The paper has none.
        initializer_range: standard deviation of the weights that are neither recurrent nor the alignment model's.
        tie_word_embeddings: whether the output layer is the target's embedding; needs `maxout_size == embedding_size`.
        head_bias: whether the output layer has a bias. The paper's has none.
        coverage: see `RecurrentSeq2SeqConfig`, as for `coverage_loss_weight`, `copy` and `num_copy_slots`.

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.

    Example:
        >>> config = RNNSearchConfig(vocab_size=1000)
        >>> config = RNNSearchConfig.from_preset("rnnsearch-50", vocab_size=30_000, source_vocab_size=30_000)
    """

    model_type = "attnzoo_rnnsearch"
    head_size_field: ClassVar[str] = "maxout_size"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "RNNSearchModel",
        "AutoModelForSeq2SeqLM": "RNNSearchForConditionalGeneration",
    }
    modeling_module: ClassVar[str] = "modeling_rnnsearch"
    # Appendix B.2.1 and B.1 of the paper; its 50 is the longest sentence trained on, a matter of the data.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "rnnsearch-50": {
            "vocab_size": 30_000,
            "source_vocab_size": 30_000,
            "embedding_size": 620,
            "hidden_size": 1000,
            "attention_size": 1000,
            "maxout_size": 500,
            "reset_after": False,
        },
        "rnnencdec-50": {
            "vocab_size": 30_000,
            "source_vocab_size": 30_000,
            "embedding_size": 620,
            "hidden_size": 1000,
            "maxout_size": 500,
            "reset_after": False,
            "attention": "none",
            "bidirectional": False,
        },
        "tiny": {"embedding_size": 32, "hidden_size": 64, "maxout_size": 32},
    }

    attention_size: int | None = None
    maxout_size: int = 256
    attention: str = "additive"
    bidirectional: bool = True
    reset_after: bool = True
    initializer_range: float | int = 0.01

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_choice("attention", self.attention, ("additive", "none"))
        check_positive(attention_size=self.attention_size, maxout_size=self.maxout_size)
        if self.attention == "none" and self.attention_size is not None:
            raise ValueError(f'attention_size={self.attention_size} has no use with attention="none"; leave it out')

    @property
    def annotation_size(self) -> int:
        """Size of an annotation `h_j`: the states of all directions side by side."""
        return self.hidden_size * (2 if self.bidirectional else 1)
