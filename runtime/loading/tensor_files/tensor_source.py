"""Where tensors come from: what a source holds, known before any of it is read, and how bytes of it are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...errors import CheckpointError
from ...models.spec.json_fields import shown
from .safetensors_header import DTYPES, StoredTensor, damaged_file_error, read_header

NAMES = {dtype: name for name, dtype in DTYPES.items()}
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


class MemoryWeightSource:
    """Tensors that are in memory: of a pickle that is mapped, of a training loop."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.name, self._held = name, dict(tensors)
        self.tensors = [self._stored(name, tensor) for name, tensor in self._held.items()]
        self.bytes = sum(stored.stop for stored in self.tensors)

    def _stored(self, name: str, tensor: Tensor) -> StoredTensor:
        if not isinstance(tensor, Tensor) or tensor.dtype not in NAMES:
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CheckpointError(f"{self.name}: {shown(name)} is {found}, not a tensor of {', '.join(DTYPES)}")
        return StoredTensor(name, NAMES[tensor.dtype], list(tensor.shape), 0, tensor.numel() * tensor.itemsize)

    def read(self, stored: StoredTensor, offset: int, part: Tensor) -> None:
        tensor = self._held[stored.name]
        first, count = offset // tensor.itemsize, len(part) // tensor.itemsize
        if (
            tensor.dim() > 1 and not tensor.is_contiguous()
        ):  # then it is copied: no more of it than the rows that are asked for
            row = tensor[0].numel()
            tensor, first = tensor[first // row : -(-(first + count) // row)], first % row
        part.view(tensor.dtype).copy_(tensor.detach().reshape(-1)[first : first + count])


def tensors_as_source(given: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name, of a mapping or of pairs.

    Raises CheckpointError for what is neither, and for a name that comes twice.
    """
    found: dict[str, Tensor] = {}
    for pair in given.items() if isinstance(given, Mapping) else given if isinstance(given, Iterable) else [given]:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise CheckpointError(
                f"weights are a model directory, tensors by name, or pairs of name and tensor, not {shown(pair)}"
            )
        if pair[0] in found:
            raise CheckpointError(f"the weights have {shown(pair[0])} twice")
        found[pair[0]] = pair[1]
    return found


def safetensors(file: Path) -> FileWeightSource:
    """Raises CheckpointError for a file that is damaged."""
    return FileWeightSource(file, *read_header(file))


def bytes_of(source: WeightSource, stored: StoredTensor, offset: int, count: int) -> np.ndarray:
    """uint8 [count]"""
    part = torch.empty(count, dtype=torch.uint8)
    source.read(stored, offset, part)
    return part.numpy()
