"""Layers written down from their equations, on the parameters of a checkpoint: what conversions are held against.

A text is a matrix with a row for each word; there is no batch and no padding.
"""

import math

import torch


def fill(shapes, seed=0, std=0.5):
    """Random parameters of these shapes by name."""
    torch.manual_seed(seed)
    return {name: std * torch.randn(*shape) for name, shape in shapes.items()}


def rnn_shapes(pattern, gates, inputs, size, layers, directions=1):
    """Shapes of a stacked recurrence whose parameters are called by `pattern`, of what they are and of their layer."""
    shapes = {}
    for layer in range(layers):
        for suffix in ("", "_reverse")[:directions]:
            width = inputs if layer == 0 else directions * size
            for what, shape in {
                "weight_ih": (gates * size, width),
                "weight_hh": (gates * size, size),
                "bias_ih": (gates * size,),
                "bias_hh": (gates * size,),
            }.items():
                shapes[pattern.format(what, f"{layer}{suffix}")] = shape
    return shapes


def step(state, pattern, layer, x, before):
    """One step of an LSTM, whose states are h and c, or of a GRU, whose state is h."""
    h = before[0]
    given = state[pattern.format("weight_ih", layer)] @ x + state[pattern.format("bias_ih", layer)]
    recurrent = state[pattern.format("weight_hh", layer)] @ h + state[pattern.format("bias_hh", layer)]
    if len(before) == 2:
        i, f, g, o = (given + recurrent).chunk(4)
        c = torch.sigmoid(f) * before[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    r, z, _ = torch.sigmoid(given + recurrent).chunk(3)
    n = torch.tanh(given.chunk(3)[2] + r * recurrent.chunk(3)[2])
    return ((1 - z) * n + z * h,)


def encode(state, vectors, size, layers, directions, kinds):
    """Annotations, and the last states of every layer: `finals[layer][direction][kind]`."""
    finals = []
    for layer in range(layers):
        sides, last = [], []
        for suffix in ("", "_reverse")[:directions]:
            states, outputs = tuple(torch.zeros(size) for _ in range(kinds)), []
            for x in vectors.flip(0) if suffix else vectors:
                states = step(state, "encoder.rnn.{}_l{}", f"{layer}{suffix}", x, states)
                outputs.append(states[0])
            outputs = torch.stack(outputs)
            sides.append(outputs.flip(0) if suffix else outputs)
            last.append(states)
        vectors = torch.cat(sides, dim=1)
        finals.append(last)
    return vectors, finals


def decode(state, pattern, vectors, states, attend, feeding):
    """Attentional states of a target: `attend` makes them of the upper layer's."""
    fed, made = torch.zeros(len(states[0][0])), []
    for x in vectors:
        x = torch.cat([x, fed]) if feeding else x
        for layer, before in enumerate(states):
            states[layer] = step(state, pattern, layer, x, before)
            x = states[layer][0]
        fed = attend(x)
        made.append(fed)
    return torch.stack(made)


def average(energies, annotations):
    """Annotations, weighted by a softmax of their energies."""
    weights = torch.exp(torch.stack(energies))
    return weights / weights.sum() @ annotations


def linear(state, name, x):
    """`W x + b`, without b if there is none, of every row."""
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)


def normalise(state, name, x, eps):
    """Layer normalisation of every row."""
    mean = x.mean(dim=1, keepdim=True)
    deviation = torch.sqrt(((x - mean) ** 2).mean(dim=1, keepdim=True) + eps)
    return (x - mean) / deviation * state[f"{name}.weight"] + state[f"{name}.bias"]


def multi_head(query, key, value, heads, causal):
    """Averages of the values, head beside head."""
    size, made = query.shape[1] // heads, []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / math.sqrt(size)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        made.append(scores.softmax(dim=1) @ value[:, part])
    return torch.cat(made, dim=1)


def position_table(length, size):
    """Sine and cosine in turns."""
    table = torch.empty(length, size)
    for position in range(length):
        for dimension in range(0, size, 2):
            angle = position / 10000 ** (dimension / size)
            table[position, dimension], table[position, dimension + 1] = math.sin(angle), math.cos(angle)
    return table


def greedy(logits_of, start, end, steps, never=(), at_least=0):
    """What is written word by word: ids, the end included."""
    written = [start]
    for number in range(steps):
        scores = logits_of(written)[-1].clone()
        scores[[*never, *([end] if number < at_least else [])]] = -math.inf
        written.append(int(scores.argmax()))
        if written[-1] == end:
            break
    return written[1:]
