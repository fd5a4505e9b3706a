"""RNNsearch against the equations of Bahdanau, Cho and Bengio (2015), appendix A, written out word by word.

The reference knows one sentence at a time, one word at a time, one source position at a time: no batch, no padding, no
mask, no recurrent or attention module. Values and the gradient of every parameter must agree in double precision.
"""

import itertools
import math

import pytest
import torch

from hf_attnzoo.models.attentive_gru import _AttentiveGRU
from hf_attnzoo.models.configuration_rnnsearch import RNNSearchConfig
from hf_attnzoo.models.modeling_rnnsearch import RNNSearchForConditionalGeneration

EMBEDDING, HIDDEN, ATTENTION, MAXOUT = 3, 4, 5, 2
VOCAB, SOURCE_VOCAB = 9, 11
START = 2
# Layers of the encoder and of the decoder.
EQUAL, UNEQUAL = [(1, 1), (2, 2)], [(1, 2), (2, 1)]
SOURCES = [[5, 8, 4, 3], [6, 3], [3]]
TARGETS = [[7, 4, 3], [3], [8, 8, 5, 3]]
# Every size differs from every other, so that no product works out with its sides exchanged.
SIZES = {"embedding_size": EMBEDDING, "hidden_size": HIDDEN, "maxout_size": MAXOUT, "vocab_size": VOCAB}


class Reference:
    """Appendix A, with the parameters of a checkpoint as its matrices.

    The update gate z of the paper is 1 - z of PyTorch, whose sign the checkpoint keeps. 1 - sigmoid(a) is sigmoid(-a):
    the rows of z change their sign here, once and for all.
    """

    def __init__(self, parameters: dict[str, torch.Tensor], config: RNNSearchConfig, kept: float = 1.0):
        self.config = config
        # what a dropout multiplies by, wherever there is one
        self.kept = kept
        self.parameters = {
            name.removeprefix("model."): self.paper_sign(name, value) for name, value in parameters.items()
        }

    def paper_sign(self, name, value):
        gates = ("input_proj", "hidden_proj", "gate_proj", "context_proj", "upper_projs")
        if not any(part in name for part in gates):
            return value
        return torch.cat([value[:HIDDEN], -value[HIDDEN : 2 * HIDDEN], value[2 * HIDDEN :]])

    def linear(self, name, x):
        product = self.parameters[f"{name}.weight"] @ x
        bias = self.parameters.get(f"{name}.bias")
        return product if bias is None else product + bias

    def gru(self, cell, given, h):
        """A.1.1: `given` holds what the inputs add to the arguments of r, z and the proposal."""
        given_r, given_z, given_h = given[:HIDDEN], given[HIDDEN : 2 * HIDDEN], given[2 * HIDDEN :]
        if self.config.reset_after:
            recurrent = self.linear(f"{cell}.hidden_proj", h)
            r = torch.sigmoid(given_r + recurrent[:HIDDEN])
            z = torch.sigmoid(given_z + recurrent[HIDDEN : 2 * HIDDEN])
            proposal = torch.tanh(given_h + r * recurrent[2 * HIDDEN :])
        else:
            recurrent = self.linear(f"{cell}.gate_proj", h)
            r = torch.sigmoid(given_r + recurrent[:HIDDEN])
            z = torch.sigmoid(given_z + recurrent[HIDDEN:])
            proposal = torch.tanh(given_h + self.linear(f"{cell}.candidate_proj", r * h))
        return (1 - z) * h + z * proposal

    def encode(self, words):
        """A.2.1, one layer on top of the other: annotations h_1 .. h_Tx."""
        outputs = [self.parameters["encoder.embed_tokens.weight"][word] for word in words]
        zero = torch.zeros(HIDDEN, dtype=torch.float64)
        for layer in range(self.config.num_encoder_layers):
            name = f"encoder.layers.{layer}"
            inputs = [self.kept * x for x in outputs]
            forward, h = [], zero
            for x in inputs:
                h = self.gru(f"{name}.forward_rnn.cell", self.linear(f"{name}.forward_rnn.input_proj", x), h)
                forward.append(h)
            backward, h = [], zero
            for x in reversed(inputs) if self.config.bidirectional else ():
                h = self.gru(f"{name}.backward_rnn.cell", self.linear(f"{name}.backward_rnn.input_proj", x), h)
                backward.insert(0, h)
            outputs = [torch.cat(pair) for pair in zip(forward, backward, strict=True)] if backward else forward
        return outputs

    def align(self, s, annotations):
        """A.1.2: e_ij = v^T tanh(W_a s_{i-1} + U_a h_j), alpha_ij = exp(e_ij) / sum_k exp(e_ik)."""
        v = self.parameters["decoder.step.attention.v"]
        energies = []
        for h in annotations:
            hidden = self.linear("decoder.step.attention.query_proj", s)
            hidden = hidden + self.linear("decoder.step.attention.key_proj", h)
            energies.append((v * torch.tanh(hidden)).sum())
        exponentials = [torch.exp(energy) for energy in energies]
        return [one / sum(exponentials) for one in exponentials]

    def decode(self, annotations, words):
        """A.2.2 for a given target."""
        layers = self.config.num_decoder_layers
        embedding = self.parameters.get("decoder.embed_tokens.weight", self.parameters["encoder.embed_tokens.weight"])
        # The state that ends the encoder's last reading: the backward one at the first word, if there is one.
        end = annotations[0][HIDDEN:] if self.config.bidirectional else annotations[-1]
        first = torch.tanh(self.linear("decoder.initial_proj", end))
        states = [first[layer * HIDDEN : (layer + 1) * HIDDEN] for layer in range(layers)]
        fixed = torch.cat([annotations[-1][:HIDDEN], annotations[0][HIDDEN:]])
        seen = {"initial": torch.cat(states), "alpha": [], "context": [], "maxout": [], "logits": [], "state": []}
        loss = 0
        for previous, word in zip([START, *words[:-1]], words, strict=True):
            y = self.kept * embedding[previous]
            s = states[-1]
            given = self.linear("decoder.input_proj", y)
            if self.config.attention == "additive":
                alpha = self.align(s, annotations)
                context = sum(weight * h for weight, h in zip(alpha, annotations, strict=True))
                given = given + self.linear("decoder.step.context_proj", context)
                seen["alpha"].append(torch.stack(alpha))
            else:
                context = fixed
                given = given + self.linear("decoder.fixed_context_proj", context)
            new_states = [self.gru("decoder.step.cells.0", given, states[0])]
            for layer in range(1, layers):
                given = self.linear(f"decoder.step.upper_projs.{layer - 1}", self.kept * new_states[-1])
                new_states.append(self.gru(f"decoder.step.cells.{layer}", given, states[layer]))
            states = new_states

            deep = self.linear("decoder.state_readout", s)
            deep = deep + self.linear("decoder.word_readout", y)
            deep = deep + self.linear("decoder.context_readout", context)
            # The paper pairs t~_{2j-1} with t~_{2j}; the checkpoint's rows are ordered so that j stands with j + l.
            size = self.config.maxout_size
            maxout = self.kept * torch.stack([torch.maximum(deep[j], deep[j + size]) for j in range(size)])
            logits = self.linear("lm_head", maxout)
            loss = loss + torch.log(torch.exp(logits).sum()) - logits[word]
            for name, value in (("context", context), ("maxout", maxout), ("logits", logits)):
                seen[name].append(value)
            seen["state"].append(torch.cat(states))
        return loss, seen


def build(**choices) -> RNNSearchForConditionalGeneration:
    """A model in double precision whose parameters are all far from 0, `v` and the biases too."""
    if choices.get("attention", "additive") == "additive":
        choices["attention_size"] = ATTENTION
    torch.manual_seed(5)
    model = RNNSearchForConditionalGeneration(RNNSearchConfig(**SIZES | choices)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


def reference_of(model, kept=1.0):
    copies = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    return copies, Reference(copies, model.config, kept)


def right_padded(rows, filler):
    width = max(map(len, rows))
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows])


def close(actual, expected):
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("reset_after", "attention", "bidirectional", "layers", "separate"),
    [
        *itertools.product([True, False], ["additive", "none"], [True, False], EQUAL, [False, True]),
        *itertools.product([True], ["additive", "none"], [True, False], UNEQUAL, [False]),
    ],
)
def test_values_and_gradients_are_those_of_the_equations(reset_after, attention, bidirectional, layers, separate):
    model = build(
        reset_after=reset_after,
        attention=attention,
        bidirectional=bidirectional,
        num_encoder_layers=layers[0],
        num_decoder_layers=layers[1],
        source_vocab_size=SOURCE_VOCAB if separate else None,
    )
    steps = []
    model.model.decoder.step.register_forward_hook(lambda module, inputs, outputs: steps.append((inputs, outputs)))
    # Under the mask stands a word, not padding: nothing but the mask may hide it.
    input_ids = right_padded(SOURCES, filler=7)
    mask = torch.tensor([[1] * len(row) + [0] * (input_ids.shape[1] - len(row)) for row in SOURCES])
    labels = right_padded(TARGETS, filler=-100)
    outputs = model(
        input_ids=input_ids,
        attention_mask=mask,
        labels=labels,
        use_cache=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    maxout = model.model(
        input_ids=input_ids,
        attention_mask=mask,
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
    ).last_hidden_state
    outputs.loss.backward()

    copies, reference = reference_of(model)
    losses = []
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        annotations = reference.encode(source)
        loss, seen = reference.decode(annotations, target)
        losses.append(loss)
        size, length = len(source), len(target)
        close(outputs.encoder_last_hidden_state[row, :size], torch.stack(annotations))
        assert not outputs.encoder_last_hidden_state[row, size:].any()
        close(torch.cat(steps[0][0][6:], dim=-1)[row], seen["initial"])
        close(maxout[row, :length], torch.stack(seen["maxout"]))
        close(outputs.logits[row, :length], torch.stack(seen["logits"]))
        for step, state in enumerate(seen["state"]):
            close(torch.cat(steps[step][1][2:], dim=-1)[row], state)
        hidden = torch.cat(outputs.decoder_hidden_states[1:], dim=-1)
        close(hidden[row, :length], torch.stack(seen["state"]))
        if attention == "none":
            assert outputs.cross_attentions is None
            close(outputs.cache.memory["context"][row], seen["context"][0])
            continue
        for step, context in enumerate(seen["context"]):
            close(steps[step][1][0][row], context)
        weights = outputs.cross_attentions[0][row, 0]
        close(weights[:length, :size], torch.stack(seen["alpha"]))
        assert not weights[:, size:].any()

    total = sum(losses) / sum(map(len, TARGETS))
    total.backward()
    close(outputs.loss, total)
    for name, parameter in model.named_parameters():
        assert copies[name].grad.any(), name
        close(parameter.grad, copies[name].grad)


@pytest.mark.parametrize("given_mask", [True, False])
@pytest.mark.parametrize("attention", ["additive", "none"])
def test_padding_may_stand_anywhere_in_a_source(attention, given_mask):
    model = build(attention=attention, num_encoder_layers=2)
    pad = model.config.pad_token_id
    input_ids = torch.tensor([[5, 8, 4, 3, pad, pad], [pad, 6, pad, pad, 3, pad], [pad, pad, pad, pad, pad, 3]])
    labels = right_padded(TARGETS, filler=-100)
    mask = (input_ids != pad).long() if given_mask else None
    outputs = model(input_ids=input_ids, attention_mask=mask, labels=labels, output_attentions=True)

    _, reference = reference_of(model)
    losses = []
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        places = (input_ids[row] != pad).nonzero()[:, 0]
        annotations = reference.encode(source)
        loss, seen = reference.decode(annotations, target)
        losses.append(loss)
        close(outputs.encoder_last_hidden_state[row, places], torch.stack(annotations))
        close(outputs.logits[row, : len(target)], torch.stack(seen["logits"]))
        if attention == "additive":
            close(outputs.cross_attentions[0][row, 0][: len(target), places], torch.stack(seen["alpha"]))
    close(outputs.loss, sum(losses) / sum(map(len, TARGETS)))


@pytest.mark.parametrize("attention", ["additive", "none"])
def test_padding_before_a_target_leaves_it_as_it_is(attention):
    model = build(attention=attention, num_decoder_layers=2)
    # Again a word stands under the mask.
    decoder_input_ids = torch.tensor([[START, 7, 4], [8, 8, START], [8, START, 5]])
    mask = torch.tensor([[1, 1, 1], [0, 0, 1], [0, 1, 1]])
    input_ids = right_padded(SOURCES, filler=model.config.pad_token_id)
    logits = model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, decoder_attention_mask=mask).logits

    _, reference = reference_of(model)
    for row, (source, target) in enumerate(zip(SOURCES, [[7, 4, 3], [8], [5, 8]], strict=True)):
        _, seen = reference.decode(reference.encode(source), target)
        close(logits[row, -len(target) :], torch.stack(seen["logits"]))


@pytest.mark.parametrize("parts", [[1, 1, 1, 1], [3, 1], [1, 2, 1]])
@pytest.mark.parametrize("attention", ["additive", "none"])
def test_hypotheses_share_a_source_and_go_on_from_a_cache(attention, parts):
    model = build(attention=attention, num_decoder_layers=2)
    annotations = model.get_encoder()(input_ids=right_padded(SOURCES[:2], filler=model.config.pad_token_id))
    hypotheses = [[4, 5, 6, 3], [7, 7, 3, 3], [8, 4, 8, 3], [0, 5, 5, 3], [3, 3, 3, 3], [4, 4, 7, 8]]
    inputs = torch.tensor([[START, *words[:-1]] for words in hypotheses])
    cache, logits = None, []
    for part in inputs.split(parts, dim=1):
        outputs = model(encoder_outputs=annotations, decoder_input_ids=part, cache=cache, use_cache=True)
        cache = outputs.cache
        logits.append(outputs.logits)
    logits = torch.cat(logits, dim=1)
    assert cache.get_seq_length() == 4

    _, reference = reference_of(model)
    for row, words in enumerate(hypotheses):
        _, seen = reference.decode(reference.encode(SOURCES[row // 3]), words)
        close(logits[row], torch.stack(seen["logits"]))
        close(torch.cat(list(cache.states.values()), dim=-1)[row], seen["state"][-1])


class Half(torch.nn.Module):
    """Stands for a dropout whose draw is known."""

    def forward(self, inputs):
        return inputs / 2


@pytest.mark.parametrize("attention", ["additive", "none"])
def test_dropout_is_on_words_between_layers_and_on_the_maxout_layer(attention):
    model = build(attention=attention, num_encoder_layers=2, num_decoder_layers=3, dropout=0.5).train()
    dropouts = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)]
    for name in dropouts:
        model.set_submodule(name, Half())
    loss = model(
        input_ids=right_padded(SOURCES, filler=model.config.pad_token_id), labels=right_padded(TARGETS, filler=-100)
    ).loss
    loss.backward()

    copies, reference = reference_of(model, kept=0.5)
    total = 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        total = total + reference.decode(reference.encode(source), target)[0] / sum(map(len, TARGETS))
    total.backward()
    close(loss, total)
    for name, parameter in model.named_parameters():
        close(parameter.grad, copies[name].grad)


@pytest.mark.parametrize("separate", [False, True])
def test_a_tied_output_layer_is_the_embedding_of_the_target(separate):
    source_vocab_size = SOURCE_VOCAB if separate else None
    model = build(tie_word_embeddings=True, maxout_size=EMBEDDING, source_vocab_size=source_vocab_size)
    input_ids, labels = right_padded(SOURCES, filler=model.config.pad_token_id), right_padded(TARGETS, filler=-100)
    loss = model(input_ids=input_ids, labels=labels).loss
    loss.backward()

    copies, reference = reference_of(model)
    side = "decoder" if separate else "encoder"
    reference.parameters["lm_head.weight"] = reference.parameters[f"{side}.embed_tokens.weight"]
    total = 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        total = total + reference.decode(reference.encode(source), target)[0] / sum(map(len, TARGETS))
    total.backward()
    close(loss, total)
    assert set(copies) == {name for name, _ in model.named_parameters() if not name.startswith("lm_head")}
    for name, parameter in model.named_parameters():
        close(parameter.grad, copies[name].grad)


def test_a_uniform_guess_costs_the_logarithm_of_the_vocabulary():
    model = build()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    loss = model(input_ids=torch.tensor([[5, 3]]), labels=torch.tensor([[8, 3]])).loss
    assert loss.item() == pytest.approx(math.log(VOCAB), abs=1e-12)


class TestTheLossAlone:
    """Without logits a target is packed and its loop has a gradient of its own, taken where nobody has touched it."""

    @pytest.fixture
    def packed(self, monkeypatch):
        """The batch sizes of every packed loop."""
        calls = []
        apply = _AttentiveGRU.apply
        monkeypatch.setattr(_AttentiveGRU, "apply", lambda *args: calls.append(args[-1]) or apply(*args))
        return calls

    def run(self, model, targets=TARGETS, sources=SOURCES, **options):
        """Loss, and gradient of every parameter."""
        model.zero_grad()
        input_ids, labels = right_padded(sources, filler=7), right_padded(targets, filler=-100)
        mask = torch.tensor([[1] * len(row) + [0] * (input_ids.shape[1] - len(row)) for row in sources])
        options = {"skip_logits": True} | options
        outputs = model(input_ids=input_ids, attention_mask=mask, labels=labels, **options)
        outputs.loss.backward()
        return [outputs.loss, *(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())]

    @pytest.mark.parametrize(
        ("targets", "sizes"),
        [
            (TARGETS, [3, 2, 2, 1]),
            ([[7, 4, 3], [8, 8, 3], [5, 5, 3]], [3, 3, 3]),
            ([[3], [8, 3], [5, 5, 5, 5, 3]], [3, 2, 1, 1, 1]),
        ],
    )
    @pytest.mark.parametrize(("bidirectional", "layers"), [(True, 1), (False, 2)])
    def test_it_is_that_of_the_equations(self, packed, targets, sizes, bidirectional, layers):
        model = build(bidirectional=bidirectional, num_encoder_layers=layers, source_vocab_size=SOURCE_VOCAB)
        loss, *gradients = self.run(model, targets)
        assert packed == [sizes]

        copies, reference = reference_of(model)
        losses = [
            reference.decode(reference.encode(source), target)[0]
            for source, target in zip(SOURCES, targets, strict=True)
        ]
        total = sum(losses) / sum(map(len, targets))
        total.backward()
        close(loss, total)
        for name, gradient in zip(copies, gradients, strict=True):
            assert copies[name].grad.any(), name
            close(gradient, copies[name].grad)

    def test_labels_may_be_missing_within_and_altogether(self, packed):
        model = build()
        for targets in ([[7, -100, 3], [-100, -100], [-100, 8, 5, 3]], [[-100, -100], [-100], [-100]]):
            expected = self.run(model, targets, skip_logits=False)
            packed.clear()
            for one, other in zip(self.run(model, targets), expected, strict=True):
                close(one, other)
            assert len(packed) == 1

    def test_a_source_may_be_empty(self, packed):
        model = build()
        sources = [[5, 8, 4, 3], [], [3]]
        expected = self.run(model, sources=sources, skip_logits=False)
        for one, other in zip(self.run(model, sources=sources), expected, strict=True):
            assert one.isfinite().all()
            close(one, other)
        assert len(packed) == 1

    def test_the_backward_pass_can_run_twice(self, packed):
        model = build()
        labels = right_padded(TARGETS, filler=-100)
        loss = model(input_ids=right_padded(SOURCES, filler=1), labels=labels, skip_logits=True).loss
        loss.backward(retain_graph=True)
        once = [parameter.grad.clone() for parameter in model.parameters()]
        loss.backward()
        for parameter, first in zip(model.parameters(), once, strict=True):
            close(parameter.grad, 2 * first)
        assert len(packed) == 1

    @pytest.mark.parametrize(
        "choices", [{"attention": "none"}, {"reset_after": False}, {"num_decoder_layers": 2}], ids=str
    )
    def test_other_decoders_are_not_packed(self, packed, choices):
        model = build(**choices)
        expected = self.run(model, skip_logits=False)
        for one, other in zip(self.run(model), expected, strict=True):
            close(one, other)
        assert packed == []

    @pytest.mark.parametrize(
        "part", ["", ".attention", ".attention.query_proj", ".context_proj", ".cells.0", ".cells.0.hidden_proj"]
    )
    @pytest.mark.parametrize(
        "kind",
        [
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
        ],
    )
    def test_a_hook_on_any_part_of_a_step_fires(self, packed, part, kind):
        model = build()
        expected = self.run(model)
        packed.clear()
        fired = []
        handle = getattr(model.get_submodule(f"model.decoder.step{part}"), kind)(lambda *args: fired.append(1))
        for one, other in zip(self.run(model), expected, strict=True):
            close(one, other)
        steps = max(map(len, TARGETS))
        # The last state is read by nothing, so no gradient comes back through what made it.
        assert len(fired) in ((steps,) if "forward" in kind else (steps - 1, steps))
        assert packed == []
        handle.remove()
        self.run(model)
        assert len(packed) == 1

    @pytest.mark.parametrize("part", ["attention.query_proj", "context_proj", "cells.0.hidden_proj"])
    def test_an_adapted_projection_is_called(self, packed, part):
        class Adapted(torch.nn.Linear):
            def forward(self, inputs):
                return super().forward(inputs) + 1

        model = build()
        plain = self.run(model)
        packed.clear()
        linear = model.get_submodule(f"model.decoder.step.{part}")
        adapted = Adapted(linear.in_features, linear.out_features, linear.bias is not None).double()
        adapted.load_state_dict(linear.state_dict())
        model.set_submodule(f"model.decoder.step.{part}", adapted)
        assert not torch.allclose(self.run(model)[0], plain[0], atol=1e-4)
        assert packed == []

    @pytest.mark.parametrize(
        "options",
        [{"output_attentions": True}, {"output_hidden_states": True}, {"use_cache": True}],
        ids=lambda options: next(iter(options)),
    )
    def test_what_else_is_asked_for_is_there(self, packed, options):
        model = build()
        expected = self.run(model)
        packed.clear()
        for one, other in zip(self.run(model, **options), expected, strict=True):
            close(one, other)
        assert packed == []

    def test_training_takes_it(self, packed):
        model = build()
        expected = self.run(model)
        packed.clear()
        for one, other in zip(self.run(model.train(), skip_logits=None), expected, strict=True):
            close(one, other)
        assert len(packed) == 1
