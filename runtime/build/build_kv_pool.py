"""The memory of the KV pool: how many tokens it has room for, and of how many layers with a window keep rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ..attention import AttentionLayout
from ..cache.multi_width_kv_pools import Pool
from ..executor.device_choice import DeviceChoice
from ..models.kv_cache_scales import take_scales
from ..models.transformers_backend import AnyDecoder
from . import memory_plan
from .engine_config import DeviceDefaults
from .sliding_window_plan import (
    SlidingWindowPlan,
    check_options,
    is_window_shorter,
    plan_windows,
    reach_of,
    share_of,
    windows_refusal,
)


def make_pool(
    model: AnyDecoder,
    config: DeviceDefaults,
    choice: DeviceChoice,
    plan: memory_plan.MemoryPlan,
    context: int,
    other_bytes: int = 0,
    layouts: Sequence[AttentionLayout] = (),
) -> tuple[Pool, memory_plan.MemoryPlan, SlidingWindowPlan]:
    """other_bytes: bytes a token that are stored elsewhere, of the same memory.

    layouts: of what is stored on each GPU, rank 0's first; (): the model's.
    """
    page, layouts = config.page_size, layouts or [model.config.attention]
    check_options(config, layouts)
    dtype = memory_plan.stored_dtype(config, choice.dtype)
    plan, tokens, windows = _tokens(layouts, config, choice, plan, context, dtype, other_bytes)
    layout = windows.layout
    # the page of the padding slot comes on top
    pool = layout.pool(tokens + page, dtype, choice.device, windows.tokens + page)
    take_scales(pool, model, layout)
    return pool, replace(plan, kv=pool.bytes), windows


def _tokens(
    layouts: Sequence[AttentionLayout],
    config: DeviceDefaults,
    choice: DeviceChoice,
    plan: memory_plan.MemoryPlan,
    context: int,
    dtype: torch.dtype,
    other_bytes: int,
) -> tuple[memory_plan.MemoryPlan, int, SlidingWindowPlan]:
    """How many the pool holds, and how many of them in layers with a window."""
    per_token, apart = (
        max(layout.bytes_per_slot(dtype) for layout in layouts),
        [layout.apart(context) for layout in layouts],
    )
    if not per_token + other_bytes:
        return plan, memory_plan.tokens_without_keys(config, choice.device), SlidingWindowPlan(layouts[0])
    why = None
    if any(is_window_shorter(layout, context) for layout in layouts):
        why = windows_refusal(apart, config, context, bool(plan.states), choice.device.type == "cuda")
        if why is None:
            share = share_of(reach_of(apart), config, context)
            each = other_bytes + max(_bytes(layout, share, dtype) for layout in apart)
            shared = memory_plan.plan_with_kv(plan, config, each, choice.device)
            windows = plan_windows(apart, config, share, shared.kv // each)
            if windows.tokens:
                return shared, shared.kv // each, windows
            why = windows.why
    plan = memory_plan.plan_with_kv(plan, config, other_bytes + per_token, choice.device)
    return plan, plan.kv // (other_bytes + per_token), SlidingWindowPlan(layouts[0], why=why)


def _bytes(layout: AttentionLayout, share: float, dtype: torch.dtype) -> int:
    """A token's on a GPU, where windowed layers keep a share of the tokens."""
    return layout.bytes_per_slot(dtype, windowed=False) + math.ceil(share * layout.bytes_per_slot(dtype, windowed=True))
