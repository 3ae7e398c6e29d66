"""Scans and convolutions with a state: ragged batches against loops over
tokens, and sequences that are cut anywhere.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import recurrent_oracle as oracle
import torch
from torch import Tensor

from sgl.runtime.layers.recurrent import LinearAttention, RaggedSequences, SelectiveScan, causal_convolution

CPU = torch.device("cpu")
OF_ALL = ("a", "skip", "unit", "scale")  # what belongs to no token
KINDS = ("gated delta net", "kda", "mamba 2", "mamba 1")
LENS = [(1,), (1, 1, 1), (3, 1, 70), (64,), (65, 128, 1, 2), (150, 63, 16, 17, 1, 1), (200,)]


def said(kind: str, rows: int, seed: int, heads: int = 2, key: int = 5, value: int = 3, shared: int = 1) -> Any:
    """What `rows` random tokens say; decays from none to almost all. shared: heads with the same queries and keys."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def decay(*shape: int) -> Tensor:
        return -torch.exp(normal(*shape) * 2 - 1)

    if kind == "mamba 1":
        return SelectiveScan(
            normal(rows, 6), normal(rows, 6).exp(), decay(6, 4), normal(rows, 4), normal(rows, 4), normal(6)
        )
    q, k, v = normal(rows, heads // shared, key), normal(rows, heads // shared, key), normal(rows, heads, value)
    if kind == "mamba 2":
        return LinearAttention(q, k, v, decay(rows, heads, 1), times=normal(rows, heads, 1).exp(), skip=normal(heads))
    if kind == "gated delta net":
        return LinearAttention(q, k, v, decay(rows, heads, 1), normal(rows, heads, 1).sigmoid(), 1e-6, 0.5)
    return LinearAttention(
        q, k / k.norm(dim=-1, keepdim=True), v, decay(rows, heads, key), normal(rows, heads, 1).sigmoid()
    )


def states(kind: str, count: int, seed: int) -> Tensor:
    shape = (6, 4) if kind == "mamba 1" else (2, 5, 3)
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed + 99))


def cut(all_: Any, start: int, stop: int) -> Any:
    """Of the tokens some."""
    parts = {
        name: part if part is None or name in OF_ALL else part[start:stop] for name, part in all_._asdict().items()
    }
    return type(all_)(**parts)


def by_loop(kind: str, all_: Any, state: Tensor, lens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    run, start, found = oracle.selective if kind == "mamba 1" else oracle.linear, 0, []
    for count, before in zip(lens, state, strict=True):
        found.append(run(cut(all_, start, start + count), before))
        start += count
    return torch.cat([out for out, _ in found]), torch.stack([left for _, left in found])


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("lens", LENS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_ragged_batch_is_that_of_a_loop_over_tokens(kind: str, lens: tuple[int, ...], shared: int) -> None:
    all_, before = said(kind, sum(lens), 1, shared=shared), states(kind, len(lens), 1)
    given = before.clone()
    for found, expected in zip(
        all_.scan(given, RaggedSequences.of(lens, CPU)), by_loop(kind, all_, before, lens), strict=True
    ):
        close(found, expected)
    assert torch.equal(given, before)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_may_be_cut_anywhere(kind: str) -> None:
    rng, length = random.Random(kind), 140
    all_, before = said(kind, length, 2), states(kind, 1, 2)
    whole, end = all_.scan(before, RaggedSequences.of((length,), CPU))
    for _ in range(12):
        cuts = [0, *sorted(rng.sample(range(1, length), rng.randint(1, 6))), length]
        state, outs = before, []
        for start, stop in pairwise(cuts):
            out, state = cut(all_, start, stop).scan(state, RaggedSequences.of((stop - start,), CPU))
            outs.append(out)
        close(torch.cat(outs), whole)
        close(state, end)


@pytest.mark.parametrize("kind", KINDS)
def test_decays_that_float32_cannot_hold_leave_nothing_behind(kind: str) -> None:
    all_ = said(kind, 100, 3)
    most = {"dt": all_.dt * 500} if kind == "mamba 1" else {"decay": all_.decay * 500}
    all_ = all_._replace(**most)
    before = states(kind, 1, 3)
    for found, expected in zip(
        all_.scan(before, RaggedSequences.of((100,), CPU)), by_loop(kind, all_, before, (100,)), strict=True
    ):
        close(found, expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("lens", [*LENS, (2, 1, 3)], ids=str)
def test_a_convolution_goes_on_where_the_sequence_stopped(lens: tuple[int, ...], width: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight = torch.randn(sum(lens), 7, generator=generator), torch.randn(width, 7, generator=generator)
    state = torch.randn(len(lens), width - 1, 7, generator=generator)
    more = torch.randn(7, generator=generator) if bias else None
    found, left = causal_convolution(x, weight, more, state, RaggedSequences.of(lens, CPU))
    for rows, out, before, after in zip(x.split(lens), found.split(lens), state, left, strict=True):
        expected, end = oracle.convolution(rows, weight, more, before)
        close(out, expected, 1e-6)
        assert torch.equal(after, end)


def test_a_convolution_from_the_start_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(5)
    for width in (1, 2, 4):
        x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((15, 6), (width, 6), (6,)))
        found, _ = causal_convolution(x, weight, bias, torch.zeros(2, width - 1, 6), RaggedSequences.of((9, 6), CPU))
        for rows, out in zip(x.split((9, 6)), found.split((9, 6)), strict=True):
            expected = torch.nn.functional.conv1d(
                rows.t()[None], weight.t()[:, None], bias, padding=width - 1, groups=6
            )
            close(out, expected[0, :, : len(rows)].t())


def test_layers_of_a_step_share_its_indices() -> None:
    assert RaggedSequences.of([3, 1], CPU) is RaggedSequences.of((3, 1), CPU)
