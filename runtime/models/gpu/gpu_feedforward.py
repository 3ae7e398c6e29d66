"""A dense network on a GPU up to its last product: the activation in a separate kernel, or as the epilogue of a
product.
"""

from __future__ import annotations

from torch import Tensor

from ...kernels import gate_up_gemm
from ...kernels.activation_kernels import activate, activate_gated
from ...kernels.launch.programmatic_launch import overlaps
from ...layers.linear_layers import Linear
from ...quantization import GpuQuantizedLinear
from ..reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN


def inner_of(ffn: ReferenceGatedFFN | ReferencePlainFFN, y: Tensor) -> Tensor:
    """y [T, hidden] -> [T, inner], what `down` takes."""
    if isinstance(ffn, ReferencePlainFFN):
        return activate(ffn.up(y), ffn.part.activation)
    gate_up, name = ffn.gate_up, ffn.part.activation
    if type(gate_up) is Linear and gate_up.bias is None and gate_up_gemm.supports(y, gate_up.weight):
        return gate_up_gemm.gate_up(y, gate_up.weight, name)
    if isinstance(gate_up, GpuQuantizedLinear) and gate_up.gates(y):
        return gate_up.gated(y, name)
    return activate_gated(gate_up(y), name, overlaps(y.device))
