"""The memory that holds keys and values, addressed by slot: one slot is one token's KV in every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ConfigError

PAD_SLOT = 0  # always zero, never handed out: padded gathers read it, so that no freed slot is ever touched


class KVPool:
    """Keys and values of all layers.

    k, v: [layers, slots, kv_heads, head_dim]. Slot `PAD_SLOT` stays zero and belongs to nobody.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if slots < 2:
            raise ConfigError(
                f"a KV pool of {slots} slots has no room: slot {PAD_SLOT} is reserved, give at least 2"
            )
        shape = (layers, slots, kv_heads, head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def bytes_per_slot(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes that one token's keys and values take in all layers together."""
        return 2 * layers * kv_heads * head_dim * dtype.itemsize

    @property
    def slots(self) -> int:
        return self.k.shape[1]

    def fill_nan(self, slots: Sequence[int] | Tensor) -> None:
        """Poison freed slots, so that a stale read turns the output into NaN (for tests)."""
        index = torch.as_tensor(slots, dtype=torch.int64, device=self.k.device)
        if bool((index == PAD_SLOT).any()):
            raise ValueError(f"slot {PAD_SLOT} is the padding slot and must stay zero")
        self.k.index_fill_(1, index, float("nan"))
        self.v.index_fill_(1, index, float("nan"))
