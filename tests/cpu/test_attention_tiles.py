"""Attention of many query tokens at once by the compiled kernels: against the
oracle, and bit by bit against other cuts.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_oracle import World
from test_attention import deterministic

from sgl.runtime.attention import AttentionLayout, AttentionShape, LayerAttention
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.float8_reference import FP8

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if cpu_kernels.has_tiles(dtype)]
pytestmark = pytest.mark.skipif(not DTYPES, reason="needs the compiled kernels and AVX-512")


@pytest.mark.parametrize("window", [None, 1, 30, 100])
@pytest.mark.parametrize("heads, kv_heads, dim", [(4, 2, 64), (3, 1, 32), (2, 2, 128), (70, 1, 96), (6, 2, 512)])
def test_bits_do_not_depend_on_the_tile(heads: int, kv_heads: int, dim: int, window: int | None) -> None:
    """Where a block of keys begins, ends and in between: a token alone, beside some and beside all others."""
    shape = AttentionShape(heads, kv_heads, dim, (window,))
    own = torch.from_numpy(np.random.default_rng(0).standard_normal((200, heads + 2 * kv_heads, dim))).float()
    whole = deterministic(own, 0, 200, [], shape)
    for start, stop in ((0, 1), (63, 64), (64, 65), (66, 67), (199, 200), (3, 20), (60, 130), (127, 200)):
        assert torch.equal(deterministic(own, start, stop, [(5, 1), (0, 33)], shape), whole[start:stop])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [None, FP8])
@pytest.mark.parametrize("window, softcap", [(None, None), (75, None), (75, 3.0)])
def test_long_prefills(window: int | None, softcap: float | None, kept: torch.dtype | None, dtype: torch.dtype) -> None:
    layers = [LayerAttention(4, 2, dim, dim, dim**-0.5, window=window, softcap=softcap) for dim in (32, 160)]
    world = World(AttentionLayout.of(layers), [(3, 1), (90, 1), (70, 80), (0, 150)], dtype, kept=kept)
    backend = world.backend("cpu", dtype=dtype)
    assert backend.reason.endswith("compiled kernels for everything")
    world.check(backend, sinks=True, tolerance=2e-5 if dtype == torch.float32 else 3e-2)


def test_one_token_that_is_not_finite_leaves_those_before_it_alone() -> None:
    own = torch.randn(100, 8, 64)
    shape = AttentionShape(4, 2, 64, (None,))
    expected = deterministic(own, 0, 100, [], shape)
    own[90, 4:] = torch.inf
    found = deterministic(own, 0, 100, [], shape)
    assert torch.equal(found[:90], expected[:90]) and found[90:].isnan().any()


def test_heads_without_tiles_are_left_to_torch() -> None:
    world = World(AttentionLayout.of([LayerAttention(2, 1, 48, 48, 0.2)]), [(3, 1), (0, 40)])
    backend = world.backend("cpu")
    assert "torch for prefills of more than 16 tokens" in backend.reason
    world.check(backend)
