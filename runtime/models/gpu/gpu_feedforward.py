"""A dense network on a GPU up to its last product: the activation in a kernel of its own, or at the end of the product before it."""

from __future__ import annotations

from torch import Tensor

from ..kernels import gated
from ..kernels.activation import activate, activate_gated
from ..kernels.overlap import overlaps
from ..layers.linear import Linear
from ..quantization import FewBitsLinear
from .feedforward import GatedPart, PlainPart


def inner_of(ffn: GatedPart | PlainPart, y: Tensor) -> Tensor:
    """y [T, hidden] -> [T, inner], what `down` takes."""
    if isinstance(ffn, PlainPart):
        return activate(ffn.up(y), ffn.part.activation)
    gate_up, name = ffn.gate_up, ffn.part.activation
    if type(gate_up) is Linear and gate_up.bias is None and gated.suits(y, gate_up.weight):
        return gated.gate_up(y, gate_up.weight, name)
    if isinstance(gate_up, FewBitsLinear) and gate_up.gates(y):
        return gate_up.gated(y, name)
    return activate_gated(gate_up(y), name, overlaps(y.device))
