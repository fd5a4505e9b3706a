"""Cells, scans and the cache against PyTorch's own GRU, scalar loops, and arithmetic on small tensors."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hf_attnzoo.models.configuration_rnnsearch import RNNSearchConfig
from hf_attnzoo.models.modeling_rnnsearch import RNNSearchForConditionalGeneration
from hf_attnzoo.models.recurrence import (
    GRUCell,
    GRULayer,
    RecurrentCache,
    _PackedGRU,
    reversal_order,
    scan,
    take_positions,
)

INPUT, HIDDEN = 3, 4
EXACT = {"rtol": 0, "atol": 1e-12}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(reset_after=True, reverse=False):
    torch.manual_seed(3)
    made = GRULayer(INPUT, HIDDEN, reset_after, reverse).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.7)
    return made


def pytorch_gru(made):
    """PyTorch's GRU with the weights of a layer that reads forward."""
    gru = nn.GRU(INPUT, HIDDEN, batch_first=True).double()
    ours = (made.input_proj.weight, made.cell.hidden_proj.weight, made.input_proj.bias, made.cell.hidden_proj.bias)
    with torch.no_grad():
        for theirs, value in zip(gru.parameters(), ours, strict=True):
            theirs.copy_(value)
    return gru


def turned(inputs, lengths):
    """Every row read from its last real position to its first."""
    rows = []
    for row, length in zip(inputs, lengths, strict=True):
        rows.append(torch.cat([row[:length].flip(0), row[length:]]))
    return torch.stack(rows)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class TestGRUCell:
    def test_reset_after_is_pytorchs_cell(self):
        made = layer()
        theirs = nn.GRUCell(INPUT, HIDDEN).double()
        with torch.no_grad():
            theirs.weight_ih.copy_(made.input_proj.weight)
            theirs.bias_ih.copy_(made.input_proj.bias)
            theirs.weight_hh.copy_(made.cell.hidden_proj.weight)
            theirs.bias_hh.copy_(made.cell.hidden_proj.bias)
        x, mine, other = drawn(5, INPUT), drawn(5, HIDDEN, seed=1), drawn(5, HIDDEN, seed=1)
        mine.requires_grad_()
        other.requires_grad_()
        new, expected = made.cell(made.input_proj(x), mine), theirs(x, other)
        torch.testing.assert_close(new, expected, **EXACT)
        new.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(mine.grad, other.grad, **EXACT)
        torch.testing.assert_close(made.input_proj.weight.grad, theirs.weight_ih.grad, **EXACT)
        torch.testing.assert_close(made.cell.hidden_proj.weight.grad, theirs.weight_hh.grad, **EXACT)
        torch.testing.assert_close(made.cell.hidden_proj.bias.grad, theirs.bias_hh.grad, **EXACT)

    @pytest.mark.parametrize("reset_after", [True, False])
    def test_against_scalars(self, reset_after):
        cell = layer(reset_after).cell
        gates, hidden = drawn(1, 3 * HIDDEN), drawn(1, HIDDEN, seed=1)
        a, h = gates[0].tolist(), hidden[0].tolist()

        def row(projection, k, vector):
            bias = 0.0 if projection.bias is None else projection.bias[k].item()
            return sum(w * x for w, x in zip(projection.weight[k].tolist(), vector, strict=True)) + bias

        gate = cell.hidden_proj if reset_after else cell.gate_proj
        r = [sigmoid(a[k] + row(gate, k, h)) for k in range(HIDDEN)]
        z = [sigmoid(a[HIDDEN + k] + row(gate, HIDDEN + k, h)) for k in range(HIDDEN)]
        expected = []
        for k in range(HIDDEN):
            if reset_after:
                inner = r[k] * row(cell.hidden_proj, 2 * HIDDEN + k, h)
            else:
                inner = row(cell.candidate_proj, k, [one * other for one, other in zip(r, h, strict=True)])
            expected.append((1 - z[k]) * math.tanh(a[2 * HIDDEN + k] + inner) + z[k] * h[k])
        assert cell(gates, hidden)[0].tolist() == pytest.approx(expected, abs=1e-13)

    @pytest.mark.parametrize("reset_after", [True, False])
    def test_gradcheck(self, reset_after):
        cell = layer(reset_after).cell
        gates, hidden = drawn(2, 3 * HIDDEN).requires_grad_(), drawn(2, HIDDEN, seed=1).requires_grad_()
        assert torch.autograd.gradcheck(lambda *inputs: cell(*inputs), (gates, hidden))

    @pytest.mark.parametrize("reset_after", [True, False])
    def test_recurrent_matrices_are_orthogonal_gate_by_gate(self, reset_after):
        cell = GRUCell(16, reset_after)
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.fill_(7.0)
        torch.manual_seed(0)
        cell.initialize()
        blocks = [block for projection in cell.children() for block in projection.weight.split(16)]
        assert len(blocks) == 3
        for block in blocks:
            torch.testing.assert_close(block @ block.T, torch.eye(16), rtol=0, atol=1e-5)
        assert not any(torch.allclose(blocks[i], blocks[j], atol=0.1) for i, j in ((0, 1), (0, 2), (1, 2)))
        for projection in cell.children():
            assert projection.bias is None or not projection.bias.any()


class TestGRULayer:
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("lengths", [[5, 2, 3], [1, 5, 4], [5, 5, 5], [2, 2, 2], None])
    def test_it_is_pytorchs_gru_on_packed_rows(self, lengths, reverse):
        made = layer(reverse=reverse)
        gru = pytorch_gru(made)
        mine, other = drawn(3, 5, INPUT).requires_grad_(), drawn(3, 5, INPUT).requires_grad_()
        real = lengths or [5, 5, 5]
        states, final = made(mine, None if lengths is None else torch.tensor(lengths))

        read = turned(other, real) if reverse else other
        packed, last = gru(pack_padded_sequence(read, torch.tensor(real), batch_first=True, enforce_sorted=False))
        expected = pad_packed_sequence(packed, batch_first=True, total_length=5)[0]
        expected = turned(expected, real) if reverse else expected
        shown = torch.arange(5) < torch.tensor(real)[:, None]
        torch.testing.assert_close(states[shown], expected[shown], **EXACT)
        torch.testing.assert_close(final, last[0], **EXACT)

        (states[shown].square().sum() + final.exp().sum()).backward()
        (expected[shown].square().sum() + last.exp().sum()).backward()
        torch.testing.assert_close(mine.grad, other.grad, **EXACT)
        assert not mine.grad[~shown].any()
        for name, theirs in (("weight", gru.weight_hh_l0), ("bias", gru.bias_hh_l0)):
            torch.testing.assert_close(getattr(made.cell.hidden_proj, name).grad, theirs.grad, **EXACT)
        for name, theirs in (("weight", gru.weight_ih_l0), ("bias", gru.bias_ih_l0)):
            torch.testing.assert_close(getattr(made.input_proj, name).grad, theirs.grad, **EXACT)

    @pytest.mark.parametrize("reset_after", [True, False])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_each_row_is_read_as_it_would_be_alone(self, reset_after, reverse):
        made = layer(reset_after, reverse)
        inputs, lengths = drawn(4, 5, INPUT), [5, 0, 2, 1]
        states, final = made(inputs, torch.tensor(lengths))
        assert states.shape == (4, 5, HIDDEN)
        assert final.shape == (4, HIDDEN)
        for row, length in enumerate(lengths):
            hidden = torch.zeros(1, HIDDEN, dtype=torch.float64)
            for position in reversed(range(length)) if reverse else range(length):
                hidden = made.cell(made.input_proj(inputs[row : row + 1, position]), hidden)
                torch.testing.assert_close(states[row, position], hidden[0], **EXACT)
            torch.testing.assert_close(final[row], hidden[0], **EXACT)

    @pytest.mark.parametrize("reverse", [False, True])
    def test_an_empty_row_ends_at_zero_and_takes_no_gradient(self, reverse):
        made = layer(reverse=reverse)
        inputs = drawn(2, 3, INPUT).requires_grad_()
        final = made(inputs, torch.tensor([0, 2]))[1]
        assert (final[0] == 0).all()
        final.sum().backward()
        assert not inputs.grad[0].any()
        assert inputs.grad[1, :2].all()
        assert not inputs.grad[1, 2].any()

    @pytest.mark.parametrize("reverse", [False, True])
    def test_what_stands_on_padding_is_not_read(self, reverse):
        made = layer(reverse=reverse)
        inputs, lengths = drawn(2, 4, INPUT), torch.tensor([4, 2])
        other = inputs.clone()
        other[1, 2:] = 1e6
        states, final = made(inputs, lengths)
        other_states, other_final = made(other, lengths)
        assert torch.equal(final, other_final)
        assert torch.equal(states[1, :2], other_states[1, :2])


class CountedLinear(nn.Linear):
    """What an adapter is to the eye: a subclass that adds something of its own."""

    calls = 0
    shift = 0.0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) + self.shift


@pytest.fixture
def fused_calls(monkeypatch):
    """Counts the calls of the two fast loops: PyTorch's own, and the one that is kept for gradients."""
    calls = []
    fused, packed = torch.gru, _PackedGRU.apply
    monkeypatch.setattr(torch, "gru", lambda *args: calls.append(args) or fused(*args))
    monkeypatch.setattr(_PackedGRU, "apply", lambda *args: calls.append(args) or packed(*args))
    return calls


def adapted(linear):
    wrapped = CountedLinear(linear.in_features, linear.out_features).to(linear.weight.dtype)
    wrapped.load_state_dict(linear.state_dict())
    return wrapped


class TestFusion:
    """PyTorch's loop is only a faster way to the same values, taken where nobody has touched the projections."""

    def run(self, made, lengths=(5, 2, 3)):
        made.zero_grad()
        inputs = drawn(3, 5, INPUT).to(made.input_proj.weight.dtype).requires_grad_()
        states, final = made(inputs, torch.tensor(lengths))
        shown = torch.arange(5) < torch.tensor(lengths)[:, None]
        (states[shown].square().sum() + final.exp().sum()).backward()
        parameters = [made.input_proj.weight, made.input_proj.bias, *made.cell.parameters()]
        return [
            states[shown].detach(),
            final.detach(),
            inputs.grad,
            *(parameter.grad.clone() for parameter in parameters),
        ]

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("training", [False, True])
    def test_the_fused_loop_is_taken_and_equals_the_scan(self, monkeypatch, fused_calls, reverse, training):
        made = layer(reverse=reverse).train(training)
        fused = self.run(made)
        assert len(fused_calls) == 1
        monkeypatch.setattr(made, "_can_fuse", lambda inputs: False)
        scanned = self.run(made)
        assert len(fused_calls) == 1
        for one, other in zip(fused, scanned, strict=True):
            torch.testing.assert_close(one, other, **EXACT)

    def test_without_gradients_too(self, monkeypatch, fused_calls):
        made = layer()
        with torch.inference_mode():
            fused = made(drawn(3, 5, INPUT))[0]
            monkeypatch.setattr(made, "_can_fuse", lambda inputs: False)
            torch.testing.assert_close(fused, made(drawn(3, 5, INPUT))[0], **EXACT)
        assert len(fused_calls) == 1

    @pytest.mark.parametrize("where", ["input", "recurrent"])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_wrapped_projection_is_called(self, fused_calls, where, reverse):
        made = layer(reverse=reverse)
        plain = self.run(made)
        fused_calls.clear()
        if where == "input":
            made.input_proj = wrapped = adapted(made.input_proj)
        else:
            made.cell.hidden_proj = wrapped = adapted(made.cell.hidden_proj)
        for one, other in zip(self.run(made), plain, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
        assert wrapped.calls > 0
        wrapped.shift = 0.5
        assert not torch.allclose(self.run(made)[0], plain[0], atol=1e-3)
        assert not fused_calls

    @pytest.mark.parametrize("where", ["input_proj", "cell.hidden_proj"])
    @pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
    def test_a_hook_on_a_projection_fires(self, fused_calls, where, kind):
        made = layer()
        plain = self.run(made)
        fused_calls.clear()
        fired = []
        handle = getattr(made.get_submodule(where), kind)(lambda *args: fired.append(1))
        for one, other in zip(self.run(made), plain, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
        assert len(fired) == (1 if where == "input_proj" else 5)
        assert not fused_calls
        handle.remove()
        self.run(made)
        assert len(fused_calls) == 1

    def test_a_parametrised_projection_is_called(self, fused_calls):
        class Doubled(nn.Module):
            def forward(self, weight):
                return 2 * weight

        plain, changed = layer(), layer()
        with torch.no_grad():
            plain.cell.hidden_proj.weight.mul_(2)
        nn.utils.parametrize.register_parametrization(changed.cell.hidden_proj, "weight", Doubled())
        expected = plain(drawn(3, 5, INPUT))[0]
        fused_calls.clear()
        torch.testing.assert_close(changed(drawn(3, 5, INPUT))[0], expected, **EXACT)
        assert not fused_calls

    def test_the_papers_cell_has_no_fused_loop(self, fused_calls):
        self.run(layer(reset_after=False))
        assert not fused_calls

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("reset_after", [True, False])
    def test_autocast_takes_the_scan_and_is_close(self, fused_calls, dtype, reset_after):
        made = layer(reset_after).float()
        exact = self.run(made)
        fused_calls.clear()
        with torch.autocast("cpu", dtype=dtype):
            half = self.run(made)
        assert not fused_calls
        for one, other in zip(half, exact, strict=True):
            scale = max(other.abs().max().item(), 1)
            torch.testing.assert_close(
                one.float(), other, rtol=0, atol=(0.05 if dtype == torch.bfloat16 else 0.01) * scale
            )

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_weights(self, dtype):
        exact = self.run(layer().float())
        for one, other in zip(self.run(layer().to(dtype)), exact, strict=True):
            assert one.dtype == dtype
            scale = max(other.abs().max().item(), 1)
            torch.testing.assert_close(one.float(), other, rtol=0, atol=0.08 * scale)


def test_positions_are_turned_within_the_length_of_each_row():
    order = reversal_order(4, torch.tensor([4, 2, 0, 1]), torch.device("cpu"))
    assert order.tolist() == [[3, 2, 1, 0], [1, 0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert reversal_order(3, None, torch.device("cpu")).tolist() == [[2, 1, 0]]


def test_positions_are_taken_row_by_row_or_alike_for_all_rows():
    tensor = torch.arange(12).view(2, 3, 2)
    taken = take_positions(tensor, torch.tensor([[2, 0, 1], [0, 0, 2]]))
    assert taken.tolist() == [[[4, 5], [0, 1], [2, 3]], [[6, 7], [6, 7], [10, 11]]]
    assert take_positions(tensor, torch.tensor([[2, 1, 0]])).tolist() == tensor.flip(1).tolist()


def running(carry, inputs):
    """A running sum, and a running product with its factor: exact in whole numbers."""
    total, product = carry
    plus, times = inputs
    total, product = total + plus, product * times
    return (total, product), (total, product, plus)


class TestScan:
    def test_states_and_outputs_by_hand(self):
        carry = (torch.tensor([0.0, 10.0]), torch.tensor([1.0, 2.0]))
        plus = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        times = torch.tensor([[2.0, 3.0, 4.0], [1.0, 0.0, 5.0]])
        (total, product), outputs = scan(running, carry, (plus, times))
        assert total.tolist() == [6, 25]
        assert product.tolist() == [24, 0]
        assert [output.tolist() for output in outputs] == [
            [[1, 3, 6], [14, 19, 25]],
            [[2, 6, 24], [2, 0, 0]],
            plus.tolist(),
        ]

    def test_traced_equals_eager_for_every_length_without_a_new_graph(self):
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        def program(weight, carry, inputs):
            def step(carry, inputs):
                new = torch.tanh(inputs[0] + carry[0] @ weight)
                # One output is the carry itself, one an input: both share memory with what goes on.
                return (new, carry[1] + 1), (new, carry[0], inputs[0])

            return scan(step, carry, inputs)

        torch.compiler.reset()
        compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=True)
        weight = drawn(HIDDEN, HIDDEN, seed=9)
        for length in (3, 7, 2):
            # a state that is a transposed view, as a chunk of a larger matrix may be
            carry = (drawn(HIDDEN, 5, seed=1).T, torch.zeros(5, 1))
            inputs = (drawn(5, length, HIDDEN, seed=length),)
            before = carry[0].clone()
            (state, count), outputs = compiled(weight, carry, inputs)
            (expected, _), expected_outputs = scan_by_hand(weight, carry[0], inputs[0])
            torch.testing.assert_close(state, expected, **EXACT)
            assert (count == length).all()
            for ours, theirs in zip(outputs, expected_outputs, strict=True):
                torch.testing.assert_close(ours, theirs, **EXACT)
            assert torch.equal(carry[0], before)
        assert len(graphs) == 1

    @pytest.mark.parametrize("reset_after", [True, False])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_traced_layer_equals_eager_and_holds_one_step(self, reset_after, reverse):
        made = layer(reset_after, reverse)
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        torch.compiler.reset()
        compiled = torch.compile(made, backend=backend, fullgraph=True)
        with torch.no_grad():
            for lengths in ([4, 2, 0], [1, 3, 4]):
                states, final = compiled(drawn(3, 4, INPUT), torch.tensor(lengths))
                expected, last = made(drawn(3, 4, INPUT), torch.tensor(lengths))
                shown = torch.arange(4) < torch.tensor(lengths)[:, None]
                torch.testing.assert_close(states[shown], expected[shown], **EXACT)
                torch.testing.assert_close(final, last, **EXACT)
        steps = [module for graph in graphs for module in graph.modules() if "tanh" in getattr(module, "code", "")]
        assert len(steps) == len(graphs) == 1


def scan_by_hand(weight, state, inputs):
    states = [state]
    for t in range(inputs.shape[1]):
        states.append(torch.tanh(inputs[:, t] + states[-1] @ weight))
    return (states[-1], None), (torch.stack(states[1:], 1), torch.stack(states[:-1], 1), inputs)


class TestRecurrentCache:
    @pytest.fixture
    def cache(self):
        """Two sentences with two beams each."""
        cache = RecurrentCache()
        cache.memory["keys"] = torch.tensor([[100.0], [200.0]])
        cache.store(
            {"layer_0": torch.tensor([[0.0], [1.0], [2.0], [3.0]]), "layer_1": torch.arange(8.0).view(4, 2)}, 3
        )
        return cache

    def test_an_empty_one(self):
        cache = RecurrentCache()
        assert (cache.states, cache.memory) == ({}, {})
        assert cache.get_seq_length() == 0
        assert cache.get_max_length() == -1
        assert not cache.is_compileable
        cache.reorder_cache(torch.tensor([0]))
        cache.reset()
        cache.crop(0)

    def test_two_caches_share_nothing(self, cache):
        assert RecurrentCache().states == {}
        assert RecurrentCache().memory == {}

    def test_tokens_add_up(self, cache):
        assert cache.get_seq_length() == 3
        cache.store({"layer_0": torch.zeros(4, 1)}, 2)
        assert cache.get_seq_length() == 5
        assert list(cache.states) == ["layer_0"]

    def test_beams_are_reordered_and_their_source_stays(self, cache):
        cache.reorder_cache(torch.tensor([1, 1, 3, 2]))
        assert cache.states["layer_0"].tolist() == [[1], [1], [3], [2]]
        assert cache.states["layer_1"].tolist() == [[2, 3], [2, 3], [6, 7], [4, 5]]
        assert cache.memory["keys"].tolist() == [[100], [200]]
        assert cache.get_seq_length() == 3

    def test_repeats_stand_next_to_each_other_and_share_their_source(self, cache):
        cache.batch_repeat_interleave(2)
        assert cache.states["layer_0"].flatten().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert cache.states["layer_1"].shape == (8, 2)
        assert cache.memory["keys"].tolist() == [[100], [200]]
        assert cache.batch_size == 8

    def test_selected_rows_each_bring_their_source(self, cache):
        cache.batch_select_indices(torch.tensor([3, 0, 2]))
        assert cache.states["layer_0"].flatten().tolist() == [3, 0, 2]
        assert cache.states["layer_1"].tolist() == [[6, 7], [0, 1], [4, 5]]
        assert cache.memory["keys"].tolist() == [[200], [100], [200]]
        # Now a sentence has one row: what is repeated and selected next must go by that.
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 3, 5]))
        assert cache.states["layer_0"].flatten().tolist() == [3, 0, 2]
        assert cache.memory["keys"].tolist() == [[200], [100], [200]]

    def test_a_state_can_not_go_back_in_time(self, cache):
        for tokens in (-1, 1, -3):
            with pytest.raises(ValueError, match=f"tokens_to_remove={tokens}"):
                cache.crop(tokens)
        cache.crop(0)
        assert cache.get_seq_length() == 3
        assert cache.states["layer_0"].shape == (4, 1)

    def test_reset_forgets_sentences_and_hypotheses(self, cache):
        cache.reset()
        assert (cache.states, cache.memory, cache.get_seq_length()) == ({}, {}, 0)

    def test_it_refuses_keys_and_values(self, cache):
        with pytest.raises(NotImplementedError, match="states"):
            cache.update(torch.zeros(1), torch.zeros(1), 0)


class TestInitialisationOfRNNSearch:
    """Appendix B.1 of the paper."""

    @pytest.fixture(params=[True, False], ids=["pytorch", "paper"])
    def model(self, request):
        torch.manual_seed(1)
        config = RNNSearchConfig(
            vocab_size=150,
            source_vocab_size=170,
            embedding_size=48,
            hidden_size=64,
            attention_size=80,
            maxout_size=40,
            num_encoder_layers=2,
            num_decoder_layers=2,
            reset_after=request.param,
        )
        return RNNSearchForConditionalGeneration(config).eval()

    def test_every_parameter_that_is_not_recurrent_has_its_law(self, model):
        for name, parameter in model.named_parameters():
            owner = name.split(".")[-2]
            if name.endswith((".bias", ".v")):
                assert not parameter.any(), name
            elif owner not in ("hidden_proj", "gate_proj", "candidate_proj"):
                values = parameter[torch.arange(len(parameter)) != 1] if owner == "embed_tokens" else parameter
                std = 0.001 if owner in ("query_proj", "key_proj") else 0.01
                # within five standard errors of mean and deviation
                error = std / math.sqrt(values.numel())
                assert values.mean().item() == pytest.approx(0, abs=5 * error), name
                assert values.std().item() == pytest.approx(std, abs=5 * error / math.sqrt(2)), name

    def test_padding_is_the_zero_vector(self, model):
        for embedding in (model.get_input_embeddings(), model.get_decoder_input_embeddings()):
            assert embedding.padding_idx == model.config.pad_token_id == 1
            assert not embedding.weight[1].any()
            assert embedding.weight[[0, 2, 3]].all()

    def test_attention_is_uniform_at_the_start(self, model):
        input_ids = torch.tensor([[5, 6, 7, 3], [8, 3, 1, 1]])
        outputs = model(input_ids=input_ids, decoder_input_ids=torch.tensor([[2, 9, 4]] * 2), output_attentions=True)
        weights = outputs.cross_attentions[0]
        assert weights.shape == (2, 1, 3, 4)
        torch.testing.assert_close(weights[0], torch.full((1, 3, 4), 0.25), rtol=0, atol=1e-7)
        torch.testing.assert_close(weights[1], torch.tensor([0.5, 0.5, 0, 0]).expand(1, 3, 4), rtol=0, atol=1e-7)

    def test_attention_learns_from_there(self, model):
        model.zero_grad()
        model(input_ids=torch.tensor([[5, 6, 3]]), labels=torch.tensor([[9, 4, 3]])).loss.backward()
        assert model.model.decoder.step.attention.v.grad.any()
