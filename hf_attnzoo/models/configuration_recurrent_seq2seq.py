"""What the configurations of recurrent encoder-decoders have in common: vocabularies, sizes, coverage, copying."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_attnzoo import (
    AttnZooConfig,
    check_not_negative,
    check_positive,
    check_probability,
    check_token_ids,
)


@strict
class RecurrentSeq2SeqConfig(AttnZooConfig):
    """Fields of every recurrent encoder-decoder.

    Args:
        vocab_size: words of the target, one row of the output layer each.
        source_vocab_size: words of the source. Default: `None`, both languages share one vocabulary and one embedding.
        embedding_size: size of a word vector.
        hidden_size: size of a decoder state.
        num_encoder_layers: stacked encoder layers.
        num_decoder_layers: stacked decoder layers.
        attention: the family's own choices; `"none"` is one vector for the whole source.
        bidirectional: whether the encoder reads in both directions.
        dropout: rate, in [0, 1).
        initializer_range: spread of the initial weights.
        tie_word_embeddings: whether the output layer is the target's embedding; needs `head_size == embedding_size`.
        head_bias: whether the output layer has a bias.
        coverage: whether the attention knows how much each source word has been attended to (See, Liu and Manning
            2017, section 2.3). For additive scores. The whole target then waits for its attention, step by step.
        coverage_loss_weight: lambda, the weight in the loss of attention that falls where it has fallen before.
        copy: whether an output word can be one of the source (section 2.2, the pointer-generator).
        num_copy_slots: the last so many words of the target are no words but slots: in each example the first stands
            for its first source word that the target's vocabulary lacks, and so on.
        unk_token_id: what a slot is read as when it is the previous word.

    Class attributes:
        head_size_field: the field that is the size of what the output layer reads.
    """

    head_size_field: ClassVar[str] = "hidden_size"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "num_decoder_layers"}

    vocab_size: int = 1000
    source_vocab_size: int | None = None
    embedding_size: int = 256
    hidden_size: int = 256
    num_encoder_layers: int = 1
    num_decoder_layers: int = 1
    attention: str = "none"
    bidirectional: bool = False
    dropout: float | int = 0.0
    initializer_range: float | int = 0.1
    tie_word_embeddings: bool = False
    head_bias: bool = False
    coverage: bool = False
    coverage_loss_weight: float | int = 1.0
    copy: bool = False
    num_copy_slots: int = 0
    use_cache: bool = True
    is_encoder_decoder: bool = True
    unk_token_id: int = 0
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        check_positive(
            vocab_size=self.vocab_size,
            source_vocab_size=self.source_vocab_size,
            embedding_size=self.embedding_size,
            hidden_size=self.hidden_size,
            num_encoder_layers=self.num_encoder_layers,
            num_decoder_layers=self.num_decoder_layers,
        )
        check_probability(dropout=self.dropout)
        check_not_negative(
            initializer_range=self.initializer_range,
            coverage_loss_weight=self.coverage_loss_weight,
            num_copy_slots=self.num_copy_slots,
        )
        check_token_ids(
            self.vocab_size,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            decoder_start_token_id=self.decoder_start_token_id,
        )
        check_token_ids(self.source_vocab_size or self.vocab_size, pad_token_id=self.pad_token_id)
        if self.tie_word_embeddings and self.head_size != self.embedding_size:
            name = self.head_size_field
            raise ValueError(
                f"tie_word_embeddings=True needs {name} == embedding_size, "
                f"but {name}={self.head_size} and embedding_size={self.embedding_size}"
            )
        self._check_pointing()

    def _check_pointing(self) -> None:
        for name in ("coverage", "copy"):
            if getattr(self, name) and self.attention == "none":
                raise ValueError(f'{name}=True is made of attention weights, and attention="none" has none')
        if self.num_copy_slots and not self.copy:
            raise ValueError(f"num_copy_slots={self.num_copy_slots} has no use with copy=False; leave it out")
        if self.copy and self.label_smoothing:
            raise ValueError(
                f"label_smoothing={self.label_smoothing} is for words of a softmax, and with copy=True some are "
                f"copied: set label_smoothing=0"
            )
        if self.copy:
            words = self.vocab_size - self.num_copy_slots
            if words < 1:
                raise ValueError(
                    f"num_copy_slots={self.num_copy_slots} are counted in vocab_size={self.vocab_size}, "
                    f"and leave no word"
                )
            check_token_ids(
                words, unk_token_id=self.unk_token_id, eos_token_id=self.eos_token_id, pad_token_id=self.pad_token_id
            )

    @property
    def head_size(self) -> int:
        """Size of what the output layer reads."""
        return getattr(self, self.head_size_field)
