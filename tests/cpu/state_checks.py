"""Checks of the kernels that keep states with all that stands around them, against torch, on any device."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgl.runtime.kernels.gemv.gemv_conv import ConvWeights, gemv_conv
from sgl.runtime.kernels.recurrent.causal_conv import convolve
from sgl.runtime.kernels.recurrent.chunked_kda import advance_kda_by_chunks
from sgl.runtime.kernels.recurrent.chunked_linear_attention import advance_by_chunks
from sgl.runtime.kernels.recurrent.linear_attention_scan import (
    NARROW,
    PART,
    HeadNormGate,
    LinearAttentionInputs,
    advance,
)
from sgl.runtime.kernels.recurrent.output_gates import gated, times_sigmoid
from sgl.runtime.layers.activation_functions import ACTIVATIONS
from sgl.runtime.layers.recurrent import LinearAttention, RaggedSequences, causal_convolution
from sgl.runtime.models.reference import reference_recurrence

NEAR = {
    "cpu": {"rtol": 2e-5, "atol": 2e-5},
    "cuda": {"rtol": 2e-4, "atol": 2e-4},
}  # sums of 128 are added in another order
KINDS = ["delta", "delta, tiled", "kda", "mamba 2"]
SIZES = [(2, 1, 5, 3), (4, 2, 16, 40), (6, 3, 24, 9)]  # heads, how many share keys, width of keys and values
LARGE = [(32, 2, 128, 128), (16, 1, 128, 64), (8, 4, 64, 128)]
LENS = [(1, 1, 1), (1, 7, 1), (5,), (33, 2, 70)]


class Draw(NamedTuple):
    """A batch: what its tokens say to the kernels and to the law, what its gates are, the memory and its slots."""

    said: LinearAttentionInputs
    law: LinearAttention
    gate: HeadNormGate
    memory: Tensor
    read: Tensor
    write: Tensor
    starts: Tensor
    ragged: RaggedSequences


def draw(
    kind: str,
    sizes: tuple[int, int, int, int],
    lens: tuple[int, ...],
    device: str,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Draw:
    """The first goes on in place, the others read one slot or the empty one; the
    last leaves nothing if there are several.
    """
    heads, shared, key, value = sizes
    key_heads, rows, generator = heads // shared, sum(lens), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    mixed = normal(rows, 2 * key_heads * key + heads * value)
    q, k, v = mixed.split_with_sizes((key_heads * key, key_heads * key, heads * value), 1)
    q, k, v = q.unflatten(1, (key_heads, key)), k.unflatten(1, (key_heads, key)), v.unflatten(1, (heads, value))
    each = key if kind == "kda" else 1
    others = normal(rows, heads * (each + 1) + heads * value).to(dtype)  # as merged products leave them
    a, b, z = others.split_with_sizes((heads * each, heads, heads * value), 1)
    bias, rate, weight = normal(heads * each), -normal(heads).exp(), normal(value)
    said = LinearAttentionInputs(q, k, v, a, b, bias, rate, 1e-6, key**-0.5, 1.0)
    if kind == "mamba 2":
        said = said._replace(b=None, unit=None, scale=1.0, times=True, skip=normal(heads), least=0.05, most=1.5)
    if kind == "delta, tiled":
        said = said._replace(tiled=True, reach=2.0)
    read, write = ([4, 0, 5, 5][: len(lens)], [4, 6, 7, 1][: len(lens)])
    write[-1] = 1 if len(lens) > 1 else write[-1]
    memory = normal(9, heads, key, value)
    memory[0] = 0
    starts = torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32, device=device)
    return Draw(
        said,
        law_of(said, heads, shared, each),
        HeadNormGate(z, weight, 1e-5, "sigmoid" if kind == "kda" else "silu"),
        memory,
        *(torch.tensor(slots, dtype=torch.int32, device=device) for slots in (read, write)),
        starts,
        RaggedSequences.of(lens, torch.device(device)),
    )


def law_of(said: LinearAttentionInputs, heads: int, shared: int, each: int) -> LinearAttention:
    steps, decay = reference_recurrence.rates(said.a, said.bias, said.rate, (said.least, said.most))
    q, k = (part.repeat(1, shared, 1) if said.tiled else part for part in (said.q, said.k))
    beta = None if said.b is None else reference_recurrence.sigmoid(said.b, said.reach)[..., None]
    times = steps[..., None] if said.times else None
    return LinearAttention(q, k, said.v, decay.view(len(q), heads, each), beta, said.unit, said.scale, times, said.skip)


def check_advance(
    kind: str, sizes: tuple[int, int, int, int], lens: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32
) -> None:
    """Whole heads with their gates, and parts of heads with the gates behind."""
    for part in (None, PART, NARROW):
        found = draw(kind, sizes, lens, device, dtype)
        expected, left = found.law.scan(found.memory[found.read.long()], found.ragged)
        gate, z = found.gate, found.gate.z
        wanted = reference_recurrence.gated(expected, z, gate.weight, gate.eps, gate.name)
        untouched = sorted({*range(9)} - {*found.write.tolist()})
        before = found.memory[untouched].clone()
        y = advance(
            found.said, gate if part is None else None, found.memory, found.read, found.write, found.starts, part
        )
        y = y.flatten(1) if part is None else gated(y, z, gate.weight, gate.eps, gate.name)
        near = NEAR[device] if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-2}
        assert y.dtype == dtype and y.shape == wanted.shape
        torch.testing.assert_close(y, wanted, **near)
        keeping = [i for i, slot in enumerate(found.write.tolist()) if slot != 1]
        torch.testing.assert_close(found.memory[found.write.long()[keeping]], left[keeping], **NEAR[device])
        assert torch.equal(found.memory[untouched], before)


def check_chunks(
    kind: str, sizes: tuple[int, int, int, int], lens: tuple[int, ...], device: str, alike: bool = False
) -> None:
    """alike: all keys are the same, which no power of the system survives."""
    found = draw(kind, sizes, lens, device)
    if alike:
        found.said.k.copy_(found.said.k[:1].clone())
        found.said.a.fill_(-9.0)
    law = law_of(found.said, sizes[0], sizes[1], sizes[2] if kind == "kda" else 1)
    expected, left = law.scan(found.memory[found.read.long()], found.ragged)
    untouched = sorted({*range(9)} - {*found.write.tolist()})
    before, out = found.memory[untouched].clone(), torch.full_like(expected, float("nan"))
    by_chunks = advance_kda_by_chunks if kind == "kda" else advance_by_chunks
    by_chunks(found.said, found.memory, found.read, found.write, found.starts, max(lens), out)
    near = {"rtol": 5e-4, "atol": 5e-4}
    torch.testing.assert_close(out, expected, **near)
    keeping = [i for i, slot in enumerate(found.write.tolist()) if slot != 1]
    torch.testing.assert_close(found.memory[found.write.long()[keeping]], left[keeping], **near)
    assert torch.equal(found.memory[untouched], before)


def check_cuts(kind: str, device: str) -> None:
    """The bits of tokens and states do not depend on where a sequence is cut, nor on what runs beside it."""
    found, memory = draw(kind, (4, 2, 16, 24), (40,), device), None
    whole = advance(found.said, found.gate, found.memory, found.read, found.write, found.starts)
    state, parts = found.memory[4].clone(), []
    memory = draw(kind, (4, 2, 16, 24), (40,), device).memory
    for start, stop in itertools.pairwise((0, 1, 9, 10, 33, 40)):
        rows = lambda x: x[start:stop] if isinstance(x, Tensor) and len(x) == 40 else x  # noqa: B023, E731
        said, gate = LinearAttentionInputs(*map(rows, found.said)), HeadNormGate(*map(rows, found.gate))
        starts = torch.tensor([0, stop - start], device=device)
        parts.append(advance(said, gate, memory, found.read, found.write, starts))
    assert torch.equal(torch.cat(parts), whole) and torch.equal(memory[4], state)


def check_convolve(lens: tuple[int, ...], channels: int, width: int, name: str | None, device: str) -> None:
    """Rows of a wider tensor; the first goes on in place."""
    generator, rows = torch.Generator().manual_seed(1), sum(lens)
    wide, taps, bias = (
        torch.randn(*shape, generator=generator).to(device)
        for shape in ((rows, channels + 7), (width, channels), (channels,))
    )
    memory, x = torch.randn(9, width - 1, channels, generator=generator).to(device), wide[:, 3 : 3 + channels]
    memory[0] = 0
    read, write = (
        torch.tensor(slots[: len(lens)], dtype=torch.int32, device=device) for slots in ([4, 0, 5], [4, 6, 7])
    )
    starts = torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32, device=device)
    for own in (bias, None):
        before = memory.clone()
        expected, left = causal_convolution(
            x, taps, own, memory[read.long()], RaggedSequences.of(lens, torch.device(device))
        )
        found = convolve(x, taps, own, name, memory, read, write, starts, max(lens))
        torch.testing.assert_close(found, expected if name is None else ACTIVATIONS[name](expected), **NEAR[device])
        assert torch.equal(memory[write.long()], left)
        others = sorted({*range(9)} - {*write.tolist()})
        assert torch.equal(memory[others], before[others])


def check_gated_convolution(lens: tuple[int, ...], channels: int, dtype: torch.dtype, device: str) -> None:
    generator, rows = torch.Generator().manual_seed(3), sum(lens)
    y, taps = (torch.randn(*shape, generator=generator).to(device) for shape in ((rows, 3 * channels), (3, channels)))
    first, last, x = y.to(dtype).chunk(3, 1)
    memory = torch.randn(9, 2, channels, generator=generator).to(device, dtype)
    slots = torch.arange(4, 4 + len(lens), dtype=torch.int32, device=device)
    starts = torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32, device=device)
    expected, left = causal_convolution(
        first * x, taps, None, memory[slots.long()], RaggedSequences.of(lens, torch.device(device))
    )
    found = convolve(x, taps, None, None, memory, slots, slots, starts, max(lens), gates=(first, last))
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1.6e-2, "atol": 1e-2}
    torch.testing.assert_close(found, last * expected.to(dtype), **near)
    torch.testing.assert_close(memory[slots.long()], left, **near)


def check_convolved(
    outputs: int, inputs: int, first: int, channels: int, width: int, dtype: torch.dtype, device: str, **options: Any
) -> None:
    """One row through its product and convolution: twice in place, against the two one after the other."""
    generator = torch.Generator().manual_seed(2)
    x, norm, weight, bias = (
        torch.randn(*shape, generator=generator).to(device, dtype)
        for shape in ((1, inputs), (inputs,), (outputs, inputs), (outputs,))
    )
    taps, taps_bias = (
        torch.randn(*shape, generator=generator).to(device) for shape in ((width, channels), (channels,))
    )
    memory = torch.randn(4, width - 1, channels, generator=generator).to(device, dtype)
    slots, law = torch.tensor([2], dtype=torch.int32, device=device), memory.clone()
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-1}
    for own, normed in ((taps_bias, norm), (None, None)):
        y = x.float() if normed is None else torch.nn.functional.rms_norm(x.float(), (inputs,), norm.float(), 1e-5)
        y = (y @ weight.float().T + bias.float()).to(dtype)
        wanted, left = causal_convolution(
            y[:, first : first + channels], taps, own, law[2:3], RaggedSequences.of((1,), torch.device(device))
        )
        law[2:3] = left
        mixed, rest = gemv_conv(
            x, normed, 1e-5, weight, bias, ConvWeights(taps, own, "silu", first), memory, slots, slots
        )
        torch.testing.assert_close(mixed, ACTIVATIONS["silu"](wanted), **near)
        torch.testing.assert_close(rest, torch.cat([y[:, :first], y[:, first + channels :]], 1), **near)
        torch.testing.assert_close(memory, law, **near)


def check_gates(rows: int, dtype: torch.dtype, device: str) -> None:
    wide = torch.randn(rows, 200, device=device).to(dtype)
    x, gate = torch.randn(rows, 96, device=device).to(dtype), wide[:, 50:146]
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 8e-3}
    torch.testing.assert_close(times_sigmoid(x, gate), (x.float() * gate.float().sigmoid()).to(dtype), **near)
    spans = torch.randn(rows, 4, 24, device=device)
    for weight, eps, first in (
        (torch.randn(24), 1e-5, False),
        (torch.randn(96), 1e-5, True),
        (None, 1e-5, True),
        (None, None, False),
    ):
        own = None if weight is None else weight.to(device)
        torch.testing.assert_close(
            gated(spans, gate, own, eps, "silu", first),
            reference_recurrence.gated(spans, gate, own, eps, "silu", first),
            **near,
        )
