"""Long short-term memory: a cell, and a layer over whole sequences (Hochreiter and Schmidhuber 1997)."""

import torch
from torch import Tensor, nn

from .recurrence import Carry, Packing, Stepped, reversal_order, scan, take_positions
from .wrapping import is_plain, is_plain_linear


class LSTMCell(nn.Module):
    """Long short-term memory on projected inputs, with forget gates, as PyTorch and cuDNN compute it:

        i, f, o = sigmoid(W x + U h)    g = tanh(W_g x + U_g h)
        c' = f * c + i * g              h' = o * tanh(c')

    The input projections do not depend on the state and are made by the caller, for all steps at once.

    Args:
        hidden_size: size H of the state.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.hidden_size = hidden_size
        # Rows i, f, g, o.
        self.hidden_proj = nn.Linear(hidden_size, 4 * hidden_size)

    def forward(self, input_gates: Tensor, states: Carry) -> Carry:
        """One step.

        Args:
            input_gates: `W x` of the gates i, f, g, o, shape `(B, 4H)`.
            states: h and c, shape `(B, H)` each.

        Returns:
            The next h and c.
        """
        hidden, memory = states
        enter, forget, candidate, leave = (input_gates + self.hidden_proj(hidden)).chunk(4, dim=-1)
        memory = torch.addcmul(forget.sigmoid() * memory, enter.sigmoid(), candidate.tanh())
        return leave.sigmoid() * memory.tanh(), memory


class LSTMLayer(nn.Module):
    """One LSTM over the whole of a padded sequence, in one direction.

    Args:
        input_size: size of an input vector.
        hidden_size: size H of the state.
        reverse: read every row from its last real position to its first.
    """

    def __init__(self, input_size: int, hidden_size: int, reverse: bool = False):
        super().__init__()
        self.reverse = reverse
        self.input_proj = nn.Linear(input_size, 4 * hidden_size)
        self.cell = LSTMCell(hidden_size)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, start: Carry | None = None
    ) -> tuple[Tensor, Carry]:
        """States of every position, and the last.

        Args:
            inputs: shape `(B, S, input_size)`, padded on the right.
            lengths: real positions of every row, shape `(B,)`; 0 is allowed. Default: `None`, all of them.
            start: h and c to begin with, shape `(B, H)` each. Default: `None`, zeros.

        Returns:
            h of every position `(B, S, H)`, whatever it is on padding, and the h and c after the last real one.
        """
        if start is None:
            zeros = inputs.new_zeros(inputs.shape[0], self.cell.hidden_size)
            start = (zeros, zeros)
        order = reversal_order(inputs.shape[1], lengths, inputs.device) if self.reverse else None
        if order is not None:
            inputs = take_positions(inputs, order)
        run = self._fused if self._can_fuse(inputs) else self._scanned
        outputs, final = run(inputs, lengths, start)
        if lengths is not None:
            # A row of nothing ends where it began.
            real = (lengths > 0)[:, None]
            final = tuple(torch.where(real, new, old.to(new.dtype)) for new, old in zip(final, start, strict=True))
        return (outputs if order is None else take_positions(outputs, order)), final

    def _can_fuse(self, inputs: Tensor) -> bool:
        # PyTorch's own loop takes the weights and would pass by anything that wraps the two projections. Traced, it
        # would be unrolled to one length.
        return (
            not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled(inputs.device.type)
            and is_plain(self.cell, LSTMCell)
            and all(is_plain_linear(module) for module in (self.input_proj, self.cell.hidden_proj))
        )

    def _fused(self, inputs: Tensor, lengths: Tensor | None, start: Carry) -> tuple[Tensor, Carry]:
        recurrent = self.cell.hidden_proj
        weights = [self.input_proj.weight, recurrent.weight, self.input_proj.bias, recurrent.bias]
        # cuDNN wants to be told in the forward pass that there will be a backward pass
        train = torch.is_grad_enabled()
        if lengths is None:
            states = [state[None].contiguous() for state in start]
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            outputs, hidden, memory = torch.lstm(inputs, states, weights, True, 1, 0.0, train, False, True)
            return outputs, (hidden[0], memory[0])
        packing = Packing.of(lengths, inputs)
        batch_sizes = torch.tensor(packing.batch_sizes)
        states = [packing.sort(state)[None] for state in start]
        outputs, *final = torch.lstm(packing.pack(inputs), batch_sizes, states, weights, True, 1, 0.0, train, False)
        return packing.unpack(outputs), tuple(packing.unsort(state[0]) for state in final)

    def _scanned(self, inputs: Tensor, lengths: Tensor | None, start: Carry) -> tuple[Tensor, Carry]:
        gates = self.input_proj(inputs)
        start = tuple(state.to(gates.dtype) for state in start)
        if lengths is None:
            steps = (gates,)
        else:
            steps = (gates, torch.arange(inputs.shape[1], device=inputs.device)[None] < lengths[:, None])

        def step(carry: Carry, inputs: Carry) -> Stepped:
            states = self.cell(inputs[0], carry)
            if len(inputs) > 1:
                real = inputs[1][:, None]
                states = tuple(torch.where(real, new, old) for new, old in zip(states, carry, strict=True))
            return states, (states[0],)

        final, (outputs,) = scan(step, start, steps)
        return outputs, final
