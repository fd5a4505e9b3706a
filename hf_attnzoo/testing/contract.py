"""The checks that every variant of a family passes; each takes a moment."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.generation import BaseStreamer

from .batches import (
    aligned_logits,
    answers_of,
    assert_close,
    assert_equal_gradients,
    auto_class_of,
    cross_attentions_of,
    decoder_of,
    loss_and_gradients,
    newly_written,
    padded_left,
    prompt_length,
    prompts_for,
    ragged_batch,
    single_row,
    source_of,
    training_batch,
    unpadded,
    written_embeddings,
)


def check_batch_equals_single(model: PreTrainedModel) -> None:
    """A padded batch gives each row what it gets alone: logits, loss, gradients, attention."""
    input_ids, labels = ragged_batch(model)
    pad = model.config.pad_token_id
    batch = model(**source_of(model, input_ids), labels=labels, output_attentions=True)
    total, summed = 0.0, None
    for row in range(len(input_ids)):
        source, target = single_row(input_ids, labels, row, pad)
        alone = model(**source_of(model, source), labels=target, output_attentions=True)
        assert_close(batch.logits[row, : target.shape[1]], alone.logits[0])
        for together, single in zip(cross_attentions_of(batch), cross_attentions_of(alone), strict=True):
            size = single.shape[-1]
            assert_close(together[row, :, : target.shape[1], :size], single[0])
            assert (together[row, :, :, size:] == 0).all(), "attention on padding is not exactly 0"
        loss, gradients = loss_and_gradients(model, **source_of(model, source), labels=target, num_items_in_batch=1)
        total += loss
        summed = gradients if summed is None else {name: summed[name] + gradients[name] for name in summed}
    loss, gradients = loss_and_gradients(model, **source_of(model, input_ids), labels=labels, num_items_in_batch=1)
    assert_close(loss, total, 1e-4)
    assert_equal_gradients(gradients, summed, 1e-4)


def check_padding(model: PreTrainedModel) -> None:
    """No matter where padding stands, how much of it there is, what ids lie under it, whether its mask is given."""
    input_ids, labels = ragged_batch(model)
    pad, causal = model.config.pad_token_id, not model.config.is_encoder_decoder
    mask = input_ids != pad
    left, wide = padded_left(input_ids, pad), torch.nn.functional.pad(input_ids, (0, 5), value=pad)

    def results(ids: Tensor, real: Tensor, **options: Tensor) -> tuple[Tensor, Tensor]:
        output = model(input_ids=ids, labels=ids.masked_fill(~real, -100) if causal else labels, **options)
        return output.loss, output.logits[real] if causal else output.logits

    expected = results(input_ids, mask)
    for ids, real, options in (
        (input_ids, mask, {"attention_mask": mask.long()}),
        (input_ids.where(mask, 7), mask, {"attention_mask": mask.long()}),
        (wide, wide != pad, {}),
        (left, left != pad, {}),
    ):
        for result, wanted in zip(results(ids, real, **options), expected, strict=True):
            assert_close(result, wanted)
    prompts = prompts_for(model)
    others = [prompts, torch.nn.functional.pad(prompts, (5, 0), value=pad)]
    others += [] if causal else [left, wide]
    for beams in (1, 3):
        options = {"num_beams": beams, "max_new_tokens": 6}
        plain = newly_written(model, prompts, attention_mask=(prompts != pad).long(), **options)
        for other in others:
            assert torch.equal(newly_written(model, other, **options), plain)


def check_empty_text(model: PreTrainedModel) -> None:
    """A text of nothing but padding gives finite values and gradients, and leaves the other rows alone."""
    input_ids, labels = ragged_batch(model)
    expected = model(input_ids=input_ids, labels=labels).logits
    input_ids[1] = model.config.pad_token_id
    if not model.config.is_encoder_decoder:
        labels[1] = -100
    output = model(input_ids=input_ids, labels=labels, output_attentions=True)
    assert output.logits.isfinite().all()
    assert_close(output.logits[[0, 2]], expected[[0, 2]])
    for attention in cross_attentions_of(output):
        assert (attention[1] == 0).all()
    _, gradients = loss_and_gradients(model, input_ids=input_ids, labels=labels)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def check_generation_batch(model: PreTrainedModel) -> None:
    """Each row of a batch is generated as it is alone, greedily and by beam search, ended by end and padding."""
    prompts = prompts_for(model)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    for beams in (1, 3):
        batch = newly_written(model, prompts, num_beams=beams, max_new_tokens=7)
        for row in range(len(prompts)):
            alone = newly_written(model, unpadded(prompts, row, pad), num_beams=beams, max_new_tokens=7)[0]
            assert torch.equal(batch[row, : len(alone)], alone)
            assert (batch[row, len(alone) :] == pad).all()
        never = newly_written(model, prompts, num_beams=beams, max_new_tokens=7, suppress_tokens=[end])
        assert never.shape[1] == 7, "without an end, exactly max_new_tokens are written"


def check_streaming(model: PreTrainedModel) -> None:
    """`generate(streamer=...)` is told every token as it is written; beams, which have none yet, are refused."""

    class Collector(BaseStreamer):
        def __init__(self):
            self.told, self.ended = [], False

        def put(self, value: Tensor) -> None:
            self.told.append(value.flatten().tolist())

        def end(self) -> None:
            self.ended = True

    prompt, streamer = prompts_for(model)[:1], Collector()
    options = {"max_new_tokens": 5, "suppress_tokens": [model.config.eos_token_id]}
    whole = model.generate(prompt, **options)[0].tolist()
    model.generate(prompt, streamer=streamer, **options)
    start = prompt_length(model, prompt)
    assert streamer.ended
    assert streamer.told == [whole[:start], *([index] for index in whole[start:])]
    assert_refused(lambda: model.generate(prompt, streamer=Collector(), num_beams=2, **options), "streamer", "beam")


def check_cache(model: PreTrainedModel) -> None:
    """Decoding with a cache is decoding without one: greedy, sampled, by beams, and by sampled beams."""
    prompts = prompts_for(model)
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
                    prompts,
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
            assert_close(one[finite], other[finite], 1e-4)


def check_chunked_decoding(model: PreTrainedModel) -> None:
    """Feeding a target in pieces of any size through the cache gives the logits of feeding it whole."""
    target, decode = decoder_of(model)
    whole = decode(target, use_cache=False).logits
    for size in (1, 2, 3):
        cache, pieces = None, []
        for piece in target.split(size, dim=1):
            output = decode(piece, cache=cache, use_cache=True)
            cache = output.cache
            pieces.append(output.logits)
        assert_close(torch.cat(pieces, dim=1), whole)
        assert cache.get_seq_length() == target.shape[1]


def check_continuation(model: PreTrainedModel) -> None:
    """Going on from a returned cache gives what one longer call gives, sampling aside."""
    prompts = prompts_for(model)
    options = {"suppress_tokens": [model.config.eos_token_id]}
    whole = model.generate(prompts, max_new_tokens=8, **options)
    first = model.generate(prompts, max_new_tokens=3, return_dict_in_generate=True, **options)
    if model.config.is_encoder_decoder:
        inputs = {**source_of(model, prompts), "decoder_input_ids": first.sequences}
    else:
        mask = (prompts != model.config.pad_token_id).long()
        inputs = {
            "input_ids": first.sequences,
            "attention_mask": torch.nn.functional.pad(mask, (0, 3), value=1),
        }
    rest = model.generate(**inputs, cache=first.cache, max_new_tokens=5, **options)
    assert torch.equal(rest, whole)


def check_forced_prefix(model: PreTrainedModel) -> None:
    """A forced beginning is kept, and one that is padded on the left is the same as alone."""
    input_ids, _ = ragged_batch(model)
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    prefixes = ([5, 6, 7], [8], [9, 10])
    padded = torch.tensor([[pad] * (3 - len(prefix)) + [start, *prefix] for prefix in prefixes])
    mask = (padded != pad).long()
    logits = model(**source_of(model, input_ids), decoder_input_ids=padded, decoder_attention_mask=mask).logits
    for row, prefix in enumerate(prefixes):
        source = input_ids[row : row + 1]
        alone = model(**source_of(model, source), decoder_input_ids=torch.tensor([[start, *prefix]])).logits
        assert_close(logits[row, -len(alone[0]) :], alone[0])
        written = model.generate(source, decoder_input_ids=torch.tensor([prefix]), max_new_tokens=3, num_beams=2)
        assert written[0, : len(prefix) + 1].tolist() == [start, *prefix]


def check_beam_scores(model: PreTrainedModel) -> None:
    """The score of a beam is the teacher-forced log-probability of its text over its length."""
    prompts = prompts_for(model)
    pad, start = model.config.pad_token_id, prompt_length(model, prompts)
    output = model.generate(
        prompts,
        num_beams=3,
        num_return_sequences=3,
        max_new_tokens=6,
        length_penalty=1.0,
        output_scores=True,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    prompts, read, written = prompts.repeat_interleave(3, dim=0), output.sequences[:, :-1], output.sequences[:, start:]
    if model.config.is_encoder_decoder:
        logits = model(**source_of(model, prompts), decoder_input_ids=read, use_cache=False).logits
    else:
        mask = torch.nn.functional.pad((prompts != pad).long(), (0, read.shape[1] - start), value=1)
        logits = model(input_ids=read, attention_mask=mask, use_cache=False).logits[:, start - 1 :]
    picked = logits.log_softmax(-1).gather(2, written[:, :, None])[:, :, 0]
    # After the end only padding follows, which the model may also choose itself: the length is told by the beam.
    lengths = (output.beam_indices >= 0).sum(dim=1)
    inside = torch.arange(written.shape[1]) < lengths[:, None]
    assert (written[~inside] == pad).all()
    assert_close((picked * inside).sum(dim=1) / lengths, output.sequences_scores, 1e-4)


def check_encoder_outputs(model: PreTrainedModel) -> None:
    """Annotations made beforehand, and vectors in place of ids, give what ids give, and are not changed."""
    input_ids, labels = ragged_batch(model)
    mask = (input_ids != model.config.pad_token_id).long()
    encoded = model.get_encoder()(input_ids=input_ids, attention_mask=mask)
    before = encoded.last_hidden_state.clone()
    expected = model(input_ids=input_ids, labels=labels).logits
    assert_close(model(encoder_outputs=encoded, attention_mask=mask, labels=labels).logits, expected)
    # Vectors don't tell which words they are, which a model that copies them wants to know.
    words = {"copy_ids": input_ids} if getattr(model.config, "copy", False) else {}
    if model.config.model_type in ("attnzoo_rnnsearch", "attnzoo_transformer"):
        # Nothing but annotations is needed there; a family whose encoder returns more says so.
        assert_close(
            model(encoder_outputs=(encoded[0],), attention_mask=mask, labels=labels, **words).logits, expected
        )
    embeds = model.get_input_embeddings()(input_ids)
    assert_close(model(inputs_embeds=embeds, attention_mask=mask, labels=labels, **words).logits, expected)
    for options in ({}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 3}):
        plain = model.generate(input_ids, max_new_tokens=6, **options)
        assert torch.equal(
            model.generate(encoder_outputs=encoded, attention_mask=mask, max_new_tokens=6, **options), plain
        )
        assert torch.equal(
            model.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=6, **options, **words), plain
        )
    assert torch.equal(encoded.last_hidden_state, before)


def check_inputs_embeds(model: PreTrainedModel) -> None:
    """Vectors in place of ids give what ids give, in a forward pass and as a prompt."""
    input_ids, labels = ragged_batch(model)
    pad, embed = model.config.pad_token_id, model.get_input_embeddings()
    mask = (input_ids != pad).long()
    expected = model(input_ids=input_ids, labels=labels)
    output = model(inputs_embeds=embed(input_ids), attention_mask=mask, labels=labels)
    assert_close(output.logits, expected.logits)
    assert_close(output.loss, expected.loss)
    prompts = prompts_for(model)
    for options in ({}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 3}):
        plain = newly_written(model, prompts, max_new_tokens=6, **options)
        mask = (prompts != pad).long()
        # Ids are returned for what is new, since nothing is known of those of the prompt.
        written = model.generate(inputs_embeds=embed(prompts), attention_mask=mask, max_new_tokens=6, **options)
        assert torch.equal(written, plain)


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
            for loader in (type(model), getattr(transformers, auto_class_of(model))):
                loaded, info = loader.from_pretrained(folder, output_loading_info=True)
                assert not any(info.values()), info
                assert type(loaded) is type(model)
                assert not loaded.training
                expected = saved.state_dict()
                for name, tensor in loaded.state_dict().items():
                    assert torch.equal(tensor, expected[name]), name
                    assert tensor.dtype == expected[name].dtype
                    assert tensor.is_contiguous()
                head = loaded.get_output_embeddings()
                if head is not None:
                    tied = head.weight is written_embeddings(loaded).weight
                    assert tied == bool(model.config.tie_word_embeddings)
            config = AutoConfig.from_pretrained(folder)
            assert type(config) is type(model.config)
            assert _plain(config) == _plain(saved.config)
            assert _plain(type(config).from_dict(config.to_dict())) == _plain(copy.deepcopy(config)) == _plain(config)
        if not model.can_generate():
            return
        generation_config = GenerationConfig.from_pretrained(folder)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            assert getattr(generation_config, name) == getattr(model.config, name, None), name


def check_base_and_head(model: PreTrainedModel) -> None:
    """A head's checkpoint loads into the base class, and the base's into the head, which says what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        base, info = AutoModel.from_pretrained(folder, output_loading_info=True)
        expected = model.base_model.state_dict()
        # A head may do without a part of the base model, such as a pooler.
        assert set(info["missing_keys"]) == base.state_dict().keys() - expected.keys(), info
        for name, tensor in expected.items():
            assert torch.equal(tensor, base.state_dict()[name]), name
        base.save_pretrained(folder)
        assert load_file(Path(folder) / "model.safetensors").keys() <= base.state_dict().keys()
        again, info = type(model).from_pretrained(folder, output_loading_info=True)
        own = {name for name in model.state_dict() if not name.startswith(f"{model.base_model_prefix}.")}
        assert set(info["missing_keys"]) == own - model.all_tied_weights_keys.keys(), info
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
    loss, gradients = loss_and_gradients(model, **source_of(model, input_ids), labels=labels)
    output = model(**source_of(model, input_ids), labels=labels, output_attentions=True)
    predicted, aligned = aligned_logits(model, output.logits, labels)
    count = (aligned != -100).sum()
    parts = [
        loss_and_gradients(
            model, **source_of(model, input_ids[row : row + 1]), labels=labels[row : row + 1], num_items_in_batch=count
        )
        for row in range(3)
    ]
    assert_close(sum(part[0] for part in parts), loss)
    assert_equal_gradients(gradients, {name: sum(part[1][name] for part in parts) for name in gradients})
    by_hand = -predicted.log_softmax(-1)[aligned != -100].gather(1, aligned[aligned != -100][:, None]).mean()
    if getattr(model.config, "coverage", False):
        (weights,) = (attention[:, 0] for attention in cross_attentions_of(output))
        before = [weights[:, :step].sum(dim=1) for step in range(weights.shape[1])]
        repeated = torch.minimum(weights, torch.stack(before, dim=1)).sum(dim=-1)
        by_hand += model.config.coverage_loss_weight * repeated[aligned != -100].mean()
    assert_close(loss, by_hand.detach())


def check_gradients(model: PreTrainedModel) -> None:
    """The directional derivative of the loss is that of finite differences, in 64-bit arithmetic, in training mode."""
    model = copy.deepcopy(model).double()
    model.config.dropout = 0.0
    if hasattr(model.config, "expected_attention_rate"):
        # A sample has no derivative: hard attention is to read what it expects.
        model.config.expected_attention_rate = 1.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    batch = training_batch(model)
    _, gradients = loss_and_gradients(model, **batch)
    generator = torch.Generator().manual_seed(2)
    step = 1e-6
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        original = parameter.detach().clone()
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.copy_(original + sign * step * direction)
                losses.append(model(**batch).loss)
                parameter.copy_(original)
        slope = (losses[0] - losses[1]) / (2 * step)
        torch.testing.assert_close(
            (gradients[name] * direction).sum(), slope, atol=1e-7, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def check_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Computing layers a second time in the backward pass changes neither loss nor gradients, dropout included."""
    # Two copies: a training step may leave a trace, such as a moving average.
    model, saving = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    batch = training_batch(model)
    torch.manual_seed(3)
    loss, gradients = loss_and_gradients(model, **batch)
    saving.activation_checkpointing_enable()
    torch.manual_seed(3)
    again, recomputed = loss_and_gradients(saving, **batch)
    assert_close(again, loss)
    assert_equal_gradients(recomputed, gradients)


def check_dropout(model: PreTrainedModel) -> None:
    """Dropout acts in training and in training alone."""
    config = copy.deepcopy(model.config)
    config.dropout = 0.6
    dropped = type(model)(config)
    dropped.load_state_dict(model.state_dict())
    batch = training_batch(model)
    dropped.eval()
    assert_close(answers_of(dropped(**batch)), answers_of(model(**batch)))
    dropped.train()
    losses = {dropped(**batch).loss.item() for _ in range(3)}
    assert len(losses) == 3


def check_precision(model: PreTrainedModel) -> None:
    """In 16 bits, whole or by autocast, everything stays finite and the loss near that of 32 bits."""
    batch = training_batch(model)
    prompts = prompts_for(model) if model.can_generate() else None
    expected = model(**batch).loss.item()
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(model).to(dtype)
        loss, gradients = loss_and_gradients(half, **batch)
        assert abs(loss.item() - expected) < 0.1 * expected, (dtype, loss.item(), expected)
        assert all(gradient.isfinite().all() for gradient in gradients.values())
        if prompts is not None:
            assert half.generate(prompts, num_beams=3, max_new_tokens=4).shape[0] == 3
        with torch.autocast("cpu", dtype=dtype):
            loss, gradients = loss_and_gradients(model, **batch)
            if prompts is not None:
                assert model.generate(prompts, num_beams=2, max_new_tokens=4).shape[0] == 3
        assert abs(loss.item() - expected) < 0.1 * expected, (dtype, loss.item(), expected)
        assert all(gradient.isfinite().all() for gradient in gradients.values())


def _ratios_of_others(input_ids: Tensor, log_probs: Tensor) -> Tensor:
    """Log-probabilities of words that can't be copied, as they are to each other."""
    others = [word for word in range(log_probs.shape[-1]) if word not in input_ids]
    return log_probs[..., others] - log_probs[..., others[:1]]


def check_resize(model: PreTrainedModel) -> None:
    """Vocabularies grow and shrink, each with its head, without touching the words that stay."""
    input_ids, labels = ragged_batch(model)
    expected = model(**source_of(model, input_ids), labels=labels).logits
    size = model.config.vocab_size
    for change in (5, -1):
        resized = copy.deepcopy(model)
        resized.resize_token_embeddings(size + change)
        kept = min(size, size + change)
        logits = resized(**source_of(model, input_ids), labels=labels).logits
        assert logits.shape[-1] == size + change == resized.config.vocab_size
        if getattr(model.config, "copy", False):
            # Probabilities in place of logits: how many words share them matters, but not to their ratios.
            assert_close(*(_ratios_of_others(input_ids, scores[..., :kept]) for scores in (logits, expected)))
        else:
            assert_close(logits[..., :kept], expected[..., :kept])
        loss_and_gradients(resized, **source_of(model, input_ids), labels=labels)
        head, embeddings = resized.get_output_embeddings(), written_embeddings(resized)
        assert head.weight.shape[0] == embeddings.weight.shape[0] == size + change
        assert (head.weight is embeddings.weight) == bool(model.config.tie_word_embeddings)
        with tempfile.TemporaryDirectory() as folder:
            resized.save_pretrained(folder)
            loaded = type(model).from_pretrained(folder)
        assert_close(loaded(**source_of(model, input_ids), labels=labels).logits, logits)
        assert loaded.generate(prompts_for(model), max_new_tokens=3).shape[0] == 3
    if not hasattr(model, "resize_source_token_embeddings"):
        return
    if model.config.source_vocab_size is None:
        assert_refused(lambda: copy.deepcopy(model).resize_source_token_embeddings(size + 1), "source_vocab_size")
        return
    resized = copy.deepcopy(model)
    resized.resize_source_token_embeddings(model.config.source_vocab_size + 3)
    assert resized.get_input_embeddings().weight.shape[0] == model.config.source_vocab_size + 3
    assert resized.config.source_vocab_size == model.config.source_vocab_size + 3
    assert resized.config.vocab_size == size
    assert_close(resized(**source_of(model, input_ids), labels=labels).logits, expected)


def assert_refused(call: Callable[[], object], *words: str) -> None:
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
    size = model.config.vocab_size
    source_size = getattr(model.config, "source_vocab_size", None) or size
    assert_refused(lambda: model(labels=labels), "input_ids", "inputs_embeds")
    high = input_ids.clone()
    high[0, 0] = source_size
    assert_refused(lambda: model(input_ids=high, labels=labels), "input_ids", str(source_size), str(source_size - 1))
    assert_refused(lambda: model(input_ids=-input_ids, labels=labels), "input_ids", "0")
    assert_refused(lambda: model(input_ids=input_ids, labels=labels.abs() + size), "labels", str(size - 1))
    assert_refused(lambda: model(input_ids=input_ids[:0], labels=labels), "input_ids", "(0, 6)")
    assert_refused(lambda: model(input_ids=input_ids, labels=labels[:, :0]), "labels", "(3, 0)")
    assert_refused(lambda: model(input_ids=input_ids[0], labels=labels), "input_ids", "(6,)")
    assert_refused(lambda: model(input_ids=input_ids[:2], labels=labels), "2", "3")
    short = torch.ones(3, 5)
    assert_refused(
        lambda: model(input_ids=input_ids, attention_mask=short, labels=labels), "attention_mask", "(3, 6)", "(3, 5)"
    )
    narrow = torch.zeros(3, 6, model.get_input_embeddings().embedding_dim + 1)
    assert_refused(lambda: model(inputs_embeds=narrow, labels=labels), "inputs_embeds", str(narrow.shape[-1]))
    both = model.get_input_embeddings()(input_ids)
    assert_refused(lambda: model(input_ids=input_ids, inputs_embeds=both, labels=labels), "input_ids", "inputs_embeds")


def check_decoder_refusals(model: PreTrainedModel) -> None:
    """So are a source given twice, and decoder inputs that are missing, out of range, or don't fit the labels."""
    input_ids, labels = ragged_batch(model)
    source = source_of(model, input_ids)
    target = model.prepare_decoder_input_ids_from_labels(labels)
    size = model.config.vocab_size
    assert_refused(lambda: model(**source), "decoder_input_ids")
    assert_refused(lambda: model(**source, decoder_input_ids=target + size), "decoder_input_ids", str(size - 1))
    assert_refused(
        lambda: model(**source, decoder_input_ids=target[:, :3], labels=labels),
        "labels",
        "(3, 3)",
        "(3, 5)",
    )
    encoded = model.get_encoder()(**source)
    assert_refused(
        lambda: model(**source, encoder_outputs=encoded, labels=labels), model.main_input_name, "encoder_outputs"
    )


def check_cache_refusals(model: PreTrainedModel) -> None:
    """So are a cache of other texts, and one that has seen all there is."""
    prompts = prompts_for(model)
    cache = model(input_ids=prompts, use_cache=True).cache
    assert_refused(lambda: model(input_ids=prompts[:2], cache=cache), "input_ids", "2", "3")
    assert_refused(lambda: model.generate(prompts, cache=cache, max_new_tokens=2), "input_ids", "6")


def check_outputs(model: PreTrainedModel) -> None:
    """Tuples, logits and losses come as asked for, in the shapes that transformers' users expect."""
    input_ids, labels = ragged_batch(model)
    output = model(**source_of(model, input_ids), labels=labels)
    assert output.logits.shape == (*labels.shape, model.config.vocab_size)
    as_tuple = model(**source_of(model, input_ids), labels=labels, return_dict=False)
    assert torch.equal(as_tuple[0], output.loss)
    assert torch.equal(as_tuple[1], output.logits)
    target, decode = decoder_of(model)
    logits = decode(target).logits
    assert_close(decode(target, logits_to_keep=1).logits, logits[:, -1:])
    assert_close(decode(target, logits_to_keep=torch.tensor([0, 2])).logits, logits[:, [0, 2]])
    training = copy.deepcopy(model).train()
    assert training(**source_of(model, input_ids), labels=labels).logits is None
    assert (
        training(**source_of(model, input_ids), labels=labels, skip_logits=False).logits.shape == output.logits.shape
    )


def check_encoder_decoder_outputs(model: PreTrainedModel) -> None:
    """So do hidden states and attention of an encoder-decoder."""
    input_ids, labels = ragged_batch(model)
    output = model(input_ids=input_ids, labels=labels, output_attentions=True, output_hidden_states=True)
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
        assert_close(total.clamp(min=1) if gaussian else total, torch.ones_like(total))


def check_hidden_states(model: PreTrainedModel) -> None:
    """So do the hidden states of a causal language model: the word vectors, and every layer's, of real positions."""
    input_ids, _ = ragged_batch(model)
    pad = model.config.pad_token_id
    output = model.base_model(input_ids=input_ids, output_hidden_states=True)
    assert len(output.hidden_states) == 1 + model.config.num_hidden_layers
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    for row, ids in enumerate(padded_left(input_ids, pad)):
        real = ids != pad
        one = model.base_model(input_ids=ids[None], output_hidden_states=True)
        for states, alone in zip(output.hidden_states, one.hidden_states, strict=True):
            assert states.shape[:2] == (3, 6)
            assert_close(alone[0, real], states[row, : real.sum()])
