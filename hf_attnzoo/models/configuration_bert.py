"""Configuration of BERT."""

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

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def _sizes(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": 30_522,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
    }


@strict
class BERTConfig(AttnZooConfig):
    """Sizes and choices of a bidirectional Transformer encoder (Devlin et al. 2019, section 3).

    Args:
        vocab_size: words, one row of the embedding each.
        hidden_size: size H of what passes between layers.
        num_hidden_layers: layers L.
        num_attention_heads: heads A of every attention.
        intermediate_size: size of the feed-forward networks' inner layer; the paper has 4 H.
        hidden_act: activation of the feed-forward networks and of the masked-word head, by transformers' name.
        norm_first: whether layers normalise what they read (pre-LN). BERT normalises what a layer has added to.
        layer_norm_eps: what layer normalisation adds to a variance.
        use_bias: whether the encoder's linear layers and all layer normalisations have biases.
        max_position_embeddings: longest text.
        position_offset: row of the position table that the first position of a text has; the rows before it have no
            use. RoBERTa's is its padding id plus 1, BERT's is 0.
        type_vocab_size: segments that a text may have (section 3.2: sentence A and sentence B). RoBERTa has one;
            0 leaves the segment embedding out.
        dropout: rate on the sum of the embeddings and on what each sub-layer adds, in [0, 1).
        attention_dropout: rate on attention weights.
        activation_dropout: rate on the feed-forward networks' inner layer. BERT has none.
        classifier_dropout: rate on what a classifier reads. Default: `None`, `dropout`.
        initializer_range: standard deviation of all weights.
        tie_word_embeddings: whether the masked-word head is the embedding.

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.

    Example:
        >>> config = BERTConfig.from_preset("mini", vocab_size=8000)
    """

    model_type = "attnzoo_bert"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "BERTModel",
        "AutoModelForMaskedLM": "BERTForMaskedLM",
        "AutoModelForPreTraining": "BERTForPreTraining",
        "AutoModelForSequenceClassification": "BERTForSequenceClassification",
        "AutoModelForTokenClassification": "BERTForTokenClassification",
        "AutoModelForQuestionAnswering": "BERTForQuestionAnswering",
        "AutoModelForMultipleChoice": "BERTForMultipleChoice",
        "AutoModelForNextSentencePrediction": "BERTForNextSentencePrediction",
    }
    modeling_module: ClassVar[str] = "modeling_bert"
    # Section 3.1 of Devlin et al. for base and large, table 1 of Turc et al. (2019) for the others.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": _sizes(2, 128, 2),
        "mini": _sizes(4, 256, 4),
        "small": _sizes(4, 512, 8),
        "medium": _sizes(8, 512, 8),
        "base": _sizes(12, 768, 12),
        "large": _sizes(24, 1024, 16),
    }

    vocab_size: int = 1000
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    hidden_act: str = "gelu"
    norm_first: bool = False
    layer_norm_eps: float = 1e-12
    use_bias: bool = True
    max_position_embeddings: int = 512
    position_offset: int = 0
    type_vocab_size: int = 2
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None
    initializer_range: float | int = 0.02
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_choice("hidden_act", self.hidden_act, tuple(ACT2FN))
        if self.problem_type is not None:
            check_choice("problem_type", self.problem_type, PROBLEM_TYPES)
        check_positive(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
        )
        check_token_ids(
            self.vocab_size,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
        )
        check_probability(
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
            classifier_dropout=self.classifier_dropout or 0.0,
        )
        check_not_negative(
            layer_norm_eps=self.layer_norm_eps,
            initializer_range=self.initializer_range,
            position_offset=self.position_offset,
            type_vocab_size=self.type_vocab_size,
        )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is no multiple of num_attention_heads={self.num_attention_heads}"
            )
