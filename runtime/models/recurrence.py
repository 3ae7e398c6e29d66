"""What mixers with states share: the convolution in front, reading states and leaving them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..cache.states import States
from ..layers.activation import ACTIVATIONS
from ..layers.recurrent import LinearAttention, Ragged, SelectiveScan, causal_convolution
from .mixer import Step
from .places import Place
from .spec import Activation

HAS_TRITON = importlib.util.find_spec("triton") is not None

class Convolution:
    """A causal convolution of each channel by itself, maybe with an activation behind.

    Load into `loaded` [channels, 1, width], then call `seal`.  weight: float32 [width, channels].  bias: float32 [channels].
    """

    def __init__(self, channels: int, width: int, bias: bool, activation: Activation | None, device: torch.device) -> None:
        self.loaded = torch.empty(channels, 1, width, dtype=torch.float32, device=device)
        self.bias = torch.empty(channels, dtype=torch.float32, device=device) if bias else None
        self._activation = None if activation is None else ACTIVATIONS[activation]

    def places(self, name: str) -> Iterator[Place]:
        yield Place(f"{name}.weight", self.loaded)
        if self.bias is not None:
            yield Place(f"{name}.bias", self.bias)

    def seal(self) -> None:
        self.weight = self.loaded[:, 0].t().contiguous()
        del self.loaded

    def tensors(self) -> Iterator[Tensor]:
        yield self.weight
        if self.bias is not None:
            yield self.bias

    def __call__(self, x: Tensor, memory: Tensor, states: States, ragged: Ragged) -> Tensor:
        """x [T, channels] -> float32 [T, channels]; memory [slots, width - 1, channels] has the last inputs of sequences."""
        y, left = causal_convolution(x, self.weight, self.bias, memory.index_select(0, states.read), ragged)
        memory.index_copy_(0, states.write, left)
        return y if self._activation is None else self._activation(y)


def carried(step: Step) -> States:
    """The states of a step whose model has some."""
    assert step.states is not None
    return step.states


def scanned(said: LinearAttention | SelectiveScan, memory: Tensor, states: States, ragged: Ragged) -> Tensor:
    """What the tokens of a step give, float32; memory [slots, ...] has the states of sequences, float32.

    On a GPU one token each of linear attention, and any tokens of a selective scan, are one kernel.
    """
    if memory.is_cuda and HAS_TRITON:
        from ..kernels.recurrent import advance, select

        if isinstance(said, SelectiveScan):
            return select(said, memory, states.read, states.write, ragged)
        if ragged.single:
            return advance(said, memory, states.read, states.write)
    if memory.device.type == "cpu" and ragged.single and isinstance(said, LinearAttention):
        slots = states.read.tolist(), states.write.tolist()
        if not _written_first(*slots):
            return said.advance(memory, *slots)
    out, left = said.scan(memory.index_select(0, states.read), ragged)
    memory.index_copy_(0, states.write, left)
    return out


def _written_first(sources: Sequence[int], targets: Sequence[int]) -> bool:
    """Whether a slot would be read after it was written, were sequences to go one after the other."""
    written: set[int] = set()
    for source, target in zip(sources, targets, strict=True):
        if source in written:
            return True
        written.add(target)
    return False
