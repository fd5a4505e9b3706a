"""The recurrent language model keeps the contract, and the equations of a loop written without it."""

from itertools import chain

import pytest
import torch
from transformers import Trainer, TrainingArguments

from hf_attnzoo import RNNLMConfig, RNNLMForCausalLM
from hf_attnzoo.models import lstm, recurrence
from hf_attnzoo.testing import CAUSAL_CONTRACT, CAUSAL_INTEGRATIONS, scattered

VARIANTS = {
    "lstm": {},
    "gru": {"cell": "gru", "num_layers": 2},
    "residual": {"num_layers": 3, "residual": True, "dropout": 0.2},
    "tied-gru": {"cell": "gru", "num_layers": 2, "residual": True, "embedding_size": 10, "tie_word_embeddings": True},
}
HIDDEN, PAD, END = 10, 1, 3
RIGHT = torch.tensor([[4, 9, 7, 5], [8, 6, PAD, PAD], [11, PAD, PAD, PAD]])
LEFT = torch.tensor([[4, 9, 7, 5], [PAD, PAD, 8, 6], [PAD, PAD, PAD, 11]])


def build(variant: str, **choices) -> RNNLMForCausalLM:
    sizes = {"vocab_size": 20, "embedding_size": 8, "hidden_size": HIDDEN}
    return scattered(RNNLMForCausalLM(RNNLMConfig(**(sizes | VARIANTS[variant] | choices))))


@pytest.mark.parametrize("check", CAUSAL_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", CAUSAL_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("residual"))


def test_a_gru_compiles_and_exports_too():
    for check in CAUSAL_INTEGRATIONS:
        if check.__name__ in ("check_compile", "check_export"):
            check(build("tied-gru"))


class Scale(torch.nn.Module):
    """A dropout without chance: it multiplies by what no weight could be mistaken for."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return 0.7 * tensor


class Reference:
    """One text, one word, one layer at a time, from the equations, on the parameters of a checkpoint."""

    def __init__(self, config: RNNLMConfig, parameters: dict[str, torch.Tensor]):
        self.config, self.parameters = config, parameters

    def gates(self, layer: int, part: str, vector: torch.Tensor) -> list[torch.Tensor]:
        name = f"model.layers.{layer}.rnn.{part}"
        product = self.parameters[f"{name}.weight"] @ vector + self.parameters[f"{name}.bias"]
        return [product[start : start + HIDDEN] for start in range(0, len(product), HIDDEN)]

    def lstm(self, layer: int, below: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Zaremba et al. (2014), section 3.1: i, f, o, g, then c_t = f c_(t-1) + i g and h_t = o tanh(c_t)."""
        pairs = zip(self.gates(layer, "input_proj", below), self.gates(layer, "cell.hidden_proj", h), strict=True)
        i, f, g, o = (x + u for x, u in pairs)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def gru(self, layer: int, below: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """r, z, then n = tanh(x + r (U h)) and h_t = (1 - z) n + z h_(t-1)."""
        (x_r, x_z, x_n), (u_r, u_z, u_n) = (
            self.gates(layer, "input_proj", below),
            self.gates(layer, "cell.hidden_proj", h),
        )
        z = torch.sigmoid(x_z + u_z)
        return ((1 - z) * torch.tanh(x_n + torch.sigmoid(x_r + u_r) * u_n) + z * h,)

    def logits(self, words: list[int]) -> list[torch.Tensor]:
        embedding = self.parameters["model.embed_tokens.weight"]
        head = self.parameters.get("lm_head.weight", embedding)
        cell = self.lstm if self.config.cell == "lstm" else self.gru
        zero = torch.zeros(HIDDEN, dtype=torch.float64)
        states = [(zero,) * (2 if self.config.cell == "lstm" else 1)] * self.config.num_layers
        logits = []
        for word in words:
            output = embedding[word]
            for layer in range(self.config.num_layers):
                below = 0.7 * output
                states[layer] = cell(layer, below, *states[layer])
                output = states[layer][0] + (below if self.config.residual and layer > 0 else 0)
            logits.append(head @ (0.7 * output))
        return logits


@pytest.mark.parametrize("padded", [RIGHT, LEFT], ids=["right", "left"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients_are_those_of_the_equations(variant, padded):
    model = build(variant).double()
    model.model.dropout = Scale()
    parameters = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    reference = Reference(model.config, parameters)
    texts = [[4, 9, 7, 5], [8, 6], [11]]
    by_hand = [reference.logits(text) for text in texts]
    losses = [
        torch.logsumexp(predicted, 0) - predicted[word]
        for text, logits in zip(texts, by_hand, strict=True)
        for predicted, word in zip(logits, text[1:], strict=False)
    ]
    assert len(losses) == 4
    (sum(losses) / 4).backward()

    output = model(input_ids=padded, labels=padded.masked_fill(padded == PAD, -100))
    output.loss.backward()
    torch.testing.assert_close(output.logits[padded != PAD], torch.stack([*chain(*by_hand)]), rtol=0, atol=1e-12)
    torch.testing.assert_close(output.loss, sum(losses) / 4, rtol=0, atol=1e-12)
    for name, value in model.named_parameters():
        expected = parameters[name].grad
        torch.testing.assert_close(value.grad, expected, rtol=0, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_padded_texts_are_fed_in_pieces(variant, size):
    model = build(variant)
    for padded in (RIGHT, LEFT):
        mask = (padded != PAD).long()
        whole = model(padded, attention_mask=mask, use_cache=False).logits
        cache, pieces = None, []
        for start in range(0, 4, size):
            ids = padded[:, start : start + size]
            output = model(ids, attention_mask=mask[:, : start + size], cache=cache, use_cache=True)
            cache = output.cache
            pieces.append(output.logits)
        # On padding too: it repeats what stood before it, be that in an earlier piece.
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"prefill_chunk_size": 1}], ids=str)
def test_prompts_may_be_padded_on_the_right(variant, options):
    model = build(variant)
    if "prefill_chunk_size" in options:
        # transformers wants a cache to put the pieces in
        options = options | {"cache": recurrence.RecurrentCache()}
    written = model.generate(RIGHT, max_new_tokens=6, suppress_tokens=[END], **options)
    options.pop("cache", None)
    options.pop("prefill_chunk_size", None)
    expected = model.generate(LEFT, max_new_tokens=6, suppress_tokens=[END], **options)
    assert torch.equal(written[:, 4:], expected[:, 4:])


def test_holes_in_a_text_are_passed_over():
    model = build("residual")
    mask = torch.tensor([[1, 0, 1, 1, 0]])
    holed = model(torch.tensor([[4, 15, 9, 7, 15]]), attention_mask=mask).logits
    alone = model(torch.tensor([[4, 9, 7]])).logits
    torch.testing.assert_close(holed, alone[:, [0, 0, 1, 2, 2]])


def test_padding_that_also_ends_a_text_is_read_unless_a_mask_says_otherwise():
    model = build("lstm", pad_token_id=END)
    ids = torch.tensor([[4, END, 5]])
    read = model(ids).logits
    torch.testing.assert_close(read, model(ids, attention_mask=torch.ones_like(ids)).logits)
    assert (read - build("lstm")(ids).logits).abs().max() == 0
    passed_over = model(ids, attention_mask=torch.tensor([[1, 0, 1]])).logits
    assert (passed_over[0, 2] - read[0, 2]).abs().max() > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_loop_in_python_where_the_layers_are_plain(variant, monkeypatch):
    def refuse(*args):
        raise AssertionError("scanned")

    monkeypatch.setattr(lstm, "scan", refuse)
    monkeypatch.setattr(recurrence, "scan", refuse)
    model = build(variant)
    for padded in (RIGHT, LEFT):
        model.train()
        model(input_ids=padded, labels=padded.masked_fill(padded == PAD, -100)).loss.backward()
        assert model.eval().generate(padded, max_new_tokens=2).shape[0] == 3


def test_options_that_do_not_combine_are_refused():
    for options, words in (
        ({"cell": "lstn"}, "cell='lstn'.*did you mean 'lstm'"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"pad_token_id": 1000}, "pad_token_id=1000"),
        ({"tie_word_embeddings": True, "embedding_size": 8}, "hidden_size=256 and embedding_size=8"),
    ):
        with pytest.raises(ValueError, match=words):
            RNNLMConfig(**options)


@pytest.mark.parametrize(
    ("preset", "size", "dropout", "limit"),
    [("zaremba-small", 200, 0, 0.1), ("zaremba-medium", 650, 0.5, 0.05), ("zaremba-large", 1500, 0.65, 0.04)],
)
def test_presets_have_the_sizes_of_the_paper(preset, size, dropout, limit):
    config = RNNLMConfig.from_preset(preset)
    assert (config.dropout, config.initializer_range) == (dropout, limit)
    with torch.device("meta"):
        model = RNNLMForCausalLM(config)
    # Two embeddings, and per layer four gates of two matrices and two biases.
    assert model.num_parameters() == 2 * 10_000 * size + 2 * 4 * (2 * size * size + 2 * size)


def test_weights_begin_uniform():
    config = RNNLMConfig.from_preset("tiny", initializer_range=0.05)
    for name, value in RNNLMForCausalLM(config).named_parameters():
        assert value.abs().max() <= 0.05, name
        # A uniform variable in plus or minus a has the standard deviation a / sqrt(3).
        assert value.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.15), name
        if name == "model.embed_tokens.weight":
            assert (value[PAD] == 0).all()


def test_trainer_knows_that_labels_are_shifted(tmp_path):
    model = build("lstm")
    labels = RIGHT.masked_fill(RIGHT == PAD, -100)
    arguments = TrainingArguments(tmp_path, label_smoothing_factor=0.1, use_cpu=True, report_to=[])
    trainer = Trainer(model, arguments)
    loss = trainer.compute_loss(model, {"input_ids": RIGHT, "labels": labels.clone()})
    log_probs = model(RIGHT).logits.log_softmax(-1)
    picked = [(0, 0, 9), (0, 1, 7), (0, 2, 5), (1, 0, 6)]
    by_hand = [0.9 * -log_probs[row, at, word] + 0.1 * -log_probs[row, at].mean() for row, at, word in picked]
    torch.testing.assert_close(loss, sum(by_hand) / 4)
    # of all labels those that something is predicted from
    assert trainer._get_num_items_in_batch([{"labels": labels}], torch.device("cpu")) == 4


def test_speculation_is_refused():
    model = build("lstm")
    with pytest.raises(ValueError, match="stateful"):
        model.generate(RIGHT[:1], assistant_model=build("lstm"), max_new_tokens=3)


def test_padding_that_the_model_writes_is_a_word_whether_or_not_the_prompts_are_padded():
    model = build("lstm")

    def allowed(row: int, ids: torch.Tensor) -> list[int]:
        return [PAD] if len(ids) == 4 else list(range(4, 20))

    options = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
    read = model(torch.tensor([[4, 9, 7, 5, PAD]]), attention_mask=torch.ones(1, 5)).logits[0, -1]
    for prompts in (LEFT[:1], LEFT):
        for use_cache in (True, False):
            written = model.generate(prompts, prefix_allowed_tokens_fn=allowed, use_cache=use_cache, **options)
            assert written.sequences[0, 4] == PAD
            torch.testing.assert_close(written.logits[1][0], read)


def test_a_negative_spread_of_weights_is_refused():
    with pytest.raises(ValueError, match="initializer_range=-1"):
        RNNLMConfig(initializer_range=-1)
