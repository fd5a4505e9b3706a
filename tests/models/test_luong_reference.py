"""Luong's models against the equations of Luong, Pham and Manning (2015), written out word by word.

The reference knows one sentence at a time, one word at a time, one source position at a time: no batch, no padding, no
mask, no recurrent or attention module. Values and the gradient of every parameter must agree in double precision.
"""

import itertools
import math

import pytest
import torch

from hf_attnzoo.models.attention import attend, dot_scores, gaussian, masked_softmax, source_positions, window_mask
from hf_attnzoo.models.configuration_luong import LuongConfig
from hf_attnzoo.models.modeling_luong import LuongAttention, LuongForConditionalGeneration

EMBEDDING, HIDDEN, ANNOTATION = 3, 4, 6
VOCAB, SOURCE_VOCAB = 9, 11
START = 2
SCORES, SCOPES, CELLS = ("dot", "general", "concat", "location"), ("global", "local-m", "local-p"), ("lstm", "gru")
# The longest source reaches past a window of 1, the shortest ends before its target does.
SOURCES = [[5, 8, 4, 6, 3], [6, 3], [3]]
TARGETS = [[7, 4, 5, 3], [3], [8, 8, 3]]
# Every size differs from every other, so that no product works out with its sides exchanged.
SIZES = {"embedding_size": EMBEDDING, "hidden_size": HIDDEN, "vocab_size": VOCAB, "window": 1}


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


class Reference:
    """The paper's sections 2 and 3, with the parameters of a checkpoint as its matrices.

    Where the paper multiplies two vectors side by side with one matrix, the two halves of a checkpoint are put
    together again.
    """

    def __init__(self, parameters: dict[str, torch.Tensor], config: LuongConfig, kept: float = 1.0):
        self.config = config
        # what a dropout multiplies by, wherever there is one
        self.kept = kept
        self.parameters = {name.removeprefix("model."): value for name, value in parameters.items()}
        self.decoder_embedding = "decoder" if config.source_vocab_size else "encoder"
        self.head = self.parameters.get("lm_head.weight")

    def weight(self, name):
        return self.parameters[f"{name}.weight"]

    def joined(self, *names):
        return torch.cat([self.weight(name) for name in names], dim=1)

    def step(self, name, matrix, x, state):
        """One step of a cell: `matrix` stands before the input, the rest is in the checkpoint under `name`."""
        given = matrix @ x + self.parameters[f"{name}.input_proj.bias"]
        h = state[0]
        recurrent = self.weight(f"{name}.cell.hidden_proj") @ h + self.parameters[f"{name}.cell.hidden_proj.bias"]
        size = len(h)
        if self.config.cell == "lstm":
            i, f, g, o = ((given + recurrent)[k * size : (k + 1) * size] for k in range(4))
            c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
        r = torch.sigmoid(given[:size] + recurrent[:size])
        z = torch.sigmoid(given[size : 2 * size] + recurrent[size : 2 * size])
        n = torch.tanh(given[2 * size :] + r * recurrent[2 * size :])
        return ((1 - z) * n + z * h,)

    def read(self, name, inputs):
        """All the states of one recurrence over `inputs`, and the last of every kind."""
        size = self.weight(f"{name}.rnn.cell.hidden_proj").shape[1]
        state = tuple(torch.zeros(size, dtype=torch.float64) for _ in range(2 if self.config.cell == "lstm" else 1))
        outputs = []
        for x in inputs:
            state = self.step(f"{name}.rnn", self.weight(f"{name}.rnn.input_proj"), x, state)
            outputs.append(state[0])
        return outputs, state

    def encode(self, words):
        """Annotations in the order of the text, and the last states of every layer."""
        outputs = [self.weight("encoder.embed_tokens")[word] for word in words]
        finals = []
        for layer in range(self.config.num_encoder_layers):
            name = f"encoder.layers.{layer}"
            inputs = [self.kept * x for x in outputs]
            if self.config.reverse_source:
                outputs, final = self.read(f"{name}.forward_rnn", inputs[::-1])
                outputs = outputs[::-1]
            else:
                outputs, final = self.read(f"{name}.forward_rnn", inputs)
            if self.config.bidirectional:
                backward, last = self.read(f"{name}.backward_rnn", inputs[::-1])
                outputs = [torch.cat(pair) for pair in zip(outputs, backward[::-1], strict=True)]
                final = tuple(torch.cat(pair) for pair in zip(final, last, strict=True))
            if self.config.residual and layer > 0:
                outputs = [output + x for output, x in zip(outputs, inputs, strict=True)]
            finals.append(final)
        return outputs, finals

    def cross(self, finals):
        """The states that the decoder begins with, layer by layer."""
        layers, count = self.config.num_decoder_layers, len(finals[0])
        if self.config.bridge == "copy":
            return list(finals)
        if self.config.bridge == "zeros":
            return [tuple(torch.zeros(HIDDEN, dtype=torch.float64) for _ in range(count))] * layers
        act = {"tanh": torch.tanh, "relu": lambda x: x * (x > 0)}[self.config.bridge_act]
        if self.config.bridge == "top":
            h = act(self.weight("decoder.bridge") @ finals[-1][0] + self.parameters["decoder.bridge.bias"])
            return [(h,) * count] * layers
        kinds = []
        for kind in range(len(finals[0])):
            everything = torch.cat([final[kind] for final in finals])
            bias = self.parameters[f"decoder.bridge.{kind}.bias"]
            kinds.append(act(self.weight(f"decoder.bridge.{kind}") @ everything + bias))
        return [tuple(kind[layer * HIDDEN : (layer + 1) * HIDDEN] for kind in kinds) for layer in range(layers)]

    def energy(self, h, annotation, position):
        """Equation 8, and the location-based score below it."""
        name = "decoder.attention"
        if self.config.score == "dot":
            return (h * annotation).sum()
        if self.config.score == "general":
            return h @ self.weight(f"{name}.key_proj") @ annotation
        if self.config.score == "concat":
            both = self.joined(f"{name}.query_proj", f"{name}.key_proj") @ torch.cat([h, annotation])
            both = both + self.parameters.get(f"{name}.query_proj.bias", 0)
            return (self.parameters[f"{name}.v"] * torch.tanh(both)).sum()
        return (self.weight(f"{name}.location_proj")[position] * h).sum()

    def align(self, h, annotations, t):
        """a_t: a softmax over the whole source or over a window of it, equations 7, 9 and 10."""
        size, reach = len(annotations), self.config.window
        if self.config.attention == "local-m":
            center = min(t, size - 1)
        elif self.config.attention == "local-p":
            hidden = torch.tanh(self.weight("decoder.attention.position_proj") @ h)
            center = size * torch.sigmoid((self.weight("decoder.attention.position_out")[0] * hidden).sum())
        exponentials = {}
        for position, annotation in enumerate(annotations):
            if self.config.attention == "global" or center - reach <= position <= center + reach:
                exponentials[position] = torch.exp(self.energy(h, annotation, position))
        alpha = []
        for position in range(size):
            weight = exponentials[position] / sum(exponentials.values()) if position in exponentials else vector(0)[0]
            if self.config.attention == "local-p":
                sigma = reach / 2
                weight = weight * torch.exp(-((position - center) ** 2) / (2 * sigma**2))
            alpha.append(weight)
        return alpha

    def decode(self, encoded, words):
        annotations, finals = encoded
        states = self.cross(finals)
        fed = torch.zeros(HIDDEN, dtype=torch.float64)
        seen = {"alpha": [], "attentional": [], "logits": [], "layers": []}
        loss = 0
        for t, (previous, word) in enumerate(zip([START, *words[:-1]], words, strict=True)):
            x = self.kept * self.weight(f"{self.decoder_embedding}.embed_tokens")[previous]
            outputs, new_states = [], []
            for layer in range(self.config.num_decoder_layers):
                name = f"decoder.layers.{layer}.rnn"
                if layer == 0 and self.config.input_feeding:
                    matrix, given = self.joined(f"{name}.input_proj", "decoder.feed_proj"), torch.cat([x, fed])
                else:
                    matrix, given = self.weight(f"{name}.input_proj"), x
                new_states.append(self.step(name, matrix, given, states[layer]))
                output = new_states[-1][0]
                outputs.append(output + x if self.config.residual and layer > 0 else output)
                x = self.kept * outputs[-1]
            states, h = new_states, outputs[-1]
            if self.config.attention == "none":
                attentional = h
            else:
                alpha = self.align(h, annotations, t)
                context = torch.zeros(self.config.annotation_size, dtype=torch.float64)
                for weight, annotation in zip(alpha, annotations, strict=True):
                    context = context + weight * annotation
                both = torch.cat([context, h])
                attentional = self.joined("decoder.context_proj", "decoder.state_proj") @ both
                attentional = attentional + self.parameters.get("decoder.state_proj.bias", 0)
                if self.config.attentional_act == "tanh":
                    attentional = torch.tanh(attentional)
                seen["alpha"].append(torch.stack(alpha) if alpha else vector())
            fed = attentional
            attentional = self.kept * attentional
            logits = self.head @ attentional + self.parameters.get("lm_head.bias", 0)
            loss = loss + torch.log(torch.exp(logits).sum()) - logits[word]
            seen["attentional"].append(attentional)
            seen["logits"].append(logits)
            seen["layers"].append(torch.stack(outputs))
        seen["states"] = states
        return loss, seen


def build(**choices) -> LuongForConditionalGeneration:
    """A model in double precision whose parameters are all far from 0, the biases too."""
    if choices.get("score") == "location" and choices.get("attention") != "none":
        choices = {"max_source_length": 7} | choices
    torch.manual_seed(5)
    model = LuongForConditionalGeneration(LuongConfig(**SIZES | choices)).double().eval()
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


def masked_sources(sources=SOURCES):
    """Ids and mask. Under the mask stands a word, not padding: nothing but the mask may hide it."""
    input_ids = right_padded(sources, filler=7)
    mask = torch.tensor([[1] * len(row) + [0] * (input_ids.shape[1] - len(row)) for row in sources])
    return {"input_ids": input_ids, "attention_mask": mask}


def close(actual, expected):
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=1e-10, atol=1e-10)


def total_loss(reference, sources=SOURCES, targets=TARGETS):
    losses = [reference.decode(reference.encode(s), t)[0] for s, t in zip(sources, targets, strict=True)]
    return sum(losses) / sum(map(len, targets))


def agree_in_gradients(model, copies):
    for name, parameter in model.named_parameters():
        assert copies[name].grad.any(), name
        close(parameter.grad, copies[name].grad)


def agree(model):
    """Everything that a forward pass gives and everything that a backward pass leaves."""
    labels = right_padded(TARGETS, filler=-100)
    source = masked_sources()
    outputs = model(**source, labels=labels, use_cache=True, output_attentions=True, output_hidden_states=True)
    attentional = model.model(
        **source, decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels)
    ).last_hidden_state
    outputs.loss.backward()

    copies, reference = reference_of(model)
    losses, clipped = [], 0
    for row, (words, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        encoded = reference.encode(words)
        loss, seen = reference.decode(encoded, target)
        losses.append(loss)
        size, length = len(words), len(target)
        close(outputs.encoder_last_hidden_state[row, :size], torch.stack(encoded[0]))
        assert not outputs.encoder_last_hidden_state[row, size:].any()
        close(attentional[row, :length], torch.stack(seen["attentional"]))
        close(outputs.logits[row, :length], torch.stack(seen["logits"]))
        hidden = torch.stack(outputs.decoder_hidden_states[1:], dim=2)
        close(hidden[row, :length], torch.stack(seen["layers"]))
        if model.config.attention == "none":
            assert outputs.cross_attentions is None
            continue
        weights = outputs.cross_attentions[0][row, 0]
        close(weights[:length, :size], torch.stack(seen["alpha"]))
        assert not weights[:, size:].any()
        clipped += int((torch.stack(seen["alpha"]) == 0).sum())
    # A window that shows everything would prove nothing.
    assert (clipped > 0) == model.config.attention.startswith("local")

    total = sum(losses) / sum(map(len, TARGETS))
    total.backward()
    close(outputs.loss, total)
    agree_in_gradients(model, copies)


@pytest.mark.parametrize(
    ("score", "scope", "feeding", "cell"), [*itertools.product(SCORES, SCOPES, [False, True], CELLS)]
)
def test_values_and_gradients_are_those_of_the_equations(score, scope, feeding, cell):
    agree(build(score=score, attention=scope, input_feeding=feeding, cell=cell))


TWO = {"num_encoder_layers": 2, "num_decoder_layers": 2}
LINEAR = {"bridge": "linear", "encoder_hidden_size": ANNOTATION, "num_encoder_layers": 2, "num_decoder_layers": 3}
OPTIONS = {
    "separate": {"source_vocab_size": SOURCE_VOCAB},
    "stacked": TWO,
    "stacked-fed": TWO | {"input_feeding": True, "cell": "gru"},
    "residual": TWO | {"residual": True},
    "residual-fed": {
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
        "residual": True,
        "input_feeding": True,
        "score": "dot",
    },
    "reversed": TWO | {"reverse_source": True, "attention": "local-m", "score": "location"},
    "reversed-gru-fed": {"reverse_source": True, "cell": "gru", "input_feeding": True, "attention": "local-p"},
    "bidirectional": TWO | {"bidirectional": True, "score": "dot"},
    "bidirectional-residual": TWO | {"bidirectional": True, "residual": True, "cell": "gru", "score": "concat"},
    "linear": LINEAR,
    "linear-gru": LINEAR | {"cell": "gru", "score": "concat", "input_feeding": True},
    "linear-location": LINEAR | {"score": "location", "attention": "local-p", "input_feeding": True},
    "linear-bidirectional": LINEAR | {"bidirectional": True, "residual": True, "attention": "local-p"},
    "linear-of-one-size": {"bridge": "linear", "score": "dot"},
    "linear-relu": LINEAR | {"bridge_act": "relu", "bidirectional": True},
    "top": LINEAR | {"bridge": "top", "bidirectional": True, "input_feeding": True},
    "top-gru-relu": LINEAR | {"bridge": "top", "bridge_act": "relu", "cell": "gru"},
    "zeros": LINEAR | {"bridge": "zeros"},
    "top-none": LINEAR | {"bridge": "top", "attention": "none"},
    "biases": {"attention_bias": True, "head_bias": True, "score": "concat", "input_feeding": True},
    "biases-linear": {"attention_bias": True, "attentional_act": "linear", "attention": "local-p"},
    "none": {"attention": "none"},
    "none-gru": {"attention": "none", "cell": "gru", "bidirectional": True},
    "none-stacked": TWO | {"attention": "none", "reverse_source": True, "source_vocab_size": SOURCE_VOCAB},
    "none-linear": LINEAR | {"attention": "none", "residual": True, "bidirectional": True},
    "wider": {"attention": "local-p", "window": 2, "score": "dot", "input_feeding": True},
}


@pytest.mark.parametrize("choices", OPTIONS.values(), ids=OPTIONS.keys())
def test_other_options(choices):
    agree(build(**choices))


# One of each loop, and of each attention that has to know where it is.
VARIANTS = {
    "global": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "local-m": {"attention": "local-m"},
    "local-m-fed": {"attention": "local-m", "score": "location", "input_feeding": True, "reverse_source": True},
    "local-p": {"attention": "local-p", "cell": "gru", "bidirectional": True},
    "local-p-fed": TWO | {"attention": "local-p", "score": "concat", "input_feeding": True},
    "none": {"attention": "none", "reverse_source": True},
}
variants = pytest.mark.parametrize("choices", VARIANTS.values(), ids=VARIANTS.keys())


@pytest.mark.parametrize("given_mask", [True, False])
@variants
def test_padding_may_stand_anywhere_in_a_source(choices, given_mask):
    model = build(**choices)
    pad = model.config.pad_token_id
    input_ids = torch.tensor([[pad, 5, 8, 4, pad, 6, 3], [pad, 6] + [pad] * 4 + [3], [pad] * 6 + [3]])
    mask = (input_ids != pad).long() if given_mask else None
    outputs = model(
        input_ids=input_ids,
        attention_mask=mask,
        labels=right_padded(TARGETS, filler=-100),
        output_attentions=True,
    )

    _, reference = reference_of(model)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        places = (input_ids[row] != pad).nonzero()[:, 0]
        encoded = reference.encode(source)
        _, seen = reference.decode(encoded, target)
        close(outputs.encoder_last_hidden_state[row, places], torch.stack(encoded[0]))
        close(outputs.logits[row, : len(target)], torch.stack(seen["logits"]))
        if model.config.attention != "none":
            weights = outputs.cross_attentions[0][row, 0, : len(target)]
            close(weights[:, places], torch.stack(seen["alpha"]))
            assert not weights[:, input_ids[row] == pad].any()
    close(outputs.loss, total_loss(reference))


@variants
def test_padding_before_a_target_leaves_it_as_it_is(choices):
    model = build(**choices)
    # Again a word stands under the mask.
    decoder_input_ids = torch.tensor([[START, 7, 4, 5], [8, 8, 8, START], [8, START, 5, 6]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1]])
    # Long enough for the windows of two neighbouring steps to differ.
    sources = [[6, 3], [5, 8, 4, 6, 3], [8, 5, 7, 3]]
    outputs = model(**masked_sources(sources), decoder_input_ids=decoder_input_ids, decoder_attention_mask=mask)

    _, reference = reference_of(model)
    for row, (source, target) in enumerate(zip(sources, [[7, 4, 5, 3], [8], [5, 6, 8]], strict=True)):
        _, seen = reference.decode(reference.encode(source), target)
        close(outputs.logits[row, -len(target) :], torch.stack(seen["logits"]))
        states = list(outputs.cache.states.values())[1:]
        flat = [state for layer in seen["states"] for state in layer]
        flat += [seen["attentional"][-1]] if model.config.input_feeding else []
        for state, expected in zip(states, flat, strict=True):
            close(state[row], expected)


@pytest.mark.parametrize("parts", [[1, 1, 1, 1], [3, 1], [1, 2, 1]], ids=str)
@variants
def test_hypotheses_share_a_source_and_go_on_from_a_cache(choices, parts):
    model = build(**choices)
    annotations = model.get_encoder()(**masked_sources(SOURCES[:2]))
    hypotheses = [[4, 5, 6, 3], [7, 7, 3, 3], [8, 4, 8, 3], [0, 5, 5, 3], [3, 3, 3, 3], [4, 4, 7, 8]]
    inputs = torch.tensor([[START, *words[:-1]] for words in hypotheses])
    cache, logits, weights = None, [], []
    for part in inputs.split(parts, dim=1):
        outputs = model(
            encoder_outputs=annotations, decoder_input_ids=part, cache=cache, use_cache=True, output_attentions=True
        )
        cache = outputs.cache
        logits.append(outputs.logits)
        weights.extend(outputs.cross_attentions or ())
    logits = torch.cat(logits, dim=1)
    assert cache.get_seq_length() == 4
    number, *states = cache.states.values()
    assert number.tolist() == [4] * 6

    _, reference = reference_of(model)
    for row, words in enumerate(hypotheses):
        source = SOURCES[row // 3]
        _, seen = reference.decode(reference.encode(source), words)
        close(logits[row], torch.stack(seen["logits"]))
        flat = [state for layer in seen["states"] for state in layer]
        # After the layers' states comes what is fed.
        flat += [seen["attentional"][-1]] if model.config.input_feeding else []
        for state, expected in zip(states, flat, strict=True):
            close(state[row], expected)
        if weights:
            close(torch.cat(weights, dim=2)[row, 0, :, : len(source)], torch.stack(seen["alpha"]))


class Half(torch.nn.Module):
    """Stands for a dropout whose draw is known."""

    def forward(self, inputs):
        return inputs / 2


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_dropout_is_on_words_between_layers_and_on_the_attentional_state(feeding, residual):
    model = build(
        num_encoder_layers=3, num_decoder_layers=3, input_feeding=feeding, residual=residual, dropout=0.5
    ).train()
    dropouts = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)]
    for name in dropouts:
        model.set_submodule(name, Half())
    loss = model(**masked_sources(), labels=right_padded(TARGETS, filler=-100)).loss
    loss.backward()

    copies, reference = reference_of(model, kept=0.5)
    total = total_loss(reference)
    total.backward()
    close(loss, total)
    agree_in_gradients(model, copies)


@pytest.mark.parametrize("separate", [False, True])
def test_a_tied_output_layer_is_the_embedding_of_the_target(separate):
    model = build(
        tie_word_embeddings=True, embedding_size=HIDDEN, source_vocab_size=SOURCE_VOCAB if separate else None
    )
    loss = model(**masked_sources(), labels=right_padded(TARGETS, filler=-100)).loss
    loss.backward()

    copies, reference = reference_of(model)
    assert not any(name.startswith("lm_head") for name in copies)
    reference.head = reference.weight("decoder.embed_tokens" if separate else "encoder.embed_tokens")
    total = total_loss(reference)
    total.backward()
    close(loss, total)
    agree_in_gradients(model, copies)


@variants
def test_training_without_logits_gives_the_same_loss_and_gradients(choices):
    model = build(**choices).train()
    outputs = model(**masked_sources(), labels=right_padded(TARGETS, filler=-100))
    assert outputs.logits is None
    outputs.loss.backward()
    copies, reference = reference_of(model)
    total = total_loss(reference)
    total.backward()
    close(outputs.loss, total)
    agree_in_gradients(model, copies)


@pytest.mark.parametrize(
    "choices",
    [
        {"attention": scope, "score": score, "input_feeding": feeding, "reverse_source": feeding}
        for (scope, score), feeding in zip(itertools.product(SCOPES, SCORES), itertools.cycle([True, False, False]))
    ],
    ids=lambda choices: f"{choices['attention']}-{choices['score']}",
)
def test_an_empty_source_is_read_as_nothing(choices):
    model = build(**choices)
    sources = [[5, 8, 4, 6, 3], [], [3]]
    outputs = model(**masked_sources(sources), labels=right_padded(TARGETS, filler=-100), output_attentions=True)
    assert not outputs.cross_attentions[0][1].any()
    outputs.loss.backward()
    copies, reference = reference_of(model)
    total = total_loss(reference, sources)
    total.backward()
    close(outputs.loss, total)
    agree_in_gradients(model, copies)


def test_a_uniform_guess_costs_the_logarithm_of_the_vocabulary():
    model = build()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    loss = model(input_ids=torch.tensor([[5, 3]]), labels=torch.tensor([[8, 3]])).loss
    assert loss.item() == pytest.approx(math.log(VOCAB), abs=1e-12)


class TestTheLecture:
    """h = (1, 3, 9), (0, 0, 1), (5, -1, 2) and s = (0, 1, 1)."""

    annotations = vector(1, 3, 9, 0, 0, 1, 5, -1, 2).view(1, 3, 3)
    state = vector(0, 1, 1).view(1, 1, 3)

    def test_dot_scores(self):
        assert dot_scores(self.state, self.annotations).tolist() == [[[12, 1, 1]]]

    def test_average_context(self):
        context = attend(masked_softmax(torch.zeros(1, 1, 3, dtype=torch.float64), None), self.annotations)
        assert context.flatten().tolist() == pytest.approx([2, 2 / 3, 4], abs=1e-15)

    def test_global_dot_attention(self):
        attention = LuongAttention(LuongConfig(hidden_size=3, score="dot"))
        mask = torch.ones(1, 3, dtype=torch.bool)
        context, weights = attention(
            self.state, torch.zeros(1, 1, dtype=torch.long), self.annotations, self.annotations, mask
        )
        whole = math.exp(11) + 2
        expected = [math.exp(11) / whole, 1 / whole, 1 / whole]
        assert weights.flatten().tolist() == pytest.approx(expected, abs=1e-15)
        assert context.flatten().tolist() == pytest.approx(
            [expected[0] + 5 * expected[2], 3 * expected[0] - expected[2], 9 * expected[0] + 3 * expected[1]],
            abs=1e-14,
        )

    def test_general_scores_by_hand(self):
        attention = LuongAttention(LuongConfig(hidden_size=3, score="general")).double()
        with torch.no_grad():
            attention.key_proj.weight.copy_(vector(1, 0, 0, 0, 0, 2, 0, -1, 0).view(3, 3))
        # W h_s = (1, 18, -3), (0, 2, 0), (5, 4, 1), of which s adds up the last two
        scores = attention.scores(self.state, attention.key_proj(self.annotations), torch.arange(3)[None])
        assert scores.tolist() == [[[15, 2, 5]]]


class TestWindows:
    def test_positions_count_the_real_ones(self):
        mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]]).bool()
        positions = source_positions(mask)
        assert [row[real].tolist() for row, real in zip(positions, mask, strict=True)] == [
            [0, 1],
            [0, 1, 2],
            [0, 1],
            [],
        ]

    def test_a_window_has_both_its_ends(self):
        positions, mask = torch.arange(6)[None], torch.tensor([[1, 1, 1, 1, 1, 0]]).bool()
        center = torch.tensor([[0.0, 2.0, 2.5, 4.0, 2.001]])
        assert window_mask(positions, center, 2, mask).long().tolist() == [
            [
                [1, 1, 1, 0, 0, 0],
                [1, 1, 1, 1, 1, 0],
                # 0.5 to 4.5
                [0, 1, 1, 1, 1, 0],
                [0, 0, 1, 1, 1, 0],
                [0, 1, 1, 1, 1, 0],
            ]
        ]

    def test_the_standard_deviation_is_half_the_window(self):
        positions = torch.arange(4)[None]
        factors = gaussian(positions, vector(1, 2.5).view(1, 2), 4)
        # sigma = 2: exp(-d^2 / 8)
        assert factors.flatten().tolist() == pytest.approx(
            [
                *(math.exp(-d * d / 8) for d in (1, 0, 1, 2)),
                *(math.exp(-d * d / 8) for d in (2.5, 1.5, 0.5, 0.5)),
            ],
            abs=1e-15,
        )

    def location(self, scope, weights, window=1):
        """An attention whose energies at the positions 0, 1, ... are the logarithms of `weights`."""
        config = LuongConfig(
            hidden_size=2, attention=scope, score="location", max_source_length=len(weights), window=window
        )
        attention = LuongAttention(config).double()
        with torch.no_grad():
            for parameter in attention.parameters():
                parameter.zero_()
            attention.location_proj.weight[:, 0] = vector(*weights).log()
        return attention

    def attend(self, attention, steps, mask):
        mask = torch.tensor(mask).bool()
        values = torch.arange(2.0 * mask.numel(), dtype=torch.float64).view(*mask.shape, 2)
        query = vector(1, 0).expand(len(mask), len(steps), 2)
        numbers = torch.tensor(steps).expand(len(mask), -1)
        context, weights = attention(query, numbers, values, values, mask)
        torch.testing.assert_close(context, weights @ values)
        return weights

    def test_location_counts_positions_of_the_text(self):
        weights = self.attend(self.location("global", [1, 2, 5, 9]), [0], [[1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]])
        close(weights[:, 0], torch.stack([vector(1, 2, 5, 0) / 8, vector(0, 0, 1, 2) / 3, vector(0, 1, 0, 0)]))

    def test_local_m_moves_with_the_target_and_stays_at_the_end(self):
        attention = self.location("local-m", [1, 2, 3, 4])
        weights = self.attend(attention, [0, 1, 2, 3, 9], [[1, 1, 1, 1], [0, 1, 1, 0]])
        end = vector(0, 0, 3, 4) / 7
        close(
            weights[0], torch.stack([vector(1, 2, 0, 0) / 3, vector(1, 2, 3, 0) / 6, vector(0, 2, 3, 4) / 9, end, end])
        )
        close(weights[1], (vector(0, 1, 2, 0) / 3).expand(5, 4))

    def test_local_p_is_a_softmax_over_the_window_times_a_gaussian(self):
        attention = self.location("local-p", [1, 2, 3, 4, 5])
        with torch.no_grad():
            # p_t = 4 sigmoid(2 tanh(x)) = 3, where 2 tanh(x) = log 3
            attention.position_proj.weight[0, 0] = math.atanh(math.log(3) / 2)
            attention.position_out.weight[0, 0] = 2
        weights = self.attend(attention, [0, 7], [[1, 1, 1, 1, 0]])
        # sigma = 1/2: e^-2 at a distance of 1. Position 4 is padding, 2 and 3 share the softmax.
        close(weights[0], (vector(0, 0, 3 * math.exp(-2), 4, 0) / 7).expand(2, 5))

    def test_local_p_begins_in_the_middle_whatever_the_side_of_the_padding(self):
        attention = self.location("local-p", [1, 1, 1, 1, 1, 1], window=2)
        weights = self.attend(attention, [3], [[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0]])
        # p_t = 3: positions 1 to 5 at a fifth each. p_t = 1.5: all three. p_t = 0.5: the only one.
        close(weights[0, 0], vector(0, *(math.exp(-d * d / 2) / 5 for d in (2, 1, 0, 1, 2))))
        close(weights[1, 0], vector(0, 0, 0, *(math.exp(-d * d / 2) / 3 for d in (1.5, 0.5, 0.5))))
        close(weights[2, 0], vector(math.exp(-1 / 8), 0, 0, 0, 0, 0))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_the_middle_between_two_words_survives_half_precision(self, dtype):
        attention = self.location("local-p", [1] * 301).to(dtype)
        values = torch.zeros(1, 301, 2, dtype=dtype)
        query, steps = torch.ones(1, 1, 2, dtype=dtype), torch.zeros(1, 1, dtype=torch.long)
        weights = attention(query, steps, values, values, torch.ones(1, 301, dtype=torch.bool))[1]
        assert weights.dtype == dtype
        # p_t = 150.5, which has no place among 8 binary digits
        assert weights.nonzero()[:, 2].tolist() == [150, 151]
        assert weights[0, 0, 150:152].tolist() == pytest.approx([math.exp(-1 / 2) / 2] * 2, rel=0.01)

    def test_the_prediction_learns_to_move_the_window(self):
        attention = self.location("local-p", [1, 1, 1, 1])
        # v_p needs something to be multiplied with
        attention.position_proj.weight.data[0, 0] = 1
        weights = self.attend(attention, [0], [[1, 1, 1, 1]])
        weights[0, 0, 3].backward()
        assert attention.position_out.weight.grad[0, 0] > 0
        assert attention.position_out.weight.grad[0, 1] == 0


def test_a_source_longer_than_the_location_score_is_refused():
    model = build(score="location", max_source_length=4)
    with pytest.raises(ValueError, match=r"source of 5 words.*max_source_length=4"):
        model(**masked_sources(), labels=right_padded(TARGETS, filler=-100))
    # Padding counts for nothing.
    source = masked_sources()
    source["attention_mask"][0, :2] = 0
    assert model(**source, labels=right_padded(TARGETS, filler=-100)).loss.isfinite()


def test_parameters_begin_uniform_within_the_range():
    torch.manual_seed(0)
    config = LuongConfig(
        vocab_size=300,
        score="concat",
        attention="local-p",
        input_feeding=True,
        bridge="linear",
        initializer_range=0.08,
    )
    model = LuongForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        values = parameter
        if "embed_tokens" in name:
            assert not parameter[config.pad_token_id].any()
            values = parameter[torch.arange(len(parameter)) != config.pad_token_id]
        assert values.abs().max() <= 0.08, name
        # within five standard errors of a uniform law's mean and deviation
        error = 0.08 / math.sqrt(3 * values.numel())
        assert values.mean().item() == pytest.approx(0, abs=5 * error), name
        assert values.std().item() == pytest.approx(0.08 / math.sqrt(3), abs=5 * error), name


@pytest.mark.parametrize("cell", CELLS)
def test_autocast_carries_one_dtype_through_the_loop(cell):
    config = LuongConfig(**SIZES | {"cell": cell, "input_feeding": True, "attention": "local-p", "score": "dot"})
    torch.manual_seed(0)
    model = LuongForConditionalGeneration(config).eval()
    inputs = masked_sources() | {"decoder_input_ids": right_padded(TARGETS, filler=7)}
    exact = model(**inputs).logits
    encoder_outputs = model.get_encoder()(**masked_sources())
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        half = model(**inputs, use_cache=False).logits
        traced = compiled(**inputs, use_cache=False).logits
        # What the encoder gave before autocast began is in single precision.
        mixed = model(encoder_outputs=encoder_outputs, decoder_input_ids=inputs["decoder_input_ids"])
    for logits in (half, traced, mixed.logits):
        assert logits.dtype == torch.bfloat16
        torch.testing.assert_close(logits.float(), exact, rtol=0, atol=0.01)
    number, *states = mixed.cache.states.values()
    assert number.dtype == torch.long
    assert {state.dtype for state in states} == {torch.bfloat16}
