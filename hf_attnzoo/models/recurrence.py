"""Recurrence: cells, scans over time, and the cache that carries a recurrent decoder's state through `generate()`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import Cache
from transformers import initialization as init
from transformers.cache_utils import CacheLayerMixin

from .wrapping import is_plain, is_plain_linear

Carry = tuple[Tensor, ...]
# Named here, since a tracer can't evaluate such an annotation on a function defined inside what it traces.
Stepped = tuple[Carry, Carry]
Step = Callable[[Carry, Carry], Stepped]


def scan(step: Step, carry: Carry, inputs: Carry) -> tuple[Carry, Carry]:
    """Run `step` over time: `carry, output_t = step(carry, input_t)`.

    A loop in eager mode. While a graph is being traced it becomes one operator, so that the graph holds a single step
    and is right for every length.

    Args:
        step: takes the carry and the inputs of one time step, returns the next carry and the outputs of the step.
        carry: initial state, tensors that lead with the batch.
        inputs: tensors of shape `(B, T, ...)`, with `T >= 1`.

    Returns:
        The last carry, and the outputs stacked to `(B, T, ...)`.
    """
    if torch.compiler.is_compiling():
        from torch._higher_order_ops.scan import scan as scan_operator

        def fresh(tensors: Carry) -> Carry:
            # The operator wants a carry of one layout, and outputs that share memory with nothing else in the step.
            return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors)

        def traced_step(carry: Carry, inputs: Carry) -> Stepped:
            carry, outputs = step(carry, inputs)
            return fresh(carry), fresh(outputs)

        by_time = tuple(tensor.transpose(0, 1) for tensor in inputs)
        carry, outputs = scan_operator(traced_step, fresh(carry), by_time, dim=0)
        return carry, tuple(output.transpose(0, 1) for output in outputs)
    collected = []
    for time_step in zip(*(tensor.unbind(dim=1) for tensor in inputs), strict=True):
        carry, outputs = step(carry, time_step)
        collected.append(outputs)
    return carry, tuple(torch.stack(output, dim=1) for output in zip(*collected, strict=True))


def layer_noise(dropout: nn.Module, like: Tensor, config: Any) -> Tensor | None:
    """Dropout between stacked layers, drawn for all steps at once: what runs inside a loop has no chance in it.

    Args:
        dropout: the module that drops, in training or not.
        like: tensor of shape `(R, T, ...)`.
        config: of the family; `dropout`, `num_decoder_layers` and `hidden_size` count.

    Returns:
        Factors of shape `(R, T, layers - 1, H)`, or None where nothing is dropped.
    """
    layers = config.num_decoder_layers
    if not dropout.training or config.dropout == 0 or layers == 1:
        return None
    return dropout(like.new_ones(*like.shape[:2], layers - 1, config.hidden_size))


class GRUCell(nn.Module):
    """Gated recurrent unit on projected inputs (Cho et al. 2014; Bahdanau et al. 2015, appendix A.1.1).

    With `reset_after=True`, the form of PyTorch and cuDNN, the reset gate acts on the projected state:

        r = sigmoid(W_r x + U_r h)    z = sigmoid(W_z x + U_z h)    n = tanh(W x + r * (U h))
        h' = (1 - z) * n + z * h

    With `reset_after=False`, the form of the papers, it acts on the state itself: `n = tanh(W x + U (r * h))`. Both
    keep PyTorch's update gate: `z` here is the `1 - z` of the papers, the same family of functions, since
    `1 - sigmoid(a) = sigmoid(-a)`.

    The input projections do not depend on the state and are made by the caller, for all steps at once.

    Args:
        hidden_size: size H of the state.
        reset_after: which of the two forms.
    """

    def __init__(self, hidden_size: int, reset_after: bool = True):
        super().__init__()
        self.hidden_size = hidden_size
        self.reset_after = reset_after
        if reset_after:
            # Rows r, z, n. The bias of n stands inside r * (...), so it isn't redundant with that of the input.
            self.hidden_proj = nn.Linear(hidden_size, 3 * hidden_size)
        else:
            self.gate_proj = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
            self.candidate_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, input_gates: Tensor, hidden: Tensor) -> Tensor:
        """One step.

        Args:
            input_gates: `W x` of the gates r, z, n, shape `(B, 3H)`.
            hidden: state, shape `(B, H)`.

        Returns:
            The next state, shape `(B, H)`.
        """
        size = self.hidden_size
        input_rz, input_n = input_gates.split([2 * size, size], dim=-1)
        if self.reset_after:
            hidden_rz, hidden_n = self.hidden_proj(hidden).split([2 * size, size], dim=-1)
            reset, update = torch.sigmoid(input_rz + hidden_rz).chunk(2, dim=-1)
            candidate = torch.tanh(torch.addcmul(input_n, reset, hidden_n))
        else:
            reset, update = torch.sigmoid(input_rz + self.gate_proj(hidden)).chunk(2, dim=-1)
            candidate = torch.tanh(input_n + self.candidate_proj(reset * hidden))
        return torch.lerp(candidate, hidden, update)

    def initialize(self) -> None:
        """Orthogonal recurrent matrices, one per gate (Bahdanau et al. 2015, appendix B.1); biases 0."""
        for projection in self.children():
            blocks = projection.out_features // self.hidden_size
            square = torch.empty(self.hidden_size, self.hidden_size, dtype=torch.float32)
            orthogonal = torch.cat([nn.init.orthogonal_(square.clone()) for _ in range(blocks)])
            init.copy_(projection.weight, orthogonal)
            if projection.bias is not None:
                init.zeros_(projection.bias)


class GRULayer(nn.Module):
    """One GRU over the whole of a padded sequence, in one direction.

    Args:
        input_size: size of an input vector.
        hidden_size: size H of the state.
        reset_after: form of the cell.
        reverse: read every row from its last real position to its first.
    """

    def __init__(self, input_size: int, hidden_size: int, reset_after: bool = True, reverse: bool = False):
        super().__init__()
        self.reverse = reverse
        self.input_proj = nn.Linear(input_size, 3 * hidden_size)
        self.cell = GRUCell(hidden_size, reset_after)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """States of every position, and the last.

        Args:
            inputs: shape `(B, S, input_size)`, padded on the right.
            lengths: real positions of every row, shape `(B,)`; 0 is allowed. Default: `None`, all of them.
            start: state to begin with, shape `(B, H)`. Default: `None`, zeros.

        Returns:
            States `(B, S, H)`, whatever they are on padding, and the state after the last real position `(B, H)`,
            that of the beginning for an empty row.
        """
        if start is None:
            start = inputs.new_zeros(inputs.shape[0], self.cell.hidden_size)
        # Padding on the right can't reach what comes before it. In the other direction each row is turned round
        # within its own length, which keeps it on the right; turning is its own inverse.
        order = reversal_order(inputs.shape[1], lengths, inputs.device) if self.reverse else None
        if order is not None:
            inputs = take_positions(inputs, order)
        fused = self._can_fuse(inputs)
        states = self._fused(inputs, lengths, start) if fused else self._scanned(inputs, start)
        if lengths is None:
            final = states[:, -1]
        else:
            last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
            final = torch.where((lengths > 0)[:, None], states.gather(1, last)[:, 0], start.to(states.dtype))
        if order is not None:
            states = take_positions(states, order)
        return states, final

    def _can_fuse(self, inputs: Tensor) -> bool:
        # A loop that takes the weights would pass by anything that wraps the two projections. Traced, it would be
        # unrolled to one length.
        return (
            self.cell.reset_after
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled(inputs.device.type)
            and is_plain(self.cell, GRUCell)
            and all(is_plain_linear(module) for module in (self.input_proj, self.cell.hidden_proj))
        )

    def _fused(self, inputs: Tensor, lengths: Tensor | None, start: Tensor) -> Tensor:
        recurrent = self.cell.hidden_proj
        if torch.is_grad_enabled() and inputs.device.type == "cpu":
            packing = Packing.of(lengths, inputs)
            gates = self.input_proj(packing.pack(inputs))
            states = _PackedGRU.apply(
                gates, packing.sort(start), recurrent.weight, recurrent.bias, packing.batch_sizes
            )
            return packing.unpack(states)
        # PyTorch's own loop is faster where it needn't remember anything, and on a GPU, where it is cuDNN's; which
        # has to know in the forward pass whether there will be a backward pass.
        weights = [self.input_proj.weight, recurrent.weight, self.input_proj.bias, recurrent.bias]
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        train = torch.is_grad_enabled()
        return torch.gru(inputs, start[None].contiguous(), weights, True, 1, 0.0, train, False, True)[0]

    def _scanned(self, inputs: Tensor, start: Tensor) -> Tensor:
        gates = self.input_proj(inputs)

        def step(carry: Carry, inputs: Carry) -> Stepped:
            hidden = self.cell(inputs[0], carry[0])
            return (hidden,), (hidden,)

        return scan(step, (start.to(gates.dtype),), (gates,))[1][0]


@dataclass
class Packing:
    """Where the real positions of a right-padded batch go when they are written down step by step.

    The rows stand from the longest to the shortest, so that those which still run at a step are the first ones, and
    padding is nowhere: `N` is the number of real positions.

    Args:
        positions: of the packed vectors in the `B * T` of the batch, shape `(N,)`.
        batch_sizes: how many rows run at each step.
        order: rows from the longest to the shortest, shape `(B,)`; None if all are equal, and stay where they are.
        shape: `(B, T)`.
    """

    positions: Tensor
    batch_sizes: list[int]
    order: Tensor | None
    shape: tuple[int, int]

    @classmethod
    def of(cls, lengths: Tensor | None, like: Tensor) -> "Packing":
        """Packing of a batch like `like`, of shape `(B, T, ...)`, whose rows have `lengths`, or all of them T."""
        rows, size = like.shape[:2]
        steps = torch.arange(size, device=like.device)[:, None]
        if lengths is None or bool((lengths == size).all()):
            positions = steps + size * torch.arange(rows, device=like.device)
            return cls(positions.flatten(), [rows] * size, None, (rows, size))
        # An empty row runs for one step, of which nothing is read.
        lengths = lengths.clamp(min=1)
        order = lengths.argsort(descending=True, stable=True)
        runs = steps < lengths[order]
        batch_sizes = [count for count in runs.sum(dim=1).tolist() if count > 0]
        return cls((steps + size * order)[runs], batch_sizes, order, (rows, size))

    def pack(self, tensor: Tensor) -> Tensor:
        """`(B, T, D)` to `(N, D)`."""
        return tensor.flatten(0, 1).index_select(0, self.positions)

    def unpack(self, packed: Tensor) -> Tensor:
        """`(N, D)` to `(B, T, D)`, 0 on padding."""
        empty = packed.new_zeros(self.shape[0] * self.shape[1], packed.shape[1])
        return empty.index_copy(0, self.positions, packed).view(*self.shape, -1)

    def sort(self, tensor: Tensor) -> Tensor:
        """Rows `(B, ...)` from the longest to the shortest."""
        return tensor if self.order is None else tensor.index_select(0, self.order)

    def unsort(self, tensor: Tensor) -> Tensor:
        """The inverse of `sort`."""
        return tensor if self.order is None else tensor.index_select(0, self.order.argsort())


def gru_step(gates: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of `GRUCell` with `reset_after`, without autograd.

    Args:
        gates: `W x` of the gates r, z, n, shape `(B, 3H)`.
        hidden: state, shape `(B, H)`.
        weight: of `hidden_proj`, shape `(3H, H)`.
        bias: of `hidden_proj`, shape `(3H,)`.

    Returns:
        The next state `(B, H)`, and what `gru_step_backward` wants: r, z and `U h` side by side `(B, 3H)`, n `(B, H)`.
    """
    size = hidden.shape[1]
    inner = nn.functional.linear(hidden, weight, bias)
    inner[:, : 2 * size].add_(gates[:, : 2 * size]).sigmoid_()
    reset, update, recurrent = inner.chunk(3, dim=1)
    candidate = torch.addcmul(gates[:, 2 * size :], reset, recurrent).tanh_()
    return torch.lerp(candidate, hidden, update), inner, candidate


def gru_step_backward(
    grad: Tensor, hidden: Tensor, inner: Tensor, candidate: Tensor, grad_inner: Tensor, grad_n: Tensor
) -> Tensor:
    """Gradients of `gru_step`, given that of the next state.

    Args:
        grad: of the next state, shape `(B, H)`.
        hidden: the state before, shape `(B, H)`.
        inner: as `gru_step` returned it.
        candidate: as `gru_step` returned it.
        grad_inner: filled with the gradient of `hidden_proj`'s output, shape `(B, 3H)`.
        grad_n: filled with the gradient of the input gate n, shape `(B, H)`. Those of r and z are in `grad_inner`.

    Returns:
        The gradient of the state before, except for what passes through `hidden_proj`.
    """
    reset, update, recurrent = inner.chunk(3, dim=1)
    grad_kept = grad * update
    torch.mul(grad - grad_kept, 1 - candidate * candidate, out=grad_n)
    grad_z = grad_kept * (hidden - candidate) * (1 - update)
    grad_recurrent = grad_n * reset
    grad_r = grad_recurrent * recurrent * (1 - reset)
    torch.cat([grad_r, grad_z, grad_recurrent], dim=1, out=grad_inner)
    return grad_kept


def backwards(batch_sizes: list[int]) -> list[slice]:
    """Where the steps of a packed sequence stand, from the last to the first."""
    stops = [sum(batch_sizes[: step + 1]) for step in range(len(batch_sizes))]
    return [slice(stop - rows, stop) for rows, stop in zip(batch_sizes, stops, strict=True)][::-1]


class _PackedGRU(torch.autograd.Function):
    """A GRU over a packed batch: the products that make its weights' gradients are one each, after the loop.

    Autograd would make them step by step, and write and add up a matrix of the weight's size each time.
    """

    @staticmethod
    def forward(ctx, gates: Tensor, start: Tensor, weight: Tensor, bias: Tensor, batch_sizes: list[int]) -> Tensor:
        hidden, kept = start, []
        for step in gates.split(batch_sizes):
            before = hidden[: step.shape[0]]
            hidden, inner, candidate = gru_step(step, before, weight, bias)
            kept.append((before, inner, candidate, hidden))
        before, inner, candidate, states = (torch.cat(tensors) for tensors in zip(*kept, strict=True))
        ctx.save_for_backward(before, inner, candidate, weight)
        ctx.batch_sizes, ctx.rows = batch_sizes, start.shape[0]
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        before, inner, candidate, weight = ctx.saved_tensors
        grad_inner, grad_n = torch.empty_like(inner), torch.empty_like(candidate)
        # Of the state between two steps. A row that has ended gets nothing from what comes later.
        carried = before.new_zeros(ctx.rows, before.shape[1])
        for at in backwards(ctx.batch_sizes):
            running = carried[: at.stop - at.start]
            direct = gru_step_backward(
                running + grad[at], before[at], inner[at], candidate[at], grad_inner[at], grad_n[at]
            )
            torch.addmm(direct, grad_inner[at], weight, out=running)
        grad_weight, grad_bias = grad_inner.T @ before, grad_inner.sum(dim=0)
        # What is left is the gradient of the input gates, but for n, which the reset gate is not a factor of.
        grad_inner[:, 2 * grad_n.shape[1] :] = grad_n
        return grad_inner, carried, grad_weight, grad_bias, None


def reversal_order(size: int, lengths: Tensor | None, device: torch.device) -> Tensor:
    """Positions that turn each row of a right-padded batch round, padding left where it is, shape `(B or 1, size)`."""
    positions = torch.arange(size, device=device)[None]
    if lengths is None:
        return positions.flip(1)
    lengths = lengths[:, None]
    return torch.where(positions < lengths, lengths - 1 - positions, positions)


def take_positions(tensor: Tensor, order: Tensor) -> Tensor:
    """`tensor[b, order[b, s]]` for a tensor `(B, S, D)` and positions `(B or 1, S)`."""
    return tensor.gather(1, order[:, :, None].expand(tensor.shape[0], -1, tensor.shape[2]))


def ragged_layout(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Lengths of the rows, and the order of positions that brings padding to the right.

    Args:
        mask: True where a position is real, shape `(B, S)`.

    Returns:
        `lengths` of shape `(B,)`, None if nothing is padded, and `order` of shape `(B, S)`, None if all padding stands
        on the right already.
    """
    lengths = mask.sum(dim=1)
    if torch.compiler.is_compiling():
        return lengths, (~mask).long().argsort(dim=1, stable=True)
    if bool(mask.all()):
        return None, None
    if bool((mask[:, 1:] <= mask[:, :-1]).all()):
        return lengths, None
    return lengths, (~mask).long().argsort(dim=1, stable=True)


class RecurrentCacheLayer(CacheLayerMixin):
    """What a recurrent decoder remembers between calls, as named tensors.

    `states` follow the hypotheses, shape `(B * beams, ...)`; `memory` belongs to the source sentences, shape
    `(B, ...)`, and is the same for all hypotheses of a sentence.
    """

    is_compileable = False

    def __init__(self):
        super().__init__()
        self.states: dict[str, Tensor] = {}
        self.memory: dict[str, Tensor] = {}
        self.seen_tokens = 0

    @property
    def batch_size(self) -> int:
        return next(iter(self.states.values())).shape[0] if self.states else -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("a recurrent cache holds states, not keys and values")

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("a recurrent cache holds states, not keys and values")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, self.seen_tokens

    def get_seq_length(self) -> int:
        return self.seen_tokens

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.states, self.memory, self.seen_tokens = {}, {}, 0

    def offload(self) -> None:
        raise NotImplementedError("a recurrent cache does not grow, so it is not offloaded")

    prefetch = offload

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to forget: a recurrent state holds its past only as a sum of it.

        Raises:
            ValueError: if `tokens_to_remove` isn't 0.
        """
        if tokens_to_remove != 0:
            raise ValueError(
                f"tokens_to_remove={tokens_to_remove}: a recurrent state can't go back in time, only 0 is possible"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let each hypothesis go on from row `beam_idx` of its own sentence, as beam search does."""
        self.states = {name: state.index_select(0, beam_idx.to(state.device)) for name, state in self.states.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every hypothesis; the repeats share the memory of their source."""
        self.states = {name: state.repeat_interleave(repeats, dim=0) for name, state in self.states.items()}

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`, of whatever sentences, each with a memory of its own."""
        for name, memory in self.memory.items():
            beams = self.batch_size // memory.shape[0]
            self.memory[name] = memory.index_select(0, indices.to(memory.device) // beams)
        self.reorder_cache(indices)


class RecurrentCache(Cache):
    """Cache of a recurrent decoder, for `generate()`: greedy, sampled and beam search, and continuing from it.

    Example:
        `model.generate(..., return_dict_in_generate=True).cache` is one; pass it back as `cache=` together with the
        whole of `decoder_input_ids` to go on from where it stands.
    """

    def __init__(self):
        super().__init__(layers=[RecurrentCacheLayer()])

    @property
    def states(self) -> dict[str, Tensor]:
        """Named state tensors, `(B * beams, ...)`."""
        return self.layers[0].states

    @property
    def memory(self) -> dict[str, Tensor]:
        """Named tensors of the source, `(B, ...)`."""
        return self.layers[0].memory

    def store(self, states: dict[str, Tensor], num_new_tokens: int) -> None:
        """Take the states after `num_new_tokens` more tokens."""
        self.layers[0].states = states
        self.layers[0].seen_tokens += num_new_tokens
