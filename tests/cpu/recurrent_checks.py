"""Checks of kernels for recurrent mixers, on any device."""

from __future__ import annotations

import torch
from test_recurrent import said

from sgl.runtime.kernels.recurrent.recurrent_scan import advance, select
from sgl.runtime.layers.recurrent import LinearAttention, RaggedSequences, SelectiveScan

SIZES = [
    (2, 1, 5, 3),
    (4, 2, 16, 40),
    (4, 4, 32, 32),
    (6, 3, 24, 65),
]  # heads, how many share keys, width of keys and values
NEAR = {
    "cpu": {"rtol": 1e-5, "atol": 1e-5},
    "cuda": {"rtol": 1e-4, "atol": 1e-4},
}  # sums of 128 are added in another order


def check_advance(kind: str, heads: int, shared: int, key: int, value: int, device: str) -> None:
    """Some read the empty state, one goes on in place, two read the same slot, two leave nothing."""
    plain: LinearAttention = said(kind, 6, 3, heads, key, value, shared).plain()
    all_ = LinearAttention(*(None if part is None else part.to(device) for part in plain[:5]))
    memory = torch.randn(12, heads, key, value, generator=torch.Generator().manual_seed(5)).to(device)
    memory[0] = 0
    read, write = (torch.tensor(slots, device=device) for slots in ([0, 4, 5, 5, 0, 7], [8, 4, 9, 10, 1, 1]))
    expected, left = all_.advanced(memory[read])
    untouched = memory[[0, 2, 3, 5, 6, 7, 11]].clone()
    found = advance(all_, memory, read, write)
    torch.testing.assert_close(found, expected, **NEAR[device])
    torch.testing.assert_close(memory[write[:4]], left[:4], **NEAR[device])
    assert torch.equal(memory[[0, 2, 3, 5, 6, 7, 11]], untouched)


def check_select(lens: tuple[int, ...], channels: int, size: int, device: str) -> None:
    """The first goes on in place, the others read the empty state; the last leaves nothing."""
    rows, generator = sum(lens), torch.Generator().manual_seed(6)
    draws = [
        torch.randn(shape, generator=generator)
        for shape in ((rows, channels), (rows, channels), (channels, size), (rows, size), (rows, size), (channels,))
    ]
    x, dt, a, b, c, skip = (draw.to(device) for draw in draws)
    all_, ragged = SelectiveScan(x, dt.exp(), -a.exp(), b, c, skip), RaggedSequences.of(lens, torch.device(device))
    memory = torch.randn(9, channels, size, generator=generator).to(device)
    memory[0] = 0
    read, write = (torch.tensor([4, *others], device=device)[: len(lens)] for others in ([0] * 3, [5, 6, 7]))
    write[-1] = 1 if len(lens) > 1 else 4
    expected, left = all_.scan(memory[read], ragged)
    found = select(all_, memory, read, write, ragged)
    torch.testing.assert_close(found, expected, **NEAR[device])
    torch.testing.assert_close(memory[write], left, **NEAR[device])
