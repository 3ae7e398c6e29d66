"""Experts of a layer in main memory, for a GPU: those that a step's rows choose are copied to a buffer on the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from ...kernels.experts.expert_inputs import ExpertWeights, PackedExpertWeights, StackedExpertWeights
from ...layers.linear_layers import Linear
from ...quantization.gpu_quantized_linear import GpuQuantizedLinear
from ..reference.stacked_experts import pack_together, store_together

LARGE = (
    "words",
    "meta",
)  # tensors of a quantized weight that are in main memory; biases and output scales stay on the device


class OffloadBuffers:
    """Buffers on the device for the experts of one layer at a time, which all layers of equal sizes share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rooms: dict[tuple[Any, ...], Tensor] = {}

    @property
    def bytes(self) -> int:
        return sum(room.nbytes for room in self._rooms.values())

    def like(self, name: str, source: Tensor) -> Tensor:
        """Its contents are finite: nothing, or what a layer of the same form has left."""
        key = name, source.dtype, source.shape
        if key not in self._rooms:
            empty = torch.zeros(source.nbytes, dtype=torch.uint8, device=self._device)
            self._rooms[key] = empty.view(source.dtype).view(source.shape)
        return self._rooms[key]


@dataclass
class OffloadedExperts:
    """Of one layer. expert: bytes of one.  counter: int64 [1], how many were copied.  locked: freed with this."""

    rooms: OffloadBuffers
    expert: int
    counter: Tensor
    locked: list[Callable[[], Any]] = field(default_factory=list)

    @property
    def brought(self) -> int:
        """Bytes. Waits for the steps in flight."""
        return int(self.counter) * self.expert

    def fetch(self, stacks: StackedExpertWeights, experts: Tensor, slots: Tensor | None) -> StackedExpertWeights:
        """The stacks on the device, valid for the experts int32 [T, k] until the next layer's are requested.

        slots: [T]; rows whose slot is 0 are padding, for which nothing is copied.
        """
        from ...kernels.experts.expert_fetch import collect_selected, fetch_experts

        chosen = collect_selected(experts, stacks.count, self.counter, slots)
        up, down = self.roomy("gate_up", stacks.gate_up), self.roomy("down", stacks.down)
        for half, there in ((stacks.gate_up, up), (stacks.down, down)):
            for source, room in zip(large_of(half), large_of(there), strict=True):
                fetch_experts(source, room, chosen)
        return replace(stacks, gate_up=up, down=down)

    def roomy(self, name: str, half: ExpertWeights | PackedExpertWeights) -> ExpertWeights | PackedExpertWeights:
        """Half of a mixture with the buffers for its tensors in main memory."""
        if isinstance(half, ExpertWeights):
            return half._replace(weight=self.rooms.like(name, half.weight))
        rooms: dict[str, Any] = {each: self.rooms.like(f"{name} {each}", source) for each, source in _named(half)}
        return half._replace(packed=replace(half.packed, **rooms))


def large_of(half: ExpertWeights | PackedExpertWeights) -> list[Tensor]:
    """The tensors of half a mixture that are in main memory."""
    return [half.weight] if isinstance(half, ExpertWeights) else [source for _, source in _named(half)]


def _named(half: PackedExpertWeights) -> list[tuple[str, Tensor]]:
    return [(name, source) for name in LARGE if (source := getattr(half.packed, name)) is not None]


def move(layers: Sequence[Linear], moved: Callable[[Tensor], Tensor]) -> None:
    """Move the large tensors of layers of one kind, next to each other, to where `moved` puts them."""
    if not isinstance(layers[0], GpuQuantizedLinear):
        for layer, own in zip(layers, moved(store_together(layers)[0]), strict=True):
            layer.weight = own
        return
    few = cast("list[GpuQuantizedLinear]", list(layers))
    stacks = {name: moved(stack) for name, stack in _named(PackedExpertWeights(*pack_together(few)))}
    for index, layer in enumerate(few):
        parts: dict[str, Any] = {name: stack[index] for name, stack in stacks.items()}
        layer.packed = replace(layer.packed, **parts)
        layer.weight = layer.packed.words
