"""The checks that every class of an encoder passes: the base model, and every head."""

import copy
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .batches import (
    FIRST_ID,
    answers_of,
    assert_close,
    assert_equal_gradients,
    auto_class_of,
    loss_and_gradients,
    ragged_batch,
    training_batch,
    without_labels,
    written_embeddings,
)
from .contract import assert_refused

# Answers that there is one of for every position; of the others there is one for every row.
_OF_POSITIONS = ("prediction_logits", "start_logits", "end_logits", "last_hidden_state")
_ROW_LABELS = ("start_positions", "end_positions", "next_sentence_label")
_FILLERS = {"input_ids": None, "labels": -100, "attention_mask": 0, "token_type_ids": 0}


def _of_positions(model: PreTrainedModel, name: str) -> bool:
    heads = ("AutoModelForMaskedLM", "AutoModelForTokenClassification")
    return name in _OF_POSITIONS or (name == "logits" and auto_class_of(model) in heads)


def _has_positions(name: str, tensor: Tensor) -> bool:
    return name not in _ROW_LABELS and (name != "labels" or tensor.shape[-1] == 6) and tensor.shape[-1] == 6


def _moved(model: PreTrainedModel, batch: dict[str, Tensor], width: int, place: Callable) -> dict[str, Tensor]:
    """The batch with the real positions of each row at other places, in rows of another width."""
    real = batch["attention_mask"].bool()
    rows = real if real.ndim == 2 else real[:, 0]
    moved = {}
    for name, tensor in batch.items():
        if not _has_positions(name, tensor):
            moved[name] = tensor.clone()
            continue
        filler = model.config.pad_token_id if name == "input_ids" else _FILLERS[name]
        moved[name] = tensor.new_full((*tensor.shape[:-1], width), filler)
        for row, kept in enumerate(rows):
            moved[name][row, ..., place(int(kept.sum()))] = tensor[row, ..., kept]
    for name in ("start_positions", "end_positions"):
        if name in batch:
            moved[name] = torch.tensor(
                [place(int(kept.sum()))[index] for kept, index in zip(rows, batch[name].tolist(), strict=True)]
            )
    return moved


def _real_answers(model: PreTrainedModel, batch: dict[str, Tensor], **options: object) -> dict[str, Tensor]:
    """What a model says of real positions, and of rows."""
    real = batch["attention_mask"].bool()
    answers = answers_of(model(**batch, **options))
    return {name: tensor[real] if _of_positions(model, name) else tensor for name, tensor in answers.items()}


def _only(batch: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row without its padding."""
    kept = batch["attention_mask"][row].reshape(-1, 6)[0].bool()
    return {
        name: tensor[row : row + 1, ..., kept] if _has_positions(name, tensor) else tensor[row : row + 1]
        for name, tensor in batch.items()
    }


def _is_trained(model: PreTrainedModel) -> bool:
    return auto_class_of(model) != "AutoModel"


def check_encoder_batch_equals_single(model: PreTrainedModel) -> None:
    """A padded batch gives each row what it gets alone: answers, loss, gradients, attention."""
    batch = training_batch(model)
    together = model(**batch, output_attentions=True, output_hidden_states=True)
    total, summed = 0.0, None
    for row in range(3):
        alone = _only(batch, row)
        output = model(**alone, output_attentions=True, output_hidden_states=True)
        length = alone["attention_mask"].shape[-1]
        for name, answer in answers_of(output).items():
            whole = answers_of(together)[name][row]
            assert_close(whole[:length] if _of_positions(model, name) else whole, answer[0])
        copies = alone["attention_mask"][0].reshape(-1, length).shape[0]
        rows = slice(row * copies, (row + 1) * copies)
        for weights, single in zip(together.attentions, output.attentions, strict=True):
            assert_close(weights[rows, :, :length, :length], single)
            assert (weights[rows, :, :, length:] == 0).all(), "attention on padding is not exactly 0"
        for states, single in zip(together.hidden_states, output.hidden_states, strict=True):
            assert_close(states[rows, :length], single)
            assert (states[rows, length:] == 0).all(), "hidden states on padding are not 0"
        if _is_trained(model):
            loss, gradients = loss_and_gradients(model, **alone, num_items_in_batch=1)
            total += loss
            summed = gradients if summed is None else {name: summed[name] + gradients[name] for name in summed}
    if _is_trained(model):
        loss, gradients = loss_and_gradients(model, **batch, num_items_in_batch=1)
        assert_close(loss, total, 1e-4)
        assert_equal_gradients(gradients, summed, 1e-4)


def check_encoder_padding(model: PreTrainedModel) -> None:
    """No matter where padding stands, how much of it there is, what ids lie under it, whether its mask is given."""
    batch = training_batch(model)
    expected, trained = _real_answers(model, batch), _is_trained(model)

    def compare(other: dict[str, Tensor]) -> None:
        assert_close(_real_answers(model, other), expected)
        if trained:
            assert_close(model(**other).loss, model(**batch).loss)

    real = batch["attention_mask"].bool()
    compare(batch | {"input_ids": batch["input_ids"].where(real, 7)})
    compare(_moved(model, batch, 11, lambda length: list(range(length))))
    compare(_moved(model, batch, 6, lambda length: list(range(6 - length, 6))))
    compare(_moved(model, batch, 13, lambda length: list(range(1, 2 * length, 2))))
    maskless = {name: tensor for name, tensor in batch.items() if name != "attention_mask"}
    assert_close(answers_of(model(**maskless)), answers_of(model(**batch)))


def check_encoder_empty_text(model: PreTrainedModel) -> None:
    """A text of nothing but padding gives finite values and gradients, and leaves the other rows alone."""
    batch = training_batch(model)
    expected = answers_of(model(**batch))
    for name, tensor in batch.items():
        if _has_positions(name, tensor):
            tensor[1] = model.config.pad_token_id if name == "input_ids" else _FILLERS[name]
    output = model(**batch, output_attentions=True)
    for name, answer in answers_of(output).items():
        assert answer.isfinite().all(), name
        assert_close(answer[[0, 2]], expected[name][[0, 2]])
    copies = batch["attention_mask"][0].reshape(-1, 6).shape[0]
    for attention in output.attentions:
        assert (attention[copies : 2 * copies] == 0).all()
    if _is_trained(model):
        _, gradients = loss_and_gradients(model, **batch)
        assert all(gradient.isfinite().all() for gradient in gradients.values())


def check_encoder_accumulation(model: PreTrainedModel) -> None:
    """The losses of single rows, each divided by the labels of all, add up to that of the batch, gradients too."""
    batch = training_batch(model)
    loss, gradients = loss_and_gradients(model, **batch)
    labels = batch.get("labels", batch.get("start_positions"))
    count = labels.numel() if labels.is_floating_point() else (labels != -100).sum()
    parts = [loss_and_gradients(model, **_only(batch, row), num_items_in_batch=count) for row in range(3)]
    assert_close(sum(part[0] for part in parts), loss)
    assert_equal_gradients(gradients, {name: sum(part[1][name] for part in parts) for name in gradients})


def check_encoder_inputs_embeds(model: PreTrainedModel) -> None:
    """Vectors in place of ids give what ids give."""
    batch = training_batch(model)
    expected = answers_of(model(**batch))
    embeds = model.get_input_embeddings()(batch.pop("input_ids"))
    assert_close(answers_of(model(inputs_embeds=embeds, **batch)), expected)


def check_packed_texts(model: PreTrainedModel) -> None:
    """Texts that stand in one row one after the other, told apart by their positions, are as they are alone."""
    head = auto_class_of(model)
    if head in ("AutoModelForMultipleChoice", "AutoModelForQuestionAnswering"):
        return
    batch = without_labels(training_batch(model))
    alone = [answers_of(model(**_only(batch, row))) for row in range(3)]
    pieces = [_only(batch, row) for row in range(3)]
    row = {name: torch.cat([piece[name] for piece in pieces], dim=1) for name in batch}
    row["position_ids"] = torch.cat([torch.arange(piece["input_ids"].shape[1]) for piece in pieces])[None]
    before = model.config._attn_implementation
    try:
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            for name, answer in answers_of(model(**row)).items():
                one = torch.cat([single[name] for single in alone], dim=1 if _of_positions(model, name) else 0)
                assert_close(answer, one)
            # Two rows, one of them short: padding goes with the last text.
            wide = {name: torch.nn.functional.pad(tensor, (0, 3)) for name, tensor in row.items()}
            wide = {name: torch.cat([tensor, tensor]) for name, tensor in wide.items()}
            for name, answer in answers_of(model(**wide)).items():
                one = torch.cat([single[name] for single in alone], dim=1 if _of_positions(model, name) else 0)
                if _of_positions(model, name):
                    assert_close(answer[1:, :10], one)
                else:
                    assert_close(answer, torch.cat([one, one]))
    finally:
        model.set_attn_implementation(before)


def check_encoder_resize(model: PreTrainedModel) -> None:
    """The vocabulary grows and shrinks, with its head where there is one, and the words that stay are untouched."""
    batch = training_batch(model)
    inputs, size = without_labels(batch), model.config.vocab_size
    expected = answers_of(model(**inputs))
    for change in (5, -1):
        resized = copy.deepcopy(model)
        resized.resize_token_embeddings(size + change)
        assert resized.config.vocab_size == size + change == resized.get_input_embeddings().weight.shape[0]
        head = resized.get_output_embeddings()
        with tempfile.TemporaryDirectory() as folder:
            resized.save_pretrained(folder)
            loaded = type(model).from_pretrained(folder)
        for other in (resized, loaded):
            for name, answer in answers_of(other(**inputs)).items():
                words = head is not None and answer.shape[-1] == size + change
                kept = slice(min(size, size + change)) if words else slice(None)
                assert_close(answer[..., kept], expected[name][..., kept])
        if head is not None:
            assert head.weight.shape[0] == len(head.bias) == size + change
            tied = head.weight is written_embeddings(resized).weight
            assert tied == bool(model.config.tie_word_embeddings)
        if _is_trained(model):
            loss_and_gradients(resized, **batch)


def check_encoder_refusals(model: PreTrainedModel) -> None:
    """Inputs of a wrong shape or range are refused with the argument, the value and the limit."""
    inputs, config = without_labels(training_batch(model)), model.config
    ids = inputs["input_ids"]
    assert_refused(model, "input_ids", "inputs_embeds")
    for wrong, limit in ((config.vocab_size, config.vocab_size - 1), (-1, config.vocab_size - 1)):
        bad = ids.clone()
        bad.view(-1)[0] = wrong
        assert_refused(lambda bad=bad: model(**inputs | {"input_ids": bad}), "input_ids", str(wrong), str(limit))
    assert_refused(lambda: model(input_ids=ids[:0]), "input_ids", str(tuple(ids[:0].shape)))
    assert_refused(lambda: model(input_ids=ids[..., :0]), "input_ids", "0")
    assert_refused(lambda: model(input_ids=ids[0, ..., 0]), "input_ids")
    assert_refused(lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids[..., :-1])), "attention_mask", "5")
    segments = torch.full_like(ids, max(config.type_vocab_size, 1))
    assert_refused(
        lambda: model(input_ids=ids, token_type_ids=segments), "token_type_ids", str(max(config.type_vocab_size, 1))
    )
    embeds = model.get_input_embeddings()(ids)
    assert_refused(lambda: model(input_ids=ids, inputs_embeds=embeds), "input_ids", "inputs_embeds")
    assert_refused(lambda: model(inputs_embeds=embeds[..., :-1]), "inputs_embeds", str(embeds.shape[-1] - 1))
    limit = config.max_position_embeddings
    long = torch.full((*ids.shape[:-1], limit + 1), FIRST_ID)
    assert_refused(lambda: model(input_ids=long), str(limit), str(limit - 1))
    assert all(t.isfinite().all() for t in answers_of(model(input_ids=long[..., :limit])).values())


def check_encoder_answers(model: PreTrainedModel) -> None:
    """Tuples, hidden states, attention and losses come as asked for, in the shapes that transformers' users expect."""
    batch, config = training_batch(model), model.config
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    rows = 6 if auto_class_of(model) == "AutoModelForMultipleChoice" else 3
    assert len(output.hidden_states) == 1 + config.num_hidden_layers
    assert all(states.shape == (rows, 6, config.hidden_size) for states in output.hidden_states)
    assert len(output.attentions) == config.num_hidden_layers
    for weights in output.attentions:
        assert weights.shape == (rows, config.num_attention_heads, 6, 6)
        real = batch["attention_mask"].reshape(rows, 6).bool()
        total = weights.sum(-1).transpose(1, 2)[real]
        assert_close(total, torch.ones_like(total))
    plain = model(**batch)
    assert plain.get("hidden_states") is None
    assert plain.get("attentions") is None
    as_tuple = model(**batch, return_dict=False)
    assert all(torch.equal(one, other) for one, other in zip(as_tuple, plain.to_tuple(), strict=True))
    if not _is_trained(model):
        base = model(**batch, output_hidden_states=True)
        assert torch.equal(base.hidden_states[-1], base.last_hidden_state)
        return
    assert torch.equal(as_tuple[0], plain.loss)
    unlabelled = model(**without_labels(batch))
    assert unlabelled.get("loss") is None
    assert_close(answers_of(unlabelled), answers_of(plain))
    if model.get_output_embeddings() is not None:
        training = copy.deepcopy(model).train()
        words = "logits" if "logits" in plain else "prediction_logits"
        assert training(**batch).get(words) is None
        whole = training(**batch, skip_logits=False)
        assert whole[words].shape == (*ragged_batch(model)[0].shape, config.vocab_size)


def check_half_the_work(model: PreTrainedModel) -> None:
    """The head of a vocabulary is not computed where nothing is to be predicted, nor a layer where padding is."""
    seen = []

    def note(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].shape[:-1].numel())

    model = copy.deepcopy(model).train()
    batch = training_batch(model)
    for name, module in model.named_modules():
        if name.endswith(("up_proj", "out_proj")):
            module.register_forward_pre_hook(note)
    model(**batch)
    assert seen
    assert set(seen) == {int(batch["attention_mask"].sum())}
    if model.get_output_embeddings() is not None:
        seen.clear()
        model.transform.dense.register_forward_pre_hook(note)
        model(**batch)
        assert seen[-1] == (batch["labels"] != -100).sum()
