"""Codes of quantized weights as files have them, until the compiled kernels pack or restore them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..layers import cpu_kernels

BYTES = 0  # the kind of codes that are one a byte; the others are the numbers that GGUF has for its blocks


@dataclass(frozen=True)
class StoredCodes:
    """Codes [out, in] in main memory: rows are taken, ordered and concatenated without copying them.

    rows: int64 [out], the address of each.  held: the memory that they are in.
    """

    rows: np.ndarray
    inputs: int
    kind: int
    held: tuple[Tensor, ...]

    @classmethod
    def of(cls, stored: Tensor, inputs: int, kind: int = BYTES) -> StoredCodes | None:
        """stored: uint8 [out, bytes of a row].  None: the compiled kernels cannot read them."""
        if cpu_kernels.kernels is None or stored.device.type != "cpu" or (len(stored) and stored.stride(1) != 1):
            return None
        return cls(cpu_kernels.row_addresses(stored), inputs, kind, (stored,))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.inputs

    @property
    def device(self) -> torch.device:
        return self.held[0].device

    def take(self, rows: slice | Tensor) -> StoredCodes:
        return replace(self, rows=self.rows[rows if isinstance(rows, slice) else rows.numpy()])

    def unpacked(self) -> Tensor:
        """uint8 [out, in], one in a byte."""
        codes = torch.empty(self.shape, dtype=torch.uint8)
        cpu_kernels.call(cpu_kernels.kernels.unpack_all, *self.words(), codes.data_ptr())
        return codes

    def words(self) -> tuple[int, ...]:
        """The struct of this name, valid as long as this object."""
        return self.rows.ctypes.data, self.kind, *self.shape


def stored(codes: Tensor | StoredCodes) -> StoredCodes | None:
    return codes if isinstance(codes, StoredCodes) else StoredCodes.of(codes, codes.shape[1])


def taken(codes: Tensor | StoredCodes, rows: slice | Tensor) -> Tensor | StoredCodes:
    """These rows, in this order; copied only where the compiled kernels cannot read them."""
    if isinstance(codes, StoredCodes):
        return codes.take(rows)
    found = None if isinstance(rows, slice) else stored(codes)
    return codes[rows] if found is None else found.take(rows)


def joined(parts: list[Tensor | StoredCodes]) -> Tensor | StoredCodes:
    """The rows of all, likewise."""
    found = [each for each in map(stored, parts) if each is not None]
    if len(found) < len(parts) or len({each.kind for each in found}) > 1:
        return torch.cat([part if isinstance(part, Tensor) else part.unpacked() for part in parts])
    held = tuple(memory for each in found for memory in each.held)
    return replace(found[0], rows=np.concatenate([each.rows for each in found]), held=held)
