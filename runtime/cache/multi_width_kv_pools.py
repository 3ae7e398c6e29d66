"""KV pools of models whose layers differ in width: one pool for each width, over the same slots.

Sliding-window layers may have separate pools with other, fewer slots (see `WindowPages`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .kv_layer_group import KVLayerGroup
from .kv_pool import KVPool


class MultiKVPool:
    """Several pools that are handed out, poisoned and given back as one. See `KVPool`, whose methods it has.

    windowed: how many of them, the last ones, are over the slots of windows.
    """

    def __init__(self, parts: Sequence[KVPool], windowed: int = 0) -> None:
        self.parts, self._whole = tuple(parts), len(parts) - windowed

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def touched(self) -> int:
        return sum(part.touched for part in self.parts)

    @property
    def slots(self) -> int:
        return self.parts[0].slots

    def release(self) -> None:
        for part in self.parts:
            part.release()

    def restore(self) -> None:
        for part in self.parts:
            part.restore()

    def fill_nan(self, slots: Sequence[int] | Tensor) -> None:
        for part in self.parts[: self._whole]:
            part.fill_nan(slots)

    def fill_windows_nan(self, slots: Sequence[int] | Tensor) -> None:
        """The same for slots of windows."""
        for part in self.parts[self._whole :]:
            part.fill_nan(slots)


Pool = KVPool | MultiKVPool


def make_pool(
    parts: Sequence[KVLayerGroup],
    slots: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    window_slots: int = 0,
) -> Pool:
    """Memory for the keys and values of all parts, the windowed ones last: a plain `KVPool` where there is one part
    only.
    """
    pools = [_pool(part, window_slots if part.windowed else slots, dtype, device) for part in parts]
    return pools[0] if len(pools) == 1 else MultiKVPool(pools, sum(part.windowed for part in parts))


def _pool(part: KVLayerGroup, slots: int, dtype: torch.dtype, device: torch.device | str) -> KVPool:
    return KVPool(
        part.layers, slots, part.kv_heads, part.key_dim, dtype, device, part.value_dim, part.latent, part.index_dim
    )
