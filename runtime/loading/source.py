"""Where tensors come from: what a source holds, known before any of it is read, and how bytes of it are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..models.fields import shown
from .header import DTYPES, Stored, damaged, read_header

NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Source(Protocol):
    """name: for errors.  tensors: all that it holds.  Several threads may read at a time."""

    name: str
    tensors: list[Stored]

    def read(self, stored: Stored, offset: int, part: Tensor) -> None:
        """Fill `part` (uint8, on the CPU) with the bytes of a tensor from `offset` on."""


class FileSource:
    """A file whose tensors lie in it one after the other, each as its bytes."""

    def __init__(self, file: Path, tensors: list[Stored]) -> None:
        self.file, self.name, self.tensors = file, str(file), tensors

    def read(self, stored: Stored, offset: int, part: Tensor) -> None:
        view = part.numpy().data
        with open(self.file, "rb", buffering=0) as stream:
            stream.seek(stored.start + offset)
            while len(view):
                count = stream.readinto(view)
                if not count:
                    raise damaged(self.file, f"it ended within tensor {shown(stored.name)}")
                view = view[count:]


class TensorSource:
    """Tensors that are in memory: of a pickle that is mapped, of a training loop."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.name, self._held = name, dict(tensors)
        self.tensors = [self._stored(name, tensor) for name, tensor in self._held.items()]

    def _stored(self, name: str, tensor: Tensor) -> Stored:
        if not isinstance(tensor, Tensor) or tensor.dtype not in NAMES:
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CheckpointError(f"{self.name}: {shown(name)} is {found}, not a tensor of {', '.join(DTYPES)}")
        return Stored(name, NAMES[tensor.dtype], list(tensor.shape), 0, tensor.numel() * tensor.itemsize)

    def read(self, stored: Stored, offset: int, part: Tensor) -> None:
        tensor = self._held[stored.name]
        first, count = offset // tensor.itemsize, len(part) // tensor.itemsize
        flat = tensor.detach().reshape(-1)[first : first + count]  # a view, or of a transposed one a copy
        part.copy_(flat.cpu().contiguous().view(torch.uint8))


def safetensors(file: Path) -> FileSource:
    """Raises CheckpointError for a file that is damaged."""
    return FileSource(file, read_header(file))


def pickled(file: Path) -> TensorSource:
    """The tensors of a .bin or .pt file, without running any code that it brings. Raises CheckpointError for anything else in it."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))
    except Exception as error:  # the unpickler raises many types
        raise CheckpointError(
            f"{file} cannot be read as pickled tensors alone ({str(error).splitlines()[0][:300]}); convert it to safetensors where it comes from"
        ) from error
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{file} holds {type(found).__name__}, not tensors by name")
    return TensorSource(str(file), {str(name): tensor for name, tensor in found.items()})


def _is_zip(file: Path) -> bool:
    """As torch writes since 1.6; what is older cannot be mapped."""
    with open(file, "rb") as stream:
        return stream.read(2) == b"PK"


def bytes_of(source: Source, stored: Stored, offset: int, count: int) -> np.ndarray:
    """uint8 [count]"""
    part = torch.empty(count, dtype=torch.uint8)
    source.read(stored, offset, part)
    return part.numpy()
