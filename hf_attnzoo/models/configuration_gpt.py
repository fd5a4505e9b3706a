"""Configuration of GPT."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN

from .configuration_attnzoo import (
    AttnZooConfig,
    check_choice,
    check_not_negative,
    check_positive,
    check_probability,
    check_token_ids,
)


def _gpt3(layers: int, size: int, heads: int) -> dict[str, Any]:
    """A row of table 2.1 of Brown et al. (2020)."""
    return {
        "vocab_size": 50_257,
        "max_position_embeddings": 2048,
        "num_hidden_layers": layers,
        "hidden_size": size,
        "num_attention_heads": heads,
    }


def _gpt2(layers: int, size: int, heads: int) -> dict[str, Any]:
    """A row of table 2 of Radford et al. (2019); heads as in the released models, 64 numbers each."""
    return _gpt3(layers, size, heads) | {"max_position_embeddings": 1024}


@strict
class GPTConfig(AttnZooConfig):
    """Sizes and choices of a decoder without an encoder (Radford et al. 2018 and 2019, Brown et al. 2020).

    Args:
        vocab_size: words, one row of the embedding and of the output layer each.
        max_position_embeddings: longest text.
        hidden_size: size of what passes between layers.
        num_hidden_layers: layers.
        num_attention_heads: heads of every attention.
        intermediate_size: size of the feed-forward networks' inner layer. Default: `None`, four times `hidden_size`.
        hidden_act: activation of the feed-forward networks, by transformers' name. `"gelu_new"` is the approximation
            of GELU that OpenAI's code has, `"gelu"` the function itself.
        norm_first: whether layers normalise what they read (pre-LN), and the stack what it returns, as in GPT-2 and
            GPT-3. GPT normalises what a layer has added to (post-LN).
        layer_norm_eps: what layer normalisation adds to a variance.
        use_bias: whether linear layers and layer normalisations have biases.
        dropout: rate on the sum of word and position and on what each sub-layer adds, in [0, 1).
        embedding_dropout: rate on the sum of word and position. Default: `None`, `dropout`.
        attention_dropout: rate on attention weights.
        activation_dropout: rate on the feed-forward networks' inner layer. The papers have none.
        classifier_dropout: rate on what a token classifier reads. Default: `None`, `dropout`.
        initializer_range: standard deviation of all weights. With pre-LN, those of the 2 N layers that add to the
            residual have it divided by the square root of 2 N (Radford et al. 2019, section 2.3).
        tie_word_embeddings: whether the output layer is the embedding.

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.

    Example:
        >>> config = GPTConfig.from_preset("char", vocab_size=69)
    """

    model_type = "attnzoo_gpt"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "GPTModel",
        "AutoModelForCausalLM": "GPTForCausalLM",
        "AutoModelForSequenceClassification": "GPTForSequenceClassification",
        "AutoModelForTokenClassification": "GPTForTokenClassification",
    }
    modeling_module: ClassVar[str] = "modeling_gpt"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # Radford et al. (2018), section 4.1; 40,000 merges on top of 478 signs.
        "gpt": _gpt3(12, 768, 12) | {"vocab_size": 40_478, "max_position_embeddings": 512, "norm_first": False},
        "gpt2": _gpt2(12, 768, 12),
        "gpt2-medium": _gpt2(24, 1024, 16),
        "gpt2-large": _gpt2(36, 1280, 20),
        "gpt2-xl": _gpt2(48, 1600, 25),
        "gpt3-small": _gpt3(12, 768, 12),
        "gpt3-medium": _gpt3(24, 1024, 16),
        "gpt3-large": _gpt3(24, 1536, 16),
        # The table's 24 heads of 128 are no 2048.
        "gpt3-xl": _gpt3(24, 2048, 16),
        "gpt3-2.7b": _gpt3(32, 2560, 32),
        "gpt3-6.7b": _gpt3(32, 4096, 32),
        # The table's size 5140 is no 40 heads of 128.
        "gpt3-13b": _gpt3(40, 5120, 40),
        "gpt3-175b": _gpt3(96, 12_288, 96),
        # What nanoGPT trains on a CPU, on the characters of Shakespeare.
        "char": {
            "max_position_embeddings": 64,
            "hidden_size": 128,
            "hidden_act": "gelu",
            "use_bias": False,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "tiny": {"max_position_embeddings": 128, "hidden_size": 64, "num_hidden_layers": 2},
    }

    vocab_size: int = 1000
    max_position_embeddings: int = 1024
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    hidden_act: str = "gelu_new"
    norm_first: bool = True
    layer_norm_eps: float = 1e-5
    use_bias: bool = True
    dropout: float | int = 0.1
    embedding_dropout: float | int | None = None
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None
    initializer_range: float | int = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_choice("hidden_act", self.hidden_act, tuple(ACT2FN))
        check_positive(
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
        )
        check_probability(
            dropout=self.dropout,
            embedding_dropout=self.embedding_dropout or 0.0,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
            classifier_dropout=self.classifier_dropout or 0.0,
        )
        check_not_negative(layer_norm_eps=self.layer_norm_eps, initializer_range=self.initializer_range)
        check_token_ids(
            self.vocab_size,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
        )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is no multiple of num_attention_heads={self.num_attention_heads}"
            )
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
