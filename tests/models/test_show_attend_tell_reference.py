"""Show, Attend and Tell against the equations of Xu et al. (2015), written out one location and one word at a time.

The reference knows one picture at a time: no batch, no padding, no convolution, recurrent or attention module. Values
and the gradient of every parameter must agree in double precision. What hard attention samples is imposed on the
model, so that its gradient can be compared for one sample, and in expectation over all there are.
"""

import itertools

import pytest
import torch

from hf_attnzoo.models import modeling_show_attend_tell as modeling
from hf_attnzoo.models.configuration_show_attend_tell import ShowAttendTellConfig
from hf_attnzoo.models.losses import token_log_likelihoods
from hf_attnzoo.models.modeling_show_attend_tell import (
    RewardBaseline,
    ShowAttendTellForConditionalGeneration,
    doubly_stochastic_penalty,
    sample_locations,
)

# Every size differs from every other, so that no product works out with its sides exchanged. The grid is 3 by 3.
SIZES = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 5, "attention_size": 3, "image_size": 9}
CONVOLUTIONS = {"encoder_channels": [2, 6], "num_residual_layers": 1, "num_channels": 2}
START = 2
CAPTIONS = [[7, 4, 5, 3], [3], [8, 8, 3]]


class Reference:
    """Sections 3 and 4 of the paper, with the parameters of a checkpoint as its matrices."""

    def __init__(self, parameters: dict[str, torch.Tensor], config: ShowAttendTellConfig):
        self.config = config
        self.parameters = {name.removeprefix("model."): value for name, value in parameters.items()}

    def weight(self, name):
        return self.parameters[f"{name}.weight"]

    def linear(self, name, x):
        return self.weight(name) @ x + self.parameters.get(f"{name}.bias", 0)

    def convolve(self, name, maps, stride):
        """A 3x3 convolution with a border of zeros, normalised over the whole picture, and a rectifier."""
        kernel = self.weight(f"{name}.conv")
        channels, rows, columns = maps.shape
        padded = maps.new_zeros(channels, rows + 2, columns + 2)
        padded[:, 1:-1, 1:-1] = maps
        grid = [
            torch.stack(
                [(kernel * padded[:, r : r + 3, c : c + 3]).sum(dim=(1, 2, 3)) for c in range(0, columns, stride)]
            )
            for r in range(0, rows, stride)
        ]
        out = torch.stack(grid).permute(2, 0, 1)
        spread = ((out - out.mean()) ** 2).mean()
        out = (out - out.mean()) / (spread + 1e-5).sqrt()
        scale, shift = self.weight(f"{name}.norm"), self.parameters[f"{name}.norm.bias"]
        return (out * scale[:, None, None] + shift[:, None, None]).clamp(min=0)

    def annotate(self, pixels):
        """a_1 to a_L, row by row."""
        maps = pixels
        halvings = len(self.config.encoder_channels)
        for stage in range(halvings + self.config.num_residual_layers):
            name = f"encoder.stages.{stage}"
            if stage < halvings:
                maps = self.convolve(name, maps, stride=2)
            else:
                maps = maps + self.convolve(name, maps, stride=1)
        annotations = [maps[:, r, c] for r in range(maps.shape[1]) for c in range(maps.shape[2])]
        if self.config.position_embeddings:
            places = self.weight("encoder.position_embeddings")
            annotations = [a + place for a, place in zip(annotations, places, strict=True)]
        return annotations

    def decode(self, annotations, words, locations=None, argmax=False):
        """The caption's log-likelihood, the log-probability of its locations, and all there is to see.

        Locations are imposed, or the largest, or else the expected annotation is read.
        """
        mean = sum(annotations) / len(annotations)
        h, c = torch.tanh(self.linear("decoder.initial_proj", mean)).chunk(2)
        seen = {"alpha": [], "logits": [], "deep": [], "h": []}
        log_likelihood = log_locations = 0
        attention = "decoder.step.attention"
        for t, (previous, word) in enumerate(zip([START, *words[:-1]], words, strict=True)):
            x = self.weight("embed_tokens")[previous]
            query = self.weight(f"{attention}.query_proj") @ h
            v = self.parameters[f"{attention}.v"]
            energies = [(v * torch.tanh(query + self.weight(f"{attention}.key_proj") @ a)).sum() for a in annotations]
            exponentials = [torch.exp(e) for e in energies]
            alpha = [e / sum(exponentials) for e in exponentials]
            if locations is None and not argmax:
                z = sum(weight * a for weight, a in zip(alpha, annotations, strict=True))
            else:
                place = locations[t] if locations else max(range(len(alpha)), key=lambda i: alpha[i].item())
                z = annotations[place]
                log_locations = log_locations + torch.log(alpha[place])
            if self.config.context_gate:
                z = torch.sigmoid(self.linear("decoder.step.context_gate", h)[0]) * z
            gates = (
                self.linear("decoder.input_proj", x)
                + self.linear("decoder.step.context_proj", z)
                + self.linear("decoder.step.cell.hidden_proj", h)
            )
            i, f, g, o = gates.chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            deep = x + self.linear("decoder.state_readout", h) + self.linear("decoder.context_readout", z)
            logits = self.weight("embed_tokens" if self.config.tie_word_embeddings else "lm_head") @ deep
            log_likelihood = log_likelihood + logits[word] - torch.log(torch.exp(logits).sum())
            seen["alpha"].append(torch.stack(alpha))
            seen["logits"].append(logits)
            seen["deep"].append(deep)
            seen["h"].append(h)
        return log_likelihood, log_locations, {name: torch.stack(values) for name, values in seen.items()}


def penalty(alpha):
    """Equation 14 without its lambda."""
    return sum((1 - sum(step[place] for step in alpha)) ** 2 for place in range(alpha.shape[1]))


def entropy(alpha):
    return -sum(weight * torch.log(weight) for step in alpha for weight in step)


def build(**choices) -> ShowAttendTellForConditionalGeneration:
    """A model in double precision whose parameters are all far from 0."""
    torch.manual_seed(5)
    model = ShowAttendTellForConditionalGeneration(ShowAttendTellConfig(**SIZES | CONVOLUTIONS | choices)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model.eval()


def batch(model, captions=CAPTIONS):
    config = model.config
    generator = torch.Generator().manual_seed(6)
    shape = (len(captions), config.num_channels, config.image_size, config.image_size)
    pixels = torch.randn(shape, generator=generator, dtype=torch.float64)
    width = max(map(len, captions))
    return pixels, torch.tensor([words + [-100] * (width - len(words)) for words in captions])


def reference_of(model):
    copies = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    return copies, Reference(copies, model.config)


def close(actual, expected):
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=1e-9, atol=1e-10)


def agree_in_gradients(model, copies, silent=()):
    for name, parameter in model.named_parameters():
        if name in silent:
            assert parameter.grad is None or not parameter.grad.any(), name
            continue
        assert copies[name].grad.any(), name
        close(parameter.grad, copies[name].grad)


SOFT = {
    "plain": {"context_gate": False, "num_residual_layers": 0},
    "gated": {"num_residual_layers": 2},
    "placed": {"position_embeddings": True},
    "tied": {"tie_word_embeddings": True, "encoder_channels": [6]},
    "attention_size": {"attention_size": None},
    "expected": {"attention": "hard", "hard_evaluation": "expected"},
}


@pytest.mark.parametrize("choices", SOFT.values(), ids=SOFT.keys())
def test_soft_attention_is_that_of_the_paper(choices):
    model = build(**choices)
    pixels, labels = batch(model)
    outputs = model(pixel_values=pixels, labels=labels, output_attentions=True, output_hidden_states=True)
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    deep = model.model(pixel_values=pixels, decoder_input_ids=inputs).last_hidden_state
    outputs.loss.backward()

    copies, reference = reference_of(model)
    losses = []
    for row, words in enumerate(CAPTIONS):
        annotations = reference.annotate(pixels[row])
        log_likelihood, _, seen = reference.decode(annotations, words)
        losses.append(-log_likelihood)
        length = len(words)
        close(outputs.encoder_last_hidden_state[row], torch.stack(annotations))
        close(outputs.logits[row, :length], seen["logits"])
        close(outputs.cross_attentions[0][row, 0, :length], seen["alpha"])
        close(outputs.decoder_hidden_states[-1][row, :length], seen["h"])
        close(deep[row, :length], seen["deep"])
    loss = sum(losses) / sum(map(len, CAPTIONS))
    loss.backward()
    close(outputs.loss, loss)
    agree_in_gradients(model, copies)


@pytest.mark.parametrize("num_items", [None, 5])
def test_training_adds_the_doubly_stochastic_penalty(num_items):
    model = build(doubly_stochastic_weight=0.7).train()
    pixels, labels = batch(model)
    outputs = model(pixel_values=pixels, labels=labels, num_items_in_batch=num_items)
    outputs.loss.backward()
    copies, reference = reference_of(model)
    total = 0
    for row, words in enumerate(CAPTIONS):
        log_likelihood, _, seen = reference.decode(reference.annotate(pixels[row]), words)
        total = total - log_likelihood + 0.7 * penalty(seen["alpha"])
    loss = total / (num_items or sum(map(len, CAPTIONS)))
    loss.backward()
    close(outputs.loss, loss)
    agree_in_gradients(model, copies)


def test_hard_attention_reads_the_likeliest_location_when_it_does_not_train():
    model = build(attention="hard")
    pixels, labels = batch(model)
    outputs = model(pixel_values=pixels, labels=labels, output_attentions=True)
    outputs.loss.backward()
    copies, reference = reference_of(model)
    total = 0
    for row, words in enumerate(CAPTIONS):
        log_likelihood, _, seen = reference.decode(reference.annotate(pixels[row]), words, argmax=True)
        total = total - log_likelihood
        close(outputs.logits[row, : len(words)], seen["logits"])
        close(outputs.cross_attentions[0][row, 0, : len(words)], seen["alpha"])
        assert torch.equal(outputs.locations[row, : len(words)], seen["alpha"].argmax(dim=-1))
    loss = total / sum(map(len, CAPTIONS))
    loss.backward()
    close(outputs.loss, loss)
    # A choice has no derivative.
    attention = {f"model.decoder.step.attention.{name}" for name in ("v", "query_proj.weight", "key_proj.weight")}
    agree_in_gradients(model, copies, silent=attention)


def imposed(monkeypatch, model, pixels, captions, sequences):
    """Make the model's samples those given: each noise is the middle of what leads to its location."""
    _, reference = reference_of(model)
    width = max(map(len, captions))
    noise = torch.full((len(captions), width), 0.5, dtype=torch.float64)
    for row, (words, places) in enumerate(zip(captions, sequences, strict=True)):
        _, _, seen = reference.decode(reference.annotate(pixels[row]), words, places)
        for t, place in enumerate(places):
            alpha = seen["alpha"][t].detach()
            noise[row, t] = alpha[:place].sum() + alpha[place] / 2
    monkeypatch.setattr(modeling, "location_noise", lambda rows, steps, like: noise)


def test_one_sample_of_hard_attention_with_all_terms(monkeypatch):
    model = build(
        attention="hard",
        expected_attention_rate=0.0,
        reward_weight=0.3,
        entropy_weight=0.2,
        doubly_stochastic_weight=0.6,
    ).train()
    model.reward_baseline.average.fill_(-2.5)
    pixels, labels = batch(model)
    sequences = [[8, 0, 4, 4], [2], [5, 1, 7]]
    imposed(monkeypatch, model, pixels, CAPTIONS, sequences)
    outputs = model(pixel_values=pixels, labels=labels)
    outputs.loss.backward()
    for row, places in enumerate(sequences):
        assert outputs.locations[row, : len(places)].tolist() == places

    copies, reference = reference_of(model)
    value = objective = 0
    rewards = []
    for row, (words, places) in enumerate(zip(CAPTIONS, sequences, strict=True)):
        log_likelihood, log_locations, seen = reference.decode(reference.annotate(pixels[row]), words, places)
        rewards.append(log_likelihood.item())
        terms = -log_likelihood + 0.6 * penalty(seen["alpha"]) - 0.2 * entropy(seen["alpha"])
        value = value + terms
        objective = objective + terms - 0.3 * (log_likelihood.item() + 2.5) * log_locations
    count = sum(map(len, CAPTIONS))
    close(outputs.loss, value / count)
    (objective / count).backward()
    agree_in_gradients(model, copies)
    assert model.reward_baseline.average.item() == pytest.approx(0.9 * -2.5 + 0.1 * sum(rewards) / 3)


@pytest.mark.parametrize("average", [0.0, -7.0])
def test_the_gradient_of_hard_attention_is_right_in_expectation(monkeypatch, average):
    """Over all sequences of locations the estimate averages to the gradient of `sum_s p(s | a) log p(y | s, a)`."""
    model = build(
        attention="hard",
        image_size=4,
        encoder_channels=[3],
        num_residual_layers=0,
        expected_attention_rate=0.0,
        reward_weight=1.0,
        entropy_weight=0.0,
        doubly_stochastic_weight=0.0,
    ).train()
    caption, places = [6, 4, 3], 4
    pixels, labels = batch(model, [caption])
    copies, reference = reference_of(model)
    annotations = reference.annotate(pixels[0])
    bound = total = 0
    estimate = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for sequence in itertools.product(range(places), repeat=len(caption)):
        log_likelihood, log_locations, _ = reference.decode(annotations, caption, list(sequence))
        probability = torch.exp(log_locations)
        bound, total = bound + probability * log_likelihood, total + probability.item()
        imposed(monkeypatch, model, pixels, [caption], [list(sequence)])
        model.reward_baseline.average.fill_(average)
        model.zero_grad()
        model(pixel_values=pixels, labels=labels, num_items_in_batch=1).loss.backward()
        for name, parameter in model.named_parameters():
            estimate[name] += probability.item() * parameter.grad
    assert total == pytest.approx(1)
    (-bound).backward()
    for name, parameter in copies.items():
        assert parameter.grad.any(), name
        close(estimate[name], parameter.grad)


def test_a_caption_of_the_expected_annotation_is_one_of_soft_attention():
    hard = build(attention="hard", expected_attention_rate=1.0, entropy_weight=0.0).train()
    soft = build().train()
    soft.load_state_dict({name: value for name, value in hard.state_dict().items() if "baseline" not in name})
    pixels, labels = batch(hard)
    losses = [model(pixel_values=pixels, labels=labels).loss for model in (hard, soft)]
    for loss in losses:
        loss.backward()
    close(*losses)
    for one, other in zip(hard.parameters(), soft.parameters(), strict=True):
        close(one.grad, other.grad)


def test_whether_to_sample_is_decided_for_a_whole_caption():
    model = build(attention="hard", expected_attention_rate=0.5).train()
    captions = [[7, 4, 5, 3]] * 40
    pixels, labels = batch(model, captions)
    torch.manual_seed(0)
    sampled = model(pixel_values=pixels, labels=labels).locations >= 0
    assert torch.equal(sampled.all(dim=1), sampled.any(dim=1))
    assert 10 < sampled[:, 0].sum() < 30


def test_locations_are_drawn_by_their_weights():
    weights = torch.tensor([0.25, 0.0, 0.5, 0.25]).expand(6, 4)
    noise = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.75, 0.9999999])
    assert sample_locations(weights, noise).tolist() == [0, 0, 2, 2, 3, 3]
    # A sum that rounding has kept below 1 is the whole all the same.
    assert sample_locations(torch.tensor([0.5, 0.25, 0.0]), torch.tensor(0.99)).item() == 1
    noise = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    drawn = sample_locations(torch.tensor([0.1, 0.6, 0.0, 0.3]).expand(20_000, 4), noise).bincount(minlength=4)
    assert (drawn / 20_000).tolist() == pytest.approx([0.1, 0.6, 0.0, 0.3], abs=0.01)


def test_the_baseline_by_hand():
    baseline = RewardBaseline(0.9)
    counted = torch.tensor([True, True, False])
    advantages = baseline(torch.tensor([-4.0, -2.0, 0.0]), counted)
    assert advantages.tolist() == [-4.0, -2.0, 0.0]
    # 0.9 * 0 + 0.1 * -3
    assert baseline.average.item() == pytest.approx(-0.3)
    advantages = baseline(torch.tensor([-1.0, -2.0]), torch.tensor([True, True]))
    assert advantages.tolist() == pytest.approx([-0.7, -1.7])
    # 0.9 * -0.3 + 0.1 * -1.5
    assert baseline.average.item() == pytest.approx(-0.42)
    baseline(torch.tensor([-9.0]), torch.tensor([False]))
    assert baseline.average.item() == pytest.approx(-0.42)


def test_the_baseline_rests_in_evaluation_and_travels_with_the_weights(tmp_path):
    model = build(attention="hard")
    model.reward_baseline.average.fill_(-1.25)
    pixels, labels = batch(model)
    model(pixel_values=pixels, labels=labels)
    assert model.reward_baseline.average.item() == -1.25
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).reward_baseline.average.item() == -1.25
    # The base model has none: what it is missing begins with nothing.
    model.model.save_pretrained(tmp_path / "base")
    assert type(model).from_pretrained(tmp_path / "base").reward_baseline.average.item() == 0


def test_the_penalty_by_hand():
    weights = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], [[1.0, 0.0], [0.3, 0.7], [0.3, 0.7]]])
    weights = torch.cat([weights, weights[:1]])
    real = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    # (1 - 0.75)^2 + (1 - 1.25)^2 + (1 - 1)^2 + (1 - 0)^2, and nothing of a caption without a word
    assert doubly_stochastic_penalty(weights, real).item() == pytest.approx(1.125)


def test_log_likelihoods_of_labels_are_made_in_parts():
    torch.manual_seed(0)
    hidden, head = torch.randn(3, 5, 4), torch.nn.Linear(4, 7, bias=False)
    labels = torch.randint(0, 7, (3, 5))
    labels[1, 2:] = -100
    values = token_log_likelihoods(hidden, head, labels, chunk_size=4)
    assert not values.requires_grad
    log_probs = head(hidden).log_softmax(dim=-1)
    for row, column in itertools.product(range(3), range(5)):
        label = labels[row, column]
        wanted = 0.0 if label == -100 else log_probs[row, column, label].item()
        assert values[row, column].item() == pytest.approx(wanted, abs=1e-6)
