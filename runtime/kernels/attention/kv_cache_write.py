"""Write new keys and values into the KV pool, for models whose own kernels do not."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry


@entry
@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def store_kernel(
    k_ptr,
    v_ptr,
    slots_ptr,
    k_pool,
    v_pool,
    k_scale,
    v_scale,
    k_token,
    k_head,
    v_token,
    v_head,
    kv_slot,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_P2: tl.constexpr,
    MOST: tl.constexpr,
):
    """Grid: tokens. Slot 0 pads captured batches and is never written."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot == 0:
        return
    places = tl.arange(0, WIDTH_P2)
    real = places < WIDTH
    head, dim = places // DIM, places % DIM
    k = tl.load(k_ptr + token * k_token + head * k_head + dim, mask=real, other=0.0)
    if k_pool.dtype.element_ty != k_ptr.dtype.element_ty:
        k = tl.minimum(tl.maximum(k.to(tl.float32) / k_scale, -MOST), MOST)
    tl.store(k_pool + slot * kv_slot + places, k.to(k_pool.dtype.element_ty), mask=real)
    if v_ptr is not None:
        v = tl.load(v_ptr + token * v_token + head * v_head + dim, mask=real, other=0.0)
        if k_pool.dtype.element_ty != k_ptr.dtype.element_ty:
            v = tl.minimum(tl.maximum(v.to(tl.float32) / v_scale, -MOST), MOST)
        tl.store(v_pool + slot * kv_slot + places, v.to(v_pool.dtype.element_ty), mask=real)


def store(
    k: Tensor, v: Tensor | None, slots: Tensor, keys: Tensor, values: Tensor | None, k_scale: float, v_scale: float
) -> None:
    """k, v: [T, kv_heads, head_dim], heads' numbers adjacent; slots: int [T]; keys, values: [slots, kv_heads,
    head_dim].

    keys and values are contiguous and get value / scale if their dtype is another. v, values: None if only keys are
    stored.
    """
    width = keys.shape[1] * keys.shape[2]
    store_kernel[(len(slots),)](
        k,
        v,
        slots,
        keys,
        values,
        k_scale,
        v_scale,
        k.stride(0),
        k.stride(1),
        *((0, 0) if v is None else (v.stride(0), v.stride(1))),
        keys.stride(0),
        DIM=keys.shape[2],
        WIDTH=width,
        WIDTH_P2=triton.next_power_of_2(width),
        MOST=torch.finfo(keys.dtype).max,
        num_warps=4,
    )
