"""A rank of test_all_reduce_cuda.py: RANK RANKS MEETING. Everything that ranks push, one by one and as
CUDA graphs that are replayed, while one rank is late.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from sgl.runtime.kernels.comm.all_reduce import add_norm_of_posted, all_reduce_sum, sum_add_norm, sum_of_posted
from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_all_reduce import post_linear
from sgl.runtime.parallel import cuda_collectives

WIDTH, INNER, COLUMNS, LATE = 4096, 3584, 128_256, 2_000_000  # LATE: cycles


class Rank:
    def __init__(self, rank: int, ranks: int, meeting: Path) -> None:
        cuda_collectives.set_environment()
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.rank, self.made = rank, torch.Generator(self.device).manual_seed(rank)
        self.ranks = cuda_collectives.CudaCollectives(rank, ranks, meeting, self.device, WIDTH, torch.bfloat16)
        assert self.ranks._rooms is not None, self.ranks.why
        self.rooms = self.ranks._rooms

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.made, device=self.device).to(torch.bfloat16)

    def late(self, rank: int) -> None:
        if rank == self.rank:
            torch.cuda._sleep(LATE)

    def posted(self, scaled: bool) -> Callable[[], None]:
        """The bits of products whose parts are summed by themselves, and the norm but for rounding."""
        y, weight, state, norm = (
            self.random(1, INNER),
            self.random(WIDTH, INNER),
            self.random(1, WIDTH),
            self.random(WIDTH),
        )
        scale = torch.rand(WIDTH, generator=self.made, device=self.device) if scaled else None
        dist.broadcast(state, 0)
        dist.broadcast(norm, 0)

        def work() -> None:
            found, x = torch.empty_like(state), state.clone()
            post_linear(y, weight, self.rooms, weight_scale=scale)
            sum_of_posted(found, self.rooms)
            part = gemv.linear(y, weight, weight_scale=scale)
            total = all_reduce_sum(part, self.rooms)
            self.equal(found, total)
            post_linear(y, weight, self.rooms, weight_scale=scale)
            normed = add_norm_of_posted(x, torch.empty_like(x), norm, 1e-5, self.rooms)
            other = state.clone()
            expected = sum_add_norm(other, part, norm, 1e-5, self.rooms)
            self.equal(x, other)
            self.near(normed, expected)

        return work

    def logits(self, rows: int, columns: int) -> Callable[[], None]:
        each = -(-columns // self.ranks.ranks)
        x = self.random(rows, max(0, min(each, columns - self.rank * each)))
        inwards, self.ranks._inwards = self.ranks._inwards, None
        gathered = self.ranks.gathered(x, columns)
        expected = x if self.rank else gathered
        self.ranks._inwards = inwards
        assert inwards is not None and inwards.holds(rows, each, 2)
        return lambda: self.equal(self.ranks.gathered(x, columns), expected)

    def told(self, count: int) -> Callable[[], None]:
        tokens = torch.randint(
            -(2**31), 2**31 - 1, (count,), generator=self.made, device=self.device, dtype=torch.int32
        )
        expected = tokens.clone()
        dist.broadcast(expected, 0)

        def work() -> None:
            heard = tokens.clone()
            self.ranks.broadcast(heard)
            self.equal(heard, expected)

        return work

    def equal(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        self.wrong += (found != expected).sum()

    def near(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        self.wrong += ((found.float() - expected.float()).abs() > 0.02 * expected.float().abs() + 1e-3).sum()

    def check(self, name: str, work: Callable[[], None]) -> None:
        """Some in a row, of which who does not wait is ahead; then as a graph."""
        self.wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for late in range(self.ranks.ranks):
                self.late(late)
                for _ in range(7):
                    work()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for _ in range(5):
                    work()
            for number in range(20):
                self.late(number % 3)
                graph.replay()
            torch.cuda.synchronize()
        assert int(self.wrong) == 0, f"{name}: {int(self.wrong)} numbers are wrong"


def main() -> None:
    rank = Rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    rank.check("posted", rank.posted(False))
    rank.check("posted, scaled", rank.posted(True))
    for rows, columns in ((1, COLUMNS), (3, COLUMNS), (5, 1006)):
        rank.check(f"logits of {rows} rows", rank.logits(rows, columns))
    for count in (1, 257, 4097):
        rank.check(f"{count} tokens", rank.told(count))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
