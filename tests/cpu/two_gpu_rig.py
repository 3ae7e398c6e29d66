"""Two GPU ranks of one engine on the CPU, kernels interpreted: the second is a `GPURankWorker` in
a thread, told what the process of a rank is told.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_runner
import pytest
import torch
from gpu_runner import attention_of, pretend
from rank_threads import TurnRanks, Turns
from test_ranks_runner import LedSteps, TurnLinks, leader_of, part_of

from sgl.runtime.build import build_engine, build_prefix_cache
from sgl.runtime.executor import cuda_runner
from sgl.runtime.executor.ranks import cpu_rank_worker, cuda_rank_runner, gpu_rank_worker, rank_steps
from sgl.runtime.executor.ranks.gpu_rank_worker import GPURankWorker
from sgl.runtime.parallel.pp.pipeline_stages import RankPlace
from sgl.runtime.parallel.workers.worker_channel import ASK, POOL, SLEEP, STEP, TELL, WAKE, RankKVOptions


class Ranks(TurnRanks):
    """What is summed is written over, as NCCL does."""

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        found = super().summed(x)
        x.fill_(torch.nan)
        return found


class Card(threading.Thread):
    """Rank 1, and to rank 0 the `RankGroup`. One of both runs at a time."""

    def __init__(self, follower: GPURankWorker, turns: Turns) -> None:
        super().__init__(daemon=True)
        self.follower, self.size, self.error = follower, 2, None
        self._turns, self._words, self.answers, self.told = turns, deque(), deque(), []
        self.start()

    def run(self) -> None:
        with self._turns.turn:
            while True:
                self._turns.turn.wait_for(lambda: bool(self._words))
                try:
                    self.answers.append(self.follower.take(*self._words[0]))
                except BaseException as error:
                    self.error = error
                    raise
                self._words.popleft()
                self._turns.turn.notify_all()

    def take(self, kind: int, payload: bytes = b"") -> None:
        with self._turns.turn:
            self.told.append(kind)
            self._words.append((kind, payload))
            self._turns.turn.notify_all()

    def idle(self) -> None:
        with self._turns.turn:
            assert self._turns.turn.wait_for(lambda: self.error or not self._words, 60)
        assert self.error is None, self.error

    def step(self, words: bytes) -> None:
        self.take(STEP, words)

    def tell(self, name: str, *arguments: Any) -> None:
        self.take(TELL, pickle.dumps((name, arguments)))

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        self.take(ASK, pickle.dumps((name, arguments)))
        self.idle()
        found, error = pickle.loads(self.answers.pop())
        if error is not None:
            raise error
        return [found]

    def sleep(self) -> None:
        self.take(SLEEP)
        self.idle()

    def wake(self) -> None:
        self.take(WAKE)
        self.idle()

    def report_failed_step(self, error: BaseException) -> None:
        self.error = self.error or error

    def close(self) -> None: ...


class CardSteps(LedSteps):
    def _finish(self) -> None:
        self._team.idle()


def cards(path: Path, monkeypatch: pytest.MonkeyPatch, stages: int = 1, by_rows: bool = False) -> list[Any]:
    """Engines of the model that are opened from here on are rank 0 of two ranks, or the first of two stages.

    What is made: the card and rank 0's runner. by_rows: see `Split`.
    """
    pretend(monkeypatch)
    make_cache = build_prefix_cache.make_cache
    for module, name, stand_in in [
        (cuda_runner, "CudaGraphPool", gpu_runner.Graphs),
        (rank_steps, "_mark", lambda: SimpleNamespace(query=lambda: True)),
        (cuda_rank_runner, "FIXED_ON_GPUS", 2),  # so that short steps are cut
        (torch.cuda, "synchronize", lambda device=None: None),
        (torch.cuda, "empty_cache", lambda: None),
        (
            cpu_rank_worker,
            "attention_backend",
            lambda name, pool, layout, context, dtype, **_: attention_of(None, pool, layout, context, dtype),
        ),
    ]:
        monkeypatch.setattr(module, name, stand_in)
    turns, sent, made = Turns(2), (deque(), deque()), []
    ranks = [Ranks(rank, turns) for rank in range(2)]
    for rank, each in enumerate(ranks):
        each.place = RankPlace.of(rank, 2, stages)
        if stages > 1:
            each.broadcast = lambda x: None
    monkeypatch.setattr(
        gpu_rank_worker, "CudaPipelineLinks", lambda ranks, model, tokens: TurnLinks(model, turns, sent)
    )

    def part(rank: int) -> Any:
        return part_of(path, rank, None if stages > 1 else ranks[rank], by_rows=by_rows)

    def runner(
        model: Any, attention: Any, config: Any, choice: Any, context: int, states: Any, windows: Any, side: Any
    ) -> Any:
        capture, rows = model.capture, 0 if windows is None else (windows.total + 1) * config.page_size
        card = Card(GPURankWorker(SimpleNamespace(deterministic=False, path=path), part(1), ranks[1], 0), turns)
        room = RankKVOptions(
            attention.pool.slots,
            torch.float32,
            "auto",
            config.page_size,
            config.max_running,
            context,
            config.deterministic,
            states.slots if states else 0,
            capture is None,
            0,
            capture and capture.layers,
            rows,
        )
        card.take(POOL, pickle.dumps(room))
        card.idle()
        options = {"graphs": capture is None and model.capturable, "memory": states, "windows": windows}
        links = TurnLinks(model, turns, sent) if stages > 1 else None
        made[:] = [
            card,
            leader_of(model, attention, config, context, card, ranks[0], CardSteps, links=links, **options),
        ]
        return made[1]

    def cache(runner: Any, config: Any, pool: Any, side: Any) -> Any:
        return make_cache(
            runner, config, pool, SimpleNamespace(team=made[0], elsewhere=lambda pool: pool.bytes // pool.slots)
        )

    monkeypatch.setattr(build_engine, "make_runner", runner)
    monkeypatch.setattr(build_engine, "make_cache", cache)
    monkeypatch.setattr(build_engine, "load_model", lambda where, *rest: part(0))
    return made
