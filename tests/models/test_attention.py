"""Attention functions against numbers worked out by hand, scalar loops, and autograd of the plain formulas."""

import math

import pytest
import torch
from torch import nn

from hf_attnzoo.models import attention
from hf_attnzoo.models.attention import AdditiveAttention, additive_scores, attend, masked_softmax

ANNOTATIONS = torch.tensor([[[1.0, 3.0, 9.0], [0.0, 0.0, 1.0], [5.0, -1.0, 2.0]]], dtype=torch.float64)
STATE = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
HALVES = [torch.float16, torch.bfloat16]


def plain_scores(query, keys, v):
    return torch.tanh(query[:, :, None] + keys[:, None]) @ v


def sides(*shape, size=5, dtype=torch.float64, scale=1.0):
    """Query, keys and `v` for `(B, Q, S)`."""
    generator = torch.Generator().manual_seed(11)
    batch, queries, sources = shape
    made = (
        torch.randn(rows, generator=generator, dtype=torch.float64) * scale
        for rows in ((batch, queries, size), (batch, sources, size), (size,))
    )
    return [tensor.to(dtype).requires_grad_() for tensor in made]


class TestLecture:
    def test_equal_weights_give_the_average_annotation(self):
        weights = masked_softmax(torch.zeros(1, 1, 3, dtype=torch.float64), None)
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3), rtol=0, atol=1e-15)
        context = attend(weights, ANNOTATIONS)
        expected = torch.tensor([[[2.0, 2 / 3, 4.0]]], dtype=torch.float64)
        torch.testing.assert_close(context, expected, rtol=0, atol=1e-15)

    @pytest.mark.parametrize("scale", [1.0, math.sqrt(3)])
    def test_dot_scores_through_softmax_and_average(self, scale):
        scores = torch.einsum("d,bsd->bs", STATE, ANNOTATIONS)[:, None]
        assert scores.tolist() == [[[12.0, 1.0, 1.0]]]
        weights = masked_softmax(scores / scale, torch.ones(1, 3))
        # e^12 : e^1 : e^1 = 1 : e^-11 : e^-11, and the same with 12 / sqrt(3) and 1 / sqrt(3)
        rest = math.exp(-11 / scale)
        first, other = 1 / (1 + 2 * rest), rest / (1 + 2 * rest)
        assert weights[0, 0].tolist() == pytest.approx([first, other, other], abs=1e-15)
        context = attend(weights, ANNOTATIONS)[0, 0].tolist()
        assert context == pytest.approx([first + 5 * other, 3 * first - other, 9 * first + 3 * other], abs=1e-14)

    def test_a_masked_annotation_is_left_out_of_the_average(self):
        weights = masked_softmax(torch.zeros(1, 1, 3, dtype=torch.float64), torch.tensor([[1, 0, 1]]))
        assert attend(weights, ANNOTATIONS)[0, 0].tolist() == pytest.approx([3.0, 1.0, 5.5], abs=1e-15)


class TestMaskedSoftmax:
    def test_real_positions_share_what_a_softmax_of_them_alone_gives(self):
        scores = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 1, 0, 0]])
        weights = masked_softmax(scores, mask)
        for row in range(3):
            real = mask[row].bool()
            torch.testing.assert_close(weights[row][:, real], scores[row][:, real].softmax(-1), rtol=0, atol=1e-15)
            assert (weights[row][:, ~real] == 0).all()

    @pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
    def test_any_kind_of_mask(self, kind):
        weights = masked_softmax(torch.tensor([[[0.0, 5.0, 0.0]]]), torch.tensor([[1, 0, 1]]).to(kind))
        assert weights.tolist() == [[[0.5, 0.0, 0.5]]]

    @pytest.mark.filterwarnings("ignore:Anomaly Detection")
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
    def test_masked_rows_are_zero_and_poison_no_gradient(self, dtype):
        scores = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        mask = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0]])
        # The anomaly mode also sees a NaN that a later step of the backward pass covers up.
        with torch.autograd.detect_anomaly():
            weights = masked_softmax(scores, mask)
            (weights * torch.arange(4, dtype=dtype)).sum().backward()
        assert weights.dtype == dtype
        assert (weights[0] == 0).all()
        torch.testing.assert_close(weights[1].sum(-1), torch.ones(2, dtype=dtype))
        assert scores.grad.isfinite().all()
        assert (scores.grad[0] == 0).all()
        assert (scores.grad[1][:, [0, 3]] == 0).all()
        # d(p_1 + 2 p_2) / d(score_1, score_2) = p_1 p_2 (-1, 1)
        slope = weights[1, :, 1] * weights[1, :, 2]
        torch.testing.assert_close(scores.grad[1][:, 1:3], torch.stack([-slope, slope], dim=-1).detach())

    @pytest.mark.parametrize(
        ("dtype", "low"),
        [(torch.float16, -6e4), (torch.bfloat16, -3e38), (torch.float32, -3e38), (torch.float64, -1e9)],
    )
    def test_very_low_scores_still_beat_the_mask(self, dtype, low):
        scores = torch.full((1, 1, 4), low, dtype=dtype)
        scores[..., 3] = torch.finfo(dtype).max
        weights = masked_softmax(scores, torch.tensor([[1, 1, 0, 0]]))
        assert weights.tolist() == [[[0.5, 0.5, 0.0, 0.0]]]

    def test_gradcheck(self):
        scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
        mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]])
        assert torch.autograd.gradcheck(lambda scores: masked_softmax(scores, mask), scores)


class TestAdditiveScores:
    @pytest.mark.parametrize("grad", [True, False])
    def test_against_scalars(self, grad):
        query, keys, v = sides(2, 3, 4)
        with torch.set_grad_enabled(grad):
            scores = additive_scores(query, keys, v)
        assert scores.shape == (2, 3, 4)
        for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
            energy = sum(
                v[k].item() * math.tanh(query[b, i, k].item() + keys[b, j, k].item()) for k in range(v.shape[0])
            )
            assert scores[b, i, j].item() == pytest.approx(energy, abs=1e-13)

    @pytest.mark.parametrize("as_sigmoid", [True, False])
    def test_gradcheck_of_both_forms(self, monkeypatch, as_sigmoid):
        query, keys, v = sides(2, 3, 4)
        assert attention._tanh_as_sigmoid(query)
        monkeypatch.setattr(attention, "_tanh_as_sigmoid", lambda query: as_sigmoid)
        assert torch.autograd.gradcheck(additive_scores, (query, keys, v))

    @pytest.mark.parametrize(
        ("dtype", "tolerance"),
        [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 4e-2), (torch.float16, 5e-3)],
    )
    # Where a tanh is saturated its slope must vanish, not turn into noise.
    @pytest.mark.parametrize("scale", [0.5, 30.0])
    def test_gradients_are_those_of_the_plain_formula(self, dtype, tolerance, scale):
        inputs = sides(2, 3, 4, dtype=dtype, scale=scale)
        assert attention._tanh_as_sigmoid(inputs[0]) == (dtype in (torch.float32, torch.float64))
        exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
        coefficients = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
        scores, expected = additive_scores(*inputs), plain_scores(*exact)
        assert scores.dtype == dtype
        (scores * coefficients).sum().backward()
        (expected * coefficients.double()).sum().backward()
        for ours, plain in [
            (scores, expected),
            *((one.grad, other.grad) for one, other in zip(inputs, exact, strict=True)),
        ]:
            scale_of_values = plain.detach().abs().max().item()
            torch.testing.assert_close(
                ours.detach().double(), plain.detach(), rtol=0, atol=tolerance * max(scale_of_values, 1)
            )

    def test_only_what_is_asked_for_needs_a_gradient(self):
        query, keys, v = sides(2, 3, 4)
        for wanted in (query, keys, v):
            mine = [tensor.detach().requires_grad_(tensor is wanted) for tensor in (query, keys, v)]
            theirs = [tensor.detach().requires_grad_(tensor is wanted) for tensor in (query, keys, v)]
            additive_scores(*mine).square().sum().backward()
            plain_scores(*theirs).square().sum().backward()
            for ours, plain in zip(mine, theirs, strict=True):
                assert (ours.grad is None) == (plain.grad is None)
                if plain.grad is not None:
                    torch.testing.assert_close(ours.grad, plain.grad, rtol=0, atol=1e-12)

    def test_the_backward_pass_can_run_twice(self):
        query, keys, v = sides(2, 3, 4)
        total = additive_scores(query, keys, v).sum()
        total.backward(retain_graph=True)
        once = [tensor.grad.clone() for tensor in (query, keys, v)]
        total.backward()
        for tensor, first in zip((query, keys, v), once, strict=True):
            torch.testing.assert_close(tensor.grad, 2 * first, rtol=0, atol=0)

    def test_the_block_of_all_pairs_is_not_kept_for_the_backward_pass(self):
        inputs = sides(2, 3, 4)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.append(tensor.numel()) or tensor, lambda x: x
        ):
            additive_scores(*inputs)
        assert sum(kept) == sum(tensor.numel() for tensor in inputs)

    def test_inputs_stay_as_they_are(self):
        inputs = sides(2, 3, 4)
        before = [tensor.detach().clone() for tensor in inputs]
        additive_scores(*inputs).sum().backward()
        with torch.no_grad():
            additive_scores(*inputs)
        for tensor, value in zip(inputs, before, strict=True):
            assert torch.equal(tensor, value)

    def test_traced_equals_eager(self):
        inputs = sides(2, 3, 4)
        compiled = torch.compile(additive_scores, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*inputs), additive_scores(*inputs), rtol=0, atol=1e-13)


def covered(*shape, dtype=torch.float64):
    """A coverage `(B, Q, S)` and its weight."""
    generator = torch.Generator().manual_seed(8)
    size = sides(*shape)[2].shape[0]
    coverage = torch.rand(shape, generator=generator, dtype=torch.float64) * 2
    weight = torch.randn(size, generator=generator, dtype=torch.float64)
    return [tensor.to(dtype).requires_grad_() for tensor in (coverage, weight)]


class TestCoverage:
    @pytest.mark.parametrize("grad", [True, False])
    def test_against_scalars(self, grad):
        query, keys, v = sides(2, 3, 4)
        coverage, weight = covered(2, 3, 4)
        with torch.set_grad_enabled(grad):
            scores = additive_scores(query, keys, v, coverage, weight)
        for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
            energy = 0.0
            for k in range(v.shape[0]):
                inside = query[b, i, k].item() + keys[b, j, k].item() + weight[k].item() * coverage[b, i, j].item()
                energy += v[k].item() * math.tanh(inside)
            assert scores[b, i, j].item() == pytest.approx(energy, abs=1e-13)

    @pytest.mark.parametrize("as_sigmoid", [True, False])
    def test_gradcheck_of_both_forms(self, monkeypatch, as_sigmoid):
        monkeypatch.setattr(attention, "_tanh_as_sigmoid", lambda query: as_sigmoid)
        assert torch.autograd.gradcheck(additive_scores, (*sides(2, 3, 4), *covered(2, 3, 4)))

    def test_a_coverage_may_be_finer_than_the_scores(self):
        # As under autocast: the sum of many weights stays in 32 bits.
        half, exact = sides(2, 3, 4, dtype=torch.bfloat16), sides(2, 3, 4)
        coarse, fine = covered(2, 3, 4, dtype=torch.float32), covered(2, 3, 4)
        scores, expected = additive_scores(*half, *coarse), additive_scores(*exact, *fine)
        assert scores.dtype == torch.bfloat16
        torch.testing.assert_close(scores.detach().double(), expected.detach(), rtol=0, atol=0.1)
        scores.sum().backward()
        expected.sum().backward()
        for one, other in zip((*half, *coarse), (*exact, *fine), strict=True):
            assert one.grad.dtype == one.dtype
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=0.1, atol=0.1)

    def test_traced_equals_eager(self):
        inputs = (*sides(2, 3, 4), *covered(2, 3, 4))
        compiled = torch.compile(additive_scores, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*inputs), additive_scores(*inputs), rtol=0, atol=1e-13)


@pytest.fixture
def module():
    torch.manual_seed(2)
    module = AdditiveAttention(query_size=4, key_size=6, attention_size=5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


class TestAdditiveAttention:
    def test_beams_of_a_sentence_are_queries_to_one_memory(self, module):
        module.double()
        query, values = torch.randn(2, 3, 4).double(), torch.randn(2, 5, 6).double()
        mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
        contexts, weights = module(query, module.key_proj(values), values, mask)
        assert contexts.shape == (2, 3, 6)
        assert weights.shape == (2, 3, 5)
        for row in range(2):
            size = int(mask[row].sum())
            memory = values[row : row + 1, :size]
            for beam in range(3):
                context, alone = module(query[row, beam][None, None], module.key_proj(memory), memory, None)
                torch.testing.assert_close(contexts[row, beam], context[0, 0], rtol=0, atol=1e-13)
                torch.testing.assert_close(weights[row, beam, :size], alone[0, 0], rtol=0, atol=1e-13)
                assert (weights[row, beam, size:] == 0).all()

    def test_a_source_without_a_real_position_gives_no_context_and_no_nan(self, module):
        values = torch.randn(1, 3, 6, requires_grad=True)
        contexts, weights = module(torch.randn(1, 2, 4), module.key_proj(values), values, torch.zeros(1, 3))
        contexts.sum().backward()
        assert not contexts.any()
        assert not weights.any()
        for tensor in (values, *module.parameters()):
            assert tensor.grad is None or (tensor.grad == 0).all()

    @pytest.mark.parametrize("grad", [True, False])
    @pytest.mark.parametrize("dtype", HALVES)
    def test_autocast_is_close_to_full_precision(self, module, dtype, grad):
        generator = torch.Generator().manual_seed(8)
        query = torch.randn(2, 3, 4, generator=generator)
        values = torch.randn(2, 5, 6, generator=generator)
        mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
        coefficients = torch.randn(2, 3, 6, generator=generator)

        def run(enabled):
            module.zero_grad()
            with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=dtype, enabled=enabled):
                contexts, weights = module(query, module.key_proj(values), values, mask)
                total = (contexts.float() * coefficients).sum()
            if grad:
                total.backward()
            return contexts, weights, [parameter.grad for parameter in module.parameters()] if grad else []

        contexts, weights, gradients = run(False)
        half_contexts, half_weights, half_gradients = run(True)
        near = {"rtol": 0, "atol": 0.08 if dtype == torch.bfloat16 else 0.02}
        torch.testing.assert_close(half_contexts.float(), contexts, **near)
        torch.testing.assert_close(half_weights.float(), weights, **near)
        assert not half_weights[1, :, 2:].any()
        for ours, exact in zip(half_gradients, gradients, strict=True):
            assert ours.dtype == torch.float32
            torch.testing.assert_close(ours, exact, rtol=0, atol=near["atol"] * 2 * exact.abs().max().item())

    @pytest.mark.parametrize("dtype", HALVES)
    def test_a_model_in_half_precision(self, module, dtype):
        module.to(dtype)
        values = torch.randn(2, 5, 6, dtype=dtype)
        contexts, weights = module(
            torch.randn(2, 3, 4, dtype=dtype), module.key_proj(values), values, torch.ones(2, 5)
        )
        assert contexts.dtype == weights.dtype == dtype
        contexts.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in module.parameters())

    def test_initialisation(self):
        module = AdditiveAttention(query_size=96, key_size=128, attention_size=80)
        torch.manual_seed(0)
        module.initialize()
        assert not module.v.any()
        for projection in (module.query_proj, module.key_proj):
            assert isinstance(projection, nn.Linear)
            assert projection.bias is None
            # at least 7,680 draws: their deviation is known to 0.8 %, their mean to 1.2e-5
            assert projection.weight.std().item() == pytest.approx(0.001, rel=0.04)
            assert projection.weight.mean().item() == pytest.approx(0, abs=6e-5)
        values = torch.randn(1, 4, 128)
        weights = module(torch.randn(1, 1, 96), module.key_proj(values), values, torch.tensor([[1, 1, 1, 0]]))[1]
        torch.testing.assert_close(weights[0, 0], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]))
