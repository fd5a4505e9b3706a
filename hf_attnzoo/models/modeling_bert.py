"""BERT: a bidirectional Transformer encoder, and what is put on top of it (Devlin et al. 2019).

Reads as section 3 does: words, segments and positions, a stack of layers that all families share
(`transformer_layer.py`, `multi_head.py`), the pooler, and a head for each task. Padding may stand anywhere; it is
taken out before the layers and put back after them (`unpadding.py`). Shapes: B rows, T positions, H hidden size, h
heads, V words, L labels. A row is one text or one pair of texts; or, with `position_ids` that start anew within it,
several, D in the whole batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .classification import class_cross_entropy, classification_loss
from .configuration_bert import BERTConfig
from .losses import IGNORE_INDEX, smoothed_cross_entropy
from .multi_head import bidirectional_mask
from .positions import LearnedPositions, check_positions, read_positions
from .pretrained import check_embeds, check_ids, check_labels, check_mask, exactly_one
from .seq2seq import source_mask
from .transformer_layer import AttentionPreTrainedModel, TransformerStack, activation, layer_norm
from .unpadding import Padding


class BERTInputs(nn.Module):
    """The sum of a word's, its segment's and its position's vector, normalised (section 3, figure 2)."""

    def __init__(self, config: BERTConfig):
        super().__init__()
        self.length, self.offset = config.max_position_embeddings, config.position_offset
        self.positions = LearnedPositions(self.offset + self.length, config.hidden_size)
        if config.type_vocab_size:
            self.segments = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embeds: Tensor, position_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Word vectors `(B, T, H)`, positions from 0 and segments, `(B, T)` each, to `(B, T, H)`."""
        check_positions(position_ids, self.length)
        hidden = embeds + self.positions(position_ids + self.offset)
        if hasattr(self, "segments"):
            segments = torch.zeros_like(position_ids) if token_type_ids is None else token_type_ids
            hidden = hidden + self.segments(segments)
        return self.dropout(self.norm(hidden))


class BERTPooler(nn.Module):
    """`tanh(W c + b)` of the final vector c of a text's first token, `[CLS]`."""

    def __init__(self, config: BERTConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, real: Tensor, documents: Tensor | None = None) -> Tensor:
        """Vectors of the texts, shape `(D, H)`; D is B unless rows are packed.

        Args:
            hidden: shape `(B, T, H)`.
            real: True where a position is real, shape `(B, T)`.
            documents: number of the text that a position belongs to, shape `(B, T)`. Default: `None`, a row is one.
        """
        if documents is None or torch.compiler.is_compiling():
            rows = torch.arange(hidden.shape[0], device=hidden.device)
            first = hidden[rows, real.long().argmax(dim=1)]
        else:
            anew = nn.functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
            first = hidden[real & (anew | (real.cumsum(dim=1) == 1))]
        return torch.tanh(self.dense(first))


class BERTPreTrainedModel(AttentionPreTrainedModel):
    """Base of the family's classes."""

    config: BERTConfig


class BERTModel(BERTPreTrainedModel):
    """The encoder, with the pooler or without.

    Args:
        config: of the model.
        add_pooling_layer: whether there is a pooler.
    """

    def __init__(self, config: BERTConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.inputs = BERTInputs(config)
        self.stack = TransformerStack(config, config.num_hidden_layers)
        self.pooler = BERTPooler(config) if add_pooling_layer else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Read texts.

        Args:
            input_ids: ids, shape `(B, T)`, padded anywhere.
            attention_mask: 1 where a position is real, shape `(B, T)`. Default: `None`, inferred from the padding id.
            token_type_ids: segment of each position, shape `(B, T)`. Default: `None`, the first segment.
            position_ids: positions from 0, shape `(B, T)`; where they start anew within a row, another text begins,
                and reads nothing of the others. Default: `None`, real positions are counted.
            inputs_embeds: word vectors in place of ids, shape `(B, T, H)`.
            output_attentions: also return every layer's weights, `(B, h, T, T)`, exactly 0 on padding.
            output_hidden_states: also return the sum of the embeddings, and what leaves each layer.

        Returns:
            `last_hidden_state` of shape `(B, T, H)`, 0 on padding, like all `hidden_states`; `pooler_output` of shape
            `(D, H)`, one vector for each text, row after row, if there is a pooler. In a compiled graph, whose sizes
            can't depend on data, it is one for each row.

        Raises:
            ValueError: if both or neither of ids and vectors are given, a shape, an id or a segment is wrong, or a
                text is longer than there are positions.
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        exactly_one(input_ids=input_ids, inputs_embeds=inputs_embeds)
        if inputs_embeds is None:
            check_ids("input_ids", input_ids, config.vocab_size)
            inputs_embeds = self.embed_tokens(input_ids)
        check_embeds("inputs_embeds", inputs_embeds, config.hidden_size)
        if token_type_ids is not None:
            check_mask("token_type_ids", token_type_ids, inputs_embeds.shape[:2])
            check_ids("token_type_ids", token_type_ids, max(config.type_vocab_size, 1))
        real = source_mask(attention_mask, input_ids, inputs_embeds, config.pad_token_id)
        position_ids, documents = read_positions(inputs_embeds, real, position_ids)

        mask = bidirectional_mask(config, inputs_embeds, real, documents, bool(output_attentions))
        # A flash kernel tells packed texts apart by the positions of one long row.
        packed = {} if documents is None else {"position_ids": position_ids}
        padding = Padding.of(real)
        output = self.stack(
            self.inputs(
                padding.remove(inputs_embeds),
                padding.remove(position_ids.expand(real.shape)),
                None if token_type_ids is None else padding.remove(token_type_ids),
            ),
            mask,
            output_attentions=bool(output_attentions),
            output_hidden_states=bool(output_hidden_states),
            padding=padding,
            **packed,
        )
        hidden, states = padding.clear(output.hidden), output.hidden_states
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden,
            pooler_output=None if self.pooler is None else self.pooler(hidden, real, documents),
            hidden_states=None if states is None else (*map(padding.clear, states[:-1]), hidden),
            attentions=output.attentions,
        )


class BERTHeadTransform(nn.Module):
    """What stands between the encoder and the vocabulary: `LayerNorm(act(W x + b))`."""

    def __init__(self, config: BERTConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.norm = layer_norm(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """`(..., H)` to `(..., H)`."""
        return self.norm(self.activation(self.dense(hidden)))


class MaskedWordsMixin:
    """Prediction of masked words (section 3.1, task 1), for a model that has `transform` and `lm_head`."""

    def _predict_words(
        self, hidden: Tensor, labels: Tensor | None, num_items_in_batch: Tensor | int | None, skip_logits: bool | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Loss in nats per label, and logits `(B, T, V)`, from `(B, T, H)`; None for what isn't wanted."""
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            check_mask("labels", labels, hidden.shape[:2])
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        if skip_logits and labels is not None and not torch.compiler.is_compiling():
            # Six words in seven are not asked for.
            kept = labels != IGNORE_INDEX
            hidden, labels = hidden[kept], labels[kept]
        hidden = self.transform(hidden)
        loss, smoothing = None, self.config.label_smoothing if self.training else 0.0
        if labels is not None:
            loss = smoothed_cross_entropy(hidden, self.lm_head, labels, smoothing, num_items_in_batch)
        return loss, None if skip_logits else self.lm_head(hidden)


class BERTForMaskedLM(MaskedWordsMixin, BERTPreTrainedModel):
    """BERT that says which words were masked (section 3.1, task 1)."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: BERTConfig):
        super().__init__(config)
        self.model = BERTModel(config, add_pooling_layer=False)
        self.transform = BERTHeadTransform(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
    ) -> MaskedLMOutput:
        """Predict the word at every position.

        Args:
            labels: the masked words' ids, -100 everywhere else, shape `(B, T)`.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.
            skip_logits: compute the loss alone, with the head at the labelled positions and nowhere else. Default:
                `None`, when training with labels.

        The other arguments are those of `BERTModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, and `logits` of shape `(B, T, V)`, None if skipped.

        Raises:
            ValueError: as `BERTModel.forward`, and if labels have another shape or name no word.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        loss, logits = self._predict_words(outputs.last_hidden_state, labels, num_items_in_batch, skip_logits)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@dataclass
class BERTForPreTrainingOutput(ModelOutput):
    """What `BERTForPreTraining` gives.

    Args:
        loss: sum of the losses that there are labels for, in nats.
        prediction_logits: of the words, shape `(B, T, V)`.
        seq_relationship_logits: that the second text follows the first, and that it doesn't, shape `(D, 2)`.
        hidden_states: see `BERTModel`.
        attentions: see `BERTModel`.
    """

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class BERTForPreTraining(MaskedWordsMixin, BERTPreTrainedModel):
    """BERT as it was pre-trained: masked words, and whether the second text follows the first (section 3.1)."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: BERTConfig):
        super().__init__(config)
        self.model = BERTModel(config)
        self.transform = BERTHeadTransform(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
    ) -> BERTForPreTrainingOutput:
        """Predict masked words, and whether the second text of a pair follows the first.

        Args:
            labels: the masked words' ids, -100 everywhere else, shape `(B, T)`.
            next_sentence_label: 0 where the second text follows the first, 1 where it doesn't, shape `(D,)`.
            num_items_in_batch: masked words in all the batches of an optimisation step. The loss of the pairs is
                weighed by the share of them that is here, so that the losses of these batches add up to a mean.
            skip_logits: see `BERTForMaskedLM.forward`; it concerns the logits of words.

        The other arguments are those of `BERTModel.forward`.

        Returns:
            `loss`, the sum of the two (or the one that there are labels for), and both logits.

        Raises:
            ValueError: as `BERTModel.forward`, and if labels have another shape or name nothing.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        loss, logits = self._predict_words(outputs.last_hidden_state, labels, num_items_in_batch, skip_logits)
        follows = self.next_sentence(outputs.pooler_output)
        if next_sentence_label is not None:
            of_pairs = class_cross_entropy("next_sentence_label", follows, next_sentence_label)
            if num_items_in_batch is not None and labels is not None:
                of_pairs = of_pairs * (labels != IGNORE_INDEX).sum() / num_items_in_batch
            loss = of_pairs if loss is None else loss + of_pairs
        return BERTForPreTrainingOutput(
            loss=loss,
            prediction_logits=logits,
            seq_relationship_logits=follows,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BERTForNextSentencePrediction(BERTPreTrainedModel):
    """BERT that says whether the second text of a pair follows the first (section 3.1, task 2)."""

    def __init__(self, config: BERTConfig):
        super().__init__(config)
        self.model = BERTModel(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> NextSentencePredictorOutput:
        """Judge pairs of texts.

        Args:
            labels: 0 where the second text follows the first, 1 where it doesn't, shape `(D,)`.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.

        The other arguments are those of `BERTModel.forward`.

        Returns:
            `loss` in nats per pair if there are labels, and `logits` of shape `(D, 2)`.

        Raises:
            ValueError: as `BERTModel.forward`, and if labels have another shape or are neither 0, 1 nor -100.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.next_sentence(outputs.pooler_output)
        return NextSentencePredictorOutput(
            loss=None if labels is None else class_cross_entropy("labels", logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ClassifierDropout(nn.Dropout):
    """Dropout on what a classifier reads."""

    def __init__(self, config: BERTConfig):
        super().__init__(config.dropout if config.classifier_dropout is None else config.classifier_dropout)


class BERTForSequenceClassification(BERTPreTrainedModel):
    """BERT that puts a text, or a pair of texts, into classes or on a scale (section 4.1)."""

    def __init__(self, config: BERTConfig):
        super().__init__(config)
        self.model = BERTModel(config)
        self.dropout = ClassifierDropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> SequenceClassifierOutput:
        """Classify texts.

        Args:
            labels: what `config.problem_type` says: `"single_label_classification"`, a class each, shape `(D,)`;
                `"multi_label_classification"`, 0 or 1 for each class, shape `(D, L)`; `"regression"`, numbers of shape
                `(D,)` or `(D, L)`. If it is None, it is told by the labels, and set; see `classification_loss`.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.

        The other arguments are those of `BERTModel.forward`.

        Returns:
            `loss` if there are labels (nats per label, or squared error), and `logits` of shape `(D, L)`.

        Raises:
            ValueError: as `BERTModel.forward`, and if labels have another shape or name no class.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class BERTForTokenClassification(BERTPreTrainedModel):
    """BERT that puts every token into a class (section 5.3)."""

    def __init__(self, config: BERTConfig):
        super().__init__(config)
        self.model = BERTModel(config, add_pooling_layer=False)
        self.dropout = ClassifierDropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> TokenClassifierOutput:
        """Classify tokens.

        Args:
            labels: classes, -100 where there is none, shape `(B, T)`.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.

        The other arguments are those of `BERTModel.forward`.

        Returns:
            `loss` in nats per label if there are labels, and `logits` of shape `(B, T, L)`.

        Raises:
            ValueError: as `BERTModel.forward`, and if labels have another shape or name no class.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else class_cross_entropy("labels", logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BERTForQuestionAnswering(BERTPreTrainedModel):
    """BERT that finds the answer to a question in a text (section 4.2)."""

    def __init__(self, config: BERTConfig):
        super().__init__(config)
        self.model = BERTModel(config, add_pooling_layer=False)
        self.span = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Find the first and the last token of an answer.

        Args:
            start_positions: where in its row the answer begins, shape `(B,)`; the first token where there is no
                answer (section 4.3). What isn't in the row, -100 for one, doesn't count.
            end_positions: where its last token is, shape `(B,)`.
            num_items_in_batch: what the summed losses are divided by. Default: `None`, the number that count.

        The other arguments are those of `BERTModel.forward`; a row is one question with its text.

        Returns:
            `loss`, the mean of both ends' in nats, if both are given; `start_logits` and `end_logits` of shape
            `(B, T)`, the lowest number of their type on padding, which no answer begins or ends with.

        Raises:
            ValueError: as `BERTModel.forward`, and if only one of start and end is given, or one has another shape.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        hidden = outputs.last_hidden_state
        real = source_mask(attention_mask, input_ids, hidden, self.config.pad_token_id)
        logits = self.span(hidden)
        logits = logits.masked_fill(~real[:, :, None], torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(dim=-1)
        loss = None
        if start_positions is not None or end_positions is not None:
            losses = []
            for name, scores, places in (
                ("start_positions", start_logits, start_positions),
                ("end_positions", end_logits, end_positions),
            ):
                if places is None:
                    raise ValueError(f"{name} is missing: start_positions and end_positions come together")
                places = places.masked_fill((places < 0) | (places >= scores.shape[1]), IGNORE_INDEX)
                losses.append(class_cross_entropy(name, scores, places, num_items_in_batch))
            loss = (losses[0] + losses[1]) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BERTForMultipleChoice(BERTPreTrainedModel):
    """BERT that picks one of several texts (section 4.4); C choices."""

    def __init__(self, config: BERTConfig):
        super().__init__(config)
        self.model = BERTModel(config)
        self.dropout = ClassifierDropout(config)
        self.choice = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MultipleChoiceModelOutput:
        """Choose.

        Args:
            input_ids: the choices, each with what it belongs to, shape `(B, C, T)`; so are `attention_mask`,
                `token_type_ids` and `position_ids`, and `inputs_embeds` is `(B, C, T, H)`. A row is one text.
            labels: number of the right choice, shape `(B,)`.
            num_items_in_batch: what the summed loss is divided by. Default: `None`, the number of labels that count.

        The other arguments are those of `BERTModel.forward`.

        Returns:
            `loss` in nats per question if there are labels, and `logits` of shape `(B, C)`. Hidden states and
            attention have `B C` rows.

        Raises:
            ValueError: as `BERTModel.forward`, and if the inputs have no dimension for choices.
        """
        exactly_one(input_ids=input_ids, inputs_embeds=inputs_embeds)
        given, name = (input_ids, "input_ids") if inputs_embeds is None else (inputs_embeds, "inputs_embeds")
        wanted = "(batch, choices, length" + (")" if inputs_embeds is None else ", size)")
        if given.ndim != wanted.count(",") + 1 or 0 in given.shape:
            raise ValueError(
                f"{name} must have the shape {wanted} and hold at least one choice, got {tuple(given.shape)}"
            )
        # A mask of another shape is refused by the encoder.
        flat = {
            argument: tensor.flatten(0, 1) if tensor is not None and tensor.ndim >= 3 else tensor
            for argument, tensor in (
                ("input_ids", input_ids),
                ("attention_mask", attention_mask),
                ("token_type_ids", token_type_ids),
                ("position_ids", position_ids),
                ("inputs_embeds", inputs_embeds),
            )
        }
        outputs = self.model(**flat, output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        scores = self.choice(self.dropout(outputs.pooler_output))
        if scores.shape[0] != given.shape[0] * given.shape[1]:
            raise ValueError("position_ids start anew within a row, but a choice must be one text")
        logits = scores.view(given.shape[:2])
        return MultipleChoiceModelOutput(
            loss=None if labels is None else class_cross_entropy("labels", logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
