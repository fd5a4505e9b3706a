"""The contract that every encoder-decoder of the zoo keeps, as checks that anybody can call.

A family's test file is a few lines:

```python
import pytest
from hf_attnzoo.testing import SEQ2SEQ_CONTRACT, scattered

@pytest.mark.parametrize("check", SEQ2SEQ_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("options", VARIANTS)
def test_contract(check, options):
    check(scattered(RNNSearchForConditionalGeneration(RNNSearchConfig.from_preset("tiny", vocab_size=20, **options))))
```

Each check takes a small model in evaluation mode, of at least 16 words on either side, and raises AssertionError if
the model breaks the contract. It leaves the model as it found it.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

# Real ids of the checks' batches; ids below are special.
_FIRST_ID, _LAST_ID = 4, 15


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
    """Sources of lengths 6, 3 and 1 padded on the right, and labels of lengths 4, 5 and 2.

    Args:
        model: whose padding and end ids are used.

    Returns:
        `input_ids` of shape `(3, 6)` and `labels` of shape `(3, 5)`.
    """
    generator = torch.Generator().manual_seed(1)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    input_ids = torch.randint(_FIRST_ID, _LAST_ID + 1, (3, 6), generator=generator)
    labels = torch.randint(_FIRST_ID, _LAST_ID + 1, (3, 5), generator=generator)
    for row, (source, target) in enumerate(zip((6, 3, 1), (4, 5, 2), strict=True)):
        input_ids[row, source - 1] = end
        input_ids[row, source:] = pad
        labels[row, target - 1] = end
        labels[row, target:] = -100
    return input_ids, labels


def _single(input_ids: Tensor, labels: Tensor, row: int, pad: int) -> tuple[Tensor, Tensor]:
    kept, scored = input_ids[row] != pad, labels[row] != -100
    return input_ids[row : row + 1, kept], labels[row : row + 1, scored]


def _close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def _gradients(model: PreTrainedModel, **inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }
    model.zero_grad()
    return loss.detach(), gradients


def _equal_gradients(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], atol=tolerance, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def check_batch_equals_single(model: PreTrainedModel) -> None:
    """A padded batch gives each row what it gets alone: logits, loss, gradients, attention."""
    input_ids, labels = ragged_batch(model)
    pad = model.config.pad_token_id
    batch = model(input_ids=input_ids, labels=labels, output_attentions=True)
    total, summed = 0.0, None
    for row in range(len(input_ids)):
        source, target = _single(input_ids, labels, row, pad)
        alone = model(input_ids=source, labels=target, output_attentions=True)
        _close(batch.logits[row, : target.shape[1]], alone.logits[0])
        for together, single in zip(batch.cross_attentions or (), alone.cross_attentions or (), strict=True):
            _close(together[row, :, : target.shape[1], : source.shape[1]], single[0])
            assert (together[row, :, :, source.shape[1] :] == 0).all(), "attention on padding is not exactly 0"
        loss, gradients = _gradients(model, input_ids=source, labels=target, num_items_in_batch=1)
        total += loss
        summed = gradients if summed is None else {name: summed[name] + gradients[name] for name in summed}
    loss, gradients = _gradients(model, input_ids=input_ids, labels=labels, num_items_in_batch=1)
    _close(loss, total, 1e-4)
    _equal_gradients(gradients, summed, 1e-4)


def check_padding(model: PreTrainedModel) -> None:
    """No matter where padding stands, how much of it there is, what ids lie under it, whether its mask is given."""
    input_ids, labels = ragged_batch(model)
    pad = model.config.pad_token_id
    mask = (input_ids != pad).long()
    expected = model(input_ids=input_ids, labels=labels).logits
    _close(model(input_ids=input_ids, attention_mask=mask, labels=labels).logits, expected)
    _close(model(input_ids=input_ids.where(mask.bool(), 7), attention_mask=mask, labels=labels).logits, expected)
    wide = torch.nn.functional.pad(input_ids, (0, 5), value=pad)
    _close(model(input_ids=wide, labels=labels).logits, expected)
    left = torch.stack([row[torch.argsort((row != pad).long(), stable=True)] for row in input_ids])
    _close(model(input_ids=left, labels=labels).logits, expected)
    for beams in (1, 3):
        plain = model.generate(input_ids, attention_mask=mask, num_beams=beams, max_new_tokens=6)
        for source in (input_ids, left, wide):
            assert torch.equal(model.generate(source, num_beams=beams, max_new_tokens=6), plain)


def check_empty_source(model: PreTrainedModel) -> None:
    """A source of nothing but padding gives finite values and gradients, and leaves the other rows alone."""
    input_ids, labels = ragged_batch(model)
    expected = model(input_ids=input_ids, labels=labels).logits
    input_ids[1] = model.config.pad_token_id
    output = model(input_ids=input_ids, labels=labels, output_attentions=True)
    assert output.logits.isfinite().all()
    _close(output.logits[[0, 2]], expected[[0, 2]])
    for attention in output.cross_attentions or ():
        assert (attention[1] == 0).all()
    _, gradients = _gradients(model, input_ids=input_ids, labels=labels)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def check_generation_batch(model: PreTrainedModel) -> None:
    """Each row of a batch is generated as it is alone, greedily and by beam search, ended by end and padding."""
    input_ids, _ = ragged_batch(model)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    for beams in (1, 3):
        batch = model.generate(input_ids, num_beams=beams, max_new_tokens=7)
        for row, source in enumerate(input_ids):
            alone = model.generate(source[source != pad][None], num_beams=beams, max_new_tokens=7)[0]
            assert torch.equal(batch[row, : len(alone)], alone)
            assert (batch[row, len(alone) :] == pad).all()
        never = model.generate(input_ids, num_beams=beams, max_new_tokens=7, suppress_tokens=[end])
        assert never.shape[1] == 8, "without an end, exactly max_new_tokens are written"


def check_cache(model: PreTrainedModel) -> None:
    """Decoding with a cache is decoding without one: greedy, sampled, by beams, and by sampled beams."""
    input_ids, _ = ragged_batch(model)
    for options in (
        {},
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "num_return_sequences": 3},
        {"do_sample": True, "num_beams": 3},
    ):
        outputs = []
        for use_cache in (True, False):
            torch.manual_seed(5)
            outputs.append(
                model.generate(
                    input_ids,
                    use_cache=use_cache,
                    max_new_tokens=8,
                    output_scores=True,
                    return_dict_in_generate=True,
                    **options,
                )
            )
        cached, plain = outputs
        assert torch.equal(cached.sequences, plain.sequences), options
        for one, other in zip(cached.scores, plain.scores, strict=True):
            finite = one.isfinite()
            assert torch.equal(finite, other.isfinite())
            _close(one[finite], other[finite], 1e-4)


def check_chunked_decoding(model: PreTrainedModel) -> None:
    """Feeding a target in pieces of any size through the cache gives the logits of feeding it whole."""
    input_ids, labels = ragged_batch(model)
    target = model.prepare_decoder_input_ids_from_labels(labels)
    whole = model(input_ids=input_ids, decoder_input_ids=target, use_cache=False).logits
    for size in (1, 2, 3):
        cache, pieces = None, []
        for piece in target.split(size, dim=1):
            output = model(input_ids=input_ids, decoder_input_ids=piece, cache=cache, use_cache=True)
            cache = output.cache
            pieces.append(output.logits)
        _close(torch.cat(pieces, dim=1), whole)
        assert cache.get_seq_length() == target.shape[1]


def check_continuation(model: PreTrainedModel) -> None:
    """Going on from a returned cache gives what one longer call gives, sampling aside."""
    input_ids, _ = ragged_batch(model)
    options = {"suppress_tokens": [model.config.eos_token_id]}
    whole = model.generate(input_ids, max_new_tokens=8, **options)
    first = model.generate(input_ids, max_new_tokens=3, return_dict_in_generate=True, **options)
    rest = model.generate(input_ids, decoder_input_ids=first.sequences, cache=first.cache, max_new_tokens=5, **options)
    assert torch.equal(rest, whole)


def check_forced_prefix(model: PreTrainedModel) -> None:
    """A forced beginning is kept, and one that is padded on the left is the same as alone."""
    input_ids, _ = ragged_batch(model)
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    prefixes = ([5, 6, 7], [8], [9, 10])
    padded = torch.tensor([[pad] * (3 - len(prefix)) + [start, *prefix] for prefix in prefixes])
    mask = (padded != pad).long()
    logits = model(input_ids=input_ids, decoder_input_ids=padded, decoder_attention_mask=mask).logits
    for row, prefix in enumerate(prefixes):
        source = input_ids[row : row + 1]
        alone = model(input_ids=source, decoder_input_ids=torch.tensor([[start, *prefix]])).logits
        _close(logits[row, -len(alone[0]) :], alone[0])
        written = model.generate(source, decoder_input_ids=torch.tensor([prefix]), max_new_tokens=3, num_beams=2)
        assert written[0, : len(prefix) + 1].tolist() == [start, *prefix]


def check_beam_scores(model: PreTrainedModel) -> None:
    """The score of a beam is the teacher-forced log-probability of its text over its length."""
    input_ids, _ = ragged_batch(model)
    pad = model.config.pad_token_id
    output = model.generate(
        input_ids,
        num_beams=3,
        num_return_sequences=3,
        max_new_tokens=6,
        length_penalty=1.0,
        output_scores=True,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    sources = input_ids.repeat_interleave(3, dim=0)
    logits = model(input_ids=sources, decoder_input_ids=output.sequences[:, :-1], use_cache=False).logits
    written = output.sequences[:, 1:]
    picked = logits.log_softmax(-1).gather(2, written[:, :, None])[:, :, 0]
    # After the end only padding follows, which the model may also choose itself: the length is told by the beam.
    lengths = (output.beam_indices >= 0).sum(dim=1)
    inside = torch.arange(written.shape[1]) < lengths[:, None]
    assert (written[~inside] == pad).all()
    _close((picked * inside).sum(dim=1) / lengths, output.sequences_scores, 1e-4)


def check_encoder_outputs(model: PreTrainedModel) -> None:
    """Annotations made beforehand, and vectors in place of ids, give what ids give, and are not changed."""
    input_ids, labels = ragged_batch(model)
    mask = (input_ids != model.config.pad_token_id).long()
    encoded = model.get_encoder()(input_ids=input_ids, attention_mask=mask)
    before = encoded.last_hidden_state.clone()
    expected = model(input_ids=input_ids, labels=labels).logits
    _close(model(encoder_outputs=encoded, attention_mask=mask, labels=labels).logits, expected)
    if model.config.model_type == "attnzoo_rnnsearch":
        # Nothing but annotations is needed there; a family whose encoder returns more says so.
        _close(model(encoder_outputs=(encoded[0],), attention_mask=mask, labels=labels).logits, expected)
    embeds = model.get_input_embeddings()(input_ids)
    _close(model(inputs_embeds=embeds, attention_mask=mask, labels=labels).logits, expected)
    for options in ({}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 3}):
        plain = model.generate(input_ids, max_new_tokens=6, **options)
        assert torch.equal(
            model.generate(encoder_outputs=encoded, attention_mask=mask, max_new_tokens=6, **options), plain
        )
        assert torch.equal(
            model.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=6, **options), plain
        )
    assert torch.equal(encoded.last_hidden_state, before)


def _plain(config: PreTrainedConfig) -> dict:
    # Where a configuration came from isn't what it says.
    return {key: value for key, value in config.to_dict().items() if key not in ("_name_or_path", "dtype")}


def check_round_trip(model: PreTrainedModel) -> None:
    """Saved and loaded: bit-equal weights of the same dtype, complete, tied as before, in safetensors alone."""
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float32, torch.bfloat16):
            saved = copy.deepcopy(model).to(dtype)
            saved.save_pretrained(folder)
            saved.save_pretrained(folder)
            written = {path.suffix for path in Path(folder).iterdir()}
            assert written <= {".json", ".py", ".safetensors"}, written
            for loader in (type(model), AutoModelForSeq2SeqLM):
                loaded, info = loader.from_pretrained(folder, output_loading_info=True)
                assert not any(info.values()), info
                assert type(loaded) is type(model)
                assert not loaded.training
                expected = saved.state_dict()
                for name, tensor in loaded.state_dict().items():
                    assert torch.equal(tensor, expected[name]), name
                    assert tensor.dtype == dtype
                    assert tensor.is_contiguous()
                head, embeddings = loaded.get_output_embeddings(), loaded.get_decoder_input_embeddings()
                assert (head.weight is embeddings.weight) == bool(model.config.tie_word_embeddings)
            config = AutoConfig.from_pretrained(folder)
            assert type(config) is type(model.config)
            assert _plain(config) == _plain(saved.config)
            assert _plain(type(config).from_dict(config.to_dict())) == _plain(copy.deepcopy(config)) == _plain(config)
        assert GenerationConfig.from_pretrained(folder).decoder_start_token_id == model.config.decoder_start_token_id


def check_base_and_head(model: PreTrainedModel) -> None:
    """A head's checkpoint loads into the base class, and the base's into the head, which says what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        base, info = AutoModel.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"], info
        expected = model.base_model.state_dict()
        for name, tensor in base.state_dict().items():
            assert torch.equal(tensor, expected[name]), name
        base.save_pretrained(folder)
        assert load_file(Path(folder) / "model.safetensors").keys() <= base.state_dict().keys()
        again, info = type(model).from_pretrained(folder, output_loading_info=True)
        head = set() if model.config.tie_word_embeddings else {"lm_head.weight"}
        assert set(info["missing_keys"]) == head, info
        for name, tensor in again.base_model.state_dict().items():
            assert torch.equal(tensor, expected[name]), name


def check_refuses_pickle(model: PreTrainedModel) -> None:
    """Weights in a pickle are neither read nor run."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        torch.save(load_file(path), Path(folder) / "pytorch_model.bin")
        path.unlink()
        for options in ({}, {"use_safetensors": False}):
            try:
                type(model).from_pretrained(folder, **options)
            except (OSError, ValueError):
                continue
            raise AssertionError(f"pytorch_model.bin was loaded with {options}")


def check_accumulation(model: PreTrainedModel) -> None:
    """The losses of single rows, each divided by the labels of all, add up to that of the batch, gradients too."""
    input_ids, labels = ragged_batch(model)
    count = (labels != -100).sum()
    loss, gradients = _gradients(model, input_ids=input_ids, labels=labels)
    parts = [
        _gradients(model, input_ids=input_ids[row : row + 1], labels=labels[row : row + 1], num_items_in_batch=count)
        for row in range(3)
    ]
    _close(sum(part[0] for part in parts), loss)
    _equal_gradients(gradients, {name: sum(part[1][name] for part in parts) for name in gradients})
    logits = model(input_ids=input_ids, labels=labels).logits
    by_hand = -logits.log_softmax(-1)[labels != -100].gather(1, labels[labels != -100][:, None]).mean()
    _close(loss, by_hand.detach())


def check_gradients(model: PreTrainedModel) -> None:
    """The directional derivative of the loss is that of finite differences, in 64-bit arithmetic, in training mode."""
    model = copy.deepcopy(model).double()
    model.config.dropout = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    input_ids, labels = ragged_batch(model)
    _, gradients = _gradients(model, input_ids=input_ids, labels=labels)
    generator = torch.Generator().manual_seed(2)
    step = 1e-6
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        original = parameter.detach().clone()
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.copy_(original + sign * step * direction)
                losses.append(model(input_ids=input_ids, labels=labels).loss)
                parameter.copy_(original)
        slope = (losses[0] - losses[1]) / (2 * step)
        torch.testing.assert_close(
            (gradients[name] * direction).sum(), slope, atol=1e-7, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def check_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Computing layers a second time in the backward pass changes neither loss nor gradients, dropout included."""
    model = copy.deepcopy(model).train()
    input_ids, labels = ragged_batch(model)
    torch.manual_seed(3)
    loss, gradients = _gradients(model, input_ids=input_ids, labels=labels)
    model.activation_checkpointing_enable()
    torch.manual_seed(3)
    again, recomputed = _gradients(model, input_ids=input_ids, labels=labels)
    _close(again, loss)
    _equal_gradients(recomputed, gradients)


def check_dropout(model: PreTrainedModel) -> None:
    """Dropout acts in training and in training alone."""
    config = copy.deepcopy(model.config)
    config.dropout = 0.6
    dropped = type(model)(config)
    dropped.load_state_dict(model.state_dict())
    input_ids, labels = ragged_batch(model)
    dropped.eval()
    _close(dropped(input_ids=input_ids, labels=labels).logits, model(input_ids=input_ids, labels=labels).logits)
    dropped.train()
    losses = {dropped(input_ids=input_ids, labels=labels).loss.item() for _ in range(3)}
    assert len(losses) == 3


def check_precision(model: PreTrainedModel) -> None:
    """In 16 bits, whole or by autocast, everything stays finite and the loss near that of 32 bits."""
    input_ids, labels = ragged_batch(model)
    expected = model(input_ids=input_ids, labels=labels).loss.item()
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(model).to(dtype)
        loss, gradients = _gradients(half, input_ids=input_ids, labels=labels)
        assert abs(loss.item() - expected) < 0.1 * expected, (dtype, loss.item(), expected)
        assert all(gradient.isfinite().all() for gradient in gradients.values())
        assert half.generate(input_ids, num_beams=3, max_new_tokens=4).shape[0] == 3
        with torch.autocast("cpu", dtype=dtype):
            loss, gradients = _gradients(model, input_ids=input_ids, labels=labels)
            assert model.generate(input_ids, num_beams=2, max_new_tokens=4).shape[0] == 3
        assert abs(loss.item() - expected) < 0.1 * expected, (dtype, loss.item(), expected)
        assert all(gradient.isfinite().all() for gradient in gradients.values())


def check_resize(model: PreTrainedModel) -> None:
    """Vocabularies grow and shrink, each with its head, without touching the words that stay."""
    input_ids, labels = ragged_batch(model)
    expected = model(input_ids=input_ids, labels=labels).logits
    size = model.config.vocab_size
    for change in (5, -1):
        resized = copy.deepcopy(model)
        resized.resize_token_embeddings(size + change)
        kept = min(size, size + change)
        logits = resized(input_ids=input_ids, labels=labels).logits
        assert logits.shape[-1] == size + change == resized.config.vocab_size
        _close(logits[..., :kept], expected[..., :kept])
        _gradients(resized, input_ids=input_ids, labels=labels)
        head, embeddings = resized.get_output_embeddings(), resized.get_decoder_input_embeddings()
        assert head.weight.shape[0] == embeddings.weight.shape[0] == size + change
        assert (head.weight is embeddings.weight) == bool(model.config.tie_word_embeddings)
        with tempfile.TemporaryDirectory() as folder:
            resized.save_pretrained(folder)
            loaded = type(model).from_pretrained(folder)
        _close(loaded(input_ids=input_ids, labels=labels).logits, logits)
        assert loaded.generate(input_ids, max_new_tokens=3).shape[0] == 3
    if model.config.source_vocab_size is None:
        _refused(lambda: copy.deepcopy(model).resize_source_token_embeddings(size + 1), "source_vocab_size")
        return
    resized = copy.deepcopy(model)
    resized.resize_source_token_embeddings(model.config.source_vocab_size + 3)
    assert resized.get_input_embeddings().weight.shape[0] == model.config.source_vocab_size + 3
    assert resized.config.source_vocab_size == model.config.source_vocab_size + 3
    assert resized.config.vocab_size == size
    _close(resized(input_ids=input_ids, labels=labels).logits, expected)


def _refused(call: Callable[[], object], *words: str) -> None:
    try:
        call()
    except ValueError as error:
        message = str(error)
    else:
        raise AssertionError(f"accepted, but should have raised a ValueError that names {words}")
    missing = [word for word in words if word not in message]
    assert not missing, f"{message} does not name {missing}"


def check_refusals(model: PreTrainedModel) -> None:
    """Inputs of a wrong shape or range are refused with the argument, the value and the limit."""
    input_ids, labels = ragged_batch(model)
    target = model.prepare_decoder_input_ids_from_labels(labels)
    source_size = model.config.source_vocab_size or model.config.vocab_size
    size = model.config.vocab_size
    _refused(lambda: model(labels=labels), "input_ids", "inputs_embeds")
    _refused(lambda: model(input_ids=input_ids), "decoder_input_ids")
    high = input_ids.clone()
    high[0, 0] = source_size
    _refused(lambda: model(input_ids=high, labels=labels), "input_ids", str(source_size), str(source_size - 1))
    _refused(lambda: model(input_ids=-input_ids, labels=labels), "input_ids", "0")
    _refused(lambda: model(input_ids=input_ids, decoder_input_ids=target + size), "decoder_input_ids", str(size - 1))
    _refused(lambda: model(input_ids=input_ids, labels=labels.abs() + size), "labels", str(size - 1))
    _refused(lambda: model(input_ids=input_ids[:0], labels=labels), "input_ids", "(0, 6)")
    _refused(lambda: model(input_ids=input_ids, labels=labels[:, :0]), "labels", "(3, 0)")
    _refused(lambda: model(input_ids=input_ids[0], labels=labels), "input_ids", "(6,)")
    _refused(lambda: model(input_ids=input_ids[:2], labels=labels), "2", "3")
    short = torch.ones(3, 5)
    _refused(
        lambda: model(input_ids=input_ids, attention_mask=short, labels=labels), "attention_mask", "(3, 6)", "(3, 5)"
    )
    _refused(
        lambda: model(input_ids=input_ids, decoder_input_ids=target[:, :3], labels=labels),
        "labels",
        "(3, 3)",
        "(3, 5)",
    )
    narrow = torch.zeros(3, 6, model.get_input_embeddings().embedding_dim + 1)
    _refused(lambda: model(inputs_embeds=narrow, labels=labels), "inputs_embeds", str(narrow.shape[-1]))
    encoded = model.get_encoder()(input_ids=input_ids)
    _refused(
        lambda: model(input_ids=input_ids, encoder_outputs=encoded, labels=labels), "input_ids", "encoder_outputs"
    )
    both = model.get_input_embeddings()(input_ids)
    _refused(lambda: model(input_ids=input_ids, inputs_embeds=both, labels=labels), "input_ids", "inputs_embeds")


def check_outputs(model: PreTrainedModel) -> None:
    """Hidden states, attention, tuples and logits come as asked for, in the shapes that transformers' users expect."""
    input_ids, labels = ragged_batch(model)
    output = model(input_ids=input_ids, labels=labels, output_attentions=True, output_hidden_states=True)
    assert output.logits.shape == (3, 5, model.config.vocab_size)
    assert torch.equal(output.encoder_last_hidden_state, output.encoder_hidden_states[-1])
    assert all(states.shape[:2] == (3, 6) for states in output.encoder_hidden_states)
    assert all(states.shape[:2] == (3, 5) for states in output.decoder_hidden_states)
    for attention in output.cross_attentions or ():
        assert attention.ndim == 4
        assert (attention.shape[0], *attention.shape[2:]) == (3, 5, 6)
        assert (attention >= 0).all()
        total = attention.sum(-1)
        # The Gaussian of local-p takes something from every weight (Luong et al. 2015, equation 10).
        gaussian = getattr(model.config, "attention", None) == "local-p"
        _close(total.clamp(min=1) if gaussian else total, torch.ones_like(total))
    as_tuple = model(input_ids=input_ids, labels=labels, return_dict=False)
    assert torch.equal(as_tuple[0], output.loss)
    assert torch.equal(as_tuple[1], output.logits)
    target = model.prepare_decoder_input_ids_from_labels(labels)
    last = model(input_ids=input_ids, decoder_input_ids=target, logits_to_keep=1).logits
    _close(last, output.logits[:, -1:])
    training = copy.deepcopy(model).train()
    assert training(input_ids=input_ids, labels=labels).logits is None
    assert training(input_ids=input_ids, labels=labels, skip_logits=False).logits.shape == output.logits.shape


SEQ2SEQ_CONTRACT: tuple[Callable[[PreTrainedModel], None], ...] = (
    check_batch_equals_single,
    check_padding,
    check_empty_source,
    check_generation_batch,
    check_cache,
    check_chunked_decoding,
    check_continuation,
    check_forced_prefix,
    check_beam_scores,
    check_encoder_outputs,
    check_round_trip,
    check_base_and_head,
    check_refuses_pickle,
    check_accumulation,
    check_gradients,
    check_gradient_checkpointing,
    check_dropout,
    check_precision,
    check_resize,
    check_refusals,
    check_outputs,
)
"""What holds for every variant of every encoder-decoder; each takes a moment."""


def check_compile(model: PreTrainedModel) -> None:
    """`torch.compile` takes the forward pass without a graph break, and gives equal outputs at two shapes."""
    input_ids, labels = ragged_batch(model)
    target = model.prepare_decoder_input_ids_from_labels(labels)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for source, written in ((input_ids, target), (input_ids[:2, :5], target[:2, :3])):
        inputs = {"input_ids": source, "decoder_input_ids": written, "use_cache": False}
        _close(compiled(**inputs).logits, model(**inputs).logits)
    torch._dynamo.reset()


def check_export(model: PreTrainedModel) -> None:
    """`torch.export` with a dynamic batch and dynamic lengths gives a program that is right on others."""

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
            return self.model(**inputs, use_cache=False).logits

    input_ids, labels = ragged_batch(model)
    pad = model.config.pad_token_id
    target = model.prepare_decoder_input_ids_from_labels(labels)
    batch = torch.export.Dim("batch", min=1, max=64)
    source, written = torch.export.Dim("source", min=1, max=512), torch.export.Dim("target", min=1, max=512)
    shapes = ({0: batch, 1: source}, {0: batch, 1: source}, {0: batch, 1: written})
    with torch.no_grad():
        program = torch.export.export(
            Logits().eval(), (input_ids, (input_ids != pad).long(), target), dynamic_shapes=shapes
        ).module()
        longer = torch.cat([input_ids, input_ids[:, :3]], dim=1)
        for ids, prefix in (
            (input_ids, target),
            (longer[:2], target[:2].repeat(1, 2)),
            (input_ids[:1, :1], target[:1, :1]),
        ):
            mask = (ids != pad).long()
            expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=prefix, use_cache=False).logits
            _close(program(ids, mask, prefix), expected)


def check_remote_code(model: PreTrainedModel) -> None:
    """A saved model loads by every auto class where hf_attnzoo can't be imported; saved from there, it still does."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        model.save_pretrained(first)
        input_ids, _ = ragged_batch(model)
        expected = model.generate(input_ids, num_beams=2, max_new_tokens=6).tolist()
        script = """
            import json, sys
            sys.modules["hf_attnzoo"] = None  # an import of it now fails
            import torch
            import transformers
            folder, second, classes, input_ids = json.loads(sys.argv[1])
            for name in classes:
                loaded = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
            model.save_pretrained(second)
            again = transformers.AutoModel.from_pretrained(second, trust_remote_code=True)
            assert all(torch.equal(a, b) for a, b in zip(model.base_model.parameters(), again.parameters()))
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(second, trust_remote_code=True)
            print(json.dumps(model.generate(torch.tensor(input_ids), num_beams=2, max_new_tokens=6).tolist()))
        """
        arguments = json.dumps([str(first), str(second), list(model.config.auto_classes), input_ids.tolist()])
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(Path(folder) / "home")}
        run = subprocess.run(  # noqa: S603
            [sys.executable, "-c", textwrap.dedent(script), arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=folder,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout.splitlines()[-1]) == expected


def check_lora(model: PreTrainedModel) -> None:
    """LoRA on all linear layers is neutral at first, trains, and merges into the same outputs. Needs `peft`."""
    from peft import LoraConfig, get_peft_model

    input_ids, labels = ragged_batch(model)
    expected = model(input_ids=input_ids, labels=labels)
    config = LoraConfig(r=2, target_modules="all-linear", task_type="SEQ_2_SEQ_LM")
    adapted = get_peft_model(copy.deepcopy(model), config).eval()
    _close(adapted(input_ids=input_ids, labels=labels).logits, expected.logits)
    optimizer = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        adapted(input_ids=input_ids, labels=labels).loss.backward()
        unused = [n for n, p in adapted.named_parameters() if p.requires_grad and p.grad is None]
        assert not unused, f"adapters that nothing runs through: {unused}"
        optimizer.step()
    trained = adapted(input_ids=input_ids, labels=labels)
    assert trained.loss < expected.loss
    _close(adapted.merge_and_unload()(input_ids=input_ids, labels=labels).logits, trained.logits, 1e-4)


def check_int8(model: PreTrainedModel) -> None:
    """Dynamic 8-bit quantisation of the linear layers stays close, and the original as it was."""
    input_ids, labels = ragged_batch(model)
    before = model(input_ids=input_ids, labels=labels).logits
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)
    logits = quantized(input_ids=input_ids, labels=labels).logits
    assert (logits - before).abs().mean() < 0.1 * before.abs().mean()
    assert quantized.generate(input_ids, max_new_tokens=4).shape[0] == 3
    assert torch.equal(model(input_ids=input_ids, labels=labels).logits, before)


SEQ2SEQ_INTEGRATIONS: tuple[Callable[[PreTrainedModel], None], ...] = (
    check_compile,
    check_export,
    check_remote_code,
    check_lora,
    check_int8,
)
"""What needs a compiler, a process or another package: seconds each, for one or two variants of a family."""
