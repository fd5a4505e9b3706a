"""The LSTM against PyTorch's own, and against scalar arithmetic."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hf_attnzoo.models.lstm import LSTMCell, LSTMLayer

INPUT, HIDDEN = 3, 4
EXACT = {"rtol": 0, "atol": 1e-12}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(reverse=False):
    torch.manual_seed(3)
    made = LSTMLayer(INPUT, HIDDEN, reverse).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.7)
    return made


def weights(made):
    """In the order of PyTorch's parameters."""
    return made.input_proj.weight, made.cell.hidden_proj.weight, made.input_proj.bias, made.cell.hidden_proj.bias


def given(theirs, made):
    """PyTorch's module with the weights of a layer."""
    theirs = theirs.double()
    with torch.no_grad():
        for parameter, value in zip(theirs.parameters(), weights(made), strict=True):
            parameter.copy_(value)
    return theirs


def turned(inputs, lengths):
    """Every row read from its last real position to its first."""
    rows = [torch.cat([row[:length].flip(0), row[length:]]) for row, length in zip(inputs, lengths, strict=True)]
    return torch.stack(rows)


def real_positions(lengths, size=5):
    return torch.arange(size) < torch.tensor(lengths)[:, None]


def began(rows=3):
    return drawn(rows, HIDDEN, seed=7).requires_grad_(), drawn(rows, HIDDEN, seed=8).requires_grad_()


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class TestCell:
    def test_it_is_pytorchs_cell(self):
        made = layer()
        theirs = given(nn.LSTMCell(INPUT, HIDDEN), made)
        x, mine, other = drawn(5, INPUT), began(5), began(5)
        new, expected = made.cell(made.input_proj(x), mine), theirs(x, other)
        for one, two in zip(new, expected, strict=True):
            torch.testing.assert_close(one, two, **EXACT)
        (new[0].square().sum() + new[1].exp().sum()).backward()
        (expected[0].square().sum() + expected[1].exp().sum()).backward()
        for one, two in zip((*mine, *weights(made)), (*other, *theirs.parameters()), strict=True):
            assert two.grad.any()
            torch.testing.assert_close(one.grad, two.grad, **EXACT)

    def test_against_scalars(self):
        cell = layer().cell
        gates, h, c = drawn(1, 4 * HIDDEN), drawn(1, HIDDEN, seed=1), drawn(1, HIDDEN, seed=2)
        matrix, bias = cell.hidden_proj.weight.tolist(), cell.hidden_proj.bias.tolist()

        def argument(gate, k):
            row = gate * HIDDEN + k
            recurrent = sum(w * x for w, x in zip(matrix[row], h[0].tolist(), strict=True))
            return gates[0, row].item() + recurrent + bias[row]

        memory = [
            sigmoid(argument(1, k)) * c[0, k].item() + sigmoid(argument(0, k)) * math.tanh(argument(2, k))
            for k in range(HIDDEN)
        ]
        hidden = [sigmoid(argument(3, k)) * math.tanh(memory[k]) for k in range(HIDDEN)]
        new_h, new_c = cell(gates, (h, c))
        assert new_h[0].tolist() == pytest.approx(hidden, abs=1e-13)
        assert new_c[0].tolist() == pytest.approx(memory, abs=1e-13)

    def test_the_gates_open_and_shut_by_hand(self):
        cell = LSTMCell(1).double()
        with torch.no_grad():
            cell.hidden_proj.weight.zero_()
            cell.hidden_proj.bias.zero_()
        states = drawn(4, 1), torch.full((4, 1), 0.5, dtype=torch.float64)
        shut, open_, on = -1e3, 1e3, 1e3
        # i, f, g, o: forget everything, keep, take the new, take it and keep without showing it
        rows = [[shut, shut, on, open_], [shut, open_, on, open_], [open_, shut, on, open_], [open_, open_, on, shut]]
        h, c = cell(torch.tensor(rows, dtype=torch.float64), states)
        assert c.flatten().tolist() == [0, 0.5, 1, 1.5]
        assert h.flatten().tolist() == pytest.approx([0, math.tanh(0.5), math.tanh(1), 0], abs=1e-15)

    def test_gradcheck(self):
        cell = layer().cell
        gates, h, c = (drawn(2, size, seed=size).requires_grad_() for size in (4 * HIDDEN, HIDDEN, HIDDEN))
        assert torch.autograd.gradcheck(lambda gates, *states: cell(gates, states), (gates, h, c))


class TestLayer:
    @pytest.mark.parametrize("path", ["fused", "scanned"])
    @pytest.mark.parametrize("started", [False, True])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("lengths", [[5, 2, 3], [1, 5, 4], [5, 5, 5], [2, 2, 2], None], ids=str)
    def test_it_is_pytorchs_lstm_on_packed_rows(self, monkeypatch, lengths, reverse, started, path):
        made = layer(reverse)
        if path == "scanned":
            monkeypatch.setattr(made, "_can_fuse", lambda inputs: False)
        lstm = given(nn.LSTM(INPUT, HIDDEN, batch_first=True), made)
        mine, other = drawn(3, 5, INPUT).requires_grad_(), drawn(3, 5, INPUT).requires_grad_()
        my_start, their_start = (began(), began()) if started else (None, None)
        real = lengths or [5, 5, 5]
        outputs, final = made(mine, None if lengths is None else torch.tensor(lengths), my_start)

        read = turned(other, real) if reverse else other
        packed = pack_padded_sequence(read, torch.tensor(real), batch_first=True, enforce_sorted=False)
        start = None if their_start is None else tuple(state[None] for state in their_start)
        packed, last = lstm(packed, start)
        expected = pad_packed_sequence(packed, batch_first=True, total_length=5)[0]
        expected = turned(expected, real) if reverse else expected
        shown = real_positions(real)
        assert outputs.shape == (3, 5, HIDDEN)
        torch.testing.assert_close(outputs[shown], expected[shown], **EXACT)
        for one, two in zip(final, last, strict=True):
            torch.testing.assert_close(one, two[0], **EXACT)

        (outputs[shown].square().sum() + final[0].exp().sum() + final[1].sin().sum()).backward()
        (expected[shown].square().sum() + last[0].exp().sum() + last[1].sin().sum()).backward()
        pairs = [(mine, other), *zip(weights(made), lstm.parameters(), strict=True)]
        for one, two in [*pairs, *zip(my_start or (), their_start or (), strict=True)]:
            assert two.grad.any()
            torch.testing.assert_close(one.grad, two.grad, **EXACT)
        assert not mine.grad[~shown].any()

    @pytest.mark.parametrize("started", [False, True])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_each_row_is_read_as_it_would_be_alone(self, reverse, started):
        made, lengths = layer(reverse), [5, 0, 2, 1]
        inputs = drawn(4, 5, INPUT)
        zeros = torch.zeros(4, HIDDEN, dtype=torch.float64)
        start = began(4) if started else (zeros, zeros)
        outputs, final = made(inputs, torch.tensor(lengths), start if started else None)
        for row, length in enumerate(lengths):
            states = tuple(state[row : row + 1] for state in start)
            for position in reversed(range(length)) if reverse else range(length):
                states = made.cell(made.input_proj(inputs[row : row + 1, position]), states)
                torch.testing.assert_close(outputs[row, position], states[0][0], **EXACT)
            for one, two in zip(final, states, strict=True):
                torch.testing.assert_close(one[row], two[0], **EXACT)

    @pytest.mark.parametrize("path", ["fused", "scanned"])
    @pytest.mark.parametrize("lengths", [[0, 2, 0], [0, 0, 0]], ids=str)
    def test_an_empty_row_ends_where_it_began(self, monkeypatch, lengths, path):
        made = layer()
        if path == "scanned":
            monkeypatch.setattr(made, "_can_fuse", lambda inputs: False)
        inputs, start = drawn(3, 3, INPUT).requires_grad_(), began()
        final = made(inputs, torch.tensor(lengths), start)[1]
        for state, began_as in zip(final, start, strict=True):
            assert torch.equal(state[0], began_as[0])
            assert torch.equal(state[2], began_as[2])
        (final[0].sum() + 2 * final[1].sum()).backward()
        assert (start[0].grad[[0, 2]] == 1).all()
        assert (start[1].grad[[0, 2]] == 2).all()
        assert not inputs.grad[[0, 2]].any()
        assert inputs.grad[1, : lengths[1]].all()
        assert not inputs.grad[1, lengths[1] :].any()

    def test_without_a_start_an_empty_row_ends_at_zero(self):
        for state in layer()(drawn(2, 3, INPUT), torch.tensor([0, 2]))[1]:
            assert not state[0].any()
            assert state[1].all()

    @pytest.mark.parametrize("reverse", [False, True])
    def test_what_stands_on_padding_is_not_read(self, reverse):
        made = layer(reverse)
        inputs, lengths = drawn(2, 4, INPUT), torch.tensor([4, 2])
        other = inputs.clone()
        other[1, 2:] = float("nan")
        outputs, final = made(inputs, lengths)
        other_outputs, other_final = made(other, lengths)
        assert torch.equal(outputs[1, :2], other_outputs[1, :2])
        for one, two in zip(final, other_final, strict=True):
            assert torch.equal(one, two)

    def test_gradcheck_of_the_whole(self):
        made, lengths = layer(reverse=True), torch.tensor([3, 1])
        shown = real_positions([3, 1], size=3)

        def run(inputs, h, c, *parameters):
            names = [name for name, _ in made.named_parameters()]
            arguments = (inputs, lengths, (h, c))
            outputs, final = torch.func.functional_call(made, dict(zip(names, parameters, strict=True)), arguments)
            return outputs[shown], *final

        assert torch.autograd.gradcheck(run, (drawn(2, 3, INPUT).requires_grad_(), *began(2), *made.parameters()))


class CountedLinear(nn.Linear):
    """What an adapter is to the eye: a subclass that adds something of its own."""

    calls = 0
    shift = 0.0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) + self.shift


def adapted(linear):
    wrapped = CountedLinear(linear.in_features, linear.out_features).to(linear.weight.dtype)
    wrapped.load_state_dict(linear.state_dict())
    return wrapped


@pytest.fixture
def fused_calls(monkeypatch):
    """Counts the calls of PyTorch's own loop."""
    calls = []
    fused = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *args: calls.append(args) or fused(*args))
    return calls


class TestFusion:
    """PyTorch's loop is only a faster way to the same values, taken where nobody has touched the projections."""

    def run(self, made, lengths=(5, 2, 3)):
        made.zero_grad()
        dtype = made.input_proj.weight.dtype
        inputs = drawn(3, 5, INPUT).to(dtype).requires_grad_()
        start = tuple(state.detach().to(dtype).requires_grad_() for state in began())
        outputs, final = made(inputs, None if lengths is None else torch.tensor(lengths), start)
        shown = real_positions(lengths or (5, 5, 5))
        (outputs[shown].square().sum() + final[0].exp().sum() + final[1].sum()).backward()
        leaves = (inputs, *start, made.input_proj.weight, made.input_proj.bias, *made.cell.parameters())
        return [outputs[shown].detach(), *(state.detach() for state in final), *(leaf.grad.clone() for leaf in leaves)]

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("lengths", [(5, 2, 3), (0, 4, 0), None], ids=str)
    def test_the_fused_loop_is_taken_and_equals_the_scan(self, monkeypatch, fused_calls, reverse, training, lengths):
        made = layer(reverse).train(training)
        fused = self.run(made, lengths)
        assert len(fused_calls) == 1
        monkeypatch.setattr(made, "_can_fuse", lambda inputs: False)
        scanned = self.run(made, lengths)
        assert len(fused_calls) == 1
        for one, other in zip(fused, scanned, strict=True):
            torch.testing.assert_close(one, other, **EXACT)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("lengths", [None, torch.tensor([5, 0, 3])], ids=["equal", "ragged"])
    def test_without_gradients_too(self, monkeypatch, fused_calls, dtype, lengths):
        made = layer().to(dtype)
        inputs = drawn(3, 5, INPUT).to(dtype)
        with torch.inference_mode():
            outputs, final = made(inputs, lengths)
            assert len(fused_calls) == 1
            monkeypatch.setattr(made, "_can_fuse", lambda inputs: False)
            expected, last = made(inputs, lengths)
        assert len(fused_calls) == 1
        shown = real_positions([5, 5, 5] if lengths is None else lengths.tolist())
        tolerance = EXACT if dtype == torch.float64 else {"rtol": 0, "atol": 1e-5}
        torch.testing.assert_close(outputs[shown], expected[shown], **tolerance)
        for one, two in zip(final, last, strict=True):
            torch.testing.assert_close(one, two, **tolerance)

    @pytest.mark.parametrize("where", ["input", "recurrent"])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("lengths", [(5, 2, 3), None], ids=str)
    def test_a_wrapped_projection_is_called(self, fused_calls, where, reverse, lengths):
        made = layer(reverse)
        plain = self.run(made, lengths)
        fused_calls.clear()
        if where == "input":
            made.input_proj = wrapped = adapted(made.input_proj)
        else:
            made.cell.hidden_proj = wrapped = adapted(made.cell.hidden_proj)
        for one, other in zip(self.run(made, lengths), plain, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
        assert wrapped.calls > 0
        wrapped.shift = 0.5
        assert not torch.allclose(self.run(made, lengths)[0], plain[0], atol=1e-3)
        assert not fused_calls

    @pytest.mark.parametrize(("where", "times"), [("input_proj", 1), ("cell.hidden_proj", 5), ("cell", 5)])
    @pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
    def test_a_hook_on_a_part_fires(self, fused_calls, where, times, kind):
        made = layer()
        plain = self.run(made)
        fused_calls.clear()
        fired = []
        handle = getattr(made.get_submodule(where), kind)(lambda *args: fired.append(1))
        for one, other in zip(self.run(made), plain, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
        assert len(fired) == times
        assert not fused_calls
        handle.remove()
        self.run(made)
        assert len(fused_calls) == 1

    def test_another_cell_is_called(self, fused_calls):
        class Peephole(LSTMCell):
            def forward(self, input_gates, states):
                return super().forward(input_gates + states[1].repeat(1, 4), states)

        made = layer()
        plain = self.run(made)
        fused_calls.clear()
        other = Peephole(HIDDEN).double()
        other.load_state_dict(made.cell.state_dict())
        made.cell = other
        assert not torch.allclose(self.run(made)[0], plain[0], atol=1e-3)
        assert not fused_calls

    @pytest.mark.parametrize("lengths", [(5, 2, 3), (0, 5, 5), None], ids=str)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_autocast_takes_the_scan_and_is_close(self, fused_calls, dtype, lengths):
        made = layer().float()
        exact = self.run(made, lengths)
        fused_calls.clear()
        with torch.autocast("cpu", dtype=dtype):
            half = self.run(made, lengths)
        assert not fused_calls
        # One dtype, whether or not there is padding.
        assert {state.dtype for state in half[:3]} == {dtype}
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


class TestTraced:
    @pytest.mark.parametrize("reverse", [False, True])
    def test_it_equals_eager_and_holds_one_step(self, reverse):
        made = layer(reverse)
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        torch.compiler.reset()
        compiled = torch.compile(made, backend=backend, fullgraph=True)
        start = tuple(state.detach() for state in began())
        with torch.no_grad():
            for lengths in ([4, 2, 0], [1, 3, 4]):
                outputs, final = compiled(drawn(3, 4, INPUT), torch.tensor(lengths), start)
                expected, last = made(drawn(3, 4, INPUT), torch.tensor(lengths), start)
                shown = real_positions(lengths, size=4)
                torch.testing.assert_close(outputs[shown], expected[shown], **EXACT)
                for one, two in zip(final, last, strict=True):
                    torch.testing.assert_close(one, two, **EXACT)
        steps = [module for graph in graphs for module in graph.modules() if "tanh" in getattr(module, "code", "")]
        assert len(steps) == len(graphs) == 1

    def test_with_the_eager_backend_and_no_lengths(self):
        made = layer(reverse=True)
        torch.compiler.reset()
        compiled = torch.compile(made, backend="eager", fullgraph=True)
        with torch.no_grad():
            outputs, final = compiled(drawn(3, 4, INPUT))
        expected, last = given(nn.LSTM(INPUT, HIDDEN, batch_first=True), made)(drawn(3, 4, INPUT).flip(1))
        torch.testing.assert_close(outputs, expected.flip(1), **EXACT)
        for one, two in zip(final, last, strict=True):
            torch.testing.assert_close(one, two[0], **EXACT)

    def test_gradients(self):
        made, lengths = layer(), torch.tensor([4, 2, 0])
        shown = real_positions([4, 2, 0], size=4)
        torch.compiler.reset()
        gradients = []
        for run in (made, torch.compile(made, backend="eager", fullgraph=True)):
            made.zero_grad()
            inputs, start = drawn(3, 4, INPUT).requires_grad_(), began()
            outputs, final = run(inputs, lengths, start)
            (outputs[shown].square().sum() + final[0].exp().sum() + final[1].sum()).backward()
            gradients.append([inputs.grad, *(state.grad for state in start), *(p.grad for p in made.parameters())])
        for one, two in zip(*gradients, strict=True):
            assert two.any()
            torch.testing.assert_close(one, two, **EXACT)
