"""Keys and values in memory with room for those to come: a step of generation writes its own, and copies no others.

Shapes: B rows, h heads, T positions, d size of a head.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, EncoderDecoderCache

# Positions that there is room for at a time.
_ROOM = 64
# With fewer numbers than this in its keys, a layer is copied faster than it is looked after.
_FEW = 2**15


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` that brings what it holds to another place once in 64 positions, not at every one.

    `keys` and `values`, shape `(B, h, T, d)`, are the first part of a memory of at most 64 positions more (`128 h d`
    numbers a row). That is for `generate()` while it runs: whoever held on to `keys` would find, behind a
    `crop`, other words written into them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memory: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values.

        Args:
            key_states: of the new positions, shape `(B, h, T, d)`.
            value_states: likewise.
            args: for other kinds of layers, as `kwargs`.

        Returns:
            Those of all positions so far.
        """
        # A gradient can't go through what is written over, and a graph has memory of its own.
        usual = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if usual or not self.is_initialized or self.keys.numel() < _FEW:
            return super().update(key_states, value_states)
        seen, end = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        keys, values = self._memory = self._room_for(end)
        keys.narrow(2, seen, end - seen).copy_(key_states)
        values.narrow(2, seen, end - seen).copy_(value_states)
        self.keys, self.values = keys.narrow(2, 0, end), values.narrow(2, 0, end)
        return self.keys, self.values

    def _room_for(self, length: int) -> tuple[Tensor, Tensor]:
        """Memory of at least so many positions, which begins with those there are."""
        held, memory = (self.keys, self.values), self._memory
        if memory is None or not all(map(_begins, held, memory)):
            memory = held
        if memory[0].shape[2] >= length:
            return memory
        longer = tuple(part.new_empty(*part.shape[:2], length + _ROOM, part.shape[3]) for part in held)
        for part, whole in zip(held, longer, strict=True):
            whole.narrow(2, 0, part.shape[2]).copy_(part)
        return longer


def give_room(cache: Cache | None) -> None:
    """Make the layers of an empty cache roomy, where they are those of a `DynamicCache` on one device.

    Args:
        cache: changed in place; of an `EncoderDecoderCache`, the part for self-attention. None, and any other, is left
            as it is.
    """
    cache = _of_self_attention(cache)
    if type(cache) is DynamicCache and not cache.offloading:
        cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]


def take_room(cache: Cache | None) -> None:
    """Make roomy layers the `DynamicLayer`s again that everybody knows, of what they hold and nothing more.

    Args:
        cache: changed in place; of an `EncoderDecoderCache`, the part for self-attention. None, and any other, is left
            as it is.
    """
    cache = _of_self_attention(cache)
    for index, layer in enumerate(getattr(cache, "layers", [])):
        if isinstance(layer, RoomyLayer):
            cache.layers[index] = plain = DynamicLayer()
            if layer.is_initialized:
                plain.update(layer.keys, layer.values)


def _of_self_attention(cache: Cache | None) -> Cache | None:
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _begins(part: Tensor, whole: Tensor) -> bool:
    """Whether keys or values are the first positions of a memory, and not a choice of rows, or something else."""
    return part.data_ptr() == whole.data_ptr() and part.shape[:2] == whole.shape[:2]
