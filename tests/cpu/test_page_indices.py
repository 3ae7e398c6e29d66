"""Ragged page indices and the merge of two attentions, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from attention_steps import World

from sgl.runtime.attention import AttentionShape
from sgl.runtime.kernels.attention.merge_attention import merge_attention
from sgl.runtime.kernels.attention.page_indices import page_indices

SHAPE = AttentionShape(query_heads=2, kv_heads=1, head_dim=16, windows=(None,))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("new", [[1, 1, 1], [1, 6, 17], [9, 1, 33]])
def test_pages_come_from_the_table_and_from_new_slots(page_size, new):
    world = World(SHAPE, 200, page_size, rows=8, most=80, dtype=torch.float32, device="cpu", seed=page_size)
    slots = [world.sequence(length) for length in (1 + new[0], 40 + new[1], new[2])]
    batch = world.batch(slots, new)
    sequences = np.array([0, 1, 2, 1], np.int32)
    expected = [slots[s][::page_size] // page_size for s in sequences]
    expected[3] = expected[3][: 32 // page_size]  # as many as there is room for
    indptr = torch.tensor([0, *np.cumsum([len(pages) for pages in expected])], dtype=torch.int32)
    out = torch.full((int(indptr[-1]) + 5,), -1, dtype=torch.int32)
    around = batch.device
    page_indices(
        out,
        indptr,
        torch.from_numpy(sequences),
        max(map(len, expected)),
        around.rows,
        around.starts,
        around.contexts,
        batch.slots,
        around.table,
        page_size,
    )
    assert out[: int(indptr[-1])].tolist() == np.concatenate(expected).tolist()
    assert out[int(indptr[-1]) :].tolist() == [-1] * 5


def test_pages_behind_a_window_are_the_padding_page():
    world = World(SHAPE, 300, 4, rows=8, most=80, dtype=torch.float32, device="cpu")
    slots, new = [world.sequence(length) for length in (70, 20, 9)], [3, 1, 9]
    batch, reach = world.batch(slots, new), 10
    counts = [-(-len(own) // 4) for own in slots]
    indptr = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    out, around = torch.full((int(indptr[-1]),), -1, dtype=torch.int32), batch.device
    page_indices(
        out,
        indptr,
        torch.arange(3, dtype=torch.int32),
        max(counts),
        around.rows,
        around.starts,
        around.contexts,
        batch.slots,
        around.table,
        4,
        reach,
    )
    for own, count, begin, pages in zip(slots, new, indptr.tolist(), counts, strict=False):
        first = max(0, len(own) - count - reach + 1) // 4
        assert out[begin : begin + pages].tolist() == [0] * first + (own[::4] // 4)[first:].tolist()


def test_padding_reads_the_padding_slot():
    world = World(SHAPE, 50, 4, rows=4, most=20, dtype=torch.float32, device="cpu")
    batch = world.batch([world.sequence(9)], [1], pad_to=3)
    out = torch.full((8,), -1, dtype=torch.int32)
    indptr = torch.tensor([0, 3, 4, 5], dtype=torch.int32)
    around = batch.device
    page_indices(
        out,
        indptr,
        torch.arange(3, dtype=torch.int32),
        3,
        around.rows,
        around.starts,
        around.contexts,
        batch.slots,
        around.table,
        4,
    )
    assert out.tolist() == [*(batch.context_slots[0][::4] // 4), 0, 0, -1, -1, -1]


def test_long_runs_take_several_blocks():
    world = World(SHAPE, 2600, 1, rows=3, most=2500, dtype=torch.float32, device="cpu")
    slots = [world.sequence(2400), world.sequence(3)]
    batch = world.batch(slots, [1, 1])
    out = torch.zeros(2403, dtype=torch.int32)
    indptr = torch.tensor([0, 2400, 2403], dtype=torch.int32)
    around = batch.device
    page_indices(
        out,
        indptr,
        torch.arange(2, dtype=torch.int32),
        2400,
        around.rows,
        around.starts,
        around.contexts,
        batch.slots,
        around.table,
        1,
    )
    assert out.tolist() == np.concatenate(slots).tolist()


def test_merged_attention_is_attention_over_both():
    torch.manual_seed(0)
    rows, heads, dim = 5, 3, 24
    scores = torch.randn(rows, heads, 11) * 4
    values = torch.randn(11, dim)

    def part(keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        lse = torch.logsumexp(scores[..., keys], -1) / np.log(2)
        return scores[..., keys].softmax(-1) @ values[keys], lse.contiguous()

    out, lse = part(slice(0, 4))
    alone = out.clone()
    other, other_lse = part(slice(4, 11))
    chosen = torch.tensor([3, 0, 1, 0, 2], dtype=torch.int32)
    merge_attention(out, lse, other, other_lse, chosen)
    whole = scores.softmax(-1) @ values
    torch.testing.assert_close(out, torch.where(chosen[:, None, None] > 0, whole, alone), rtol=1e-5, atol=1e-5)
