"""BERT against section 3 of Devlin et al. (2019) written out, and against BERT and RoBERTa of transformers.

The reference knows one text at a time, one position and one head at a time: no batch, no padding, no mask, no module.
Values and the gradient of every parameter must agree in double precision.
"""

import math

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

import hf_attnzoo
from hf_attnzoo import BERTConfig, BERTForPreTraining, BERTForSequenceClassification
from hf_attnzoo.conversion import convert

HIDDEN, HEADS, INNER, VOCAB = 6, 2, 5, 9
TEXTS = [[2, 5, 8, 3, 6, 3], [2, 7, 3, 3], [2, 3]]
SEGMENTS = [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1], [0, 0]]
WORDS = [{1: 4, 4: 8}, {1: 6}, {0: 5}]
FOLLOWS = [1, 0, 1]


class Reference:
    """Section 3, with the parameters of a checkpoint as its matrices."""

    def __init__(self, parameters: dict[str, torch.Tensor], config: BERTConfig):
        self.config = config
        self.parameters = {name.removeprefix("model."): value for name, value in parameters.items()}

    def linear(self, name, x, rows=slice(None)):
        product = self.parameters[f"{name}.weight"][rows] @ x
        bias = self.parameters.get(f"{name}.bias")
        return product if bias is None else product + bias[rows]

    def normalised(self, name, x):
        mean = x.sum() / len(x)
        variance = ((x - mean) ** 2).sum() / len(x)
        x = (x - mean) / torch.sqrt(variance + self.config.layer_norm_eps) * self.parameters[f"{name}.weight"]
        bias = self.parameters.get(f"{name}.bias")
        return x if bias is None else x + bias

    def gelu(self, x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    def embed(self, words, segments):
        """Figure 2: token, segment and position embeddings are summed."""
        vectors = []
        for place, (word, segment) in enumerate(zip(words, segments, strict=True)):
            x = self.parameters["embed_tokens.weight"][word]
            x = x + self.parameters["inputs.positions.table.weight"][place + self.config.position_offset]
            if self.config.type_vocab_size:
                x = x + self.parameters["inputs.segments.weight"][segment]
            vectors.append(self.normalised("inputs.norm", x))
        return vectors

    def attend(self, name, x, vectors):
        """Every position looks at all of them, on both sides."""
        size, heads, alphas = HIDDEN // HEADS, [], []
        for head in range(HEADS):
            own = [slice(part * HIDDEN + head * size, part * HIDDEN + (head + 1) * size) for part in range(3)]
            query = self.linear(f"{name}.qkv_proj", x, own[0])
            scores = [query @ self.linear(f"{name}.qkv_proj", y, own[1]) / math.sqrt(size) for y in vectors]
            total = sum(torch.exp(score) for score in scores)
            alpha = [torch.exp(score) / total for score in scores]
            values = [self.linear(f"{name}.qkv_proj", y, own[2]) for y in vectors]
            heads.append(sum(weight * value for weight, value in zip(alpha, values, strict=True)))
            alphas.append(torch.stack(alpha))
        return self.linear(f"{name}.out_proj", torch.cat(heads)), torch.stack(alphas)

    def encode(self, words, segments):
        vectors = self.embed(words, segments)
        states, attentions = [vectors], []
        for index in range(self.config.num_hidden_layers):
            layer = f"stack.layers.{index}"
            looked = [self.attend(f"{layer}.self_attn", x, vectors) for x in vectors]
            attentions.append(torch.stack([alpha for _, alpha in looked], dim=1))
            vectors = [
                self.normalised(f"{layer}.self_attn_norm", x + added)
                for x, (added, _) in zip(vectors, looked, strict=True)
            ]
            inner = [self.gelu(self.linear(f"{layer}.feed_forward.up_proj", x)) for x in vectors]
            added = [self.linear(f"{layer}.feed_forward.down_proj", x) for x in inner]
            vectors = [
                self.normalised(f"{layer}.feed_forward_norm", x + y) for x, y in zip(vectors, added, strict=True)
            ]
            states.append(vectors)
        return vectors, states, attentions

    def pool(self, vectors):
        return torch.tanh(self.linear("pooler.dense", vectors[0]))

    def words(self, vectors):
        """Logits of every position: the embedding again, after one more layer."""
        table = self.parameters.get("lm_head.weight", self.parameters["embed_tokens.weight"])
        transformed = [
            self.normalised("transform.norm", self.gelu(self.linear("transform.dense", x))) for x in vectors
        ]
        return [table @ x + self.parameters["lm_head.bias"] for x in transformed]


def nats(logits, label):
    return torch.log(torch.exp(logits).sum()) - logits[label]


def close(actual, expected):
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=1e-9, atol=1e-9)


def build(head="ForPreTraining", implementation="sdpa", **choices):
    """A model in double precision whose parameters are all far from their first values."""
    torch.manual_seed(5)
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": INNER}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 8, "dropout": 0.0, "attention_dropout": 0.0}
    model = getattr(hf_attnzoo, f"BERT{head}")(BERTConfig(**sizes | choices)).double().eval()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def padded(rows, filler, places):
    table = torch.full((len(rows), 9), filler)
    for number, (row, where) in enumerate(zip(rows, places, strict=True)):
        table[number, list(where)] = torch.tensor(row)
    return table


PLACES = {
    "right": [range(6), range(4), range(2)],
    "left": [range(3, 9), range(5, 9), range(7, 9)],
    "scattered": [[0, 2, 3, 4, 6, 8], [1, 2, 5, 7], [4, 8]],
}
VARIANTS = {
    "paper": {},
    "roberta": {"position_offset": 2, "type_vocab_size": 0, "layer_norm_eps": 0.1},
    "untied": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", PLACES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients_are_those_of_the_equations(variant, padding, implementation):
    model, places = build(implementation=implementation, **VARIANTS[variant]).train(), PLACES[padding]
    segments = [[0] * len(text) for text in TEXTS] if variant == "roberta" else SEGMENTS
    labels = torch.full((3, 9), -100)
    for number, (words, where) in enumerate(zip(WORDS, places, strict=True)):
        for index, word in words.items():
            labels[number, list(where)[index]] = word
    inputs = {
        # Under the mask stands a word, not padding: nothing but the mask may hide it.
        "input_ids": padded(TEXTS, 7, places),
        "attention_mask": padded([[1] * len(text) for text in TEXTS], 0, places),
        "token_type_ids": padded(segments, 0, places),
        "labels": labels,
        "next_sentence_label": torch.tensor(FOLLOWS),
    }
    outputs = model(**inputs, skip_logits=False, output_attentions=True, output_hidden_states=True)
    model(**inputs).loss.backward()

    copies = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    reference = Reference(copies, model.config)
    of_words, of_pairs = [], []
    for row, (words, segment, where) in enumerate(zip(TEXTS, segments, places, strict=True)):
        where = list(where)
        vectors, states, attentions = reference.encode(words, segment)
        for layer, state in enumerate(states):
            close(outputs.hidden_states[layer][row, where], torch.stack(state))
        rest = [place for place in range(9) if place not in where]
        for layer, weights in enumerate(attentions):
            close(outputs.attentions[layer][row][:, where][..., where], weights)
            assert not outputs.attentions[layer][row][..., rest].any()
        logits = reference.words(vectors)
        close(outputs.prediction_logits[row, where], torch.stack(logits))
        of_words += [nats(logits[index], word) for index, word in WORDS[row].items()]
        follows = reference.linear("next_sentence", reference.pool(vectors))
        close(outputs.seq_relationship_logits[row], follows)
        of_pairs.append(nats(follows, FOLLOWS[row]))
    total = sum(of_words) / len(of_words) + sum(of_pairs) / len(of_pairs)
    total.backward()
    close(outputs.loss, total)
    for name, parameter in model.named_parameters():
        close(parameter.grad, torch.zeros_like(parameter) if copies[name].grad is None else copies[name].grad)


@pytest.mark.parametrize("problem", ["regression", "single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("told", [True, False])
def test_losses_of_classifiers(problem, told):
    size = 1 if problem == "regression" else 3
    model = build("ForSequenceClassification", num_labels=size, problem_type=problem if told else None)
    labels = {
        "regression": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64),
        "single_label_classification": torch.tensor([2, 0, 1]),
        "multi_label_classification": torch.tensor([[0, 1, 1], [0, 0, 1], [1, 0, 0]], dtype=torch.float64),
    }[problem]
    mask = padded([[1] * len(text) for text in TEXTS], 0, PLACES["right"])
    output = model(input_ids=padded(TEXTS, 7, PLACES["right"]), attention_mask=mask, labels=labels)
    reference = Reference(dict(model.named_parameters()), model.config)
    logits = torch.stack(
        [reference.linear("classifier", reference.pool(reference.encode(text, [0] * len(text))[0])) for text in TEXTS]
    )
    close(output.logits, logits)
    if problem == "regression":
        expected = sum((logit - label) ** 2 for logit, label in zip(logits[:, 0], labels, strict=True)) / 3
    elif problem == "single_label_classification":
        expected = sum(nats(logit, label) for logit, label in zip(logits, labels, strict=True)) / 3
    else:
        chance = 1 / (1 + torch.exp(-logits))
        expected = -(labels * chance.log() + (1 - labels) * (1 - chance).log()).sum() / 9
    close(output.loss, expected)
    assert model.config.problem_type == problem


def test_losses_of_tokens_spans_and_choices():
    inputs = {
        "input_ids": padded(TEXTS, 7, PLACES["right"]),
        "attention_mask": padded([[1] * len(text) for text in TEXTS], 0, PLACES["right"]),
    }
    plain = [[0] * len(text) for text in TEXTS]

    model = build("ForTokenClassification", num_labels=3)
    reference = Reference(dict(model.named_parameters()), model.config)
    labels = padded([[2, -100, 1, 0, -100, 1], [0, 1, -100, 2], [-100, -100]], -100, PLACES["right"])
    losses = []
    for row, text in enumerate(TEXTS):
        vectors, _, _ = reference.encode(text, plain[row])
        logits = [reference.linear("classifier", x) for x in vectors]
        losses += [nats(x, label) for x, label in zip(logits, labels[row].tolist(), strict=False) if label != -100]
    close(model(**inputs, labels=labels).loss, sum(losses) / 7)

    model = build("ForQuestionAnswering")
    reference = Reference(dict(model.named_parameters()), model.config)
    # The second has no end in its row, the third neither.
    starts, ends = torch.tensor([1, 0, -100]), torch.tensor([4, 9, 12])
    losses = [], []
    for row, text in enumerate(TEXTS):
        logits = torch.stack([reference.linear("span", x) for x in reference.encode(text, plain[row])[0]], dim=1)
        for side, where in enumerate((starts, ends)):
            if 0 <= where[row] < 9:
                losses[side].append(nats(logits[side], where[row]))
    output = model(**inputs, start_positions=starts, end_positions=ends)
    close(output.loss, (sum(losses[0]) / 2 + losses[1][0]) / 2)
    lowest = torch.finfo(torch.float64).min
    assert output.start_logits[2, 2:].eq(lowest).all()

    model = build("ForMultipleChoice")
    reference = Reference(dict(model.named_parameters()), model.config)
    scores = torch.cat(
        [reference.linear("choice", reference.pool(reference.encode(t, [0] * len(t))[0])) for t in TEXTS]
    )
    output = model(**{name: tensor[None] for name, tensor in inputs.items()}, labels=torch.tensor([2]))
    close(output.logits[0], scores)
    close(output.loss, nats(scores, 2))


HEADS_OF_BOTH = [
    "ForMaskedLM",
    "ForPreTraining",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]


@st.composite
def problems(draw):
    options = {
        "heads": draw(st.integers(1, 3)),
        "head_size": draw(st.sampled_from([2, 4])),
        "intermediate_size": draw(st.integers(3, 9)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "hidden_act": draw(st.sampled_from(["gelu", "relu", "gelu_new"])),
        "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5])),
        "seed": draw(st.integers(0, 100)),
    }
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32, torch.bfloat16]))
    return options, lengths, draw(st.sampled_from(["eager", "sdpa"])), draw(st.booleans()), dtype


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@given(problem=problems(), head=st.sampled_from(HEADS_OF_BOTH))
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_it_is_what_transformers_has(kind, problem, head, tmp_path_factory):
    """Logits, losses and, by the way back, gradients, of converted models with random weights."""
    options, lengths, implementation, left, dtype = problem
    stem = kind.capitalize()
    if not hasattr(transformers, f"{stem}{head}"):
        return
    if kind == "roberta":
        options = options | {"hidden_act": "gelu"}
    torch.manual_seed(options["seed"])
    config = getattr(transformers, f"{stem}Config")(
        vocab_size=20,
        hidden_size=options["heads"] * options["head_size"],
        num_attention_heads=options["heads"],
        max_position_embeddings=12,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **{name: value for name, value in options.items() if name not in ("heads", "head_size", "seed")},
    )
    stock = getattr(transformers, f"{stem}{head}")(config).eval()
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.4)
    folder = tmp_path_factory.mktemp("convert")
    stock.save_pretrained(folder / "theirs")
    convert(folder / "theirs", folder / "ours")
    mine = getattr(hf_attnzoo, f"BERT{head}").from_pretrained(folder / "ours").to(dtype)
    stock = stock.to(dtype)
    for model in (mine, stock):
        model.set_attn_implementation(implementation)

    rows, width = len(lengths), max(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    # A text is classified by its first position, which there is that of the row.
    left = left and kind == "bert" and head in ("ForMaskedLM", "ForTokenClassification")
    mask = mask.flip(1) if left else mask
    ids = torch.where(mask.bool(), torch.randint(4, 20, (rows, width)), 1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if head == "ForMultipleChoice":
        inputs = {name: torch.stack([tensor, tensor], dim=1) for name, tensor in inputs.items()}
        inputs["input_ids"][:, 1] = torch.where(mask.bool(), torch.randint(4, 20, (rows, width)), 1)
    if kind == "bert":
        inputs["token_type_ids"] = torch.randint(0, 2, inputs["input_ids"].shape) * inputs["attention_mask"]
    classes = torch.randint(0, 2, (rows,))
    words = torch.where(mask.bool() & (torch.rand(rows, width) < 0.7), ids, -100)
    words[0, 0] = 5
    labels = {
        "ForMaskedLM": {"labels": words},
        "ForPreTraining": {"labels": words, "next_sentence_label": classes},
        "ForTokenClassification": {"labels": torch.where(mask.bool(), ids % 2, -100)},
        "ForQuestionAnswering": {"start_positions": classes * 0, "end_positions": classes * 0},
    }.get(head, {"labels": classes})

    # Theirs counts padding, too, if it isn't told the positions.
    places = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)} if left else {}
    expected, output = stock(**inputs, **labels, **places), mine(**inputs, **labels)
    tight = {
        torch.float64: {"rtol": 1e-6, "atol": 1e-6},
        torch.float32: {"rtol": 1e-4, "atol": 1e-4},
        torch.bfloat16: {"rtol": 0.1, "atol": 0.25},
    }[dtype]
    for name in ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits"):
        if name not in output:
            continue
        one, other = output[name], expected[name]
        if one.shape[:2] == mask.shape and head not in ("ForMultipleChoice", "ForSequenceClassification"):
            one, other = one[mask.bool()], other[mask.bool()]
        torch.testing.assert_close(one, other, **tight)
    if head == "ForQuestionAnswering" and len(set(lengths)) > 1:
        # There an answer may begin in the padding, and the loss depends on how much of it there is.
        return
    torch.testing.assert_close(output.loss.double(), expected.loss.double(), **tight)
    if dtype != torch.float64:
        return
    output.loss.backward()
    expected.loss.backward()
    # What is true of the weights is true of the gradients: written as weights they convert to each other.
    with torch.no_grad():
        for model in (mine, stock):
            for parameter in model.parameters():
                parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    mine.save_pretrained(folder / "gradients")
    convert(folder / "gradients", folder / "back", to="transformers")
    back = type(stock).from_pretrained(folder / "back", dtype=torch.float64)
    wanted = dict(stock.named_parameters())
    for name, gradient in back.named_parameters():
        if kind == "roberta" and "position_embeddings" in name:
            # The row of padding, which transformers gives no gradient, is read by nothing in ours.
            gradient = gradient[2:]
            torch.testing.assert_close(gradient, wanted[name][2:], **tight, msg=name)
            continue
        torch.testing.assert_close(gradient, wanted[name], **tight, msg=name)


def test_packed_texts_of_a_batch_are_pooled_one_by_one():
    model = build("ForSequenceClassification", num_labels=3)
    ids = torch.tensor([TEXTS[0] + TEXTS[1]])
    positions = torch.tensor([[*range(6), *range(4)]])
    packed = model(input_ids=ids, position_ids=positions, labels=torch.tensor([1, 2]))
    reference = Reference(dict(model.named_parameters()), model.config)
    logits = [
        reference.linear("classifier", reference.pool(reference.encode(text, [0] * len(text))[0]))
        for text in TEXTS[:2]
    ]
    close(packed.logits, torch.stack(logits))
    close(packed.loss, (nats(logits[0], 1) + nats(logits[1], 2)) / 2)


class Half(torch.nn.Module):
    """Stands for a dropout whose draw is known."""

    def forward(self, inputs):
        return inputs / 2


def test_where_dropout_is():
    model = build("ForSequenceClassification", num_labels=2).train()
    names = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)}
    layers = {
        f"model.stack.layers.{i}.{part}dropout" for i in range(2) for part in ("", "self_attn.", "feed_forward.")
    }
    assert names == layers | {"model.inputs.dropout", "dropout"}
    whole = model(input_ids=torch.tensor([TEXTS[0]]))
    model.dropout = Half()
    halved = model(input_ids=torch.tensor([TEXTS[0]]))
    bias = model.classifier.bias
    close(halved.logits - bias, (whole.logits - bias) / 2)
    inputs = model.model(input_ids=torch.tensor([TEXTS[0]]), output_hidden_states=True).hidden_states[0]
    model.model.inputs.dropout = Half()
    close(model.model(input_ids=torch.tensor([TEXTS[0]]), output_hidden_states=True).hidden_states[0], inputs / 2)


def test_rates_of_dropout():
    config = BERTConfig(hidden_size=8, num_attention_heads=2, dropout=0.2, attention_dropout=0.3, num_hidden_layers=1)
    model = BERTForSequenceClassification(config)
    layer = model.model.stack.layers[0]
    assert (layer.dropout.p, layer.self_attn.dropout.p, layer.feed_forward.dropout.p) == (0.2, 0.3, 0.0)
    assert (model.dropout.p, model.model.inputs.dropout.p) == (0.2, 0.2)
    config.classifier_dropout = 0.0
    assert BERTForSequenceClassification(config).dropout.p == 0.0


@pytest.mark.parametrize(
    ("preset", "millions"),
    # Turc et al. (2019), table 1, and of large, which Devlin et al. round to 340, what its sizes make.
    [("tiny", 4.4), ("mini", 11.3), ("small", 29.1), ("medium", 41.7), ("base", 110.1), ("large", 336.2)],
)
def test_presets_have_the_sizes_of_the_papers(preset, millions):
    with torch.device("meta"):
        model = BERTForPreTraining(BERTConfig.from_preset(preset))
    assert model.num_parameters() / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_size": 10, "num_attention_heads": 4}, ("hidden_size=10", "num_attention_heads=4")),
        ({"hidden_act": "gelo"}, ("'gelo'", "'gelu'")),
        ({"position_offset": -1}, ("position_offset=-1",)),
        ({"type_vocab_size": -1}, ("type_vocab_size=-1",)),
        ({"classifier_dropout": 1.0}, ("classifier_dropout=1.0",)),
        ({"num_hidden_layers": 0}, ("num_hidden_layers=0",)),
        ({"pad_token_id": 1000}, ("pad_token_id=1000", "999")),
    ],
)
def test_a_configuration_that_makes_no_model_is_refused(options, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        BERTConfig(**options)
    assert all(word in str(error.value) for word in words), error.value


def test_labels_that_name_nothing_are_refused():
    ids = torch.tensor([TEXTS[0]])
    for head, labels, words in (
        ("ForSequenceClassification", {"labels": torch.tensor([2])}, ("labels", "1")),
        ("ForSequenceClassification", {"labels": torch.tensor([[1]])}, ("labels", "(1,)", "(1, 1)")),
        ("ForTokenClassification", {"labels": torch.tensor([[1]])}, ("labels", "(1, 6)")),
        ("ForNextSentencePrediction", {"labels": torch.tensor([-1])}, ("labels",)),
        ("ForPreTraining", {"next_sentence_label": torch.tensor([3])}, ("next_sentence_label", "3")),
        ("ForQuestionAnswering", {"start_positions": torch.tensor([1])}, ("end_positions",)),
        ("ForPreTraining", {"labels": torch.tensor([[VOCAB] * 6])}, ("labels", str(VOCAB - 1))),
        ("ForPreTraining", {"labels": torch.tensor([[3]])}, ("labels", "(1, 6)")),
    ):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            build(head)(input_ids=ids, **labels)
        assert all(word in str(error.value) for word in words), error.value
    with pytest.raises(ValueError, match=r"input_ids.*\(1, 6\)"):
        build("ForMultipleChoice")(input_ids=ids)


def test_pairs_are_weighed_by_their_share_of_masked_words():
    model = build()
    assert isinstance(model, BERTForPreTraining)
    batch = {"input_ids": torch.tensor([TEXTS[0]]), "labels": torch.tensor([[-100, 4, -100, -100, 8, -100]])}
    words = model(**batch).loss
    pairs = model(input_ids=batch["input_ids"], next_sentence_label=torch.tensor([1])).loss
    whole = model(**batch, next_sentence_label=torch.tensor([1])).loss
    close(whole, words + pairs)
    part = model(**batch, next_sentence_label=torch.tensor([1]), num_items_in_batch=8).loss
    close(part, (words + pairs) / 4)
    assert functional.cross_entropy(
        model(input_ids=batch["input_ids"]).seq_relationship_logits, torch.tensor([1])
    ).item() == pytest.approx(pairs.item())
