"""A rank of test_ranks_cuda.py whose sums, all by NCCL, are taken in pieces beside its products: RANK MEETING MODEL TYPE."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from layer_checks import FusedRig
from rig import Rig, Row

from sgl.runtime.parallel import algorithms
from sgl.runtime.parallel.algorithms import Beside, Limits
from sgl.runtime.parallel.cuda_ranks import CudaRanks, set_environment
from sgl.runtime.parallel.ranks import joined
from sgl.runtime.parallel.share import load_share
from sgl.runtime.parallel.split import Split

LENGTHS, RUNS = (1777, 300, 1), 4
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.06}  # of a row of logits


def rows() -> list[tuple[Row, int]]:
    return [(Row([3 + (7 * place + 11 * row) % 300 for place in range(length)]), length) for row, length in enumerate(LENGTHS)]


class Counted(CudaRanks):
    pieces = 0

    def begun(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        self.pieces += 1
        return super().begun(x)


class Rank:
    def __init__(self, number: int, meeting: Path, path: Path, kind: torch.dtype) -> None:
        self.number, self.path, self.kind, self.device = number, path, kind, torch.device("cuda", number)
        torch.cuda.set_device(self.device)
        algorithms.LIMITS = {2: Limits(0, 0)}  # NCCL adds up everything
        share = load_share(path, kind, self.device, Split(number, 2))
        self.ranks: Any = Counted(number, 2, meeting, self.device, share.config.hidden_size, kind)
        self.rig = FusedRig(path, kind, slots=4096, device=str(self.device), attention="torch_native", model=joined(share, self.ranks))

    def logits(self, pieces: int, tile: int) -> torch.Tensor:
        """Of every token, cut in at most so many pieces."""
        algorithms.BESIDE, algorithms.TILE, self.ranks.pieces = {2: Beside(1, 1, pieces)}, tile, 0
        work = rows()
        found = self.rig.step(work, every_row=True).float()
        for row, _ in work:
            self.rig.release(row)
        assert self.ranks.pieces == (0 if pieces == 1 else 2 * pieces * len(self.rig.model.layers)), self.ranks.pieces
        return found

    def same(self, found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        if self.number == 0:
            apart = ((found - expected).norm(dim=1) / expected.norm(dim=1)).max()
            assert apart < TOLERANCE[self.kind], f"{what}: {apart}"

    def check(self) -> None:
        whole = self.logits(1, 128).clone()
        if self.number == 0:
            law = Rig(self.path, slots=4096, attention="torch_native").step(rows(), every_row=True)
            self.same(whole, law.to(self.device), "whole")
        for pieces, tile in ((2, 128), (3, 128), (4, 128), (3, 1), (4, 7)):
            for run in range(RUNS):
                self.same(self.logits(pieces, tile), whole, f"{pieces} pieces of {tile}, run {run}")

    def check_what_is_not_cut(self) -> None:
        algorithms.BESIDE, algorithms.TILE = {2: Beside(1, 1, 2)}, 1
        x, graph = torch.zeros(64, 256, dtype=self.kind, device=self.device), torch.cuda.CUDAGraph()
        assert len(self.ranks.cut(x)) == 2
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            x.add_(1)
            captured = self.ranks.cut(x)
        with self.ranks.measuring():
            measured = self.ranks.cut(x)
        self.ranks._deterministic = True
        assert captured == measured == self.ranks.cut(x) == ()


def main() -> None:
    set_environment()
    number, meeting, path, kind = sys.argv[1:]
    rank = Rank(int(number), Path(meeting), Path(path), getattr(torch, kind))
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(rank.device)):
        rank.check()
    rank.check_what_is_not_cut()
    torch.cuda.synchronize()
    dist.barrier(device_ids=[rank.number])
    os._exit(0)


if __name__ == "__main__":
    main()
