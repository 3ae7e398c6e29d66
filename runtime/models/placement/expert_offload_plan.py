"""Which layers' experts are on the device and which in main memory, decided as the layers are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...attention.attention_layout import listed
from ...errors import ConfigError
from ...kernels.experts.expert_inputs import ExpertWeights, PackedExpertWeights
from ...layers.linear_layers import Linear
from ...memory.pinned_memory import aligned, pin_memory
from ..gpu.gpu_support import gpu_refusal_around_mixer
from ..gpu.offloaded_experts import OffloadBuffers, OffloadedExperts, large_of, move
from ..reference.reference_block import ReferenceBlock
from ..reference.reference_experts import ReferenceExperts
from ..reference.stacked_experts import stacked_weights

OPTION = "Engine(expert_memory=...)"


class ExpertOffloadPlan:
    """The first layers' experts stay on the device, as many as `budget` bytes hold; the others go to main memory.

    free: bytes of main memory that may still be used.
    """

    def __init__(self, device: torch.device, budget: int, free: Callable[[], int]) -> None:
        self._device, self._budget, self._free = device, budget, free
        self._rooms = OffloadBuffers(device)
        self._stay: dict[int, int] = {}  # bytes of the experts that each layer has on the device
        self._gone: dict[
            int, tuple[int, OffloadedExperts, int]
        ] = {}  # of the other layers: their bytes, and how many a token chooses
        self._counters: dict[int, Tensor] = {}

    def settle(self, block: ReferenceBlock, dtype: torch.dtype | None) -> None:
        """Called once a layer is sealed. dtype: of the model; None: without kernels.

        Raises ConfigError for experts that the kernels do not support, and if main memory is too small.
        """
        part, index = block.ffn, block.index
        if not isinstance(part, ReferenceExperts):
            return
        if (refusal := "Triton is not there" if dtype is None else gpu_refusal_around_mixer(block, dtype)) is not None:
            raise ConfigError(
                f"{OPTION}: torch computes layer {index} ({refusal}), and takes experts on the device only; leave "
                "the option out"
            )
        self._stay.pop(index, None)
        self._gone.pop(index, None)
        size = sum(tensor.nbytes for half in _halves(part) for tensor in large_of(half))
        if sum(self._stay.values()) + size <= self._budget and not any(other < index for other in self._gone):
            self._stay[index] = size
            return
        self._require_room(index, size)
        part.host = self._moved(part, index, size)
        self._gone[index] = size, part.host, part.part.top_k

    def brought(self) -> int:
        """Bytes of experts copied to the device since the engine was opened.

        Waits for the steps in flight.
        """
        return sum(host.brought for _, host, _ in self._gone.values())

    def describe(self) -> dict[str, Any]:
        """Where each layer's experts are and their bytes, those of the device buffer, and those copied for one
        token.
        """
        return {
            "device_layers": listed(sorted(self._stay)),
            "host_layers": listed(sorted(self._gone)),
            "device_bytes": sum(self._stay.values()),
            "host_bytes": sum(size for size, *_ in self._gone.values()),
            "room_bytes": self._rooms.bytes,
            "token_bytes": sum(host.expert * top for _, host, top in self._gone.values()),
        }

    def _require_room(self, index: int, size: int) -> None:
        if size > (free := self._free()):
            held = sum(size for size, *_ in self._gone.values())
            raise ConfigError(
                f"{OPTION}: the experts of layer {index} take {size / 1e9:.2f} GB of main memory, where "
                f"{free / 1e9:.2f} GB are free next to "
                f"{held / 1e9:.2f} GB of other layers' experts; keep more of them on the device"
            )

    def _moved(self, part: ReferenceExperts, index: int, size: int) -> OffloadedExperts:
        """The buffer on the device is allocated at once, so that it counts as weights."""
        if index not in self._counters:
            self._counters[index] = torch.zeros(1, dtype=torch.int64, device=self._device)
        host = OffloadedExperts(self._rooms, size // part.part.count, self._counters[index])
        for layers in _products(part):
            move(layers, lambda stack: self._in_main_memory(stack, host))
        for name, half in zip(("gate_up", "down"), _halves(part), strict=True):
            host.roomy(name, half)
        return host

    def _in_main_memory(self, stack: Tensor, owner: OffloadedExperts) -> Tensor:
        memory = aligned(stack.nbytes)
        if self._device.type == "cuda":
            owner.locked.append(pin_memory(owner, memory, self._device, OPTION))
        return memory.view(stack.dtype).view(stack.shape).copy_(stack)


def _products(part: ReferenceExperts) -> Iterator[list[Linear]]:
    for name in (part.experts[0].into, "down"):
        yield [getattr(expert, name) for expert in part.experts]


def _halves(part: ReferenceExperts) -> list[ExpertWeights | PackedExpertWeights]:
    return [stacked_weights(layers) for layers in _products(part)]
