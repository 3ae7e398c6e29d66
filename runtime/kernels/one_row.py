"""The decode layer for one row: every product reads its weight once, at the speed of the memory.

Each function is one kernel with what stands around the product folded in: the norm before it; rotary and the
store of keys and values, a gated activation, or the residual after it. Sums are float32 and are rounded once, at the end.

A weight of float8 has a `weight_scale`, float32, for each of its rows.

Kernels may start under the tail of the one before (`one_row_launch.OVERLAP`), whoever launched that one; they
read nothing but weights before it has ended. All of them run inside a captured CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from . import one_row_kernels as kernels
from . import one_row_launch
from .one_row_launch import Launch, best_launch, can_overlap

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def suits(x: Tensor) -> bool:
    """Whether these functions take this x [T, hidden]: one contiguous row, on CUDA."""
    return x.shape[0] == 1 and x.is_cuda and x.dtype in DTYPES


def overlaps(device: torch.device) -> bool:
    """Whether kernels are to start under the tail of the one before."""
    return one_row_launch.OVERLAP and can_overlap(device)


def norm_linear(
    x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None,
    launch: Launch | None = None, weight_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """norm(x [1, in]) @ weight[out, in].T + bias [out] -> [1, out], of the dtype of x."""
    out = x.new_empty(1, weight.shape[0])
    return _linear(x, norm_weight, eps, weight, weight_scale, bias, None, out, launch)


def linear_add(
    y: Tensor, weight: Tensor, x: Tensor, bias: Tensor | None = None,
    launch: Launch | None = None, weight_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x [1, out] += y [1, in] @ weight[out, in].T + bias, in place. Returns x."""
    return _linear(y, None, 0.0, weight, weight_scale, bias, x, x, launch)


def linear(
    y: Tensor, weight: Tensor, bias: Tensor | None = None, launch: Launch | None = None, weight_scale: Tensor | None = None
) -> Tensor:
    """y [1, in] @ weight[out, in].T + bias [out] -> [1, out], of the dtype of y."""
    return _linear(y, None, 0.0, weight, weight_scale, bias, None, y.new_empty(1, weight.shape[0]), launch)


def gate_up(
    x: Tensor, norm_weight: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None = None,
    launch: Launch | None = None, weight_scale: Tensor | None = None, name: str = "silu",
) -> Tensor:  # fmt: skip
    """activation(gate) * up of norm(x [1, hidden]), where weight [2 inner, hidden] holds gate above up -> [1, inner].

    norm_weight: None for no norm.  name: of the activation.
    """
    outputs = weight.shape[0]
    out = x.new_empty(1, outputs // 2)
    launch = launch or _best(weight)
    kernels.gate_up[(-(-outputs // launch.rows),)](
        x, weight if norm_weight is None else norm_weight, *_scaled(weight, weight_scale),
        weight if bias is None else bias, out, outputs // 2, eps,
        SCALED=weight_scale is not None, NORMED=norm_weight is not None, BIASED=bias is not None, NAME=name,
        **_cut(weight, launch),
    )  # fmt: skip
    return out


def qkv_rotate_store(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weight: Tensor,
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
    launch: Launch | None = None,
    weight_scale: Tensor | None = None,
) -> Tensor:
    """Queries of norm(x [1, hidden]), rotated: [1, query_heads, head_dim]; keys and values go to their slot.

    norm_weight: None for no norm. weight: [(query_heads + 2 kv_heads) * head_dim, hidden]. angles_table: [positions, 2 head_dim], as Rotary's.
    positions, slots: [1]; slot 0 is not written. k_pool, v_pool: [slots, kv_heads, head_dim] of one layer,
    contiguous, of any float dtype, holding values divided by k_scale and v_scale.
    """
    dim = k_pool.shape[-1]
    q = x.new_empty(1, query_heads, dim)
    launch = launch or _best(weight)
    programs = (query_heads + 2 * kv_heads) * -(-dim // launch.rows)
    kernels.heads[(programs,)](
        x, weight if norm_weight is None else norm_weight, *_scaled(weight, weight_scale), weight if bias is None else bias,
        angles_table, positions, slots, q, k_pool, v_pool, eps, k_scale, v_scale,
        QUERIES=query_heads, KEYS=kv_heads, HALF=dim // 2,
        SCALED=weight_scale is not None, NORMED=norm_weight is not None, BIASED=bias is not None, **_cut(weight, launch),
    )  # fmt: skip
    return q


def _linear(
    x: Tensor, norm_weight: Tensor | None, eps: float, weight: Tensor, weight_scale: Tensor | None,
    bias: Tensor | None, residual: Tensor | None, out: Tensor, launch: Launch | None,
) -> Tensor:  # fmt: skip
    outputs, launch = weight.shape[0], launch or _best(weight)
    kernels.linear[(-(-outputs // launch.rows),)](
        x, weight if norm_weight is None else norm_weight, *_scaled(weight, weight_scale),
        weight if bias is None else bias, weight if residual is None else residual, out, outputs, eps,
        SCALED=weight_scale is not None, NORMED=norm_weight is not None, BIASED=bias is not None,
        ADDED=residual is not None, **_cut(weight, launch),
    )  # fmt: skip
    return out


def _scaled(weight: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    return weight, weight if scale is None else scale


def _best(weight: Tensor) -> Launch:
    outputs, inputs = weight.shape
    return best_launch(outputs, inputs, weight.element_size())


def _cut(weight: Tensor, launch: Launch) -> dict[str, Any]:
    """The keywords that every kernel takes."""
    overlap, block = overlaps(weight.device), min(launch.block, triton.next_power_of_2(weight.shape[1]))
    cut = {
        "SIZE": weight.shape[1],
        "ROWS": launch.rows,
        "BLOCK": block,
        "VECTOR": min(16 // max(2, weight.element_size()), block),  # what one thread reads at once, of x too
        "DEPENDENT": overlap,
        "num_warps": launch.warps,
    }
    if launch.registers:
        cut["maxnreg"] = launch.registers
    return cut | {"launch_pdl": True} if overlap else cut
