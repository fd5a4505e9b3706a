"""Configuration of the Transformer."""

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


@strict
class TransformerConfig(AttnZooConfig):
    """Sizes and choices of an encoder-decoder Transformer (Vaswani et al. 2017, section 3).

    Args:
        vocab_size: words of the target, one row of the output layer each.
        source_vocab_size: words of the source. Default: `None`, both languages share one vocabulary and one embedding.
        hidden_size: size d_model of what passes between layers.
        num_attention_heads: heads h of every attention.
        intermediate_size: size d_ff of the feed-forward networks' inner layer.
        num_encoder_layers: layers of the encoder; the paper has 6.
        num_decoder_layers: layers of the decoder; the paper has 6.
        hidden_act: activation of the feed-forward networks, by transformers' name; the paper has `"relu"`.
        norm_first: whether layers normalise what they read (pre-LN), and the stack what it returns. The paper
            normalises what a layer has added to (post-LN).
        encoder_residual_scale: alpha, what each sub-layer of the encoder multiplies its input by before it adds to it,
            as DeepNet does (Wang et al. 2022, section 3). The paper has 1.
        decoder_residual_scale: the same of the decoder.
        layer_norm_eps: what layer normalisation adds to a variance.
        use_bias: whether linear layers and layer normalisations have biases.
        position_embeddings: `"sinusoidal"` as in the paper, or `"learned"`.
        position_layout: of sinusoids: `"interleaved"`, sine and cosine in turns as in the paper, or `"halves"`, all
            sines and then all cosines, as Marian has them.
        position_combination: `"add"` the position vector to the word vector as in the paper, or `"concat"` both.
        position_size: size of a position vector with `"concat"`; the word vector has the rest of `hidden_size`.
            Default: `None`, half.
        max_position_embeddings: longest text, on either side.
        scale_embedding: whether word vectors are multiplied by the square root of their size (section 3.4).
        embedding_norm: whether the sum of word and position is normalised, as BART does.
        dropout: rate on the sum of word and position and on what each sub-layer adds (section 5.4), in [0, 1).
        attention_dropout: rate on attention weights. The paper has none.
        activation_dropout: rate on the feed-forward networks' inner layer. The paper has none.
        label_smoothing: share of the target that is spread over all words, in training alone (section 5.4), in [0, 1).
        head_bias: whether the output layer has a bias, as Marian's has.
        initializer_range: standard deviation of all weights. Default: `None`, as the authors' code has it: embeddings
            have that of `1 / sqrt(d_model)`, and linear layers are uniform as Glorot and Bengio (2010) say.
        tie_word_embeddings: whether the output layer is the target's embedding (section 3.4).

    Raises:
        ValueError: if a size is below 1, a rate out of range, a choice unknown, or if options do not combine.

    Example:
        >>> config = TransformerConfig.from_preset("base", vocab_size=8000)
    """

    model_type = "attnzoo_transformer"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "num_decoder_layers"}
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoModel": "TransformerModel",
        "AutoModelForSeq2SeqLM": "TransformerForConditionalGeneration",
    }
    modeling_module: ClassVar[str] = "modeling_transformer"
    # Table 3, and section 5.1 for the vocabulary of English and German.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "base": {
            "vocab_size": 37_000,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
            "num_encoder_layers": 6,
            "num_decoder_layers": 6,
            "label_smoothing": 0.1,
        },
        "big": {
            "vocab_size": 37_000,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "num_encoder_layers": 6,
            "num_decoder_layers": 6,
            "dropout": 0.3,
            "label_smoothing": 0.1,
        },
        "tiny": {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
        },
    }

    vocab_size: int = 1000
    source_vocab_size: int | None = None
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    num_encoder_layers: int = 3
    num_decoder_layers: int = 3
    hidden_act: str = "relu"
    norm_first: bool = False
    encoder_residual_scale: float | int = 1.0
    decoder_residual_scale: float | int = 1.0
    layer_norm_eps: float = 1e-5
    use_bias: bool = True
    position_embeddings: str = "sinusoidal"
    position_layout: str = "interleaved"
    position_combination: str = "add"
    position_size: int | None = None
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    embedding_norm: bool = False
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    head_bias: bool = False
    initializer_range: float | int | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_choice("hidden_act", self.hidden_act, tuple(ACT2FN))
        check_choice("position_embeddings", self.position_embeddings, ("sinusoidal", "learned"))
        check_choice("position_layout", self.position_layout, ("interleaved", "halves"))
        check_choice("position_combination", self.position_combination, ("add", "concat"))
        check_positive(
            vocab_size=self.vocab_size,
            source_vocab_size=self.source_vocab_size,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            num_encoder_layers=self.num_encoder_layers,
            num_decoder_layers=self.num_decoder_layers,
            position_size=self.position_size,
            max_position_embeddings=self.max_position_embeddings,
        )
        check_token_ids(
            self.vocab_size,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            decoder_start_token_id=self.decoder_start_token_id,
        )
        check_token_ids(self.source_vocab_size or self.vocab_size, pad_token_id=self.pad_token_id)
        check_probability(
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
        )
        check_not_negative(
            layer_norm_eps=self.layer_norm_eps,
            initializer_range=self.initializer_range or 0.0,
            encoder_residual_scale=self.encoder_residual_scale,
            decoder_residual_scale=self.decoder_residual_scale,
        )
        self._check_combinations()

    def _check_combinations(self) -> None:
        size = self.hidden_size
        if size % self.num_attention_heads:
            raise ValueError(f"hidden_size={size} is no multiple of num_attention_heads={self.num_attention_heads}")
        if self.position_combination == "add":
            if self.position_size is not None:
                raise ValueError(
                    f'position_size={self.position_size} has no use with position_combination="add"; leave it out'
                )
            return
        if self.embedding_size < 1:
            raise ValueError(
                f"position_size={self.position_vector_size} leaves nothing of hidden_size={size} for the word vector"
            )
        if self.tie_word_embeddings:
            raise ValueError(
                f"tie_word_embeddings=True needs word vectors of the size of the output, but position_combination="
                f'"concat" leaves them {self.embedding_size} of hidden_size={size}'
            )

    @property
    def embedding_size(self) -> int:
        """Size of a word vector."""
        return self.hidden_size if self.position_combination == "add" else self.hidden_size - self.position_vector_size

    @property
    def position_vector_size(self) -> int:
        """Size of a position vector."""
        if self.position_combination == "add":
            return self.hidden_size
        return self.hidden_size // 2 if self.position_size is None else self.position_size
