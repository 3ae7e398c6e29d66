"""The C kernels of layers with states against loops over tokens and against
torch, and that a token's bits are its own.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_recurrent import CPU, KINDS, by_loop, close, cut, said

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.activation_functions import ACTIVATIONS
from sgl.runtime.layers.recurrent import (
    LinearAttention,
    RaggedSequences,
    SelectiveScan,
    causal_convolution,
    cpu_recurrent_kernels,
)
from sgl.runtime.models.reference import reference_recurrence

pytestmark = pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")

SIZES = [
    (2, 1, 5, 3),
    (4, 2, 16, 40),
    (4, 4, 32, 32),
    (6, 3, 33, 65),
]  # heads, how many share keys, width of keys and values
LENS = [(1, 1, 1, 1, 1, 1), (3, 1, 9, 1, 2, 1), (20, 1, 1, 1, 1, 30)]
READ, WRITE = [0, 4, 5, 5, 0, 7], [8, 4, 9, 10, 1, 1]  # from the empty state; in place; two from one; two leave nothing


def run(all_: Any, memory: torch.Tensor, read: list[int], write: list[int], lens: tuple[int, ...]) -> torch.Tensor:
    kernel: Any = cpu_recurrent_kernels.select if isinstance(all_, SelectiveScan) else cpu_recurrent_kernels.advance
    return kernel(all_, memory, torch.tensor(read), torch.tensor(write), RaggedSequences.of(lens, CPU))


def memory_for(all_: Any) -> torch.Tensor:
    shape = all_.a.shape if isinstance(all_, SelectiveScan) else (all_.v.shape[1], all_.k.shape[2], all_.v.shape[2])
    memory = torch.randn(12, *shape, generator=torch.Generator().manual_seed(5))
    memory[0] = 0
    return memory


@pytest.mark.parametrize("lens", LENS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_a_loop(kind: str, sizes: tuple[int, int, int, int], lens: tuple[int, ...]) -> None:
    heads, shared, key, value = sizes
    all_ = said(kind, sum(lens), 3, heads, key, value, shared)
    memory = memory_for(all_)
    before = memory.clone()
    expected, left = by_loop(kind, all_, before[READ], lens)
    close(run(all_, memory, READ, WRITE, lens), expected)
    close(memory[WRITE[:4]], left[:4])
    kept = [slot for slot in range(12) if slot not in WRITE[:4]]
    assert torch.equal(memory[kept], before[kept])


@pytest.mark.parametrize("channels, size", [(300, 16), (70, 5), (3, 200)])
def test_a_selective_scan_of_many_channels(channels: int, size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    draws = [
        torch.randn(shape, generator=generator)
        for shape in ((9, channels), (9, channels), (channels, size), (9, size), (9, size), (channels,))
    ]
    all_ = SelectiveScan(draws[0], draws[1].exp(), -draws[2].exp(), *draws[3:])
    memory = torch.zeros(4, channels, size)
    expected, left = all_.scan(memory[[0, 0]], RaggedSequences.of((8, 1), CPU))
    close(run(all_, memory, [0, 0], [2, 3], (8, 1)), expected)
    close(memory[2:], left)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_cuts_and_neighbours(kind: str) -> None:
    all_ = said(kind, 40, 2, 4, 20, 70, 2)
    whole = memory_for(all_)
    parts = whole.clone()
    out = run(all_, whole, [4], [4], (40,))
    found = [
        run(cut(all_, 0, 1), parts, [4], [4], (1,)),
        run(cut(all_, 1, 17), parts, [4], [6], (16,)),
        run(cut(all_, 17, 40), parts, [6], [4], (23,)),
    ]
    assert torch.equal(torch.cat(found), out) and torch.equal(parts[4], whole[4])
    twice: Any = type(all_)(
        *(torch.cat([part, part]) if isinstance(part, torch.Tensor) and len(part) == 40 else part for part in all_)
    )
    again = memory_for(all_)
    again[5] = again[4]
    both = run(twice, again, [4, 5], [4, 5], (40, 40))
    assert torch.equal(both[:40], out) and torch.equal(both[40:], out) and torch.equal(again[5], whole[4])


def test_views_of_one_tensor_and_whole_ones_give_the_same() -> None:
    rows = torch.randn(5, 2 * 6 + 2 * 6 + 2 * 40)
    q, k, v = (each.unflatten(1, (2, -1)) for each in rows.split_with_sizes((12, 12, 80), 1))
    decay = -torch.rand(5, 2, 1)
    own = LinearAttention(q.contiguous(), k.contiguous(), v.contiguous(), decay)
    memories = [torch.zeros(3, 2, 6, 40) for _ in range(2)]
    outs = [
        run(each, memory, [0], [2], (5,))
        for each, memory in zip((LinearAttention(q, k, v, decay), own), memories, strict=True)
    ]
    assert torch.equal(*outs) and torch.equal(*memories)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [1, 2, 4, 9])
@pytest.mark.parametrize("lens", LENS, ids=str)
def test_a_convolution_is_that_of_torch(lens: tuple[int, ...], width: int, activation: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(sum(lens), 1030, generator=generator).to(dtype)[:, 7:1030]
    weight, bias = torch.randn(width, 1023, generator=generator), torch.randn(1023, generator=generator)
    memory = torch.randn(12, width - 1, 1023, generator=generator).to(dtype)
    before, ragged = memory.clone(), RaggedSequences.of(lens, CPU)
    found = cpu_recurrent_kernels.convolve(
        x, weight, bias, activation, memory, torch.tensor(READ), torch.tensor(WRITE), ragged
    )
    y, left = causal_convolution(x, weight, bias, before[READ], ragged)
    close(found, ACTIVATIONS[activation](y) if activation else y)
    assert torch.equal(memory[WRITE[:4]], left[:4])
    kept = [slot for slot in range(12) if slot not in WRITE[:4]]
    assert torch.equal(memory[kept], before[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "eps, gate, first", [(1e-5, "silu", False), (1e-5, "sigmoid", False), (1e-5, "silu", True), (None, "silu", False)]
)
def test_a_gate_is_that_of_torch(
    eps: float | None, gate: str, first: bool, apart: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(6)
    x, z = (
        torch.randn(5, 3, 37, generator=generator),
        (torch.randn(5, 120, generator=generator) * 20).to(dtype)[:, 4:115],
    )
    weight = None if eps is None else torch.randn(111 if apart else 37, generator=generator)
    found = reference_recurrence.gated(x, z, weight, eps, gate, first)
    monkeypatch.setattr(cpu_recurrent_kernels, "takes", lambda x: False)
    expected = reference_recurrence.gated(x, z, weight, eps, gate, first)
    assert found.dtype == expected.dtype == dtype and found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rates_are_those_of_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(7)
    x, bias, rate = (
        (torch.randn(4, 50, generator=generator) * 30).to(dtype)[:, 2:38],
        torch.randn(36, generator=generator),
        -torch.rand(6, generator=generator),
    )
    asked: list[Any] = [(x, bias, rate), (x, None, None), (x, bias, rate, (0.3, 0.9)), (x, None, None, (0.0, math.inf))]
    found = [reference_recurrence.rates(*each) for each in asked] + [(reference_recurrence.sigmoid(x, 2.0),)]
    monkeypatch.setattr(cpu_recurrent_kernels, "takes", lambda x: False)
    expected = [reference_recurrence.rates(*each) for each in asked] + [(reference_recurrence.sigmoid(x, 2.0),)]
    for ours, theirs in zip(found, expected, strict=True):
        for each, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(each, other, rtol=2e-6, atol=1e-30)


def test_structs_that_do_not_fit_are_refused() -> None:
    for call in (
        lambda: cpu_kernels.kernels.advance(b"12345678"),
        lambda: cpu_kernels.kernels.selective(5),
        lambda: cpu_kernels.kernels.gated(0, b""),
        lambda: cpu_kernels.kernels.rates(b""),
    ):
        with pytest.raises(TypeError, match="takes"):
            call()
