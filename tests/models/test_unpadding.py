"""Padding that is taken out changes no answer, and what is left is all that is computed."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hf_attnzoo
from hf_attnzoo import BERTForMaskedLM, GPTForCausalLM, TransformerForConditionalGeneration
from hf_attnzoo.models import unpadding
from hf_attnzoo.models.unpadding import NO_PADDING, Padding
from hf_attnzoo.testing import scattered

PAD, WORDS = 1, 20
REAL = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1]]).bool()


class TestPadding:
    def test_out_and_in_again(self):
        batch = torch.arange(1.0, 19).view(3, 3, 2)
        padding = Padding.of(REAL)
        row = padding.remove(batch)
        assert row.tolist() == [[[1, 2], [3, 4], [15, 16], [17, 18]]]
        expected = [[[1, 2], [3, 4], [0, 0]], [[0, 0]] * 3, [[0, 0], [15, 16], [17, 18]]]
        assert padding.restore(row).tolist() == padding.clear(row).tolist() == expected
        assert padding.remove(REAL.long()).tolist() == [[1, 1, 1, 1]]

    def test_gradients_take_the_same_way(self):
        batch = torch.ones(3, 3, 2, requires_grad=True)
        weights = torch.arange(18.0).view(3, 3, 2)
        padding = Padding.of(REAL)
        (padding.restore(2 * padding.remove(batch)) * weights).sum().backward()
        assert torch.equal(batch.grad, 2 * weights * REAL[:, :, None])

    def test_where_there_is_hardly_any_it_stays(self):
        real = torch.ones(4, 8, dtype=torch.bool)
        assert Padding.of(real) == NO_PADDING
        assert Padding.of(None) == NO_PADDING
        real[3, 7] = False
        padding, batch = Padding.of(real), torch.ones(4, 8, 1)
        assert padding.remove(batch) is padding.restore(batch) is batch
        assert torch.equal(padding.clear(batch)[:, :, 0], real.float())

    def test_of_nothing_else_nothing_is_left(self):
        padding = Padding.of(torch.zeros(2, 3, dtype=torch.bool))
        assert padding.remove(torch.ones(2, 3, 4)).shape == (1, 0, 4)
        assert not padding.restore(torch.ones(1, 0, 4)).any()


def build(family: str, implementation: str = "sdpa", **options):
    sizes = {"vocab_size": WORDS, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    sizes |= {"max_position_embeddings": 16, "dropout": 0.0, "attention_dropout": 0.0, **options}
    depth = {"num_hidden_layers": 2}
    if family == "Transformer":
        depth = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    config = getattr(hf_attnzoo, f"{family}Config")(**sizes, **depth)
    kinds = {
        "Transformer": TransformerForConditionalGeneration,
        "GPT": GPTForCausalLM,
        "BERT": BERTForMaskedLM,
    }
    model = scattered(kinds[family](config), 2).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(1)
    model.set_attn_implementation(implementation)
    return model


def draw_mask(draw, rows: int, length: int) -> torch.Tensor:
    """Padding on the left, on the right, anywhere, or nothing but padding; at least one position is real."""
    kinds = draw(st.lists(st.sampled_from(["left", "right", "holes", "empty"]), min_size=rows, max_size=rows))
    mask = torch.zeros(rows, length, dtype=torch.long)
    for row, kind in zip(mask, kinds, strict=True):
        size = draw(st.integers(1, length))
        if kind == "left":
            row[length - size :] = 1
        elif kind == "right":
            row[:size] = 1
        elif kind == "holes":
            row[torch.tensor(draw(st.lists(st.integers(0, length - 1), min_size=1)))] = 1
    mask[0, length // 2] = 1
    return mask


@st.composite
def batches(draw):
    family = draw(st.sampled_from(["Transformer", "GPT", "BERT"]))
    rows, length = draw(st.integers(1, 4)), draw(st.integers(2, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 100)))

    def words(width: int) -> torch.Tensor:
        return torch.randint(4, WORDS, (rows, width), generator=generator)

    mask = draw_mask(draw, rows, length)
    batch = {"input_ids": words(length), "attention_mask": mask}
    if family == "Transformer":
        target = draw_mask(draw, rows, 5)
        # What isn't labelled may stand anywhere, and is read by what comes after it.
        batch |= {"labels": words(5).masked_fill(target == 0, -100), "decoder_input_ids": words(5)}
        if draw(st.booleans()):
            batch["decoder_attention_mask"] = draw_mask(draw, rows, 5)
            batch["labels"] = batch["labels"].masked_fill(batch["decoder_attention_mask"] == 0, -100)
    else:
        batch["labels"] = batch["input_ids"].masked_fill(mask == 0, -100)
    return family, draw(st.sampled_from(["eager", "sdpa"])), draw(st.booleans()), batch


def results(model, batch, share, monkeypatch):
    """Loss and gradients of training, and everything that evaluation can return, on real positions."""
    monkeypatch.setattr(unpadding, "_LEAST", share)
    model.zero_grad()
    loss = model.train()(**batch).loss
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.eval()
    options = {"output_attentions": True, "output_hidden_states": True}
    plain, full = model(**batch), model(**batch, **options)
    source, target = batch["attention_mask"].bool(), batch["attention_mask"].bool()
    if "decoder_input_ids" in batch:
        target = batch.get("decoder_attention_mask", torch.ones(batch["labels"].shape)).bool()
    seen = {"loss": loss, "evaluated": plain.loss, "full": full.loss}
    seen |= {"logits": plain.logits[target], "logits of all": full.logits[target]}
    for name, value in full.items():
        real = source if name.startswith("encoder") else target
        if name.endswith("hidden_states"):
            seen |= {f"{name} {index}": states[real] for index, states in enumerate(value)}
        elif name.endswith("attentions"):
            seen |= {f"{name} {index}": weights.transpose(1, 2)[real] for index, weights in enumerate(value)}
    return seen, gradients


@given(problem=batches())
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_taken_out_or_not_the_answer_is_the_same(problem):
    family, implementation, norm_first, batch = problem
    model = build(family, implementation, norm_first=norm_first)
    with pytest.MonkeyPatch.context() as monkeypatch:
        # All of it is taken out, or, where less than everything isn't worth it, none.
        out, gradients = results(model, batch, 0.0, monkeypatch)
        left, expected = results(model, batch, 1.0, monkeypatch)
    assert out.keys() == left.keys()
    for name, value in out.items():
        torch.testing.assert_close(value, left[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def rows_read(model, batch) -> dict[str, set[int]]:
    """How many positions the linear layers of a part are given, by the part's name."""
    read = {}
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            part = "".join(piece for piece in ("encoder", "decoder", ".kv") if piece in name)
            module.register_forward_pre_hook(
                lambda _, inputs, part=part: read.setdefault(part, set()).add(inputs[0].shape[:-1].numel())
            )
    head = read.setdefault("head", set())
    forward = torch.nn.functional.linear

    def linear(inputs, weight, bias=None):
        if weight.shape[0] == WORDS:
            head.add(inputs.shape[:-1].numel())
        return forward(inputs, weight, bias)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(torch.nn.functional, "linear", linear)
        model(**batch).loss.backward()
    return read


IDS = torch.tensor([[5, 8, 4, 9, 3], [6, 7, 3, PAD, PAD], [9, 3, PAD, PAD, PAD]])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_transformer_computes_what_is_real(checkpointing):
    model = build("Transformer").train()
    if checkpointing:
        model.activation_checkpointing_enable()
    # The word in the middle isn't asked for, but what comes after it reads it.
    labels = torch.tensor([[7, 3, -100, -100], [8, -100, 6, 3], [-100, -100, -100, -100]])
    read = rows_read(model, {"input_ids": IDS, "labels": labels})
    assert read == {"encoder": {10}, "decoder": {6}, "decoder.kv": {10}, "head": {5}}


def test_a_gpt_computes_what_is_real():
    labels = IDS.masked_fill(IDS == PAD, -100)
    # Of each text all words but the first are predicted.
    assert rows_read(build("GPT").train(), {"input_ids": IDS, "labels": labels}) == {"": {10}, "head": {7}}
    encoder = build("GPT").model
    read = set()
    encoder.stack.layers[0].feed_forward.register_forward_pre_hook(lambda _, inputs: read.add(inputs[0].shape))
    encoder(IDS)
    encoder(IDS, use_cache=False)
    assert read == {(1, 10, 8)}


def test_a_bert_computes_what_is_real():
    labels = torch.full_like(IDS, -100)
    labels[0, 2], labels[1, 0] = 4, 6
    assert rows_read(build("BERT").train(), {"input_ids": IDS, "labels": labels}) == {"": {10}, "head": {2}}


def test_an_empty_text_says_the_same_alone_and_beside_others():
    for family in ("GPT", "BERT"):
        model = build(family)
        ids = torch.tensor([[5, 6, 7], [PAD, PAD, PAD]])
        torch.testing.assert_close(model(ids).logits[1:], model(ids[1:]).logits)
    model, target = build("Transformer"), torch.tensor([[2, 5], [2, 5]])
    together = model(input_ids=ids, decoder_input_ids=target).logits
    torch.testing.assert_close(together[1:], model(input_ids=ids[1:], decoder_input_ids=target[1:]).logits)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_packed_pairs_may_be_padded(implementation):
    model = build("Transformer", implementation)
    sources, targets = [[5, 8, 3], [6, 3], [9, 4, 4, 3]], [[7, 3], [8, 4, 3], [5, 3]]

    def packed(texts):
        """The first two in a row, the third in another, each with padding behind."""
        rows = [[*texts[0], *texts[1]], texts[2]]
        places = [[*range(len(texts[0])), *range(len(texts[1]))], [*range(len(texts[2]))]]
        filled = [[row + [filler] * (7 - len(row)) for row in table] for table, filler in ((rows, PAD), (places, 0))]
        return [torch.tensor(table) for table in filled]

    (input_ids, position_ids), (read, decoder_position_ids) = packed(sources), packed([[2, *t[:-1]] for t in targets])
    labels = packed(targets)[0]
    batch = {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "decoder_input_ids": read,
        "decoder_position_ids": decoder_position_ids,
        "decoder_attention_mask": (read != PAD).long(),
        "labels": labels.masked_fill(labels == PAD, -100),
    }
    model.train()(**batch).loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    total = 0
    for source, target in zip(sources, targets, strict=True):
        alone = model(input_ids=torch.tensor([source]), labels=torch.tensor([target]), num_items_in_batch=7)
        alone.loss.backward()
        total += alone.loss
    torch.testing.assert_close(model(**batch).loss, total)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-9, atol=1e-9)
