"""Multi-head attention against loops written from equation 1 and section 3.2.2 of Vaswani et al. (2017)."""

import importlib.util
import math

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import EncoderDecoderCache

from hf_attnzoo import TransformerModel
from hf_attnzoo.models.configuration_transformer import TransformerConfig
from hf_attnzoo.models.multi_head import (
    MultiHeadAttention,
    bidirectional_mask,
    causal_mask,
    cross_mask,
    scaled_dot_product_attention,
)

HIDDEN, HEADS = 6, 2
SIZE = HIDDEN // HEADS
IMPLEMENTATIONS = ["eager", "sdpa"]

# The lecture's annotations h and state s.
H = torch.tensor([[1.0, 3, 9], [0, 0, 1], [5, -1, 2]], dtype=torch.float64)
S = torch.tensor([[0.0, 1, 1]], dtype=torch.float64)


def config_of(implementation: str, **options) -> TransformerConfig:
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "attention_dropout": 0.0, "num_decoder_layers": 1}
    config = TransformerConfig(**sizes | options)
    config._attn_implementation = implementation
    return config


def build(implementation: str, causal=False, cross=False, **options) -> MultiHeadAttention:
    torch.manual_seed(3)
    return MultiHeadAttention(config_of(implementation, **options), 0, causal, cross).double().eval()


def inputs(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, HIDDEN, generator=generator, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def by_hand(attention: MultiHeadAttention, asking, asked, allowed):
    """Section 3.2.2 for one text, number by number: outputs, and weights `(heads, queries, keys)`.

    `allowed(i, j)` says whether query i may read key j.
    """
    if attention.cross:
        query_weight, query_bias = attention.q_proj.weight, attention.q_proj.bias
        key_weight, value_weight = attention.kv_proj.weight.split(HIDDEN)
        key_bias, value_bias = attention.kv_proj.bias.split(HIDDEN)
    else:
        query_weight, key_weight, value_weight = attention.qkv_proj.weight.split(HIDDEN)
        query_bias, key_bias, value_bias = attention.qkv_proj.bias.split(HIDDEN)
    outputs, all_weights = [], [[] for _ in range(HEADS)]
    for i, x in enumerate(asking):
        heads = []
        for head in range(HEADS):
            rows = slice(head * SIZE, (head + 1) * SIZE)
            query = query_weight[rows] @ x + query_bias[rows]
            exponentials, values = [], []
            for j, y in enumerate(asked):
                key = key_weight[rows] @ y + key_bias[rows]
                values.append(value_weight[rows] @ y + value_bias[rows])
                score = sum(query[n] * key[n] for n in range(SIZE)) / math.sqrt(SIZE)
                exponentials.append(torch.exp(score) if allowed(i, j) else torch.zeros((), dtype=torch.float64))
            total = sum(exponentials)
            weights = [one / total if total > 0 else one for one in exponentials]
            heads.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
            all_weights[head].append(torch.stack(weights))
        outputs.append(attention.out_proj.weight @ torch.cat(heads) + attention.out_proj.bias)
    return torch.stack(outputs), torch.stack([torch.stack(rows) for rows in all_weights])


class TestTheFunction:
    def heads(self, matrix):
        return matrix[None, None]

    def test_scores_of_the_lecture(self):
        exponentials = [math.exp(score) for score in (12, 1, 1)]
        expected = torch.tensor([one / sum(exponentials) for one in exponentials], dtype=torch.float64)
        average, weights = scaled_dot_product_attention(
            None, self.heads(S), self.heads(H), self.heads(H), None, scaling=1.0
        )
        close(weights[0, 0, 0], expected)
        close(average[0, 0, 0], expected[0] * H[0] + expected[1] * H[1] + expected[2] * H[2])

    def test_scaled_scores_of_the_lecture(self):
        exponentials = [math.exp(score / math.sqrt(3)) for score in (12, 1, 1)]
        _, weights = scaled_dot_product_attention(None, self.heads(S), self.heads(H), self.heads(H), None)
        close(weights[0, 0, 0], torch.tensor([one / sum(exponentials) for one in exponentials], dtype=torch.float64))

    def test_a_query_that_says_nothing_averages(self):
        average, _ = scaled_dot_product_attention(None, self.heads(0 * S), self.heads(H), self.heads(H), None)
        close(average[0, 0, 0], torch.tensor([2.0, 2 / 3, 4.0], dtype=torch.float64))

    @pytest.mark.parametrize("lowest", [torch.finfo(torch.float64).min, -math.inf])
    def test_a_mask_of_numbers_is_added_and_its_lowest_forbids(self, lowest):
        mask = torch.tensor([[[[math.log(2.0), 0.0, lowest]], [[lowest, lowest, lowest]]]], dtype=torch.float64)
        query, key = torch.zeros(1, 2, 1, 3, dtype=torch.float64), H.expand(1, 2, 3, 3)
        average, weights = scaled_dot_product_attention(None, query, key, key, mask)
        assert weights[0, 0, 0, 2] == 0
        close(weights[0, 0, 0], torch.tensor([2 / 3, 1 / 3, 0.0], dtype=torch.float64))
        assert (weights[0, 1] == 0).all()
        assert (average[0, 0, 1] == 0).all()


MASKS = {
    "right": [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]],
    "left": [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]],
    "scattered": [[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 1]],
    "empty": [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]],
    "none": None,
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["causal", "bidirectional", "cross"])
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_are_those_of_the_equations(implementation, kind, mask):
    attention = build(implementation, causal=kind == "causal", cross=kind == "cross")
    given = None if MASKS[mask] is None else torch.tensor(MASKS[mask])
    real = torch.ones(3, 4).bool() if given is None else given.bool()
    asking, source = inputs(3, 4), inputs(3, 4, seed=1)
    asked = source if kind == "cross" else asking
    if kind == "cross":
        asking = asking[:, :3]

    def run(weights: bool):
        options = {"output_attentions": weights}
        if kind == "cross":
            made = cross_mask(attention.config, asking, source, given, **options)
        else:
            make = causal_mask if kind == "causal" else bidirectional_mask
            made = make(attention.config, asking, given, **options)
        return attention(asking, made, source, **options)

    output, none = run(weights=False)
    assert (none is None) == (implementation == "sdpa")
    output.pow(2).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in attention.named_parameters()}
    attention.zero_grad()
    again, weights = run(weights=True)
    close(again, output)
    again.pow(2).sum().backward()
    for name, parameter in attention.named_parameters():
        close(parameter.grad, gradients[name])
    attention.zero_grad()

    total = 0
    for row in range(3):

        def allowed(i, j, row=row):
            return bool(real[row, j]) and (kind != "causal" or j <= i)

        expected, expected_weights = by_hand(attention, asking[row], asked[row], allowed)
        close(output[row], expected)
        close(weights[row], expected_weights)
        for i in range(asking.shape[1]):
            for j in range(4):
                assert allowed(i, j) or (weights[row, :, i, j] == 0).all()
        total = total + expected.pow(2).sum()
    total.backward()
    for name, parameter in attention.named_parameters():
        assert gradients[name].isfinite().all()
        close(gradients[name], parameter.grad)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_later_word_changes_nothing_before_it(implementation):
    attention, hidden = build(implementation, causal=True), inputs(2, 5)
    before = attention(hidden, causal_mask(attention.config, hidden))[0]
    changed = hidden.clone()
    changed[:, 3] += 1
    after = attention(changed, causal_mask(attention.config, changed))[0]
    assert torch.equal(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().amin(dim=(0, 2)).min() > 1e-6


def self_caches(config):
    return {
        "dynamic": DynamicCache(config=config),
        "lazy": DynamicCache(),
        "static": StaticCache(config=config, max_cache_len=8),
        "pair": EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)),
    }


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["dynamic", "lazy", "static", "pair"])
@pytest.mark.parametrize("output_attentions", [False, True])
@pytest.mark.parametrize("parts", [[6], [1] * 6, [3, 2, 1]], ids=str)
def test_in_pieces_through_a_cache_is_in_one(implementation, kind, output_attentions, parts):
    attention, hidden = build(implementation, causal=True), inputs(2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    whole, _ = attention(hidden, causal_mask(attention.config, hidden, mask))
    cache, seen, pieces = self_caches(attention.config)[kind], 0, []
    for piece in hidden.split(parts, dim=1):
        seen += piece.shape[1]
        options = {"output_attentions": output_attentions}
        made = causal_mask(attention.config, piece, mask[:, :seen], cache, **options)
        output, weights = attention(piece, made, cache=cache, **options)
        if output_attentions:
            assert weights.shape[:3] == (2, HEADS, piece.shape[1])
            assert (weights[1, :, :, :2] == 0).all()
            assert (weights[..., seen:] == 0).all()
        pieces.append(output)
    close(torch.cat(pieces, dim=1), whole)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("cached", [False, True])
def test_hypotheses_read_one_copy_of_their_source(implementation, cached):
    attention, source = build(implementation, cross=True), inputs(2, 4, seed=1)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]])
    asking = inputs(6, 2)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if cached else None
    made = cross_mask(attention.config, asking, source, mask)
    output, _ = attention(asking, made, source, cache)
    if cached:
        assert cache.cross_attention_cache.layers[0].keys.shape == (2, HEADS, 4, SIZE)
        # What is in the cache is not made again.
        close(attention(asking, made, None, cache)[0], output)
    with_weights, weights = attention(
        asking, cross_mask(attention.config, asking, source, mask, output_attentions=True), source, None, True
    )
    close(with_weights, output)
    repeated, repeated_mask = source.repeat_interleave(3, dim=0), mask.repeat_interleave(3, dim=0)
    expected, expected_weights = attention(
        asking,
        cross_mask(attention.config, asking, repeated, repeated_mask, output_attentions=True),
        repeated,
        None,
        True,
    )
    close(output, expected)
    close(weights, expected_weights)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["causal", "bidirectional", "cross"])
def test_packed_documents_do_not_see_each_other(implementation, kind):
    attention = build(implementation, causal=kind == "causal", cross=kind == "cross")
    hidden, source = inputs(2, 5), inputs(2, 4, seed=1)
    documents = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    source_documents = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]])
    if kind == "cross":
        made = cross_mask(attention.config, hidden, source, documents=(documents, source_documents))
    else:
        make = causal_mask if kind == "causal" else bidirectional_mask
        made = make(attention.config, hidden, documents=documents)
    output, _ = attention(hidden, made, source)
    for row, document in ((0, 0), (0, 1), (1, 0), (1, 1)):
        part = hidden[row : row + 1, documents[row] == document]
        part_source = source[row : row + 1, source_documents[row] == document]
        alone = causal_mask(attention.config, part) if kind == "causal" else None
        close(output[row, documents[row] == document], attention(part, alone, part_source)[0][0])


def test_packed_documents_and_a_cache_are_refused():
    config, hidden = config_of("sdpa"), inputs(1, 3)
    with pytest.raises(ValueError, match="position_ids"):
        causal_mask(config, hidden, cache=DynamicCache(), documents=torch.tensor([[0, 1, 1]]))


def test_packed_documents_of_several_rows_are_refused_for_flash():
    config, hidden, documents = config_of("flash_attention_2"), inputs(2, 3), torch.tensor([[0, 1, 1], [0, 0, 1]])
    for call in (
        lambda: causal_mask(config, hidden, documents=documents),
        lambda: bidirectional_mask(config, hidden, documents=documents),
        lambda: cross_mask(config, hidden, hidden, documents=(documents, documents)),
    ):
        with pytest.raises(ValueError, match="flash_attention_2"):
            call()


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="the package is there")
def test_a_kernel_that_is_not_there_is_refused():
    with pytest.raises(ImportError, match=r"flash_attn|FlashAttention2"):
        TransformerModel(config_of("eager")).set_attn_implementation("flash_attention_2")
    with pytest.raises(ValueError, match="nonsense"):
        TransformerModel(config_of("eager")).set_attn_implementation("nonsense")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dropout_is_on_the_weights_in_training_alone(implementation):
    attention, hidden = build(implementation, attention_dropout=0.5), inputs(2, 5)
    plain = attention(hidden)[0]
    close(attention(hidden)[0], plain)
    attention.train()
    torch.manual_seed(0)
    runs = torch.stack([attention(hidden)[0] for _ in range(3000)])
    assert (runs[0] - plain).abs().max() > 1e-3
    # What is dropped is made up for by what is not, so the mean stays.
    assert (runs.mean(dim=0) - plain).abs().max() < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_half_precision_stays_finite_where_a_row_is_empty(implementation, dtype):
    attention = build(implementation, causal=True).to(dtype)
    hidden = inputs(2, 4).to(dtype)
    mask = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]])
    output, _ = attention(hidden, causal_mask(attention.config, hidden, mask))
    output.float().sum().backward()
    assert output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
    expected = attention.out_proj.bias.expand(2, 4, -1)
    assert torch.equal(output[1], expected[1])
    assert torch.equal(output[0, :2], expected[0, :2])
