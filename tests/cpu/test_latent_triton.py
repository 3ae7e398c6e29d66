"""Triton's kernels for latent rows in Triton's interpreter, against attention
computed one query and one head at a time.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("tests/gpu does this on the device", allow_module_level=True)

from attention_cases import Work, with_padding
from attention_oracle import World, works
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import products_as_on_a_tensor_core
from latent_checks import MIXED, check_rows, layer, layers, layout

from sgl.runtime.attention import (
    AttentionBackend,
    BackendUnavailable,
    LayerAttention,
    attention_backend,
    triton_mla_attention,
)
from sgl.runtime.attention.attention_by_layer import AttentionByLayer
from sgl.runtime.attention.triton_mla_attention import TritonMLAAttention
from sgl.runtime.errors import ConfigError
from sgl.runtime.kernels.attention.attention_latent import LatentScratch, LatentTile
from sgl.runtime.layers.float8_reference import FP8

DECODES: Work = [(40, 1), (0, 1), (150, 1), (33, 1)]


@pytest.fixture(autouse=True, scope="module")
def tensor_core():
    with products_as_on_a_tensor_core():
        yield


def small(backend: AttentionBackend, programs: int = 6) -> AttentionBackend:
    """Tiles that a few dozen keys fill, so that sequences are split and loops turn."""
    for own in backend._backends if isinstance(backend, AttentionByLayer) else [backend]:
        assert isinstance(own, TritonMLAAttention)
        own.decode_tile = own.extend_tile = LatentTile(16, 16, 16, programs)
        own._scratch = LatentScratch(
            own.most, own.shape.query_heads, own.shape.value_dim, own.decode_tile, torch.device("cpu")
        )
    return backend


@settings(max_examples=8, deadline=None)
@given(
    found=layers(((16, 16), (32, 8), (24, 12))),
    work=works(),
    page_size=st.sampled_from([1, 16]),
    seed=st.integers(0, 99),
)
def test_random_steps(found: list[LayerAttention], work: Work, page_size: int, seed: int) -> None:
    world = World(layout(*found), work, page_size=page_size, seed=seed, pages=400 if page_size == 1 else 60)
    world.check(small(world.backend("triton")), tolerance=1e-4)


@pytest.mark.parametrize("work", [DECODES, MIXED])
@pytest.mark.parametrize("kept", [None, FP8])
def test_other_types(work: Work, kept: torch.dtype | None) -> None:
    world = World(layout(layer(20, 32, 16)), work, torch.bfloat16, kept=kept)
    world.check(small(world.backend("triton")), tolerance=0.03 if kept is None else 0.1)


def test_programs_of_a_sequence_count_themselves_anew() -> None:
    own = layer(5, 32, 16)
    world = World(layout(own), DECODES)
    backend = small(world.backend("triton"), 30)
    for _ in range(2):
        world.check(backend)
        assert not backend._scratch.counters.any()


def test_a_padded_batch_of_a_graph() -> None:
    own = layer(5, 32, 16)
    world = World(layout(own), DECODES)
    backend = small(world.backend("triton"))
    q, rows = world.normal(8, 5, 48), world.normal(4, 1, 48)
    backend.plan(world.batch)
    backend.store(rows, rows[..., :32], 0, world.batch)
    expected = backend.attend(q[:4], None, None, 0, world.batch)
    padded = with_padding(world.batch, 8)
    backend.plan(padded)
    torch.testing.assert_close(backend.attend(q, None, None, 0, padded)[:4], expected)


@pytest.mark.parametrize("room, stages", [(True, 5), (False, 2)])
def test_more_is_under_way_where_there_is_room(room: bool, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_mla_attention, "has_room", lambda device: room)
    backend = World(layout(layer(20, 32, 16)), DECODES, torch.bfloat16).backend("triton")
    assert backend.decode_tile.stages == stages and backend.extend_tile.stages == 2


def test_what_the_kernels_refuse() -> None:
    wide, usual = layout(layer(2, 600, 64)), layout(layer(2, 32, 16))
    with pytest.raises(BackendUnavailable, match="latents of at most 512 numbers, not 600"):
        attention_backend("triton", wide.pool(9, torch.float32), wide)
    with pytest.raises(BackendUnavailable, match="order of its batch"):
        attention_backend("triton", usual.pool(9, torch.float32), usual, deterministic=True)
    with pytest.raises(ConfigError, match="called 'tritton'"):
        attention_backend("tritton", usual.pool(9, torch.float32), usual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_and_what_turns(dtype: torch.dtype) -> None:
    """In float8 on a GPU only: the interpreter does not round to it."""
    check_rows(5, 3, 16, 32, 16, dtype, dtype, "cpu")
    check_rows(3, 20, 8, 24, 12, dtype, dtype, "cpu", turns=False)
    for own in (slice(0, 0), slice(1, 3), slice(4, 7)):
        check_rows(7, 20, 8, 24, 12, dtype, dtype, "cpu", own=own)
