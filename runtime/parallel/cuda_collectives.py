"""Ranks on GPUs of one host: NCCL, and kernels that write to the other GPUs' memory. Multicast is never used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..kernels.comm.all_reduce import MOST, AllReduceBuffers, AllReduceSizes, all_reduce_sum, sum_add_norm, supports
from ..kernels.comm.gather_broadcast import MOST as CHANNELS
from ..kernels.comm.gather_broadcast import GatherBuffers, broadcast_from_rank0, gather, messages
from ..kernels.launch.compile_ahead import is_compiling
from ..kernels.rms_norm import add_rms_norm
from .all_reduce_algorithms import MOST_BROADCAST, ORDERED, Algorithm, algorithm, describe_algorithms, limits
from .all_reduce_algorithms import gathered as most_gathered
from .pp.pipeline_stages import RankPlace
from .rank_collectives import LIMIT

ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_SOCKET_IFNAME": "lo",  # nothing leaves this machine
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # that a rank hangs is noticed by those who listen to it (see team.py)
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # what stages send has the group's stream to itself
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
}


def set_environment() -> None:
    """Of a process that is a rank on a GPU, before torch's communication is first used."""
    os.environ.update(ENVIRONMENT)


class CudaCollectives:
    """See `Ranks`, whose methods it has.

    One stream of each rank runs what its methods queue, which may be captured as CUDA graphs.

    width: numbers of the rows that are summed.  deterministic: one way to add up, whatever the number of rows.
    """

    group: dist.ProcessGroup | None = None
    stays_on_device = True  # others have the addresses

    def __init__(
        self,
        rank: int,
        ranks: int,
        meeting: Path,
        device: torch.device,
        width: int,
        dtype: torch.dtype,
        deterministic: bool = False,
        stages: int = 1,
    ) -> None:
        """rank, ranks: of all stages. Waits until all ranks are here."""
        self.place, self.device = RankPlace.of(rank, ranks, stages), device
        self.rank, self.ranks = self.place.split[:2]
        self._deterministic, self._measuring = deterministic, False
        dist.init_process_group(
            "nccl", init_method=meeting.as_uri(), rank=rank, world_size=ranks, timeout=LIMIT, device_id=device
        )
        firsts = range(0, ranks, self.ranks) if 1 < self.ranks < ranks else ()
        groups = [dist.new_group(range(first, first + self.ranks)) for first in firsts]
        self.group = groups[self.place.stage] if groups else None
        far = _unreachable(device, ranks)
        self.why = far or (None if supports(width, dtype.itemsize) else f"rows of {width} numbers are no whole words")
        self._memory: list[Any] = []
        with torch.cuda.device(device):
            self._rooms = None if self.why or self.ranks == 1 else self._make_rooms(width, dtype)
            self._inwards, self._outwards = (
                None if far or self.ranks == 1 else self._channels(size)
                for size in (most_gathered(self.ranks), MOST_BROADCAST)
            )
            dist.barrier(device_ids=[device.index])

    def share(self, size: int) -> tuple[Tensor, Tensor]:
        """So many bytes, zeros, that all ranks write to, and int64 [ranks of all stages], the addresses of everybody's.

        All call it together.
        """
        from torch.distributed import _symmetric_memory as symmetric

        memory = symmetric.empty(size, dtype=torch.uint8, device=self.device)
        memory.zero_()
        world = dist.group.WORLD
        assert world is not None
        handle = symmetric.rendezvous(memory, world.group_name)
        torch.cuda.synchronize(self.device)
        dist.barrier(device_ids=[self.device.index])
        self._memory += [memory, handle]
        return memory, torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=self.device)

    def _make_rooms(self, width: int, dtype: torch.dtype) -> AllReduceBuffers:
        width = -(-width // 16) * 16
        to_all, pushed = limits(self.ranks)
        few, rows = (
            max(1, size // (width * dtype.itemsize))
            for size in (to_all, max(ORDERED, pushed) if self._deterministic else pushed)
        )
        sizes, first = AllReduceSizes(self.ranks, width, dtype.itemsize, few, rows), self.place.stage * self.ranks
        places = self.share(sizes.bytes)[1][first : first + self.ranks].contiguous()
        return AllReduceBuffers(self.rank, sizes, places, torch.zeros(MOST, dtype=torch.int32, device=self.device))

    def _channels(self, size: int) -> GatherBuffers:
        """size: bytes of one rank at most."""
        most, first = messages(size), self.place.stage * self.ranks
        places = self.share(GatherBuffers.bytes_for(self.ranks, most))[1][first : first + self.ranks].contiguous()
        return GatherBuffers(
            self.rank,
            self.ranks,
            most,
            places,
            torch.zeros(self.ranks, CHANNELS, dtype=torch.int32, device=self.device),
        )

    def algorithm(self, x: Tensor) -> Algorithm:
        return algorithm(self.ranks, x.numel() * x.itemsize, self._rooms is not None, self._deterministic)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Within, this rank computes what no other computes with it: sums are its own parts."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def summed(self, x: Tensor) -> Tensor:
        """The sum of the ranks' x [T, size], on all of them the same bits; x may be written over."""
        if self._measuring:
            return x
        if self._rooms is not None and self.algorithm(x) == "push":
            return all_reduce_sum(x, self._rooms)
        x = x.contiguous()
        if not is_compiling():
            dist.all_reduce(x, group=self.group)
        return x

    def joined(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x += the sum of the ranks' parts, in place; then as `kernels.norm.rms_norm` of x."""
        if self._rooms is not None and not self._measuring and self.algorithm(part) == "push":
            return sum_add_norm(x, part, weight, eps, self._rooms)
        return add_rms_norm(x, self.summed(part), weight, eps)

    def rooms(self, out: Tensor) -> AllReduceBuffers | None:
        """Where products of a batch of one send their parts of the sum `out` themselves; None: they return them."""
        posts = (
            self._rooms is not None and not self._measuring and self.algorithm(out) == "push" and self._rooms.few(out)
        )
        return self._rooms if posts else None

    def gathered(self, x: Tensor, columns: int) -> Tensor:
        """[R, columns] on rank 0, of the ranks' columns next to each other; elsewhere x."""
        each = -(-columns // self.ranks)
        if not self._measuring and self._inwards is not None and self._inwards.holds(len(x), each, x.itemsize):
            return gather(x, columns, self._inwards)
        if x.shape[1] < each:
            x = torch.nn.functional.pad(x, (0, each - x.shape[1]))
        if self._measuring:
            return x.repeat(1, self.ranks)[:, :columns].contiguous()
        parts = x.new_empty(self.ranks, *x.shape) if self.rank == 0 else None
        if not is_compiling() and len(x):
            dist.gather(x.contiguous(), None if parts is None else list(parts.unbind(0)), group=self.group, group_dst=0)
        return x if parts is None else parts.transpose(0, 1).reshape(len(x), -1)[:, :columns].contiguous()

    def broadcast(self, x: Tensor) -> None:
        """x [n] becomes rank 0's x."""
        if self.ranks == 1 or self._measuring:
            return
        if self._outwards is not None and self._outwards.holds(1, len(x), x.itemsize):
            broadcast_from_rank0(x, self._outwards)
        elif not is_compiling():
            dist.broadcast(x, group_src=0, group=self.group)

    def describe_collective(self) -> str:
        """How they add up, for people."""
        if self._rooms is None:
            return f"NCCL: {self.why}" if self.why else "none: each rank has whole layers"
        return "pushed" if self._deterministic else describe_algorithms(self.ranks)


def _unreachable(device: torch.device, ranks: int) -> str | None:
    """Why the GPUs do not reach each other's memory; None: they do."""
    first = device.index - dist.get_rank()
    others = [number for number in range(first, first + ranks) if number != device.index]
    far = [number for number in others if not torch.cuda.can_device_access_peer(device.index, number)]
    return f"GPU {device.index} does not reach the memory of GPU {far[0]}" if far else None
