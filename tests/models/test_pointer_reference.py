"""Coverage and the pointer-generator against the equations of See, Liu and Manning (2017), written out word by word.

The reference knows one sentence, one word and one source position at a time. What it takes from the model is the
encoder, which other tests hold to its own equations. Values and the gradient of every parameter must agree in double
precision.
"""

import math

import pytest
import torch

from hf_attnzoo.models import modeling_rnnsearch
from hf_attnzoo.models.configuration_luong import LuongConfig
from hf_attnzoo.models.configuration_rnnsearch import RNNSearchConfig
from hf_attnzoo.models.modeling_luong import LuongForConditionalGeneration
from hf_attnzoo.models.modeling_rnnsearch import RNNSearchForConditionalGeneration

START, PAD, UNK, END = 2, 1, 0, 3
# Of the target: 4 special tokens, 5 words and 2 slots. Every size differs from every other.
WORDS, SLOTS, SOURCE_VOCAB = 9, 2, 13
VOCAB = WORDS + SLOTS
SIZES = {"embedding_size": 3, "hidden_size": 4, "vocab_size": VOCAB, "source_vocab_size": SOURCE_VOCAB}
FAMILIES = {
    "rnnsearch": (RNNSearchForConditionalGeneration, RNNSearchConfig, {"maxout_size": 5, "attention_size": 6}),
    "luong": (LuongForConditionalGeneration, LuongConfig, {"score": "concat"}),
    "luong-fed": (LuongForConditionalGeneration, LuongConfig, {"score": "concat", "input_feeding": True}),
}
OPTIONS = {
    "coverage": {"coverage": True},
    "copy": {"copy": True, "num_copy_slots": SLOTS},
    "both": {"coverage": True, "coverage_loss_weight": 0.7, "copy": True, "num_copy_slots": SLOTS},
}

# Twice the same word, a word of the target, two that only slots stand for, and one that nothing can be copied from.
SOURCES = [[5, 11, 5, 12, 7, 3], [12, 3]]
COPY_IDS = [[6, 9, 6, 10, -100, 3], [9, 3]]
# A word that is not in the source, one that is there twice, a slot, a slot that means another word elsewhere.
TARGETS = [[4, 6, 10, 6, 3], [9, 5, 3]]


def build(family, **options):
    model_class, config_class, choices = FAMILIES[family]
    torch.manual_seed(7)
    model = model_class(config_class(**SIZES | choices | options)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


def padded(rows, filler):
    width = max(map(len, rows))
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows])


def batch(copy=True):
    inputs = {
        "input_ids": padded(SOURCES, 7),
        "attention_mask": padded([[1] * len(row) for row in SOURCES], 0),
        "labels": padded(TARGETS, -100),
    }
    # Under the mask stands a word that would be wrong to copy.
    return inputs | ({"copy_ids": padded(COPY_IDS, 6)} if copy else {})


class Reference:
    """The decoder of one sentence, the parameters of a model as its matrices."""

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.values = {name.removeprefix("model.decoder."): value for name, value in model.named_parameters()}

    def weight(self, name):
        return self.values[f"{name}.weight"]

    def affine(self, name, x):
        return self.weight(name) @ x + self.values.get(f"{name}.bias", 0)

    def embed(self, word):
        return self.weight("embed_tokens")[UNK if self.config.copy and word >= WORDS else word]

    def encode(self, source):
        encoded = self.model.get_encoder()(input_ids=torch.tensor([source]))
        return list(encoded.last_hidden_state[0]), encoded.final_states[0]

    def energy(self, name, s, h, covered):
        """Equation 11, which is equation 1 where there is no coverage."""
        inside = self.weight(f"{name}.query_proj") @ s + self.weight(f"{name}.key_proj") @ h
        if self.config.coverage:
            inside = inside + self.values[f"{name}.coverage_weight"] * covered
            inside = inside + self.values[f"{name}.coverage_bias"]
        return (self.values[f"{name}.v"] * torch.tanh(inside)).sum()

    def attend(self, name, s, annotations, coverage):
        exponentials = [
            torch.exp(self.energy(name, s, h, covered)) for h, covered in zip(annotations, coverage, strict=True)
        ]
        alpha = [value / sum(exponentials) for value in exponentials]
        context = sum(weight * h for weight, h in zip(alpha, annotations, strict=True))
        return alpha, context

    def gru(self, gates, h, name):
        inner, size = self.affine(f"{name}.hidden_proj", h), len(h)
        r = torch.sigmoid(gates[:size] + inner[:size])
        z = torch.sigmoid(gates[size : 2 * size] + inner[size : 2 * size])
        n = torch.tanh(gates[2 * size :] + r * inner[2 * size :])
        return (1 - z) * n + z * h

    def lstm(self, gates, h, c, name):
        i, f, g, o = (gates + self.affine(f"{name}.hidden_proj", h)).split(len(h))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def steps(self, source, target):
        """Of each step: alpha, h*_t, s_t, x_t, the logits of the vocabulary, and the coverage before it."""
        annotations, final = self.encode(source)
        size = self.config.hidden_size
        rnnsearch = isinstance(self.config, RNNSearchConfig)
        if rnnsearch:
            # The backward state at the first word begins the decoder.
            s = torch.tanh(self.affine("initial_proj", annotations[0][size:]))
        else:
            (s, c), fed = final[0], torch.zeros(size, dtype=torch.float64)
        coverage = [torch.zeros((), dtype=torch.float64)] * len(source)
        for previous in [START, *target[:-1]]:
            x = self.embed(previous)
            if rnnsearch:
                alpha, context = self.attend("step.attention", s, annotations, coverage)
                parts = self.affine("word_readout", x) + self.affine("context_readout", context)
                parts = parts + self.affine("state_readout", s)
                logits = self.values["lm_head.weight"] @ torch.maximum(*parts.chunk(2))
                yield alpha, context, s, x, logits, coverage
                gates = self.affine("input_proj", x) + self.affine("step.context_proj", context)
                s = self.gru(gates, s, "step.cells.0")
            else:
                gates = self.affine("layers.0.rnn.input_proj", x)
                if self.config.input_feeding:
                    gates = gates + self.affine("feed_proj", fed)
                s, c = self.lstm(gates, s, c, "layers.0.rnn.cell")
                alpha, context = self.attend("attention", s, annotations, coverage)
                fed = torch.tanh(self.affine("context_proj", context) + self.affine("state_proj", s))
                yield alpha, context, s, x, self.values["lm_head.weight"] @ fed, coverage
            coverage = [covered + weight for covered, weight in zip(coverage, alpha, strict=True)]

    def probabilities(self, alpha, context, s, x, logits, copy_ids):
        """Equations 8 and 9; weight at a position that has no word to give goes to the vocabulary."""
        if not self.config.copy:
            exponentials = torch.exp(logits)
            return list(exponentials / exponentials.sum())
        exponentials = torch.exp(logits[:WORDS])
        vocabulary = [*(exponentials / exponentials.sum()), *[0] * SLOTS]
        both = torch.cat([context, s, x])
        p_gen = torch.sigmoid((self.weight("copy_gate")[0] * both).sum() + self.values["copy_gate.bias"][0])
        wordless = sum(weight for weight, word in zip(alpha, copy_ids, strict=True) if word == -100)
        total = []
        for word, generated in enumerate(vocabulary):
            copied = sum(weight for weight, source in zip(alpha, copy_ids, strict=True) if source == word)
            total.append((p_gen + (1 - p_gen) * wordless) * generated + (1 - p_gen) * copied)
        return total

    def run(self, source, copy_ids, target):
        """Log-likelihood and coverage loss of each word, all probabilities, and all weights."""
        losses, covering, probabilities, weights = [], [], [], []
        for word, (alpha, *rest, coverage) in zip(target, self.steps(source, target), strict=True):
            total = self.probabilities(alpha, *rest, copy_ids)
            losses.append(-torch.log(total[word]))
            # Equation 12
            covering.append(sum(min(weight, covered) for weight, covered in zip(alpha, coverage, strict=True)))
            probabilities.append(total)
            weights.append(torch.stack(alpha))
        return losses, covering, probabilities, weights


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(
        torch.as_tensor(actual).detach(), torch.as_tensor(expected).detach(), rtol=tolerance, atol=tolerance
    )


def expected_of(model):
    """Loss of the batch (equation 13, over all words), and of each sentence what `run` says."""
    reference = Reference(model)
    runs = [reference.run(*example) for example in zip(SOURCES, COPY_IDS, TARGETS, strict=True)]
    words = sum(map(len, TARGETS))
    loss = sum(sum(losses) for losses, *_ in runs) / words
    if model.config.coverage:
        loss = loss + model.config.coverage_loss_weight * sum(sum(covering) for _, covering, *_ in runs) / words
    return loss, runs


@pytest.fixture
def packed_calls(monkeypatch):
    """Counts the runs of RNNsearch's packed training loop."""
    calls, original = [], modeling_rnnsearch.additive_attentive_gru
    monkeypatch.setattr(modeling_rnnsearch, "additive_attentive_gru", lambda *args: calls.append(1) or original(*args))
    return calls


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_those_of_the_equations(family, options, training, packed_calls):
    model = build(family, **OPTIONS[options]).train(training)
    inputs = batch(model.config.copy)
    output = model(**inputs, **({} if training else {"output_attentions": True}))
    output.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    # The packed loop knows nothing of coverage.
    assert bool(packed_calls) == (training and family == "rnnsearch" and options == "copy")

    model.zero_grad()
    loss, runs = expected_of(model)
    loss.backward()
    close(output.loss, loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad.any(), name
        close(gradients[name], parameter.grad)
    if training:
        assert output.logits is None
        return
    for row, (_, covering, probabilities, weights) in enumerate(runs):
        close(output.cross_attentions[0][row, 0, : len(weights), : len(weights[0])], torch.stack(weights))
        for step, wanted in enumerate(probabilities):
            got = output.logits[row, step].log_softmax(-1).exp()
            close(got, torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in wanted]))
        assert covering[0] == 0
        assert min(covering[1:]) > 0.05
    if model.config.copy:
        close(output.logits.exp().sum(dim=-1), torch.ones(2, 5, dtype=torch.float64))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_is_wrapped_is_called(family):
    model = build(family, **OPTIONS["both"]).train()
    losses, gradients = [], []
    for hooked in (False, True):
        if hooked:
            model.lm_head.register_forward_hook(lambda module, args, output: None)
        model.zero_grad()
        loss = model(**batch()).loss
        loss.backward()
        losses.append(loss)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    close(*losses)
    for one, other in zip(*gradients, strict=True):
        close(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_accumulated_batches_weigh_every_word_the_same(family):
    model = build(family, **OPTIONS["both"]).train()
    whole = model(**batch()).loss
    parts = []
    for row in range(2):
        inputs = {name: tensor[row : row + 1] for name, tensor in batch().items()}
        parts.append(model(**inputs, num_items_in_batch=torch.tensor(8)).loss)
    close(sum(parts), whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_weight_of_zero_leaves_the_coverage_loss_out(family):
    model = build(family, coverage=True)
    with_loss = model(**batch(copy=False)).loss
    model.config.coverage_loss_weight = 0
    without = model(**batch(copy=False)).loss
    logits, labels = model(**batch(copy=False)).logits, batch()["labels"]
    close(without, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    assert with_loss > without + 0.05


def test_coverage_changes_the_attention():
    model = build("luong", coverage=True)
    first = model(**batch(copy=False), output_attentions=True).cross_attentions[0]
    with torch.no_grad():
        model.model.decoder.attention.coverage_weight.add_(3.0)
    second = model(**batch(copy=False), output_attentions=True).cross_attentions[0]
    # Before the first word nothing has been covered.
    close(first[:, :, 0], second[:, :, 0])
    assert ((first - second)[:, :, 1:].abs().amax(dim=-1) > 1e-3).all()


class TestLocalAttention:
    def test_what_the_gaussian_takes_goes_to_the_vocabulary(self):
        choices = {"attention": "local-p", "window": 2, "score": "dot"}
        torch.manual_seed(0)
        config = LuongConfig(**SIZES | choices | OPTIONS["copy"])
        model = LuongForConditionalGeneration(config).double().eval()
        inputs = batch()
        output = model(**inputs, output_attentions=True)
        weights = output.cross_attentions[0][:, 0]
        assert (weights.sum(dim=-1) < 0.99).any()
        decoder_input = model.prepare_decoder_input_ids_from_labels(inputs.pop("labels"))
        inputs.pop("copy_ids")
        base = model.model(**inputs, decoder_input_ids=decoder_input)
        vocabulary = model.lm_head(base.last_hidden_state)[..., :WORDS].softmax(dim=-1)
        p_gen = base.copy_gate.sigmoid()
        # The first sentence and its words 4, not in the source, and 6, which stands there twice.
        copyable = weights[0, :, [0, 1, 2, 3, 5]].sum(dim=-1)
        share = p_gen[0] + (1 - p_gen[0]) * (1 - copyable)
        close(output.logits[0, :, 4].exp(), share * vocabulary[0, :, 4])
        twice = (1 - p_gen[0]) * (weights[0, :, 0] + weights[0, :, 2])
        close(output.logits[0, :, 6].exp(), share * vocabulary[0, :, 6] + twice)
        close(output.logits.exp().sum(dim=-1), torch.ones(2, 5, dtype=torch.float64))


def slotted(family, **options):
    """In 32 bits, with weights small enough for every word to have a chance."""
    return build(family, **OPTIONS["both"] | options).float()


@pytest.mark.parametrize("family", FAMILIES)
class TestSlots:
    def test_a_slot_is_read_as_an_unknown_word(self, family):
        model, inputs = slotted(family), batch()
        del inputs["labels"]
        with_slots = torch.tensor([[START, 9, 10, 4], [START, 10, 9, 5]])
        with_unknown = with_slots.masked_fill(with_slots >= WORDS, UNK)
        one, other = (model(**inputs, decoder_input_ids=ids).logits for ids in (with_slots, with_unknown))
        assert torch.equal(one, other)

    def test_a_slot_that_stands_for_nothing_is_impossible_and_finite(self, family):
        model, inputs = slotted(family), batch()
        # The second sentence has a word for the first slot alone.
        logits = model(**inputs).logits
        assert logits.isfinite().all()
        assert logits.half().isfinite().all()
        assert (logits[1, :, 10] < -80).all()
        assert (logits[1, :, 9] > -20).all()
        inputs["labels"][1, 1] = 10
        loss = model(**inputs).loss
        loss.backward()
        assert math.isfinite(loss.item())
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    def test_padding_leaves_a_sentence_as_it_is_alone(self, family):
        model, inputs = slotted(family), batch()
        together = model(**inputs).logits
        for row, (source, copies, target) in enumerate(zip(SOURCES, COPY_IDS, TARGETS, strict=True)):
            for left in (0, 3):
                alone = {
                    "input_ids": torch.tensor([[PAD] * left + source]),
                    "copy_ids": torch.tensor([[-100] * left + copies]),
                    "labels": torch.tensor([target]),
                }
                close(model(**alone).logits[0], together[row, : len(target)], 1e-5)

    def test_generation(self, family):
        model, inputs = slotted(family), batch()
        del inputs["labels"]
        with torch.no_grad():
            # It would rather copy.
            model.model.decoder.copy_gate.bias.sub_(4)
        options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
        written = set()
        for search in ({}, {"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}):
            output = model.generate(**inputs, **search, **options)
            plain = model.generate(**inputs, **search, **options, use_cache=False)
            assert torch.equal(output.sequences, plain.sequences)
            written |= set(output.sequences.flatten().tolist())
            rows = len(output.sequences) // 2
            for row, (source, copies) in enumerate(zip(SOURCES, COPY_IDS, strict=True)):
                alone = model.generate(
                    input_ids=torch.tensor([source]), copy_ids=torch.tensor([copies]), **search, **options
                ).sequences
                for one, other in zip(output.sequences[row * rows : (row + 1) * rows], alone, strict=True):
                    assert torch.equal(one[: len(other)], other)
                    assert (one[len(other) :] == PAD).all()
            if "num_beams" not in search:
                continue
            # The score of a beam is that of its text.
            scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
            repeated = {name: tensor.repeat_interleave(rows, dim=0) for name, tensor in inputs.items()}
            log_probs = model(**repeated, decoder_input_ids=output.sequences[:, :-1]).logits
            picked = log_probs.gather(2, output.sequences[:, 1:, None])[:, :, 0]
            lengths = (output.beam_indices >= 0).sum(dim=1)
            inside = torch.arange(picked.shape[1]) < lengths[:, None]
            close((picked * inside).sum(dim=1), scores.sum(dim=1), 1e-4)
            close((picked * inside).sum(dim=1) / lengths, output.sequences_scores, 1e-4)
        assert written & {9, 10}, "nothing was copied: the check wants other weights"

    def test_half_precision(self, family):
        model, inputs = slotted(family), batch()
        expected = model(**inputs).loss
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                loss = model.train()(**inputs).loss
            loss.backward()
            close(loss, expected, 0.05)
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    def test_what_cannot_be_copied_is_refused(self, family):
        model, inputs = slotted(family), batch()
        copies = inputs.pop("copy_ids")
        for wrong, message in (
            (None, r"copy_ids is missing: with num_copy_slots=2, source_vocab_size=13"),
            (copies[:, :4], r"copy_ids must have the shape \(2, 6\), got \(2, 4\)"),
            (copies + 2, "copy_ids must be -100 or from 0 to 10, got up to 12"),
            (copies - 7, "copy_ids must be -100 or from 0 to 10, .* down to -107"),
        ):
            with pytest.raises(ValueError, match=message):
                model(**inputs, copy_ids=wrong)
        with pytest.raises(ValueError, match="copy_ids is missing"):
            model.generate(inputs["input_ids"])
        with pytest.raises(ValueError, match=r"new_num_tokens=12: .*num_copy_slots=2 of vocab_size=11"):
            model.resize_token_embeddings(12)
        assert model.config.vocab_size == 11
        model.resize_source_token_embeddings(14)
        ordinary = build(family).float()
        with pytest.raises(ValueError, match="copy_ids are of no use"):
            ordinary(**inputs, copy_ids=copies)


@pytest.mark.parametrize("family", ["rnnsearch", "luong"])
def test_a_shared_vocabulary_needs_no_copy_ids(family):
    model = build(family, copy=True, source_vocab_size=None).float()
    input_ids = torch.tensor([[5, 8, 5, 3], [7, 3, PAD, PAD]])
    labels = torch.tensor([[8, 5, 3], [7, 3, -100]])
    assert torch.equal(
        model(input_ids=input_ids, labels=labels).logits,
        model(input_ids=input_ids, labels=labels, copy_ids=input_ids).logits,
    )
    embeds = model.get_input_embeddings()(input_ids)
    with pytest.raises(ValueError, match="input_ids not given"):
        model(inputs_embeds=embeds, labels=labels)
    assert torch.equal(
        model.generate(input_ids, num_beams=2, max_new_tokens=4),
        model.generate(input_ids, num_beams=2, max_new_tokens=4, copy_ids=input_ids),
    )


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("rnnsearch", {"attention": "none", "attention_size": None, "copy": True}, 'copy=True .*attention="none"'),
        ("luong", {"attention": "none", "coverage": True}, 'coverage=True .*attention="none"'),
        ("luong", {"score": "dot", "coverage": True}, 'coverage=True .*score="dot": take score="concat"'),
        ("luong", {"score": "general", "coverage": True}, 'score="general"'),
        ("luong", {"num_copy_slots": 2}, "num_copy_slots=2 has no use with copy=False"),
        ("rnnsearch", {"copy": True, "num_copy_slots": 11}, "num_copy_slots=11 .*vocab_size=11"),
        ("rnnsearch", {"copy": True, "num_copy_slots": 8}, "eos_token_id=3"),
        ("rnnsearch", {"copy": True, "num_copy_slots": -1}, "num_copy_slots=-1 must be at least 0"),
        ("luong", {"coverage": True, "coverage_loss_weight": -1}, "coverage_loss_weight=-1 must be at least 0"),
        ("luong", {"copy": True, "unk_token_id": 11}, "unk_token_id=11"),
    ],
)
def test_options_that_do_not_combine_are_refused(family, options, message):
    with pytest.raises(ValueError, match=message):
        build(family, **options)
