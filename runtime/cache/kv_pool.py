"""The memory that holds keys and values, addressed by slot: one slot is one token's KV in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..layers.float8_reference import KVScaleFactors
from ..memory.huge_pages import lazy_zeros, touched_of

PAD_SLOT = 0  # always zero, never handed out: padded gathers read it, so that no freed slot is ever touched
FLOAT8_NAN = 0x7F  # of float8_e4m3fn, as a byte


class KVPool:
    """Keys and values of layers of equal width.

    k: [layers, slots, kv_heads, head_dim]; v: [layers, slots, kv_heads, value_dim].
    latent: keys alone are stored, and v is a view of their first `value_dim` numbers.
    index: [layers, slots, index_dim], by which layers choose what they attend to; in bfloat16 where keys have 8 bits.
    Slot `PAD_SLOT` stays zero and belongs to no sequence.
    scales: of each layer; they change only while nothing is stored.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        value_dim: int | None = None,
        latent: bool = False,
        index_dim: int = 0,
    ) -> None:
        if slots < 2:
            raise ConfigError(f"a KV pool of {slots} slots has no room: slot {PAD_SLOT} is reserved, give at least 2")
        shape = layers, slots, kv_heads
        self._shape, self._value_dim, self._latent = (
            (*shape, head_dim),
            head_dim if value_dim is None else value_dim,
            latent,
        )
        self._kind: dict[str, Any] = {"dtype": dtype, "device": torch.device(device)}
        self._index_dim = index_dim
        self.scales = [KVScaleFactors()] * layers
        self.restore()

    @property
    def parts(self) -> tuple[KVPool, ...]:
        """As `MultiKVPool` has them: this pool is one."""
        return (self,)

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def dtype(self) -> torch.dtype:
        return self.k.dtype

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """The memory: keys, values where these are not numbers of the keys, and by what is chosen."""
        kept = (self.k,) if self._latent else (self.k, self.v)
        return (*kept, self.index) if self._index_dim else kept

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.stored)

    @property
    def touched(self) -> int:
        """Bytes of it that the system has given by now, see `lazy_zeros`."""
        return sum(map(touched_of, self.stored))

    @property
    def slots(self) -> int:
        return self.k.shape[1]

    def release(self) -> None:
        """Give the memory back, and with it everything that is stored; `k` and `v` have no slots until `restore`."""
        layers, _, *heads = self._shape
        self._take(layers, 0, *heads)

    def restore(self) -> None:
        """Memory for all slots, zero, which the CPU's system gives when it is touched.

        Backends that kept addresses of the old memory are built anew.
        """
        self._take(*self._shape)

    def _take(self, *shape: int) -> None:
        layers, dtype, device = shape[0], self._kind["dtype"], self._kind["device"]
        self.k = lazy_zeros(shape, dtype, device, layers)
        self.v = (
            self.k[..., : self._value_dim]
            if self._latent
            else lazy_zeros((*shape[:-1], self._value_dim), dtype, device, layers)
        )
        self.index = lazy_zeros((*shape[:2], self._index_dim), index_dtype(dtype), device, layers)

    def fill_nan(self, slots: Sequence[int] | Tensor) -> None:
        """Poison freed slots, so that a stale read turns the output into NaN (for tests)."""
        index = torch.as_tensor(slots, dtype=torch.int64, device=self.k.device)
        if bool((index == PAD_SLOT).any()):
            raise ValueError(f"slot {PAD_SLOT} is the padding slot and must stay zero")
        for stored in self.stored:
            if stored.dtype == torch.float8_e4m3fn:
                stored.view(torch.uint8).index_fill_(1, index, FLOAT8_NAN)
            else:
                stored.index_fill_(1, index, float("nan"))


def index_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of what is stored for choosing, where keys are stored in `dtype`."""
    return torch.bfloat16 if dtype.itemsize == 1 else dtype
