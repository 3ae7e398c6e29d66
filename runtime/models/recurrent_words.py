"""The struct Recurrent of the compiled step (csrc/step/structs.h): mixers with states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from ..cache.states import StateMemory
from ..layers import cpu
from ..layers.linear import BlockedLinear, Linear
from ..layers.recurrent import compiled
from .conv import ShortConvPart
from .delta import UNIT_EPS, DeltaPart
from .mamba1 import Mamba1Part
from .mamba2 import Mamba2Part
from .recurrence import Convolution
from .recurrent_spec import Delta, Mamba1, Mamba2
from .spec import ShortConv

KINDS: dict[type, int] = {DeltaPart: 0, Mamba2Part: 1, Mamba1Part: 2, ShortConvPart: 3}
RECURRENT = np.dtype([
    *((name, "i8") for name in ("kind", "heads", "shared", "key", "value", "channels", "width", "activation")),
    *((name, "i8") for name in ("gate", "gate_first", "spans", "apart", "rank")),
    *((name, "f8") for name in ("scale", "unit", "reach", "least", "most", "eps")),
    *((name, "i8") for name in ("kernel", "kernel_bias", "bias", "rate", "skip", "weight", "input", "others", "spread", "gates")),
    ("norms", cpu.NORM, 3), ("windows", "i8"), ("states", "i8"),
])  # fmt: skip
RecurrentPart = DeltaPart | Mamba2Part | Mamba1Part | ShortConvPart


def refusal(mixer: Delta | Mamba1 | Mamba2 | ShortConv) -> Iterator[str]:
    """Why the compiled step leaves such a mixer, for people."""
    activation = None if isinstance(mixer, ShortConv) else mixer.activation
    if not compiled.convolves(mixer.width, activation):
        yield f"a convolution of {mixer.width} tokens, activation {activation!r}; the compiled kernels take up to {cpu.most_seen()}"
    if isinstance(mixer, Delta | Mamba2) and mixer.state[1].shape[1] > cpu.most_keys():
        yield f"states of {mixer.state[1].shape[1]} keys; the compiled kernels take up to {cpu.most_keys()}"
    if isinstance(mixer, Mamba1) and mixer.size > cpu.most_numbers_of_channels():
        yield f"{mixer.size} numbers a channel; the compiled kernels take up to {cpu.most_numbers_of_channels()}"


class RecurrentWords:
    """Of a sealed mixer whose products stay as they are."""

    def __init__(self, part: RecurrentPart) -> None:
        self._memory = np.zeros(1, RECURRENT)
        self._words, self._index = self._memory[0], part.index
        self.address: int = self._memory.ctypes.data
        words: Any = self._words
        words["kind"], words["heads"], words["shared"], words["spans"] = KINDS[type(part)], 1, 1, 1
        words["scale"], words["unit"], words["reach"], words["most"], words["eps"] = 1.0, -1.0, 1.0, np.inf, -1.0
        _fill_convolution(words, part.convolution)
        FILLS[type(part)](words, part)

    def bind(self, memory: StateMemory) -> None:
        """Where the layer's states lie."""
        windows, *states = memory.of(self._index)
        self._words["windows"], self._words["states"] = windows.data_ptr(), states[0].data_ptr() if states else 0


def _fill_convolution(words: Any, convolution: Convolution) -> None:
    words["width"], words["channels"] = convolution.weight.shape
    words["kernel"], words["kernel_bias"] = convolution.weight.data_ptr(), _at(convolution.bias)
    words["activation"] = -1 if convolution.activation is None else cpu.ACTIVATIONS[convolution.activation]


def _fill_delta(words: Any, mixer: DeltaPart) -> None:
    part = mixer.part
    words["heads"], words["shared"], words["key"], words["value"] = part.heads, part.heads // part.key_heads, part.dim, part.value_dim
    words["spans"], words["gate"], words["rank"] = part.heads, compiled.GATES[part.gate], part.rank or 0
    words["scale"], words["unit"], words["reach"], words["eps"] = part.dim**-0.5, UNIT_EPS, part.reach, part.eps
    words["bias"], words["rate"], words["weight"] = mixer.bias.data_ptr(), mixer.rate.data_ptr(), mixer.norm.data_ptr()
    _fill_products(words, input=mixer.input, others=mixer.rates, spread=mixer.spread, gates=mixer.gate)


def _fill_mamba2(words: Any, mixer: Mamba2Part) -> None:
    part = mixer.part
    words["heads"], words["shared"], words["key"], words["value"] = part.heads, part.heads // part.groups, part.size, part.dim
    words["spans"], words["gate"], words["gate_first"] = part.groups, compiled.GATES["silu"], not part.norm_first
    words["apart"], words["weight"] = mixer.norm is not None and len(mixer.norm) > part.inner // part.groups, _at(mixer.norm)
    words["least"], words["most"], words["eps"] = part.least, part.most, -1.0 if part.eps is None else part.eps
    words["bias"], words["rate"], words["skip"] = mixer.bias.data_ptr(), mixer.rate.data_ptr(), mixer.skip.data_ptr()
    _fill_products(words, input=mixer.input)


def _fill_mamba1(words: Any, mixer: Mamba1Part) -> None:
    part = mixer.part
    words["heads"], words["key"], words["value"], words["rank"] = part.inner, part.size, 1, part.rank
    words["gate"], words["rate"], words["skip"] = compiled.GATES["silu"], mixer.rate.data_ptr(), mixer.skip.data_ptr()
    for place, norm in enumerate(mixer.norms):
        if norm is not None:
            words["norms"][place] = norm.words
    _fill_products(words, input=mixer.input, others=mixer.select, spread=mixer.steps)


def _fill_short(words: Any, mixer: ShortConvPart) -> None:
    _fill_products(words, input=mixer.into)


FILLS: dict[type, Any] = {DeltaPart: _fill_delta, Mamba2Part: _fill_mamba2, Mamba1Part: _fill_mamba1, ShortConvPart: _fill_short}


def _fill_products(words: Any, **products: Linear | None) -> None:
    for name, product in products.items():
        if product is not None:
            assert isinstance(product, BlockedLinear)
            words[name] = product.words.ctypes.data


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
