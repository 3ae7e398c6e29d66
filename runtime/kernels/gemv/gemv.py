"""The decode layer for a batch of one: every product reads its weight once, at the speed of the memory.

Each function is one kernel with its neighbours fused in: the norm before it; rotary and the store of keys and values, a
gated activation, or the residual after it. Sums are float32 and are rounded once, at the end.

A weight of float8 or int8 has a `weight_scale`, float32, for each of its rows. A 4-bit one (`supports_weight`) is a
`PackedWeight`. An adapter's addition to the product of another weight is its `pair`, see `gemv_lora`.

Kernels may start under the tail of the one before (see `overlap`), whatever launched that one. They read only weights
before it has ended. All of them can run inside a captured CUDA graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..batch_invariant_matmul import processors
from ..launch.programmatic_launch import launched, overlaps
from ..packed.packed_weight import BYTES, NIBBLES, PackedWeight
from . import gemv_kernels, gemv_tensor_core_kernels
from .gemv_launch import (
    GemvCut,
    GemvLaunch,
    TensorCoreGemvLaunch,
    best_4bit_launch,
    best_launch,
    best_tensor_core_launch,
    has_room,
    tiles_of,
)
from .gemv_lora import GemvLora, describe

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TENSOR_BLOCK, TENSOR_INPUTS = (
    128,
    28_672,
)  # inputs of a block, and at most: x is in shared memory, next to the data in flight
Weight = Tensor | PackedWeight


def supports(x: Tensor) -> bool:
    """Whether these functions support this x [T, hidden]: one contiguous row, on CUDA."""
    return x.shape[0] == 1 and x.is_cuda and x.dtype in DTYPES


def supports_weight(weight: PackedWeight) -> bool:
    """Whether these functions support a quantized weight: 4-bit integers, or `numbers`; inputs in order."""
    return (weight.form == NIBBLES or numbers(weight)) and weight.order is None


def numbers(weight: PackedWeight) -> bool:
    """Whether it is stored as [out, in] with a byte a number, and scales [out] for `weight_scale`."""
    return weight.form == BYTES and weight.kind == "plain"


def uses_tensor_cores(weight: PackedWeight) -> bool:
    """Whether the tensor cores multiply it.

    That is in bfloat16, in blocks of 128 inputs that are copied by 16 bytes, on a GPU with enough shared memory.
    """
    suitable = (
        weight.form == NIBBLES
        and weight.order is None
        and weight.dtype == torch.bfloat16
        and weight.block == TENSOR_BLOCK
    )
    return (
        suitable
        and weight.inputs <= TENSOR_INPUTS
        and has_room(weight.words.device)
        and weight.words.data_ptr() % 16 == 0
    )


def norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Weight,
    bias: Tensor | None = None,
    launch: GemvLaunch | TensorCoreGemvLaunch | None = None,
    weight_scale: Tensor | None = None,
    pair: GemvLora | None = None,
) -> Tensor:
    """norm(x [1, in]) @ weight[out, in].T + bias [out] -> [1, out], of the dtype of x."""
    out = x.new_empty(1, _outputs(weight))
    return _linear(x, norm_weight, eps, weight, weight_scale, bias, None, out, launch, pair)


def linear_add(
    y: Tensor,
    weight: Weight,
    x: Tensor,
    bias: Tensor | None = None,
    launch: GemvLaunch | TensorCoreGemvLaunch | None = None,
    weight_scale: Tensor | None = None,
    pair: GemvLora | None = None,
) -> Tensor:
    """x [1, out] += y [1, in] @ weight[out, in].T + bias, in place. Returns x."""
    return _linear(y, None, 0.0, weight, weight_scale, bias, x, x, launch, pair)


def linear(
    y: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    launch: GemvLaunch | TensorCoreGemvLaunch | None = None,
    weight_scale: Tensor | None = None,
    pair: GemvLora | None = None,
) -> Tensor:
    """y [1, in] @ weight[out, in].T + bias [out] -> [1, out], of the dtype of y."""
    return _linear(y, None, 0.0, weight, weight_scale, bias, None, y.new_empty(1, _outputs(weight)), launch, pair)


def gate_up(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weight: Weight,
    bias: Tensor | None = None,
    launch: GemvLaunch | TensorCoreGemvLaunch | None = None,
    weight_scale: Tensor | None = None,
    name: str = "silu",
    pair: GemvLora | None = None,
) -> Tensor:
    """activation(gate) * up of norm(x [1, hidden]), where weight [2 inner, hidden] holds gate above up -> [1, inner].

    norm_weight: None for no norm.  name: of the activation.
    """
    outputs = _outputs(weight)
    out = x.new_empty(1, outputs // 2)
    plan = plan_gemv(weight, weight_scale, launch or best_for(weight), outputs // 2)
    plan.kernels.gate_up[plan.grid](
        x,
        x if norm_weight is None else norm_weight,
        *plan.parts,
        x if bias is None else bias,
        out,
        eps=eps,
        NORMED=norm_weight is not None,
        BIASED=bias is not None,
        NAME=name,
        **plan.kernel_options(outputs // 2),
        **describe(pair),
    )
    return out


def qkv_rope_store(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weight: Weight,
    bias: Tensor | None,
    query_heads: int,
    kv_heads: int,
    angles_table: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch: GemvLaunch | TensorCoreGemvLaunch | None = None,
    weight_scale: Tensor | None = None,
    pair: GemvLora | None = None,
) -> Tensor:
    """Queries of norm(x [1, hidden]), rotated: [1, query_heads, head_dim]; keys and values go to their slot.

    norm_weight: None for no norm. weight: [(query_heads + 2 kv_heads) * head_dim, hidden]. angles_table: [positions, 2
        head_dim], as Rotary's.
    positions, slots: [1]; slot 0 is not written. k_pool, v_pool: [slots, kv_heads, head_dim] of one layer,
    contiguous, of any float dtype, holding values divided by k_scale and v_scale.
    """
    dim = k_pool.shape[-1]
    q = x.new_empty(1, query_heads, dim)
    plan = plan_gemv(weight, weight_scale, launch or best_for(weight), dim // 2)
    plan.kernels.heads[plan.grid](
        x,
        x if norm_weight is None else norm_weight,
        *plan.parts,
        x if bias is None else bias,
        angles_table,
        positions,
        slots,
        q,
        k_pool,
        v_pool,
        eps,
        k_scale,
        v_scale,
        QUERIES=query_heads,
        KEYS=kv_heads,
        NORMED=norm_weight is not None,
        BIASED=bias is not None,
        **plan.head_options(dim // 2),
        **describe(pair),
    )
    return q


def _linear(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weight: Weight,
    weight_scale: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    launch: GemvLaunch | TensorCoreGemvLaunch | None,
    pair: GemvLora | None,
) -> Tensor:
    plan = plan_gemv(weight, weight_scale, launch or best_for(weight), 0)
    plan.kernels.linear[plan.grid](
        x,
        x if norm_weight is None else norm_weight,
        *plan.parts,
        x if bias is None else bias,
        x if residual is None else residual,
        out,
        eps=eps,
        NORMED=norm_weight is not None,
        BIASED=bias is not None,
        ADDED=residual is not None,
        **plan.kernel_options(_outputs(weight)),
        **describe(pair),
    )
    return out


def _outputs(weight: Weight) -> int:
    return weight.outputs if isinstance(weight, PackedWeight) else weight.shape[0]


class GemvPlan(NamedTuple):
    """kernels: the module.  parts: the weight's tensors for them.  cut: the keywords of each of them."""

    kernels: Any
    parts: tuple[Tensor | None, ...]
    grid: tuple[int]
    cut: dict[str, Any]

    def kernel_options(self, outputs: int) -> dict[str, Any]:
        """For a kernel with an argument for the number of outputs, or of pairs of them."""
        return self.cut if self.kernels is gemv_tensor_core_kernels else self.cut | {"outputs": outputs}

    def head_options(self, half: int) -> dict[str, Any]:
        """For a kernel with an argument for half of a head."""
        return self.cut if self.kernels is gemv_tensor_core_kernels else self.cut | {"HALF": half}


def plan_gemv(weight: Weight, scale: Tensor | None, launch: GemvLaunch | TensorCoreGemvLaunch, half: int) -> GemvPlan:
    """half: see `tiles_of`."""
    device = (weight.words if isinstance(weight, PackedWeight) else weight).device
    cut: dict[str, Any] = {"num_warps": launch.warps, "FORMAT": None} | launched(overlaps(device))
    if launch.registers:
        cut["maxnreg"] = launch.registers
    outputs = _outputs(weight)
    tiles = tiles_of(outputs, half, launch.rows)
    if not isinstance(weight, PackedWeight):
        assert isinstance(launch, GemvLaunch)
        numbers = (weight, None, weight if scale is None else scale)
        return GemvPlan(gemv_kernels, numbers, (tiles,), cut | {"CUT": _cut_of_numbers(weight, scale, launch)})
    parts, cut["FORMAT"] = weight.kernel_tensors(), weight.format(sized=True)
    if isinstance(launch, GemvLaunch):
        blocks = max(1, launch.block // weight.block)
        own = GemvCut(weight.inputs, launch.rows, blocks, 8, weight.outer is not None)
        # one stage: the kernels prefetch their next blocks themselves
        return GemvPlan(gemv_kernels, parts, (tiles,), cut | {"CUT": own, "num_stages": 1})
    pieces = gemv_tensor_core_kernels.pieces(weight.group, weight.kind)
    ring = launch.cut(outputs, half, weight.inputs, pieces, processors(device))
    return GemvPlan(gemv_tensor_core_kernels, parts, (ring.programs,), cut | {"CUT": ring})


def best_for(weight: Weight) -> GemvLaunch | TensorCoreGemvLaunch:
    if isinstance(weight, PackedWeight) and uses_tensor_cores(weight):
        return best_tensor_core_launch(weight.inputs)
    if isinstance(weight, PackedWeight):
        return best_4bit_launch(weight.outputs, weight.inputs, weight.block)
    outputs, inputs = weight.shape
    return best_launch(outputs, inputs, weight.element_size())


def _cut_of_numbers(weight: Tensor, scale: Tensor | None, launch: GemvLaunch) -> GemvCut:
    inputs, size = weight.shape[1], weight.element_size()
    block = min(launch.block, triton.next_power_of_2(inputs))
    vector = min(16 // max(2, size), block)  # what one thread reads at once, of x too
    return GemvCut(inputs, launch.rows, block, vector, scale is not None)
