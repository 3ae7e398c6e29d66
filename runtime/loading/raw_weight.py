"""A weight as the files have it: its tensors, and what makes a weight of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CheckpointError
from ..quantization.readers.weight_reader_match import TensorHeader, WeightReader
from .sharded_state import PackedProjectionEntry
from .tensor_files.safetensors_header import StoredTensor
from .tensor_files.tensor_source import WeightSource

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..models.spec.weight_targets import WeightTarget
    from ..quantization.device_weight import DeviceWeight
    from ..quantization.quantized_weight import QuantizedWeight
    from .tensor_files.tensor_transfer import TransferChunk


class RawTensor(NamedTuple):
    """A tensor of a source."""

    source: WeightSource
    stored: StoredTensor

    @property
    def bytes(self) -> int:
        return self.stored.stop - self.stored.start

    @property
    def header(self) -> TensorHeader:
        return TensorHeader(self.stored.dtype, tuple(self.stored.shape))

    def empty(self, device: torch.device) -> Tensor:
        """Memory for it as it is stored; of kinds that torch has not, the bytes of each row."""
        import torch

        from ..layers.weight_memory import empty_to_load
        from .tensor_files.torch_dtypes import DTYPES

        dtype, shape = DTYPES.get(self.stored.dtype), self.stored.shape
        if dtype is None:
            dtype, shape = torch.uint8, [*shape[:-1], self.bytes // math.prod(shape[:-1])]
        return empty_to_load(shape, dtype, device)

    def read(self) -> Tensor:
        """As it is stored, in main memory."""
        import torch

        found = self.empty(torch.device("cpu"))
        self.source.read(self.stored, 0, found.view(-1).view(torch.uint8))
        return found

    def into(self, target: Tensor) -> Iterator[TransferChunk]:
        """What moves it there."""
        import torch

        from .tensor_files.tensor_transfer import chunks
        from .tensor_files.torch_dtypes import DTYPES

        return chunks(
            lambda offset: lambda part: self.source.read(self.stored, offset, part),
            DTYPES.get(self.stored.dtype, torch.uint8),
            target,
        )


class RawWeight(NamedTuple):
    """pieces: by what follows the module's name.

    reader: what makes it a quantized weight, or how it is packed; None: it is floats, whose pieces follow each other.
    """

    pieces: dict[str, RawTensor]
    reader: WeightReader | PackedProjectionEntry | None = None

    def into(self, target: Tensor) -> Iterator[TransferChunk]:
        """What moves floats there."""
        start, flat = 0, target.view(-1)
        for piece in self.pieces.values():
            stop = start + math.prod(piece.stored.shape)
            yield from piece.into(flat[start:stop])
            start = stop

    @property
    def first(self) -> RawTensor:
        return next(iter(self.pieces.values()))

    @property
    def format(self) -> str:
        """For people."""
        return "floats" if self.reader is None else self.reader.format

    def read(self, tensors: dict[str, Tensor], target: WeightTarget) -> QuantizedWeight | DeviceWeight:
        """tensors: its pieces, as they are stored.

        Raises CheckpointError where the sizes, which some formats keep in a tensor, are not the target's.
        """
        assert self.reader is not None
        if isinstance(self.reader, PackedProjectionEntry):
            from ..quantization.device_weight import DeviceWeight

            where = f"{self.first.source.name}: {self.first.stored.name}"
            return DeviceWeight(self.reader.kind, self.reader.numbers, tensors, where)
        weight = self.reader.read(tensors)
        if weight.shape != target.sizes:
            raise CheckpointError(
                f"{self.first.source.name}: {target.name} is {list(weight.shape)} by its {self.format}, "
                f"config.json asks for {list(target.sizes)}"
            )
        return weight
