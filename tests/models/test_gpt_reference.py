"""GPT against its equations written out, and against the GPT-2 and the GPT of transformers.

The reference knows one text at a time, one position and one head at a time: no batch, no padding, no mask, no module.
Values and the gradient of every parameter must agree in double precision.
"""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, OpenAIGPTConfig, OpenAIGPTLMHeadModel

from hf_attnzoo.models.configuration_gpt import GPTConfig
from hf_attnzoo.models.modeling_gpt import GPTForCausalLM

HIDDEN, HEADS, INNER, VOCAB, PAD = 6, 2, 5, 9, 1
TEXTS = [[5, 8, 4, 3], [6, 3], [7]]
SIZES = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "num_hidden_layers": 3,
    "max_position_embeddings": 8,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
VARIANTS = {
    "gpt2": {},
    "gpt": {"norm_first": False, "hidden_act": "gelu"},
    "nanogpt": {"use_bias": False, "hidden_act": "gelu"},
    "untied": {"tie_word_embeddings": False, "hidden_act": "relu", "layer_norm_eps": 0.1},
}
ACTIVATIONS = {
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    # Hendrycks and Gimpel (2016), section 2.
    "gelu_new": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
}


class Reference:
    """The equations, with the parameters of a checkpoint as their matrices."""

    def __init__(self, parameters: dict[str, torch.Tensor], config: GPTConfig):
        self.config, self.parameters = config, parameters

    def linear(self, name, x, rows=slice(None)):
        product = self.parameters[f"model.stack.{name}.weight"][rows] @ x
        bias = self.parameters.get(f"model.stack.{name}.bias")
        return product if bias is None else product + bias[rows]

    def normalised(self, name, x):
        mean = x.sum() / HIDDEN
        variance = ((x - mean) ** 2).sum() / HIDDEN
        x = (
            (x - mean)
            / torch.sqrt(variance + self.config.layer_norm_eps)
            * self.parameters[f"model.stack.{name}.weight"]
        )
        bias = self.parameters.get(f"model.stack.{name}.bias")
        return x if bias is None else x + bias

    def attend(self, name, x, memory):
        """Concat(head_1, .., head_h) W^O, head_i = softmax(q K^T / sqrt(d)) V; rows are queries, keys, values."""
        size = HIDDEN // HEADS
        heads, alphas = [], []
        for head in range(HEADS):
            query, key, value = (
                slice(part * HIDDEN + head * size, part * HIDDEN + (head + 1) * size) for part in range(3)
            )
            asked = self.linear(f"{name}.qkv_proj", x, query)
            scores = [asked @ self.linear(f"{name}.qkv_proj", y, key) / math.sqrt(size) for y in memory]
            exponentials = [torch.exp(score) for score in scores]
            alpha = [one / sum(exponentials) for one in exponentials]
            values = [self.linear(f"{name}.qkv_proj", y, value) for y in memory]
            heads.append(sum(weight * vector for weight, vector in zip(alpha, values, strict=True)))
            alphas.append(torch.stack(alpha))
        return self.linear(f"{name}.out_proj", torch.cat(heads)), torch.stack(alphas)

    def feed_forward(self, name, x):
        inner = ACTIVATIONS[self.config.hidden_act](self.linear(f"{name}.up_proj", x))
        return self.linear(f"{name}.down_proj", inner)

    def read(self, words):
        """Logits after every word, and the weights of every layer."""
        embedding = self.parameters["model.embed_tokens.weight"]
        places = self.parameters["model.positions.table.weight"]
        vectors = [embedding[word] + places[place] for place, word in enumerate(words)]
        attentions = []
        for index in range(self.config.num_hidden_layers):
            attention, forward = f"layers.{index}.self_attn", f"layers.{index}.feed_forward"
            first = self.config.norm_first
            below = [self.normalised(f"{attention}_norm", x) for x in vectors] if first else vectors
            alphas = []
            for place, x in enumerate(vectors):
                added, alpha = self.attend(attention, below[place], below[: place + 1])
                x = x + added if first else self.normalised(f"{attention}_norm", x + added)
                read = self.normalised(f"{forward}_norm", x) if first else x
                x = x + self.feed_forward(forward, read)
                vectors = [
                    *vectors[:place],
                    x if first else self.normalised(f"{forward}_norm", x),
                    *vectors[place + 1 :],
                ]
                alphas.append(functional.pad(alpha, (0, len(words) - 1 - place)))
            attentions.append(torch.stack(alphas, dim=1))
        if self.config.norm_first:
            vectors = [self.normalised("norm", x) for x in vectors]
        head = self.parameters.get("lm_head.weight", embedding)
        return [head @ x for x in vectors], attentions


def build(implementation="sdpa", **choices) -> GPTForCausalLM:
    """A model in double precision whose parameters are all far from their first values."""
    torch.manual_seed(5)
    model = GPTForCausalLM(GPTConfig(**SIZES | choices)).double()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def close(actual, expected, **tolerance):
    tolerance = tolerance or {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(actual.detach(), expected.detach(), **tolerance)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients_are_those_of_the_equations(variant, side, implementation):
    model = build(implementation, **VARIANTS[variant]).train()
    # Under the mask stands a word, not padding: nothing but the mask may hide it.
    rows = [([8] * (4 - len(t)), t) if side == "left" else (t, [8] * (4 - len(t))) for t in TEXTS]
    input_ids = torch.tensor([[*first, *second] for first, second in rows])
    mask = torch.tensor(
        [[0] * (4 - len(t)) + [1] * len(t) if side == "left" else [1] * len(t) + [0] * (4 - len(t)) for t in TEXTS]
    )
    real = mask.bool()
    inputs = {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids.masked_fill(~real, -100)}
    outputs = model(**inputs, output_attentions=True, skip_logits=False)
    model(**inputs).loss.backward()

    copies = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    reference = Reference(copies, model.config)
    losses = []
    for row, text in enumerate(TEXTS):
        logits, attentions = reference.read(text)
        close(outputs.logits[row, real[row]], torch.stack(logits))
        for layer, weights in enumerate(attentions):
            close(outputs.attentions[layer][row][:, real[row]][:, :, real[row]], weights)
            assert not outputs.attentions[layer][row][:, real[row]][:, :, ~real[row]].any()
        for predicted, word in zip(logits, text[1:], strict=False):
            losses.append(torch.log(torch.exp(predicted).sum()) - predicted[word])
    assert len(losses) == 4
    (sum(losses) / 4).backward()
    close(outputs.loss, sum(losses) / 4)
    for name, parameter in model.named_parameters():
        assert copies[name].grad.any(), name
        close(parameter.grad, copies[name].grad)


@pytest.mark.parametrize("parts", [[1, 1, 1, 1], [3, 1], [1, 2, 1]], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_texts_go_on_from_a_cache(variant, parts):
    model = build(**VARIANTS[variant]).eval()
    ids = torch.tensor([[5, 8, 4, 3], [8, 8, 6, 3]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    cache, logits, seen = None, [], 0
    for part in ids.split(parts, dim=1):
        seen += part.shape[1]
        outputs = model(part, attention_mask=mask[:, :seen], cache=cache, use_cache=True)
        cache = outputs.cache
        logits.append(outputs.logits)
    logits = torch.cat(logits, dim=1)
    reference = Reference(dict(model.named_parameters()), model.config)
    close(logits[0], torch.stack(reference.read(TEXTS[0])[0]))
    close(logits[1, 2:], torch.stack(reference.read(TEXTS[1])[0]))


class Half(torch.nn.Module):
    """Stands for a dropout whose draw is known."""

    def forward(self, inputs):
        return inputs / 2


def test_dropout_is_on_inputs_and_on_what_sublayers_add():
    # Radford et al. (2018), section 4.1: "residual, embedding, and attention dropouts".
    model, plain = build(), build()
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Dropout) and name.endswith(
            ("model.dropout", "0.dropout", "1.dropout", "2.dropout")
        ):
            model.set_submodule(name, Half())
    ids = torch.tensor([TEXTS[0]])
    # Halving what goes in and what is added halves every sum, which the normalisations make up for to the last.
    halved, whole = model(ids, output_hidden_states=True), plain(ids, output_hidden_states=True)
    close(halved.hidden_states[0], whole.hidden_states[0] / 2)
    close(halved.hidden_states[1], whole.hidden_states[1] / 2, rtol=1e-3, atol=1e-3)
    rates = {"dropout": 0.1, "embedding_dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4}
    found = {name: m.p for name, m in build(**rates).named_modules() if isinstance(m, torch.nn.Dropout)}
    layer = "model.stack.layers.0"
    assert found["model.dropout"] == 0.2
    assert found[f"{layer}.dropout"] == 0.1
    assert found[f"{layer}.self_attn.dropout"] == 0.3
    assert found[f"{layer}.feed_forward.dropout"] == 0.4


def theirs_of(name: str, kind: str) -> tuple[str, bool]:
    """The name of one of our parameters in transformers' GPT-2 or GPT, and whether it is transposed there."""
    words = {"model.embed_tokens": "transformer.wte", "model.positions.table": "transformer.wpe"}
    if kind == "openai":
        words = {
            "model.embed_tokens": "transformer.tokens_embed",
            "model.positions.table": "transformer.positions_embed",
        }
    words |= {
        "model.stack.layers": "transformer.h",
        "model.stack.norm": "transformer.ln_f",
        "self_attn_norm": "ln_1",
        "feed_forward_norm": "ln_2",
        "self_attn.qkv_proj": "attn.c_attn",
        "self_attn.out_proj": "attn.c_proj",
        "feed_forward.up_proj": "mlp.c_fc",
        "feed_forward.down_proj": "mlp.c_proj",
    }
    for ours, theirs in words.items():
        name = name.replace(ours, theirs)
    return name, name.endswith(".weight") and ".c_" in name


def pair_of(kind: str, options: dict):
    """A stock model with random weights, and ours with the same."""
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    size = options["heads"] * options["head_size"]
    shared = {
        "vocab_size": 17,
        "n_positions": 20,
        "n_embd": size,
        "n_layer": options["layers"],
        "n_head": options["heads"],
    }
    shared |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": options["eps"]}
    torch.manual_seed(options["seed"])
    if kind == "gpt2":
        choices = {"n_inner": options["inner"], "activation_function": options["activation"]}
        stock = GPT2LMHeadModel(GPT2Config(**shared, **choices, **ids, tie_word_embeddings=options["tied"]))
        stock.set_attn_implementation(options["implementation"])
    else:
        # What it calls GELU is the approximation.
        stock = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**shared, afn="gelu", **ids))
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.4)
    mine = GPTForCausalLM(
        GPTConfig(
            vocab_size=17,
            max_position_embeddings=20,
            hidden_size=size,
            num_hidden_layers=options["layers"],
            num_attention_heads=options["heads"],
            intermediate_size=options["inner"] if kind == "gpt2" else None,
            hidden_act=options["activation"] if kind == "gpt2" else "gelu_new",
            norm_first=kind == "gpt2",
            layer_norm_eps=options["eps"],
            tie_word_embeddings=options["tied"] or kind == "openai",
            dropout=0.0,
            attention_dropout=0.0,
        )
    )
    mine.set_attn_implementation(options["implementation"])
    theirs = dict(stock.named_parameters())
    names = {name: theirs_of(name, kind) for name, _ in mine.named_parameters()}
    assert {theirs_name for theirs_name, _ in names.values()} == set(theirs)
    with torch.no_grad():
        for name, parameter in mine.named_parameters():
            other, transposed = names[name]
            parameter.copy_(theirs[other].T if transposed else theirs[other])
    return stock.eval(), mine.eval(), names


@st.composite
def problems(draw):
    options = {
        "heads": draw(st.integers(1, 3)),
        "head_size": draw(st.sampled_from([2, 4])),
        "inner": draw(st.sampled_from([None, 3, 9])),
        "layers": draw(st.integers(1, 3)),
        "activation": draw(st.sampled_from(["gelu_new", "gelu", "relu"])),
        "eps": draw(st.sampled_from([1e-5, 1e-2])),
        "tied": draw(st.booleans()),
        "implementation": draw(st.sampled_from(["eager", "sdpa"])),
        "seed": draw(st.integers(0, 100)),
    }
    texts = draw(st.lists(st.lists(st.integers(4, 16), min_size=1, max_size=7), min_size=1, max_size=3))
    return options, texts


TOLERANCES = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 0.1, "atol": 0.25},
}


def left_padded(rows):
    width = max(map(len, rows))
    return torch.tensor([[PAD] * (width - len(row)) + row for row in rows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(problem=problems(), side=st.sampled_from(["left", "right"]))
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_it_is_the_gpt2_that_transformers_has(dtype, problem, side):
    options, texts = problem
    stock, mine, names = pair_of("gpt2", options)
    stock, mine = stock.to(dtype), mine.to(dtype)
    ids = left_padded(texts) if side == "left" else left_padded([text[::-1] for text in texts]).flip(1)
    real = ids != PAD
    places = (real.long().cumsum(1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": real.long(), "labels": ids.masked_fill(~real, -100)}
    # The first word of a padded text is predicted from padding there, and isn't here.
    labels = inputs["labels"].masked_fill(real.long().cumsum(1) == 1, -100)
    expected = stock(**inputs | {"labels": labels}, position_ids=places)
    output = mine(**inputs)
    exact = dtype == torch.float64
    tolerance = TOLERANCES[dtype]
    close(output.logits[real], expected.logits[real], **tolerance)
    if (labels[:, 1:] == -100).all():
        assert output.loss == 0
        return
    close(output.loss.double(), expected.loss.double(), **tolerance | ({"rtol": 1e-6} if exact else {}))
    if not exact:
        return
    expected.loss.backward()
    output.loss.backward()
    theirs = dict(stock.named_parameters())
    for name, parameter in mine.named_parameters():
        other, transposed = names[name]
        gradient = theirs[other].grad
        # GPT-2's loss is of single precision.
        close(parameter.grad, gradient.T if transposed else gradient, rtol=1e-5, atol=1e-6)
    if side == "right":
        # From there GPT-2 would go on behind the padding.
        return
    prompt = {"input_ids": ids, "attention_mask": real.long()}
    for search in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        written = mine.generate(**prompt, max_new_tokens=8, **search)
        assert torch.equal(written, stock.generate(**prompt, max_new_tokens=8, **search))


@given(problem=problems())
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_it_is_the_gpt_that_transformers_has(problem):
    options, texts = problem
    stock, mine, names = pair_of("openai", options)
    stock, mine = stock.double(), mine.double()
    ids = torch.tensor(texts[:1])
    expected, output = stock(ids, labels=ids), mine(ids, labels=ids)
    close(output.logits, expected.logits)
    if ids.shape[1] == 1:
        return
    expected.loss.backward()
    output.loss.backward()
    theirs = dict(stock.named_parameters())
    for name, parameter in mine.named_parameters():
        other, transposed = names[name]
        close(parameter.grad, theirs[other].grad.T if transposed else theirs[other].grad, rtol=1e-5, atol=1e-6)
