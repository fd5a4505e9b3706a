"""Configuration of RNNsearch and of its fixed-vector baseline."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_attnzoo import (
    AttnZooConfig,
    check_choice,
    check_not_negative,
    check_positive,
    check_probability,
    check_token_ids,
)


@strict
class RNNSearchConfig(AttnZooConfig):
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

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.

    Example:
        >>> config = RNNSearchConfig(vocab_size=1000)
        >>> config = RNNSearchConfig.from_preset("rnnsearch-50", vocab_size=30_000, source_vocab_size=30_000)
    """

    model_type = "attnzoo_rnnsearch"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "num_decoder_layers"}
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

    vocab_size: int = 1000
    source_vocab_size: int | None = None
    embedding_size: int = 256
    hidden_size: int = 256
    attention_size: int | None = None
    maxout_size: int = 256
    num_encoder_layers: int = 1
    num_decoder_layers: int = 1
    attention: str = "additive"
    bidirectional: bool = True
    reset_after: bool = True
    dropout: float | int = 0.0
    initializer_range: float | int = 0.01
    tie_word_embeddings: bool = False
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_choice("attention", self.attention, ("additive", "none"))
        check_positive(
            vocab_size=self.vocab_size,
            source_vocab_size=self.source_vocab_size,
            embedding_size=self.embedding_size,
            hidden_size=self.hidden_size,
            attention_size=self.attention_size,
            maxout_size=self.maxout_size,
            num_encoder_layers=self.num_encoder_layers,
            num_decoder_layers=self.num_decoder_layers,
        )
        check_token_ids(
            self.vocab_size,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            decoder_start_token_id=self.decoder_start_token_id,
        )
        check_token_ids(self.source_vocab_size or self.vocab_size, pad_token_id=self.pad_token_id)
        check_probability(dropout=self.dropout)
        check_not_negative(initializer_range=self.initializer_range)
        if self.attention == "none" and self.attention_size is not None:
            raise ValueError(f'attention_size={self.attention_size} has no use with attention="none"; leave it out')
        if self.tie_word_embeddings and self.maxout_size != self.embedding_size:
            raise ValueError(
                f"tie_word_embeddings=True needs maxout_size == embedding_size, "
                f"but maxout_size={self.maxout_size} and embedding_size={self.embedding_size}"
            )

    @property
    def annotation_size(self) -> int:
        """Size of an annotation `h_j`: the states of all directions side by side."""
        return self.hidden_size * (2 if self.bidirectional else 1)
