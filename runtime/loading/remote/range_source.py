"""Tensors of a file elsewhere, read range by range."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.spec.json_fields import shown
from ..tensor_files.safetensors_header import SafetensorsHeader, StoredTensor, damaged_file

if TYPE_CHECKING:
    from torch import Tensor


class RangeSource:
    """fetch: the bytes of the file from a start on, as a buffer; several threads call it at a time."""

    def __init__(self, name: str, size: int, header: SafetensorsHeader, fetch: Callable[[int, int], Any]) -> None:
        self.name, self.bytes, (self.tensors, self.metadata), self._fetch = name, size, header, fetch

    def read(self, stored: StoredTensor, offset: int, part: Tensor) -> None:
        data = np.frombuffer(self._fetch(stored.start + offset, len(part)), np.uint8)
        if len(data) != len(part):
            raise damaged_file(
                self.name, self.bytes, f"{len(data):,} of {len(part):,} bytes came of tensor {shown(stored.name)}"
            )
        part.numpy()[:] = data
