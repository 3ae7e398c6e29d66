"""Shared by mixers with states: the convolution in front, reading and writing states, and the gate at the end.

On a CPU these are C kernels. On a GPU, linear attention of one token, and selective scans of any tokens, are one
kernel. The rest is torch, the reference.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cache.recurrent_state_memory import StepStates
from ...layers import compiled_kernels
from ...layers.activation_functions import ACTIVATIONS
from ...layers.recurrent import (
    LinearAttention,
    RaggedSequences,
    SelectiveScan,
    causal_convolution,
    cpu_recurrent_kernels,
)
from ..spec.model_spec import Activation
from ..spec.weight_targets import WeightTarget
from .reference_mixer import ReferenceStep
from .reference_module import ReferenceModule

HAS_TRITON = importlib.util.find_spec("triton") is not None
NO_LIMITS = (0.0, math.inf)


class ReferenceConvolution(ReferenceModule):
    """A causal depthwise convolution, optionally followed by an activation.

    Load into `loaded` [channels, 1, width], then call `finish_loading`.  weight: float32 [width, channels].
    bias: float32 [channels].
    """

    def __init__(
        self, channels: int, width: int, bias: bool, activation: Activation | None, device: torch.device
    ) -> None:
        self.loaded = torch.empty(channels, 1, width, dtype=torch.float32, device=device)
        self.bias = torch.empty(channels, dtype=torch.float32, device=device) if bias else None
        self.activation = activation
        self._compiled = compiled_kernels.supports_convolution(width, activation)

    def places(self, name: str) -> Iterator[WeightTarget]:
        yield WeightTarget(f"{name}.weight", self.loaded)
        if self.bias is not None:
            yield WeightTarget(f"{name}.bias", self.bias)

    def finish_loading(self) -> None:
        self.weight = self.loaded[:, 0].t().contiguous()
        del self.loaded

    def __call__(self, x: Tensor, memory: Tensor, states: StepStates, ragged: RaggedSequences) -> Tensor:
        """x [T, channels] -> float32 [T, channels]; memory [slots, width - 1, channels] has the sequences' last
        inputs.
        """
        if self._compiled and cpu_recurrent_kernels.takes(x):
            return cpu_recurrent_kernels.convolve(
                x, self.weight, self.bias, self.activation, memory, states.read, states.write, ragged
            )
        y, left = causal_convolution(x, self.weight, self.bias, memory.index_select(0, states.read), ragged)
        memory.index_copy_(0, states.write, left)
        return y if self.activation is None else ACTIVATIONS[self.activation](y)


def carried(step: ReferenceStep) -> StepStates:
    """The states of a step whose model has some."""
    assert step.states is not None
    return step.states


def scanned(
    inputs: LinearAttention | SelectiveScan, memory: Tensor, states: StepStates, ragged: RaggedSequences
) -> Tensor:
    """The outputs of a step's tokens, float32; memory [slots, ...] has the states of sequences, float32."""
    read, write = states.read, states.write
    if cpu_recurrent_kernels.supports_state(memory):
        by_kernel = cpu_recurrent_kernels.select if isinstance(inputs, SelectiveScan) else cpu_recurrent_kernels.advance
        return by_kernel(inputs, memory, read, write, ragged)  # type: ignore[arg-type]
    if memory.is_cuda and HAS_TRITON:
        from ...kernels.recurrent.recurrent_scan import advance, select

        if isinstance(inputs, SelectiveScan):
            return select(inputs, memory, read, write, ragged)
        if ragged.single:
            return inputs.passed(advance(inputs.plain(), memory, read, write))
    out, left = inputs.scan(memory.index_select(0, read), ragged)
    memory.index_copy_(0, write, left)
    return out


def rates(
    x: Tensor, bias: Tensor | None, rate: Tensor | None, limits: tuple[float, float] = NO_LIMITS
) -> tuple[Tensor, Tensor]:
    """x [T, heads * each] -> time steps, softplus(x + bias) within the limits, and these times the rate of their head,
    float32 both.

    bias: float32 [heads * each].  rate: float32 [heads]; None: the steps twice.
    """
    if cpu_recurrent_kernels.takes(x):
        return cpu_recurrent_kernels.rates(x, bias, rate, limits)
    steps = F.softplus(x.float() if bias is None else x.float() + bias).clamp(*limits)
    return steps, steps if rate is None else (steps.unflatten(1, (len(rate), -1)) * rate[:, None]).flatten(1)


def stored_rate(stored: Tensor, is_log: bool) -> Tensor:
    """-e^A from the files' A_log or A."""
    return -stored.exp() if is_log else stored


def sigmoid(x: Tensor, reach: float) -> Tensor:
    """x [T, n] -> reach times its sigmoid, float32."""
    return cpu_recurrent_kernels.sigmoid(x, reach) if cpu_recurrent_kernels.takes(x) else x.float().sigmoid() * reach


def gated(
    x: Tensor, z: Tensor, weight: Tensor | None, eps: float | None, gate: str = "silu", gate_first: bool = False
) -> Tensor:
    """An RMS norm of each span of x [T, spans, n] float32, times the activation `gate` of z [T, spans * n].

    The result has z's shape and type.
    weight: float32 [n], for every span, or [spans * n].  eps: None: no norm.  gate_first: the norm is that of the
        product.
    """
    if cpu_recurrent_kernels.takes(z):
        return cpu_recurrent_kernels.gated(x, z, weight, eps, gate, gate_first)
    factor = (F.silu if gate == "silu" else torch.sigmoid)(z.float()).view(x.shape)
    if eps is None:
        return (x * factor).flatten(1).to(z.dtype)
    y = F.rms_norm(x * factor if gate_first else x, x.shape[2:], None, eps)
    y = y if weight is None else y * weight.view(-1, x.shape[2])
    return (y if gate_first else y * factor).flatten(1).to(z.dtype)
