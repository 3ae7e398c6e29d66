"""How the pools of stages on GPUs are planned where some layers see a window only: each card has
its own, and no card is asked for more than there is.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl.runtime.attention import AttentionLayout
from sgl.runtime.attention.backend_protocols import LayerAttention
from sgl.runtime.build import build_kv_pool, memory_plan
from sgl.runtime.build.engine_config import EngineConfig

MEMORY = 50_000_000
CARD: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)


def planned(layouts: list[AttentionLayout], context: int = 4096, **options: Any) -> Any:
    config = EngineConfig.from_options({"pipeline_parallel": 2, "kv_memory": MEMORY, "step_tokens": 256} | options).on(
        "cuda"
    )
    plan = memory_plan.MemoryPlan(total=10 * MEMORY, free=10 * MEMORY)
    return build_kv_pool._tokens(layouts, config, CARD, plan, context, torch.bfloat16, 0)[1:]


def layout(rng: random.Random, windows: list[int | None]) -> AttentionLayout:
    return AttentionLayout.of([LayerAttention(4, rng.choice([1, 2]), 64, 64, 0.1, window=window) for window in windows])


@pytest.mark.parametrize("seed", range(12))
def test_the_fullest_card_is_full(seed: int) -> None:
    """Whatever layers the stages have, also none with a window, or none without."""
    rng = random.Random(seed)
    stages = [layout(rng, rng.choices([None, 128, 300], k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4))] + [
        layout(rng, [128])
    ]
    rng.shuffle(stages)
    tokens, windows = planned(stages)
    near = [layer.reach for each in stages for layer in each.attending if layer.reach is not None]
    assert (
        0 < windows.tokens < tokens
        and (windows.near, windows.reach) == (len(near), max(near))
        and windows.attending == sum(len(each.attending) for each in stages)
    )
    apart = [each.apart(4096) for each in stages]
    taken = [
        tokens * each.bytes_per_slot(torch.bfloat16, windowed=False)
        + windows.tokens * each.bytes_per_slot(torch.bfloat16, windowed=True)
        for each in apart
    ]
    assert 0.97 * MEMORY < max(taken) < 1.01 * MEMORY
    assert windows.layout == apart[0] and windows.describe().startswith(f"{len(near)} of ")


def test_windows_of_a_later_stage_count_where_the_first_has_none() -> None:
    rng = random.Random(0)
    stages = [layout(rng, [None, None]), layout(rng, [128, None])]
    _, windows = planned(stages)
    assert (
        windows.tokens
        and not windows.layout.windowed
        and planned(stages, host_kv="1MB")[1].why == "host_kv keeps whole pages"
    )
    assert planned(stages, context=128)[1].describe() is None, "no layer sees less than the context"
