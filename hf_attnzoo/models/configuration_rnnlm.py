"""Configuration of the recurrent language model."""

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
class RNNLMConfig(AttnZooConfig):
    """Sizes and choices of a stacked LSTM or GRU language model (Zaremba, Sutskever and Vinyals 2014).

    Args:
        vocab_size: words, one row of the output layer each.
        embedding_size: size of a word vector.
        hidden_size: size H of a state.
        num_layers: stacked layers.
        cell: `"lstm"` or `"gru"`.
        residual: whether layers above the first add their input to their output.
        dropout: rate on word vectors, between layers and on the upper layer's output, never on a state (section 3.2),
            in [0, 1).
        initializer_range: weights are uniform in plus or minus this.
        tie_word_embeddings: whether the output layer is the embedding; needs `hidden_size == embedding_size`.

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.
    """

    model_type = "attnzoo_rnnlm"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "num_layers"}
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "RNNLMModel",
        "AutoModelForCausalLM": "RNNLMForCausalLM",
    }
    modeling_module: ClassVar[str] = "modeling_rnnlm"
    # Section 4.1: 2 layers and 10,000 words; the small one is their non-regularized LSTM.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "zaremba-small": {
            "vocab_size": 10_000,
            "embedding_size": 200,
            "hidden_size": 200,
            "num_layers": 2,
            "initializer_range": 0.1,
        },
        "zaremba-medium": {
            "vocab_size": 10_000,
            "embedding_size": 650,
            "hidden_size": 650,
            "num_layers": 2,
            "dropout": 0.5,
            "initializer_range": 0.05,
        },
        "zaremba-large": {
            "vocab_size": 10_000,
            "embedding_size": 1500,
            "hidden_size": 1500,
            "num_layers": 2,
            "dropout": 0.65,
            "initializer_range": 0.04,
        },
        "tiny": {"embedding_size": 32, "hidden_size": 64},
    }

    vocab_size: int = 1000
    embedding_size: int = 256
    hidden_size: int = 256
    num_layers: int = 1
    cell: str = "lstm"
    residual: bool = False
    dropout: float | int = 0.0
    initializer_range: float | int = 0.1
    tie_word_embeddings: bool = False
    use_cache: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_choice("cell", self.cell, ("lstm", "gru"))
        check_positive(
            vocab_size=self.vocab_size,
            embedding_size=self.embedding_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
        )
        check_probability(dropout=self.dropout)
        check_not_negative(initializer_range=self.initializer_range)
        check_token_ids(
            self.vocab_size,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
        )
        if self.tie_word_embeddings and self.hidden_size != self.embedding_size:
            raise ValueError(
                f"tie_word_embeddings=True needs hidden_size == embedding_size, "
                f"but hidden_size={self.hidden_size} and embedding_size={self.embedding_size}"
            )

    @property
    def num_states(self) -> int:
        """State vectors of a cell: h and c, or h alone."""
        return 2 if self.cell == "lstm" else 1
