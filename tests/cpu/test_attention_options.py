"""Windows, chunks, soft caps, sinks, ALiBi, uneven widths and shared layers, in every backend of the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Work
from attention_oracle import World, layers, works
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sgl.runtime.attention import AttentionLayout, BackendUnavailable, LayerAttention
from sgl.runtime.layers import cpu_kernels

compiled = pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
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


@compiled
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    work=works(),
    layers=layers((3, 32, 64, 96), alibi=False, uneven=False),
    sinks=st.booleans(),
    exact=st.booleans(),
    seed=st.integers(0, 999),
)
def test_compiled(work: Work, layers: list[LayerAttention], sinks: bool, exact: bool, seed: int) -> None:
    world = World(AttentionLayout.of(layers), work, seed=seed)
    backend = world.backend("cpu", deterministic=exact)
    assert {backend.reasons(index)[0] for index in range(len(layers))} == {"cpu"}
    world.check(backend, sinks)


@compiled
@pytest.mark.parametrize("dim", [320, 500, 512])
@pytest.mark.parametrize("group", [1, 7])
def test_wide_heads(dim: int, group: int) -> None:
    layer = LayerAttention(2 * group, 2, dim, dim, dim**-0.5, softcap=3.0)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2)):
        world = World(AttentionLayout.of([layer]), [(40, 1), (3, 1), (70, 4)], dtype)
        world.check(world.backend("cpu"), sinks=True, tolerance=tolerance)


@compiled
def test_large_sinks_and_scores_beyond_the_cap() -> None:
    """A sink far above the scores takes everything; capped scores stay apart from each other."""
    layer = LayerAttention(2, 1, 64, 64, 30.0, softcap=20.0)
    for sink in (-1e4, -50.0, 0.0, 19.0, 120.0):
        world = World(AttentionLayout.of([layer]), [(40, 1), (3, 1)])
        backend = world.backend("cpu")
        backend.plan(world.batch)
        sinks = torch.full((2,), sink)
        found, q = world.attend(backend, 0, layer, sinks)
        torch.testing.assert_close(found, world.expected(q, 0, layer, sinks), atol=2e-5, rtol=2e-5)


@compiled
def test_groups_that_the_kernels_cannot_serve_fall_to_torch() -> None:
    plain = LayerAttention(4, 2, 32, 32, 0.2)
    found = [plain, replace(plain, alibi=(0.5, 0.2, 0.1, 0.05)), plain, replace(plain, value_dim=8)]
    world = World(AttentionLayout.of(found), [(20, 1), (9, 4), (0, 30)])
    backend = world.backend("auto")
    names = [backend.reasons(index) for index in range(4)]
    assert names == [
        ("cpu", None),
        ("torch_native", "no cpu: attention='cpu' needs a model without ALiBi; use attention='torch_native'"),
        ("cpu", None),
        (
            "torch_native",
            "no cpu: attention='cpu' needs values as wide as keys, not 8 and 32; use attention='torch_native'",
        ),
    ]
    assert backend.name == "mixed" and backend.reason.startswith("layers 0, 2: cpu, best that runs here")
    world.check(backend, sinks=True)
    with pytest.raises(BackendUnavailable, match="without ALiBi"):
        world.backend("cpu")


def test_what_is_asked_for_is_said() -> None:
    world = World(AttentionLayout.of([LayerAttention(4, 2, 32, 32, 0.2)]), [(20, 1)])
    backend = world.backend("torch_native")
    assert backend.reasons(0) == ("torch_native", "attention='torch_native' was asked for")
