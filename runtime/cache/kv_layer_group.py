"""Layers whose keys and values are stored alike, as data."""

from __future__ import annotations

from typing import NamedTuple

from ..layers.number_formats import HasItemSize

INDEX_BYTES = 2  # at least, of a number of an index key: it is bfloat16 where keys have 8 bits


class KVLayerGroup(NamedTuple):
    """Layers whose keys and values are in one pool. windowed: over the slots of windows."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    latent: bool = False
    index_dim: int = 0
    windowed: bool = False

    def bytes_per_slot(self, dtype: HasItemSize) -> int:
        """Bytes that one token's keys and values take in all layers together. See `KVPool`."""
        both = self.key_dim + (0 if self.latent else self.value_dim)
        index = self.index_dim * max(dtype.itemsize, INDEX_BYTES)
        return self.layers * (self.kv_heads * both * dtype.itemsize + index)
