"""Attention over latent rows: compiled kernels and torch's operations against one query and one head at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from attention_cases import Work
from attention_oracle import World, works
from hypothesis import given, settings
from hypothesis import strategies as st
from latent_checks import MIXED, layer, layers, layout

from sgl.runtime.attention import BackendUnavailable, LayerAttention, attention_backend
from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.float8_reference import FP8
from sgl.runtime.models.reference.reference_latent_attention import FEW_ROWS, HeadwiseMatmul

SIZES = ((16, 8), (32, 32), (64, 32), (33, 7), (512, 64))
NAMES = ["torch_native", *(["cpu"] if cpu_kernels.kernels else [])]
needs_kernels = pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    yield
    cpu_kernels.set_threads(1)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", NAMES)
@given(found=layers(SIZES), work=works(), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_random_steps(name: str, page_size: int, found: list[LayerAttention], work: Work, seed: int) -> None:
    cpu_kernels.set_threads(1 + seed % 3)
    world = World(layout(*found), work, page_size=page_size, seed=seed, pages=400 if page_size == 1 else 60)
    world.check(world.backend(name), tolerance=1e-4)
    if name == "cpu":
        world.check(world.backend(name, deterministic=True), tolerance=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [None, FP8])
@pytest.mark.parametrize("size", [(16, 8), (64, 32)])
def test_other_types(name: str, kept: torch.dtype | None, size: tuple[int, int]) -> None:
    world = World(layout(layer(5, *size)), MIXED, torch.bfloat16, kept=kept)
    world.check(world.backend(name, dtype=torch.bfloat16), tolerance=0.03 if kept is None else 0.1)


@needs_kernels
@pytest.mark.parametrize("kept", [None, FP8])
def test_without_avx512_torch_attends_prompts(kept: torch.dtype | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels.kernels, "AVX512", 0)
    world = World(layout(layer(5, 64, 32)), MIXED, kept=kept)
    backend = world.backend("cpu", dtype=torch.float32)
    assert "torch for prefills" in backend.reason
    world.check(backend, tolerance=1e-4)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_contexts_are_cut_and_merged(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads in two groups, rows in up to three pieces; threads change no bit, nor does who else is there."""
    work: Work = [(700, 1), (3, 1), (256, 1), (255, 1), (600, 3)]
    own = layer(18, 64, 32)
    found = []
    for threads in (1, 3):
        cpu_kernels.set_threads(threads)
        world = World(layout(own), work, dtype, pages=3000)
        world.check(world.backend("cpu"), tolerance=2e-5 if dtype == torch.float32 else 0.03)
        backend = world.backend("cpu")
        backend.plan(world.batch)
        found.append(world.attend(backend, 0, own, None)[0])
    assert torch.equal(*found)


@needs_kernels
def test_bits_of_a_token_are_those_of_it_alone() -> None:
    own = layer(6, 64, 32)
    pool = KVPool(1, 1000, 1, 96, value_dim=64, latent=True)
    pool.k[:, 1:] = torch.randn(pool.k[:, 1:].shape, generator=torch.Generator().manual_seed(0))
    backend = attention_backend("cpu", pool, layout(own).groups[0], deterministic=True)
    world = World(layout(own), [(400, 40)], pages=1000)
    q, batch = torch.randn(40, 6, 96), world.batch
    backend.plan(batch)
    whole = backend.attend(q, None, None, 0, batch)
    for index in (0, 17, 39):
        one = World(layout(own), [(400 + index, 1)], pages=1000).batch
        one.context_slots = [world.slots[0][: 401 + index]]
        backend.plan(one)
        assert torch.equal(backend.attend(q[index : index + 1], None, None, 0, one), whole[index : index + 1])


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(16, 12), (70, 96), (128, 512), (512, 128), (40, 544)])
def test_products_by_head(size: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, outputs = size
    product = HeadwiseMatmul((torch.randn(3, inputs, outputs) * inputs**-0.5).to(dtype))
    rows = torch.randn(FEW_ROWS + 3, 3, inputs + 5).to(dtype)[..., 2 : 2 + inputs]
    expected = torch.einsum("thi,hio->tho", rows.double(), product.weight.double())
    for count in (0, 1, 3, 4, FEW_ROWS, FEW_ROWS + 3):
        found = product(rows[:count])
        assert found.is_contiguous() and found.dtype == dtype
        torch.testing.assert_close(
            found.double(), expected[:count], atol=1e-5 if dtype == torch.float32 else 0.03, rtol=1e-2
        )
    monkeypatch.setattr(cpu_kernels, "most_numbers", float("inf"))
    whole = product(rows)
    assert all(
        torch.equal(product(rows[start:stop]), whole[start:stop]) for start, stop in ((0, 1), (1, 4), (2, 19), (18, 19))
    )


def test_a_pool_of_latents_holds_keys_alone() -> None:
    found = layout(layer(4, 32, 8), layer(4, 32, 8))
    pool = found.pool(10, torch.float32)
    assert (
        isinstance(pool, KVPool)
        and pool.bytes == 2 * 10 * 40 * 4
        and found.bytes_per_slot(torch.bfloat16) == 2 * 40 * 2
    )
    pool.k.fill_(3.0)
    assert pool.v.shape == (2, 10, 1, 32) and bool((pool.v == 3).all()) and pool.stored == (pool.k,)
    pool.release()
    assert pool.slots == 0 and pool.v.shape[1] == 0
    pool.restore()
    pool.fill_nan([3])
    assert bool(pool.k[:, 3].isnan().all()) and not pool.k[:, 4].any() and bool(pool.v[:, 3].isnan().all())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="40 values of 1 KV heads cannot be numbers of keys of width 32"):
        layout(LayerAttention(4, 1, 32, 40, 1.0, latent=True))
    wide = layout(layer(2, 600, 64))
    with pytest.raises(BackendUnavailable, match="rows of at most 1024 numbers, 512 of them values, not 664 and 600"):
        attention_backend("cpu", wide.pool(9, torch.float32), wide)
    assert attention_backend("auto", wide.pool(9, torch.float32), wide).name == "torch_native"
    with pytest.raises(BackendUnavailable, match="nvcc"):
        attention_backend("flashinfer", wide.pool(9, torch.bfloat16), wide)
