"""Layers of a model gathered into groups for the backends and into pools, and one backend for each group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sgl.runtime.attention import AttentionLayout, LayerAttention
from sgl.runtime.attention.attention_layout import listed
from sgl.runtime.cache.host_kv_pages import HostKVPages
from sgl.runtime.cache.kv_pool import PAD_SLOT, KVPool
from sgl.runtime.cache.multi_width_kv_pools import MultiKVPool
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels

FULL = LayerAttention(4, 2, 16, 16, 0.25)
NEAR = replace(FULL, window=5)
WIDE = LayerAttention(4, 1, 24, 8, 1.0)
compiled = pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")


def test_layers_that_differ_in_what_they_see_are_one_group() -> None:
    layout = AttentionLayout.of([NEAR, FULL, replace(FULL, chunk=7)])
    (shape,) = layout.groups
    assert shape.windows == (5, None, None) and shape.chunks == (None, None, 7) and shape.caches == (0, 1, 2)
    assert layout.places == {0: (0, 0), 1: (0, 1), 2: (0, 2)} and layout.even
    assert isinstance(layout.pool(10, torch.float32), KVPool)


def test_layers_of_other_widths_have_a_pool_of_their_own() -> None:
    layout = AttentionLayout.of([NEAR, WIDE, NEAR, FULL])
    assert layout.places == {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (0, 2)} and layout.homes == (0, 1) and not layout.even
    pool = layout.pool(10, torch.bfloat16)
    assert isinstance(pool, MultiKVPool) and pool.slots == 10 and pool.dtype == torch.bfloat16
    assert [tuple(part.v.shape) for part in pool.parts] == [(3, 10, 2, 16), (1, 10, 1, 8)]
    assert layout.bytes_per_slot(torch.bfloat16) * 10 == pool.bytes == 2 * 10 * (3 * 2 * 32 + 32)
    assert layout.stored(pool, 3)[0].data_ptr() == pool.parts[0].k[2].data_ptr()


def test_groups_of_another_scale_read_the_same_pool() -> None:
    layout = AttentionLayout.of([FULL, replace(FULL, scale=1.0), FULL, replace(FULL, query_heads=2, source=0)])
    assert [shape.caches for shape in layout.groups] == [(0, 2), (1,), (0,)] and layout.homes == (0, 0, 0)
    assert [part.layers for part in layout.parts] == [3]


def test_a_layer_that_reads_another_stores_nothing() -> None:
    layout = AttentionLayout.of([FULL, WIDE, NEAR, replace(NEAR, source=2), replace(WIDE, source=1)])
    assert [shape.caches for shape in layout.groups] == [(0, 1, 1), (0, 0)]
    assert [part.layers for part in layout.parts] == [2, 1]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([FULL, replace(FULL, source=1)], "layer 1 reads layer 1"),
        ([FULL, replace(FULL, source=0), replace(FULL, source=1)], "layer 2 reads layer 1"),
        ([FULL, replace(WIDE, source=0)], "width differ"),
        ([replace(FULL, kv_heads=3)], "4 query heads"),
        ([replace(FULL, alibi=(1.0,))], "1 ALiBi slopes for 4"),
    ],
)
def test_what_cannot_be_is_named(layers: list[LayerAttention], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AttentionLayout.of(layers)


def test_several_pools_are_handled_as_one() -> None:
    pool = AttentionLayout.of([FULL, WIDE]).pool(6, torch.float32)
    pool.fill_nan([2, 4])
    for part in pool.parts:
        for stored in (part.k, part.v):
            assert stored[:, [2, 4]].isnan().all() and not stored[:, [0, 1, 3, 5]].isnan().any()
    size = pool.bytes
    pool.release()
    assert pool.bytes == pool.slots == 0
    pool.restore()
    assert pool.bytes == size and not any(part.k.any() or part.v.any() for part in pool.parts)


@pytest.mark.parametrize("staging", [1, 5000])
@pytest.mark.parametrize("page_size", [1, 3])
def test_pages_of_several_pools_come_back_from_main_memory(page_size: int, staging: int) -> None:
    pool = AttentionLayout.of([FULL, WIDE, replace(WIDE, key_dim=3, value_dim=5)]).pool(20 * page_size, torch.bfloat16)
    tensors = [tensor for part in pool.parts for tensor in (part.k, part.v)]
    for tensor in tensors:
        tensor.normal_()
    before = [tensor.clone() for tensor in tensors]
    copies, rng = HostKVPages(pool, page_size, 12, staging), np.random.default_rng(0)
    pages, others = (rng.permutation(np.arange(1, 20, dtype=np.int32))[:9] for _ in range(2))
    places = rng.permutation(np.arange(1, 12, dtype=np.int32))[:9]
    copies.save(pages, places)
    pool.fill_nan(torch.arange(1, 20 * page_size))
    copies.load(places, others)
    for tensor, expected in zip(tensors, before, strict=True):
        found, expected = (x.unflatten(1, (-1, page_size)) for x in (tensor, expected))
        assert torch.equal(found[:, others], expected[:, pages])
        assert found[:, np.setdiff1d(np.arange(1, 20), others)].isnan().all()
        assert torch.equal(found[:, 0, 0], expected[:, 0, PAD_SLOT])


def test_lists_of_layers() -> None:
    assert listed([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8" and listed([3]) == "3"


def test_windowed_layers_lie_apart_over_slots_of_their_own() -> None:
    layers = [NEAR, FULL, replace(FULL, chunk=7), replace(NEAR, window=30), WIDE]
    plain, found = AttentionLayout.of(layers), AttentionLayout.of(layers).apart(context=30)
    assert found.windowed == {0, 2} and found.reach == 7 and not plain.windowed
    assert [(part.layers, part.windowed) for part in found.parts] == [(2, False), (1, False), (2, True)]
    pool = found.pool(10, torch.float32, window_slots=4)
    assert isinstance(pool, MultiKVPool) and pool.slots == 10
    assert [len(found.stored(pool, layer)[0]) for layer in range(5)] == [4, 10, 4, 10, 10]
    whole, near = (found.bytes_per_slot(torch.float32, windowed=windowed) for windowed in (False, True))
    assert whole + near == plain.bytes_per_slot(torch.float32) and pool.bytes == 10 * whole + 4 * near
    pool.fill_windows_nan([2])
    pool.fill_nan([3])
    for layer, slot in ((0, 2), (1, 3), (2, 2), (4, 3)):
        assert all(
            tensor.isnan().any(dim=(1, 2)).nonzero().tolist() == [[slot]] for tensor in found.stored(pool, layer)
        )


def test_where_all_layers_have_a_window_the_other_slots_hold_nothing() -> None:
    found = AttentionLayout.of([NEAR, NEAR]).apart(100)
    pool = found.pool(1000, torch.float32, window_slots=20)
    assert pool.slots == 1000 and found.homes == (1,) and pool.bytes == 20 * found.bytes_per_slot(torch.float32)


def test_layers_that_share_keys_lie_apart_together_or_not_at_all() -> None:
    together = AttentionLayout.of([NEAR, FULL, replace(NEAR, source=0), replace(FULL, source=1)]).apart(100)
    assert together.windowed == {0, 2} and [part.layers for part in together.parts] == [1, 1]
    for last in (replace(FULL, source=0), replace(NEAR, source=1)):
        assert not AttentionLayout.of([NEAR, FULL, last]).apart(100).windowed
    assert not AttentionLayout.of([NEAR, FULL]).apart(context=5).windowed
