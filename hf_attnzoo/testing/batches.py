"""What the checks are made of: small batches, and comparisons of what a model gives for them."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
)
from transformers.utils import ModelOutput

# Real ids of the checks' batches; ids below are special.
FIRST_ID, LAST_ID = 4, 15


def scattered(model: PreTrainedModel, seed: int = 0, std: float = 0.3) -> PreTrainedModel:
    """Give every parameter a random value far from its initialisation, so that no part of the model is silent.

    Args:
        model: any model.
        seed: of the values.
        std: their standard deviation.

    Returns:
        The same model, in evaluation mode.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()


def ragged_batch(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Texts of lengths 6, 3 and 1 padded on the right, and what is to be predicted from them.

    Args:
        model: whose padding and end ids are used, or the size of the pictures that it looks at.

    Returns:
        `input_ids` of shape `(3, 6)`, and `labels`: of an encoder-decoder others, of lengths 4, 5 and 2, shape
        `(3, 5)`; of a causal language model the ids themselves, shape `(3, 6)`. A model of pictures gets three of them
        in place of the texts.
    """
    generator = torch.Generator().manual_seed(1)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    input_ids = torch.randint(FIRST_ID, LAST_ID + 1, (3, 6), generator=generator)
    labels = torch.randint(FIRST_ID, LAST_ID + 1, (3, 5), generator=generator)
    for row, (source, target) in enumerate(zip((6, 3, 1), (4, 5, 2), strict=True)):
        input_ids[row, source - 1] = end
        input_ids[row, source:] = pad
        labels[row, target - 1] = end
        labels[row, target:] = -100
    if not model.config.is_encoder_decoder:
        labels = input_ids.masked_fill(input_ids == pad, -100)
    if model.main_input_name == "pixel_values":
        config = model.config
        return torch.randn(3, config.num_channels, config.image_size, config.image_size, generator=generator), labels
    return input_ids, labels


def is_encoder(model: PreTrainedModel) -> bool:
    """Whether the model reads texts and writes none."""
    return not model.config.is_encoder_decoder and not model.can_generate()


def training_batch(model: PreTrainedModel) -> dict[str, Tensor]:
    """What a model is trained with: the texts of `ragged_batch`, and labels for its head.

    An encoder's texts have segments too, if it knows two, and its mask; of a pre-training head's labels every row has
    one. A base model has no labels.
    """
    input_ids, labels = ragged_batch(model)
    if not is_encoder(model):
        return {**source_of(model, input_ids), "labels": labels}
    generator = torch.Generator().manual_seed(2)
    head, config = auto_class_of(model).removeprefix("AutoModel").removeprefix("For"), model.config
    real = input_ids != config.pad_token_id
    places = torch.arange(6)
    masked = real & ((places % 2 == 0) if head == "MaskedLM" else (places == 0))
    words = input_ids.masked_fill(~masked, -100)
    batch = {"input_ids": input_ids, "attention_mask": real.long()}
    if getattr(config, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = (real & (places >= 2)).long()
    if head in ("MaskedLM", "PreTraining"):
        batch |= {"input_ids": input_ids.masked_fill(masked, FIRST_ID), "labels": words}
    if head == "PreTraining":
        batch["next_sentence_label"] = torch.tensor([1, 0, 1])
    elif head == "TokenClassification":
        classes = torch.randint(config.num_labels, (3, 6), generator=generator)
        batch["labels"] = classes.masked_fill(~real, -100)
    elif head == "SequenceClassification":
        kinds = {"regression": (3, config.num_labels), "multi_label_classification": (3, config.num_labels)}
        if config.problem_type in kinds:
            batch["labels"] = torch.randint(2, kinds[config.problem_type], generator=generator).float()
        else:
            batch["labels"] = torch.tensor([1, 0, 1])
    elif head == "NextSentencePrediction":
        batch["labels"] = torch.tensor([1, 0, 0])
    elif head == "QuestionAnswering":
        batch |= {"start_positions": torch.tensor([2, 0, 0]), "end_positions": torch.tensor([4, 1, 0])}
    elif head == "MultipleChoice":
        others = torch.where(real, torch.randint(FIRST_ID, LAST_ID + 1, (3, 6), generator=generator), input_ids)
        batch = {name: tensor[:, None].repeat(1, 2, 1) for name, tensor in batch.items()}
        batch["input_ids"] = torch.stack([input_ids, others], dim=1)
        batch["labels"] = torch.tensor([0, 1, 1])
    return batch


# Outputs by which a model answers.
_ANSWERS = (
    "logits",
    "prediction_logits",
    "seq_relationship_logits",
    "start_logits",
    "end_logits",
    "last_hidden_state",
    "pooler_output",
)


def answers_of(output: ModelOutput) -> dict[str, Tensor]:
    """Everything by which a model answers, by name."""
    return {name: output[name] for name in _ANSWERS if output.get(name) is not None}


def without_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of a training batch."""
    read = ("input_ids", "attention_mask", "token_type_ids")
    return {name: tensor for name, tensor in batch.items() if name in read}


def source_of(model: PreTrainedModel, source: Tensor) -> dict[str, Tensor]:
    """The source, or the text, under the name that the model calls it by."""
    return {model.main_input_name: source}


def padded_left(input_ids: Tensor, pad: int) -> Tensor:
    return torch.stack([row[torch.argsort((row != pad).long(), stable=True)] for row in input_ids])


def prompts_for(model: PreTrainedModel) -> Tensor:
    """What `generate()` starts from: the sources, or texts that have no end yet, padded on the left."""
    input_ids, _ = ragged_batch(model)
    if model.config.is_encoder_decoder:
        return input_ids
    left = padded_left(input_ids, model.config.pad_token_id)
    return left.masked_fill(left == model.config.eos_token_id, FIRST_ID)


def prompt_length(model: PreTrainedModel, prompts: Tensor) -> int:
    """Ids in front of what `generate()` writes: the start token, or the prompt."""
    return 1 if model.config.is_encoder_decoder else prompts.shape[1]


def newly_written(model: PreTrainedModel, prompts: Tensor, **options: object) -> Tensor:
    """What `generate()` writes, without what stood before it."""
    return model.generate(prompts, **options)[:, prompt_length(model, prompts) :]


def decoder_of(model: PreTrainedModel) -> tuple[Tensor, Callable[..., ModelOutput]]:
    """Ids that a decoder reads, and the model as a function of them alone."""
    input_ids, labels = ragged_batch(model)
    if not model.config.is_encoder_decoder:
        whole = input_ids.masked_fill(input_ids == model.config.pad_token_id, LAST_ID)
        return whole, lambda ids, **options: model(input_ids=ids, **options)
    target = model.prepare_decoder_input_ids_from_labels(labels)
    source = source_of(model, input_ids)
    return target, lambda ids, **options: model(**source, decoder_input_ids=ids, **options)


def aligned_logits(model: PreTrainedModel, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each logit next to the label that it predicts."""
    return (logits, labels) if model.config.is_encoder_decoder else (logits[:, :-1], labels[:, 1:])


def auto_class_of(model: PreTrainedModel) -> str:
    return next(auto for auto, name in model.config.auto_classes.items() if name == type(model).__name__)


def written_embeddings(model: PreTrainedModel) -> torch.nn.Embedding:
    """Embedding of the vocabulary that is predicted."""
    encoder_decoder = model.config.is_encoder_decoder
    return model.get_decoder_input_embeddings() if encoder_decoder else model.get_input_embeddings()


def unpadded(source: Tensor, row: int, pad: int) -> Tensor:
    """One row of a batch alone, without the padding that ids may have and pictures have not."""
    alone = source[row : row + 1]
    return alone if source.is_floating_point() else alone[:, alone[0] != pad]


def single_row(source: Tensor, labels: Tensor, row: int, pad: int) -> tuple[Tensor, Tensor]:
    return unpadded(source, row, pad), labels[row : row + 1, labels[row] != -100]


def assert_close(one: Tensor | dict[str, Tensor], other: Tensor | dict[str, Tensor], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def loss_and_gradients(model: PreTrainedModel, **inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }
    model.zero_grad()
    return loss.detach(), gradients


def assert_equal_gradients(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], atol=tolerance, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def cross_attentions_of(output: ModelOutput) -> tuple[Tensor, ...]:
    return getattr(output, "cross_attentions", None) or ()
