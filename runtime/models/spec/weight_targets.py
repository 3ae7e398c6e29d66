"""Where the tensors of a checkpoint go: names, and the memory that each is to be copied into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...layers.linear_layers import Linear
from ...layers.norm_layers import LayerNorm, RMSNorm
from .model_spec import NormSpec


class WeightTarget(NamedTuple):
    """name: of the tensor in the checkpoint.  target: receives it, of its shape, contiguous.

    layer: the projection whose weight rows from `start` on it is; None: it is no such weight.
    """

    name: str
    target: Tensor
    layer: Linear | None = None
    start: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.target.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """[out, in], whatever the layout of its memory."""
        sizes = tuple(self.target.shape)
        return sizes if self.layer is None or self.layer.weight.is_contiguous() else sizes[::-1]


class LoadedPart(Protocol):
    """A part of a model, with memory to load into."""

    def places(self) -> Iterator[WeightTarget]: ...

    def products(self) -> Iterator[tuple[object, str]]:
        """The modules that hold each projection, and its name there."""


class ArrivingWeights(Protocol):
    """Of a part."""

    @property
    def bytes(self) -> int:
        """What they take until it is sealed."""

    def wait(self) -> None:
        """Returns once plain ones are in their targets, and projections know the others (`Linear.load`)."""


class ModelWeights(Protocol):
    """All weights of a model. bytes: that are read; 0: they are random.

    ahead: those of the next part may be fetched before a part is sealed.
    """

    bytes: int
    ahead: bool

    def fetch(self, index: int, part: LoadedPart) -> ArrivingWeights:
        """Begin to load the part of this number."""


def matrix(outputs: int, inputs: int, bias: bool, transposed: bool, dtype: torch.dtype, device: torch.device) -> Linear:
    """A projection to load into. transposed: its weight is stored as [in, out] until it is sealed."""
    if not transposed:
        return Linear.empty(outputs, inputs, bias, dtype, device)
    stored = torch.empty(inputs, outputs, dtype=dtype, device=device)
    return Linear(stored.t(), torch.empty(outputs, dtype=dtype, device=device) if bias else None)


def weight_of(name: str, layer: Linear) -> Iterator[WeightTarget]:
    """For a projection that has a separate tensor."""
    yield whole_weight(f"{name}.weight", layer)
    yield from bias_of(name, layer, 0, len(layer.weight))


def whole_weight(name: str, layer: Linear) -> WeightTarget:
    weight = layer.weight
    return WeightTarget(name, weight if weight.is_contiguous() else weight.t(), layer)


def exact(name: str, layer: Linear) -> Iterator[WeightTarget]:
    """A product that is never quantized, whatever it was stored as."""
    yield WeightTarget(f"{name}.weight", layer.weight)
    if layer.bias is not None:
        yield WeightTarget(f"{name}.bias", layer.bias)


def bias_of(name: str, layer: Linear, start: int, stop: int) -> Iterator[WeightTarget]:
    if layer.bias is not None:
        yield WeightTarget(f"{name}.bias", layer.bias[start:stop])


def norm_for(part: NormSpec | None, size: int, device: torch.device) -> RMSNorm | None:
    if part is None:
        return None
    if part.kind == "layer":
        return LayerNorm(size, part.eps, device, part.offset, part.bias)
    return RMSNorm(size, part.eps, device, part.offset)


def norm_places(name: str, part: NormSpec | None, norm: RMSNorm | None) -> Iterator[WeightTarget]:
    if part is None or norm is None:
        return
    if part.weight:
        yield WeightTarget(f"{name}.weight", norm.weight)
    if norm.bias is not None:
        yield WeightTarget(f"{name}.bias", norm.bias)
