"""Ranks as threads of one process, which add up by meeting at a barrier: the slow, obvious twin of
`Ranks`; and what engines of ranks are walked by.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loaded_models import load_share
from rig import Rig, Row

from sgl.grammars import compile_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.adapters.adapted_model import AdaptedModel
from sgl.runtime.adapters.adapter import Adapter
from sgl.runtime.adapters.adapter_sites import sites_of
from sgl.runtime.adapters.adapter_slots import AdapterSlots
from sgl.runtime.adapters.choose_adapter_kernels import adapted_sites, adapter_products_for
from sgl.runtime.adapters.files.adapter_base_weights import LocalBaseWeights
from sgl.runtime.adapters.files.adapter_reader import AdapterReader
from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit
from sgl.runtime.parallel.rank_collectives import joined
from sgl.runtime.parallel.tp.sharded_adapters import RanksBaseWeights, ShardedAdapterPacker, parts_of
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit
from sgl.runtime.sequences.generation import Generation

CPU = torch.device("cpu")


class ThreadRanks:
    """One rank's view of what all have laid on the table."""

    def __init__(self, rank: int, table: list, meet: threading.Barrier) -> None:
        self.rank, self.ranks, self._table, self._meet = rank, len(table), table, meet

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(sum(self._all(x)))

    def rooms(self, out: torch.Tensor) -> None:
        """Products give their parts."""

    def gathered(self, x: torch.Tensor, columns: int) -> torch.Tensor:
        return torch.cat(self._all(x), 1)[:, :columns]

    def _all(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._table[self.rank] = x.clone()
        self._meet.wait(30)
        found = list(self._table)
        self._meet.wait(30)
        return found


def steps_of_ranks(
    path: Path,
    ranks: int,
    work: list[list[tuple[Row, int]]],
    dtype: torch.dtype = torch.float32,
    whole: ExpertParallelSplit | None = None,
    before: Any = None,
    transform: Any = None,
    by_rows: bool = False,
    attention: str = "auto",
    kept: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Rank 0's logits of each step's every row, computed by so many ranks.

    whole, by_rows: see `TensorParallelSplit`.  before: gets each rank's model, the rank and the step's number before
    it.  transform: of each projection.
    """
    table, meet = [None] * ranks, threading.Barrier(ranks)

    def compute(rank: int) -> list[torch.Tensor]:
        model = joined(
            load_share(path, dtype, CPU, TensorParallelSplit(rank, ranks, whole, by_rows), transform=transform),
            ThreadRanks(rank, table, meet),
        )
        rig, rows = Rig(path, dtype, model=model, attention=attention, kept=kept), {}
        found = []
        with torch.inference_mode():
            for number, step in enumerate(work):
                if before is not None:
                    before(model, rank, number)
                found.append(
                    rig.step(
                        [(rows.setdefault(id(row), Row(row.tokens)), count) for row, count in step], every_row=True
                    )
                )
        return found

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(compute, range(ranks)))
    return found[0]


def adapted(
    path: Path,
    ranks: int,
    folders: list[Path],
    prompts: list[list[int]],
    owners: list[int],
    transform: Any = None,
    experts: ExpertParallelSplit | None = None,
    hold_experts: Any = None,
) -> tuple[list[Adapter], torch.Tensor]:
    """Adapters as rank 0 reads them, and its logits of every row of a step of these prompts, each with the adapter
    that it owns, -1: none; computed by so many ranks. transform, experts (`whole`): see `steps_of_ranks`.  lie:
    gets the models of all ranks before the step.
    """
    table, meet = [None] * ranks, threading.Barrier(ranks)
    models = [
        joined(
            load_share(path, torch.float32, CPU, TensorParallelSplit(rank, ranks, experts), transform=transform),
            ThreadRanks(rank, table, meet),
        )
        for rank in range(ranks)
    ]
    whole, sites = open_checkpoint(path).model, [adapted_sites(model, False) for model in models]
    own, *others = (LocalBaseWeights(model, each) for model, each in zip(models, sites, strict=True))
    team: Any = SimpleNamespace(
        ask_each=lambda name, arguments: [
            getattr(each, name)(*given) for each, given in zip(others, arguments, strict=True)
        ]
    )
    weights = RanksBaseWeights(own, team, parts_of(whole, 1, ranks, experts), sites_of(whole, True))
    reader = AdapterReader(
        whole,
        sites_of(whole, True),
        torch.float32,
        base=weights,
        packing=ShardedAdapterPacker(whole, 1, ranks, torch.float32, True, experts),
    )
    adapters = [reader.read(folder) for folder in folders]
    if hold_experts is not None:
        hold_experts(models)

    def compute(rank: int) -> torch.Tensor:
        slots = AdapterSlots(sites[rank], torch.float32, CPU, {}, grows=True)
        for number, adapter in enumerate(adapters):
            slots.mirror([8] * (number + 1), number, (adapter, *adapter.elsewhere)[rank])
        models[rank].adapted = AdaptedModel(
            models[rank], sites[rank], adapter_products_for(models[rank], slots, sites[rank], False)
        )
        rig = Rig(path, model=models[rank])
        rig.adapters = owners
        with torch.inference_mode():
            return rig.step([(Row(tokens), len(tokens)) for tokens in prompts], every_row=True)

    with ThreadPoolExecutor(ranks) as pool:
        return adapters, next(iter(list(pool.map(compute, range(ranks)))))


def walk(engine: Engine, seed: int) -> list:
    """What sequences write and score that extend, fork, draw, obey a grammar,
    stop and close, at random but for the engine.
    """
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
            params = SamplingParams(
                max_tokens=rng.randrange(1, 12),
                temperature=rng.choice([0, 0, 0.9]),
                seed=rng.randrange(99),
                ignore_eos=True,
            )
            futures.append(sequence.generate(params, grammar if kind == 4 else None))
    found = [future.result(60) for future in futures]
    for sequence in live:
        sequence.close()
    return [
        result.token_ids if isinstance(result, Generation) else [pair for scores in result for pair in scores]
        for result in found
    ]


def updated(one: Engine, several: Engine, before: Path, others: list[Path]) -> None:
    """One engine and one of several ranks get the first of `others`, of which the second has a
    damaged layer behind the others, and `before` again.
    """

    def told(engine: Engine) -> list:
        return [
            engine.generate(prompt, max_tokens=6, temperature=0, ignore_eos=True).token_ids
            for prompt in ("words", "a b " * 40)
        ]

    expected = told(one)
    running = several.open()
    running.extend([5, 6, 7])
    going_on = running.generate(SamplingParams(max_tokens=300, ignore_eos=True))
    with pytest.raises(CheckpointError, match=r"layers\.2\."):
        several.update_weights(others[1])
    assert told(several) == expected
    sizes = one.update_weights(others[0]), several.update_weights(others[0])
    assert sizes[1] >= sizes[0] and told(several) == told(one) != expected
    one.update_weights(before)
    several.update_weights(before)
    assert told(several) == expected and len(going_on.result(60).token_ids) == 300


def two_tiers(one: Engine, tiny: Path, ranks: dict[str, int]) -> None:
    """With a pool that is too small for what is asked again and again, and main memory for the rest."""
    small = {
        "dtype": "float32",
        "threads": 1,
        "kv_tokens": 256,
        "page_size": 4,
        "max_running": 8,
        "host_kv": "500KB",
        "poison_freed": True,
    }
    rng = random.Random(1)
    prompts = [[rng.randrange(4, 250) for _ in range(90)] for _ in range(8)]
    asked = rng.choices(prompts, k=24)

    def told(engine: Engine) -> list[list[int]]:
        found = []
        for prompt in asked:
            sequence = engine.open()
            sequence.extend(prompt)
            found.append(
                sequence.generate(SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)).result(60).token_ids
            )
            sequence.close()
        return found

    expected = told(one)
    with Engine(tiny, **small) as alone, Engine(tiny, **small, **ranks) as several:
        for _ in range(2):
            assert told(several) == told(alone) == expected
            ours, theirs = several.stats(), alone.stats()
            assert (ours.host_hits, ours.host_tokens, ours.cached_tokens) == (
                theirs.host_hits,
                theirs.host_tokens,
                theirs.cached_tokens,
            ) and ours.host_hits > 0
            for engine in (alone, several):
                assert engine.sleep() > 0
                engine.wake()


def same(ours: list, asked: list) -> None:
    """Of two walks."""
    for mine, theirs in zip(ours, asked, strict=True):
        np.testing.assert_allclose(np.array(mine), np.array(theirs), atol=1e-3)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def drawn(count: int, length: int, seed: int = 1) -> list[list[int]]:
    """Prompts of random ids."""
    rng = random.Random(seed)
    return [[rng.randrange(4, 250) for _ in range(length)] for _ in range(count)]


def written(engine: Engine, prompts: list[list[int]], count: int = 6, together: int = 1) -> list[list[int]]:
    """Greedy, so many prompts at a time."""
    found: list[list[int]] = []
    for at in range(0, len(prompts), together):
        sequences = [engine.open() for _ in prompts[at : at + together]]
        for sequence, prompt in zip(sequences, prompts[at:], strict=False):
            sequence.extend(prompt)
        futures = [
            each.generate(SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)) for each in sequences
        ]
        found += [future.result(60).token_ids for future in futures]
        for sequence in sequences:
            sequence.close()
    return found
