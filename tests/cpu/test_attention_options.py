"""Windows, chunks, soft caps, sinks, ALiBi, uneven widths and shared layers, in every backend of the CPU."""

from __future__ import annotations

import torch
from attention_cases import Work
from attention_oracle import World, layers, works
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.attention import AttentionLayout, LayerAttention


@settings(max_examples=60, deadline=None)
@given(work=works(), layers=layers(), sinks=st.booleans(), seed=st.integers(0, 999))
def test_torch_has_every_option(work: Work, layers: list[LayerAttention], sinks: bool, seed: int) -> None:
    world = World(AttentionLayout.of(layers), work, seed=seed)
    world.check(world.backend("torch_native"), sinks)


def test_a_long_prefill_with_every_option_at_once() -> None:
    layer = LayerAttention(4, 2, 6, 10, 0.3, window=290, chunk=310, softcap=5.0, alibi=(0.5, 0.1, 0.02, 0.01))
    for cached in (0, 20):
        world = World(AttentionLayout.of([layer]), [(3, 1), (cached, 330)])
        world.check(world.backend("torch_native"), sinks=True)


def test_bfloat16() -> None:
    layer = LayerAttention(4, 2, 16, 16, 0.25, softcap=5.0, alibi=(0.5, 0.1, 0.02, 0.01))
    world = World(AttentionLayout.of([layer]), [(50, 1), (3, 1), (10, 6), (0, 40)], torch.bfloat16)
    world.check(world.backend("torch_native"), sinks=True, tolerance=2e-2)
