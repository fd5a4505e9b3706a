"""One recurrent layer of either kind, for the families that leave the choice to their configuration."""

from torch import Tensor, nn

from .lstm import LSTMLayer
from .recurrence import Carry, GRULayer


class RecurrentLayer(nn.Module):
    """An LSTM or a GRU over a padded sequence, its states as a tuple: h and c, or h alone.

    Args:
        kind: `"lstm"` or `"gru"`.
        input_size: size of an input vector.
        hidden_size: size of a state.
        reverse: read every row from its last real position to its first.
    """

    def __init__(self, kind: str, input_size: int, hidden_size: int, reverse: bool = False):
        super().__init__()
        layer = LSTMLayer if kind == "lstm" else GRULayer
        self.rnn = layer(input_size, hidden_size, reverse=reverse)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, start: Carry | None = None
    ) -> tuple[Tensor, Carry]:
        """Outputs `(B, S, H)` and last states `(B, H)` each; see `LSTMLayer.forward`."""
        if isinstance(self.rnn, LSTMLayer):
            return self.rnn(inputs, lengths, start)
        outputs, final = self.rnn(inputs, lengths, None if start is None else start[0])
        return outputs, (final,)

    def step(self, gates: Tensor, states: Carry) -> Carry:
        """One step from projected inputs `(B, gates)` and states `(B, H)` each to the next states."""
        if isinstance(self.rnn, LSTMLayer):
            return self.rnn.cell(gates, states)
        return (self.rnn.cell(gates, states[0]),)
