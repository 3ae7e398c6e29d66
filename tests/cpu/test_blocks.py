"""Attention to chosen blocks on a CPU, against one query and one head at a time over all positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Work
from attention_oracle import works
from block_checks import BLOCK, RAGGED, Blocks, dense_mask
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.attention import LayerAttention
from sgl.runtime.attention.block_sparse_attention import NONE, of_blocks
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.float8_reference import FP8

NAMES = ["torch_native", *(["cpu"] if cpu_kernels.kernels else [])]
LAYER = LayerAttention(6, 2, 32, 32, 0.2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sinks", [False, True])
@settings(max_examples=10, deadline=None)
@given(
    work=works(),
    page_size=st.sampled_from([1, 16]),
    window=st.sampled_from([0, 1, 6, 100]),
    dim=st.sampled_from([8, 32]),
    seed=st.integers(0, 99),
)
def test_random_steps(name: str, sinks: bool, work: Work, page_size: int, window: int, dim: int, seed: int) -> None:
    layer = replace(LAYER, key_dim=dim, value_dim=dim, kv_heads=(1, 2, 6)[seed % 3], softcap=(None, 2.0)[seed % 2])
    blocks = Blocks(work, layer, window=window, seed=seed, page_size=page_size, pages=400 if page_size == 1 else 60)
    blocks.check(blocks.world.backend(name), sinks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [None, FP8])
def test_other_types(name: str, kept: torch.dtype | None) -> None:
    blocks = Blocks(RAGGED, LAYER, torch.bfloat16, window=3, kept=kept)
    blocks.check(blocks.world.backend(name, dtype=torch.bfloat16), tolerance=0.03 if kept is None else 0.1)


@pytest.mark.parametrize("window", [0, 1, 5, 50])
def test_what_is_seen_is_that_of_a_dense_mask(window: int) -> None:
    """In order and once, with a table of pages, into which the step's own may not be entered yet, and without one."""
    blocks = Blocks(RAGGED, LAYER, window=window, page_size=4)
    batch = blocks.world.batch
    seen = dense_mask(blocks.blocks, batch.positions, BLOCK, window)
    sequences = [slots for slots, (_, new) in zip(blocks.world.slots, RAGGED, strict=True) for _ in range(new)]
    new = batch.device.token_rows.long(), batch.positions.long() // 4
    batch.device.table[new] = torch.where(batch.positions % 4 == 0, 2**29, batch.device.table[new])
    for one in (batch, replace(batch, device=None)):
        chosen = of_blocks(blocks.blocks, BLOCK, window, one)
        for token, slots in enumerate(sequences):
            for head in range(2):
                count = int(chosen.counts[token, head])
                assert chosen.slots[token, head, :count].tolist() == slots[seen[token][head]].tolist()


def test_a_window_alone() -> None:
    blocks = Blocks(RAGGED, replace(LAYER, window=7))
    batch, backend = blocks.world.batch, blocks.world.backend("torch_native")
    backend.plan(batch)
    backend.store(*blocks.kv, 0, batch)
    none = torch.full((len(blocks.q), 2, 1), NONE)
    found = backend.attend_topk(blocks.q, of_blocks(none, BLOCK, 7, batch), 0, batch)
    torch.testing.assert_close(found, backend.attend(blocks.q, *blocks.kv, 0, batch))
