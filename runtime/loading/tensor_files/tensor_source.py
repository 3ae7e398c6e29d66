"""Where tensors come from: what a source holds, known before any of it is read, and how bytes of it are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ...models.spec.json_fields import shown
from .safetensors_header import StoredTensor, damaged_file_error, read_header

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

NOTHING: Mapping[str, Any] = MappingProxyType({})


class WeightSource(Protocol):
    """name: for errors.  tensors: all that it holds.  bytes: of the file.  Several threads may read at a time."""

    name: str
    tensors: list[StoredTensor]
    bytes: int

    def read(self, stored: StoredTensor, offset: int, part: Tensor) -> None:
        """Fill `part` (uint8, on the CPU) with the bytes of a tensor from `offset` on."""


class FileWeightSource:
    """A file that stores its tensors one after the other, each as its bytes. metadata: see `SafetensorsHeader`."""

    def __init__(self, file: Path, tensors: list[StoredTensor], metadata: Mapping[str, Any] = NOTHING) -> None:
        self.file, self.name, self.tensors, self.bytes, self.metadata = (
            file,
            str(file),
            tensors,
            file.stat().st_size,
            metadata,
        )

    def read(self, stored: StoredTensor, offset: int, part: Tensor) -> None:
        view = part.numpy().data
        with open(self.file, "rb", buffering=0) as stream:
            stream.seek(stored.start + offset)
            while len(view):
                count = stream.readinto(view)
                if not count:
                    raise damaged_file_error(self.file, f"it ended within tensor {shown(stored.name)}")
                view = view[count:]


def safetensors(file: Path) -> FileWeightSource:
    """Raises CheckpointError for a file that is damaged."""
    return FileWeightSource(file, *read_header(file))


def bytes_of(source: WeightSource, stored: StoredTensor, offset: int, count: int) -> np.ndarray:
    """uint8 [count]"""
    import torch

    part = torch.empty(count, dtype=torch.uint8)
    source.read(stored, offset, part)
    return part.numpy()
