"""The memory that holds keys and values, addressed by slot: one slot is one token's KV in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError

FP8_NAN = 0x7F  # of float8_e4m3fn, as a byte
PAD_SLOT = 0  # always zero, never handed out: padded gathers read it, so that no freed slot is ever touched
FLOAT8_NAN = 0x7F


class KVPool:
    """Keys and values of all layers.

    k, v: [layers, slots, kv_heads, head_dim]. Slot `PAD_SLOT` stays zero and belongs to nobody.
    k_scale, v_scale: with dtype float8_e4m3fn what is stored is value / scale, and what is too large the largest.
    """

    k_scale: float = 1.0
    v_scale: float = 1.0

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
        self._shape = (layers, slots, kv_heads, head_dim)
        self._kind: dict[str, Any] = {"dtype": dtype, "device": torch.device(device)}
        self.k_scale = self.v_scale = 1.0
        self.restore()

    @staticmethod
    def bytes_per_slot(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes that one token's keys and values take in all layers together."""
        return 2 * layers * kv_heads * head_dim * dtype.itemsize

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def slots(self) -> int:
        return self.k.shape[1]

    def release(self) -> None:
        """Give the memory back, and with it everything that is stored; `k` and `v` have no slots until `restore`."""
        layers, _, *heads = self._shape
        self.k, self.v = (torch.empty((layers, 0, *heads), **self._kind) for _ in range(2))

    def restore(self) -> None:
        """Memory for all slots, zero. Backends that kept addresses of the old memory are built anew."""
        self.k, self.v = (torch.zeros(self._shape, **self._kind) for _ in range(2))

    def fill_nan(self, slots: Sequence[int] | Tensor) -> None:
        """Poison freed slots, so that a stale read turns the output into NaN (for tests)."""
        index = torch.as_tensor(slots, dtype=torch.int64, device=self.k.device)
        if bool((index == PAD_SLOT).any()):
            raise ValueError(f"slot {PAD_SLOT} is the padding slot and must stay zero")
        for stored in (self.k, self.v):
            if stored.dtype == torch.float8_e4m3fn:
                stored.view(torch.uint8).index_fill_(1, index, FLOAT8_NAN)
            else:
                stored.index_fill_(1, index, float("nan"))
