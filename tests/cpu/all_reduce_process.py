"""A rank of test_all_reduce.py: sums, letters or ways, RANK RANKS FILE. The file, which
all of them map, stands for the cards' memory.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton.language as tl

from sgl.runtime.kernels.comm import all_reduce, all_reduce_kernels, gather_broadcast, gather_broadcast_kernels
from sgl.runtime.kernels.comm.all_reduce import (
    AllReduceBuffers,
    AllReduceSizes,
    add_norm_of_posted,
    all_reduce_sum,
    sum_add_norm,
    sum_of_posted,
)
from sgl.runtime.kernels.comm.gather_broadcast import GatherBuffers, broadcast_from_rank0, gather
from sgl.runtime.kernels.comm.gpu_p2p import P2PChannel
from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_all_reduce import post_linear

WIDTH, FIRST, PROGRAMS = 48, 2**31 - 5, 2  # turns begin so that they pass the largest number
all_reduce_kernels.PROGRAMS, all_reduce.MOST = tl.constexpr(PROGRAMS), PROGRAMS  # so that each has several rows
gather_broadcast_kernels.PROGRAMS, gather_broadcast.MOST, gather_broadcast.BLOCK = (
    tl.constexpr(PROGRAMS),
    PROGRAMS,
    8,
)  # and several blocks


def mapped(path: str, size: int) -> torch.Tensor:
    """Memory that lives as long as somebody has it."""
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)


def meet(rank: int, ranks: int, path: str) -> None:
    open(f"{path}.{rank}", "w").close()
    while not all(os.path.exists(f"{path}.{other}") for other in range(ranks)):
        time.sleep(0.01)


def rooms_of(rank: int, ranks: int, path: str, dtype: torch.dtype) -> tuple[AllReduceBuffers, torch.Tensor]:
    """Room for 2 rows that go to all, and for 7 at once."""
    sizes = AllReduceSizes(ranks, WIDTH, dtype.itemsize, 2, 7)
    each = -(-sizes.bytes // 16) * 16
    memory = mapped(path, each * ranks)
    memory[each * rank : each * (rank + 1)].view(torch.int32).fill_(FIRST)
    places = memory.data_ptr() + each * torch.arange(ranks)
    rooms = AllReduceBuffers(rank, sizes, places, torch.full((PROGRAMS,), FIRST, dtype=torch.int32))
    meet(rank, ranks, path)
    return rooms, memory


def letters(rank: int, ranks: int, path: str) -> None:
    """Rank 0 posts steps of several parts, rank 1 reads them; the first one is more
    than two steps ahead only if it does not wait.
    """
    numbers, most = 5000, 3
    each = P2PChannel.bytes_for(numbers, most)
    memory = mapped(path, 2 * each)
    own, address = memory[each * rank : each * (rank + 1)].view(torch.int32), memory.data_ptr() + each * torch.arange(2)
    box = P2PChannel(own, address[rank : rank + 1], address[1 - rank : 2 - rank], numbers, most)
    meet(rank, ranks, path)
    for step in range(9):
        box.begin()
        for part in range(1 + step % most):
            x = torch.randn(
                1 + 7 * step % 5, (200, 33, 320)[part], generator=torch.Generator().manual_seed(10 * step + part)
            )
            if rank == 0:
                box.post(x)
            else:
                found = torch.empty_like(x)
                box.take(found)
                assert torch.equal(found, x)
        if rank == 1:
            time.sleep(0.1 if step % 4 == 0 else 0)
            box.read()
    if rank == 0:
        try:
            box.begin()
            box.post(torch.zeros(numbers + 1))
        except RuntimeError:
            return
        raise AssertionError


def sums(rank: int, ranks: int, path: str) -> None:
    dtype = (torch.float32, torch.float16)[ranks % 2]
    rooms, _memory = rooms_of(rank, ranks, path, dtype)
    for call in range(12):
        rows, size = 1 + call * 3 % 11, (48, 40, 34)[call % 3]
        drawn = [torch.Generator().manual_seed(100 * call + other) for other in range(ranks)]
        summed(rank, [torch.randn(rows, size, generator=each).to(dtype) for each in drawn], call, rooms)
        if call % 4 < 2:  # one row that products post, between sums of one and more
            posted(rank, drawn, call, rooms, dtype)


def summed(rank: int, parts: list[torch.Tensor], call: int, rooms: AllReduceBuffers) -> None:
    (rows, size), dtype, total = parts[0].shape, parts[0].dtype, total_of(parts)
    if call // 2 % 2:
        x = torch.randn(rows, size, generator=torch.Generator().manual_seed(call)).to(dtype)
        y, weight = x + total, torch.arange(size) / 7
        normed = sum_add_norm(x, parts[rank], weight, 1e-5, rooms)
        assert torch.equal(x, y)
        torch.testing.assert_close(normed, normed_of(y, weight))
    else:
        assert torch.equal(all_reduce_sum(parts[rank], rooms), total)


def posted(rank: int, drawn: list[torch.Generator], call: int, rooms: AllReduceBuffers, dtype: torch.dtype) -> None:
    outputs, inputs = (48, 30)[call % 2], (64, 40)[call // 2 % 2]
    inputs_of, weights = (
        [torch.randn(count, inputs, generator=each).to(dtype) for each in drawn] for count in (1, outputs)
    )
    biases = [torch.randn(outputs, generator=each).to(dtype) if call % 3 else None for each in drawn]
    scales = [torch.rand(outputs, generator=each) if call % 2 else None for each in drawn]
    launch = gemv.GemvLaunch((2, 8)[call // 4 % 2], 16, 1)
    told = [*zip(inputs_of, weights, biases, (launch,) * len(drawn), scales, strict=True)]
    total, out = total_of([gemv.linear(*each) for each in told]), torch.empty(1, outputs, dtype=dtype)
    post_linear(*told[rank][:2], rooms, *told[rank][2:])
    if call % 4 == 0:
        assert sum_of_posted(out, rooms) is out and torch.equal(out, total)
        return
    x = torch.randn(1, outputs, generator=drawn[0]).to(dtype)
    y, weight = x + total, torch.arange(outputs) / 7
    assert add_norm_of_posted(x, out, weight, 1e-5, rooms) is out and torch.equal(x, y)
    torch.testing.assert_close(out, normed_of(y, weight))


def total_of(parts: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(parts[0].shape)
    for part in parts:
        total += part.float()
    return total.to(parts[0].dtype)


def normed_of(y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = y.float()
    return (wide * torch.rsqrt((wide * wide).mean(1, keepdim=True) + 1e-5) * weight).to(y.dtype)


def channels_of(rank: int, ranks: int, path: str, number: int) -> tuple[GatherBuffers, torch.Tensor]:
    """The number-th of two."""
    most, file = gather_broadcast.messages(4 * 160), f"{path}.way{number}"
    each = -(-GatherBuffers.bytes_for(ranks, most) // 16) * 16
    with open(file, "a+b") as made:
        made.truncate(each * ranks)
    memory = mapped(file, each * ranks)
    memory[each * rank : each * (rank + 1)].view(torch.int32).fill_(FIRST)
    places = memory.data_ptr() + each * torch.arange(ranks)
    return GatherBuffers(rank, ranks, most, places, torch.full((ranks, PROGRAMS), FIRST, dtype=torch.int32)), memory


def ways(rank: int, ranks: int, path: str) -> None:
    """What all have goes to rank 0 and what rank 0 has to all, in any order.

    Who only sends is ahead of a slow one by as much as it may.
    """
    (inwards, _memory), (outwards, _other) = (channels_of(rank, ranks, path, number) for number in range(2))
    dtype, drawn = (torch.float32, torch.bfloat16)[ranks % 2], torch.Generator().manual_seed(5)
    meet(rank, ranks, path)
    for call in range(20):
        rows, columns = 1 + call % 3, (49, 32, 40, 7)[call % 4]
        whole, each = torch.randn(rows, columns, generator=drawn).to(dtype), -(-columns // ranks)
        tokens = torch.randint(-(2**31), 2**31 - 1, (1 + 11 * call % 40,), dtype=torch.int32, generator=drawn)
        assert inwards.holds(rows, each, dtype.itemsize) and outwards.holds(1, len(tokens), 4)
        streak = call // 5 % 3  # of one way, of the other, or of both in turns
        if call % 5 == 0 and (rank == 0, rank != 0, rank == 1)[streak]:
            time.sleep(0.5)
        if streak != 1:
            own = torch.zeros(rows, 3 * each, dtype=dtype)[:, : max(0, min(each, columns - rank * each))]
            found = gather(own.copy_(whole[:, rank * each : rank * each + each]), columns, inwards)
            assert torch.equal(found, whole if rank == 0 else own)
        if streak != 0:
            heard = tokens.clone() if rank == 0 else torch.zeros_like(tokens)
            broadcast_from_rank0(heard, outwards)
            assert torch.equal(heard, tokens)
    assert not inwards.holds(9, 40, dtype.itemsize) and not inwards.holds(1, 2, 8)
    assert inwards.counted.ne(FIRST).any()


if __name__ == "__main__":
    {"sums": sums, "letters": letters, "ways": ways}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
