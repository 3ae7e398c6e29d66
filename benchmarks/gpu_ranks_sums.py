"""One rank of the all-reduce table of gpu_ranks.py: each way to add up, alone and in CUDA graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from sgl.runtime.kernels.comm.all_reduce import AllReduceBuffers, add_norm_of_posted, all_reduce_sum, sum_add_norm
from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_all_reduce import post_linear
from sgl.runtime.kernels.rms_norm import add_rms_norm
from sgl.runtime.parallel import cuda_collectives
from sgl.runtime.parallel.all_reduce_algorithms import MB, AllReduceLimits

WIDTH, LARGEST = 4096, 64 * MB
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)  # of WIDTH numbers in bfloat16: 8 KB to 64 MB
PUSHED, MESSAGES, ONE_SHOT = 32 * MB, MB, 8 * MB

Work = Callable[[], object]


class Owners(AllReduceBuffers):
    def few(self, rows: torch.Tensor) -> bool:
        return False


class Table:
    """Measures on all ranks in lockstep; rank 0 prints."""

    def __init__(self, rank: int, ranks: int, meeting: Path) -> None:
        cuda_collectives.set_environment()
        cuda_collectives.limits = lambda count: AllReduceLimits(MESSAGES, PUSHED)
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.rank = rank
        self.ranks = cuda_collectives.CudaCollectives(rank, ranks, meeting, self.device, WIDTH, torch.bfloat16)
        self.stream = torch.cuda.Stream(self.device)

    def run(self) -> None:
        with torch.cuda.stream(self.stream):
            for rows in ROWS:
                for name, work, right in self.ways(rows):
                    self.row(name, rows, work, right)
            self.products()
            self.others()

    def ways(self, rows: int) -> Iterator[tuple[str, Work, bool]]:
        size = rows * WIDTH * 2
        x = torch.full((rows, WIDTH), float(self.rank + 1), dtype=torch.bfloat16, device=self.device)
        total = self.ranks.ranks * (self.ranks.ranks + 1) / 2
        y = x.clone()
        dist.all_reduce(y)
        right = bool((y == total).all())
        y.zero_()
        yield "nccl", lambda: dist.all_reduce(y), right
        weight = torch.ones(WIDTH, dtype=torch.bfloat16, device=self.device)
        state = torch.zeros_like(x)
        yield "nccl + add and norm", lambda: (dist.all_reduce(y), add_rms_norm(state, y, weight, 1e-5)), right
        for words, rooms in self.rooms(size):
            yield (
                f"push, {words}",
                lambda rooms=rooms: all_reduce_sum(x, rooms),
                bool((all_reduce_sum(x, rooms) == total).all()),
            )
            sum_add_norm(state, x, weight, 1e-5, rooms)
            yield (
                f"push, {words}, with add and norm",
                lambda rooms=rooms: sum_add_norm(state, x, weight, 1e-5, rooms),
                bool((state == total).all()),
            )
            state.zero_()
        yield from self.symmetric(x, total, size)

    def rooms(self, size: int) -> Iterator[tuple[str, AllReduceBuffers]]:
        """The same memory and turns, with and without messages; all ranks take the same one."""
        rooms = self.ranks._rooms
        if rooms is not None and size <= (PUSHED if self.ranks.ranks == 2 else MESSAGES):
            yield "to all", rooms
        if rooms is not None and size <= PUSHED and self.ranks.ranks > 2:
            yield "by owners", Owners(rooms.rank, rooms.sizes, rooms.places, rooms.counted)

    def symmetric(self, x: torch.Tensor, total: float, size: int) -> Iterator[tuple[str, Work, bool]]:
        from torch.distributed import _symmetric_memory as symm

        group = dist.group.WORLD.group_name
        room = symm.empty(x.shape, dtype=x.dtype, device=self.device)
        symm.rendezvous(room, group)
        ops = torch.ops.symm_mem
        if size <= ONE_SHOT:
            yield (
                "one_shot, copied in",
                lambda: ops.one_shot_all_reduce_copy(room, x, "sum", group),
                bool((ops.one_shot_all_reduce_copy(room, x, "sum", group) == total).all()),
            )
        out = torch.empty_like(x)

        def two_shot() -> torch.Tensor:
            room.copy_(x)
            return out.copy_(ops.two_shot_all_reduce_(room, "sum", group))

        yield "two_shot, copied in and out", two_shot, bool((two_shot() == total).all())
        room.zero_()
        yield "two_shot", lambda: ops.two_shot_all_reduce_(room, "sum", group), True

    def row(self, name: str, rows: int, work: Work, right: bool) -> None:
        runs = 50 if rows <= 256 else 10
        try:
            found = f"{self.timed(work, runs):9.1f}{self.graphed(work, 20 if rows <= 1024 else 5):9.1f}"
        except RuntimeError as error:
            found = f"  {str(error)[:60]}"
        self.say(f"{rows * WIDTH * 2 // 1024:6d} KB  {name:38}{found}  {'right' if right else 'WRONG'}")

    def products(self) -> None:
        """Of one row, followed by sum, addition and norm: fused into the sum, and sent separately."""
        rooms = self.ranks._rooms
        for inputs in (4096 // self.ranks.ranks, 14_336 // self.ranks.ranks) if rooms is not None else ():
            y, weight = (torch.randn(count, inputs, device=self.device).to(torch.bfloat16) for count in (1, WIDTH))
            state, norm = (torch.zeros(count, WIDTH, dtype=torch.bfloat16, device=self.device) for count in (1, 1))

            def given(y=y, weight=weight, state=state, norm=norm) -> None:
                sum_add_norm(state, gemv.linear(y, weight), norm[0], 1e-5, rooms)

            def sent(y=y, weight=weight, state=state, norm=norm) -> None:
                post_linear(y, weight, rooms)
                add_norm_of_posted(state, torch.empty_like(state), norm[0], 1e-5, rooms)

            for name, work in (("given", given), ("sent", sent)):
                self.say(
                    f"product of {inputs} inputs, {name:20}{self.timed(work, 20):9.1f}{self.graphed(work, 20):9.1f}"
                )

    def others(self) -> None:
        """What a step needs besides: messages where they have the room, and NCCL."""
        self._others("posted")
        self.ranks._inwards = self.ranks._outwards = None
        self._others("nccl")

    def _others(self, way: str) -> None:
        last = torch.zeros(257, dtype=torch.int32, device=self.device)
        columns = 128_256
        for name, work in [("broadcast, 257 tokens", lambda: self.ranks.broadcast(last))] + [
            (f"logits of {rows} rows", self._gather(rows, columns)) for rows in (1, 4, 8, 64, 256)
        ]:
            self.say(f"{way:8}{name:30}{self.timed(work, 20):9.1f}{self.graphed(work, 10):9.1f}")

    def _gather(self, rows: int, columns: int) -> Work:
        part = torch.zeros(rows, columns // self.ranks.ranks, dtype=torch.bfloat16, device=self.device)
        return lambda: self.ranks.gathered(part, columns)

    def timed(self, work: Work, runs: int) -> float:
        """Median microseconds of one, of the slowest rank."""
        for _ in range(3):
            work()
        found = []
        for _ in range(5):
            dist.barrier()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(runs):
                work()
            end.record()
            end.synchronize()
            found.append(1e3 * begin.elapsed_time(end) / runs)
        slowest = torch.tensor([sorted(found)[2]], device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)

    def graphed(self, work: Work, runs: int) -> float:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for _ in range(runs):
                work()
        return self.timed(graph.replay, 1) / runs

    def say(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)


def main() -> None:
    rank, ranks, meeting = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    table = Table(rank, ranks, meeting)
    table.say(f"{ranks} ranks, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}; microseconds alone and in a graph")
    table.run()
    torch.cuda.synchronize()
    dist.barrier()
    sys.stdout.flush()
    import os

    os._exit(0)


if __name__ == "__main__":
    main()
