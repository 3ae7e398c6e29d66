"""Tensors in memory as a source of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from ...errors import CheckpointError
from ...models.spec.json_fields import shown
from .safetensors_header import StoredTensor
from .torch_dtypes import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


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
