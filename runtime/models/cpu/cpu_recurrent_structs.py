"""The struct Recurrent of the compiled step (csrc/step/decoder_step_structs.h): mixers with states."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...layers import cpu_kernels
from ...layers.linear_layers import BlockedLinear, Linear
from ...layers.recurrent import cpu_recurrent_kernels
from ..reference.reference_delta_net import UNIT_EPS, ReferenceDeltaNet
from ..reference.reference_mamba1 import ReferenceMamba1
from ..reference.reference_mamba2 import ReferenceMamba2
from ..reference.reference_recurrence import ReferenceConvolution
from ..reference.reference_short_conv import ReferenceShortConv

KINDS: dict[type, int] = {ReferenceDeltaNet: 0, ReferenceMamba2: 1, ReferenceMamba1: 2, ReferenceShortConv: 3}
RECURRENT = np.dtype(
    [
        *((name, "i8") for name in ("kind", "heads", "shared", "key", "value", "channels", "width", "activation")),
        *((name, "i8") for name in ("gate", "gate_first", "spans", "apart", "rank")),
        *((name, "f8") for name in ("scale", "unit", "reach", "least", "most", "eps")),
        *(
            (name, "i8")
            for name in (
                "kernel",
                "kernel_bias",
                "bias",
                "rate",
                "skip",
                "weight",
                "input",
                "others",
                "spread",
                "gates",
            )
        ),
        ("norms", cpu_kernels.NORM, 3),
        ("windows", "i8"),
        ("states", "i8"),
    ]
)
RecurrentPart = ReferenceDeltaNet | ReferenceMamba2 | ReferenceMamba1 | ReferenceShortConv


class RecurrentStruct:
    """For a sealed mixer whose products stay as they are."""

    def __init__(self, part: RecurrentPart) -> None:
        self._memory = np.zeros(1, RECURRENT)
        self._words, self._index = self._memory[0], part.index
        self.address: int = self._memory.ctypes.data
        words: Any = self._words
        words["kind"], words["heads"], words["shared"], words["spans"] = KINDS[type(part)], 1, 1, 1
        words["scale"], words["unit"], words["reach"], words["most"], words["eps"] = 1.0, -1.0, 1.0, np.inf, -1.0
        _fill_convolution(words, part.convolution)
        FILLS[type(part)](words, part)

    def bind(self, memory: RecurrentStateMemory) -> None:
        """Set the memory of the layer's states."""
        windows, *states = memory.of(self._index)
        self._words["windows"], self._words["states"] = windows.data_ptr(), states[0].data_ptr() if states else 0


def _fill_convolution(words: Any, convolution: ReferenceConvolution) -> None:
    words["width"], words["channels"] = convolution.weight.shape
    words["kernel"], words["kernel_bias"] = convolution.weight.data_ptr(), _at(convolution.bias)
    words["activation"] = -1 if convolution.activation is None else cpu_kernels.ACTIVATIONS[convolution.activation]


def _fill_delta(words: Any, mixer: ReferenceDeltaNet) -> None:
    part = mixer.part
    words["heads"], words["shared"], words["key"], words["value"] = (
        part.heads,
        part.heads // part.key_heads,
        part.dim,
        part.value_dim,
    )
    words["spans"], words["gate"], words["rank"] = part.heads, cpu_recurrent_kernels.GATES[part.gate], part.rank or 0
    words["scale"], words["unit"], words["reach"], words["eps"] = part.dim**-0.5, UNIT_EPS, part.reach, part.eps
    words["bias"], words["rate"], words["weight"] = mixer.bias.data_ptr(), mixer.rate.data_ptr(), mixer.norm.data_ptr()
    _fill_products(words, input=mixer.input, others=mixer.rates, spread=mixer.spread, gates=mixer.gate)


def _fill_mamba2(words: Any, mixer: ReferenceMamba2) -> None:
    part = mixer.part
    words["heads"], words["shared"], words["key"], words["value"] = (
        part.heads,
        part.heads // part.groups,
        part.size,
        part.dim,
    )
    words["spans"], words["gate"], words["gate_first"] = (
        part.groups,
        cpu_recurrent_kernels.GATES["silu"],
        not part.norm_first,
    )
    words["apart"], words["weight"] = (
        mixer.norm is not None and len(mixer.norm) > part.inner // part.groups,
        _at(mixer.norm),
    )
    words["least"], words["most"], words["eps"] = part.least, part.most, -1.0 if part.eps is None else part.eps
    words["bias"], words["rate"], words["skip"] = mixer.bias.data_ptr(), mixer.rate.data_ptr(), mixer.skip.data_ptr()
    _fill_products(words, input=mixer.input)


def _fill_mamba1(words: Any, mixer: ReferenceMamba1) -> None:
    part = mixer.part
    words["heads"], words["key"], words["value"], words["rank"] = part.inner, part.size, 1, part.rank
    words["gate"], words["rate"], words["skip"] = (
        cpu_recurrent_kernels.GATES["silu"],
        mixer.rate.data_ptr(),
        mixer.skip.data_ptr(),
    )
    for place, norm in enumerate(mixer.norms):
        if norm is not None:
            words["norms"][place] = norm.words
    _fill_products(words, input=mixer.input, others=mixer.select, spread=mixer.steps)


def _fill_short(words: Any, mixer: ReferenceShortConv) -> None:
    _fill_products(words, input=mixer.into)


FILLS: dict[type, Any] = {
    ReferenceDeltaNet: _fill_delta,
    ReferenceMamba2: _fill_mamba2,
    ReferenceMamba1: _fill_mamba1,
    ReferenceShortConv: _fill_short,
}


def _fill_products(words: Any, **products: Linear | None) -> None:
    for name, product in products.items():
        if product is not None:
            assert isinstance(product, BlockedLinear)
            words[name] = product.words.ctypes.data


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
