"""Ranks as threads of one process, which add up by meeting at a barrier: the slow, obvious twin of `Ranks`; and what engines of ranks are walked by."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from rig import Rig, Row

from sgl.grammars import compile_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.parallel.ranks import joined
from sgl.runtime.parallel.share import load_share
from sgl.runtime.parallel.split import Split
from sgl.runtime.sequences.ops import Generation

CPU = torch.device("cpu")


class ThreadRanks:
    """One rank's view of what all have laid on the table."""

    def __init__(self, rank: int, table: list, meet: threading.Barrier) -> None:
        self.rank, self.ranks, self._table, self._meet = rank, len(table), table, meet

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(sum(self._all(x)))

    def gathered(self, x: torch.Tensor, columns: int) -> torch.Tensor:
        return torch.cat(self._all(x), 1)[:, :columns]

    def _all(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._table[self.rank] = x.clone()
        self._meet.wait(30)
        found = list(self._table)
        self._meet.wait(30)
        return found


def steps_of_ranks(path: Path, ranks: int, work: list[list[tuple[Row, int]]], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Rank 0's logits of each step's every row, computed by so many ranks."""
    table, meet = [None] * ranks, threading.Barrier(ranks)

    def compute(rank: int) -> list[torch.Tensor]:
        model = joined(load_share(path, dtype, CPU, Split(rank, ranks)), ThreadRanks(rank, table, meet))
        rig, rows = Rig(path, dtype, model=model), {}
        with torch.inference_mode():
            return [rig.step([(rows.setdefault(id(row), Row(row.tokens)), count) for row, count in step], every_row=True) for step in work]

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(compute, range(ranks)))
    return found[0]


def walk(engine: Engine, seed: int) -> list:
    """What sequences write and score that extend, fork, draw, obey a grammar, stop and close, at random but for the engine."""
    rng, live, futures = random.Random(seed), [engine.open()], []
    live[0].extend([rng.randrange(4, 250) for _ in range(rng.randrange(1, 60))])
    grammar = compile_regex("[a-f]{3,9}", engine.vocabulary)
    for _ in range(24):
        sequence, kind = rng.choice(live), rng.randrange(6)
        if kind == 0:
            sequence.extend([rng.randrange(4, 250) for _ in range(rng.randrange(1, 30))])
        elif kind == 1 and len(live) < 7:
            live += sequence.fork(rng.randrange(1, 3))
        elif kind == 2 and len(live) > 1:
            live.remove(sequence)
            sequence.close()
        elif kind == 3:
            futures.append(sequence.score([[rng.randrange(4, 250) for _ in range(3)] for _ in range(2)]))
        else:
            params = SamplingParams(max_tokens=rng.randrange(1, 12), temperature=rng.choice([0, 0, 0.9]), seed=rng.randrange(99), ignore_eos=True)
            futures.append(sequence.generate(params, grammar if kind == 4 else None))
    found = [future.result(60) for future in futures]
    for sequence in live:
        sequence.close()
    return [result.token_ids if isinstance(result, Generation) else [pair for scores in result for pair in scores] for result in found]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
