"""The GPU's runners of two ranks that hold whole experts, on the CPU, kernels interpreted: experts move
between their steps, and the texts are those of one.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

from checkpoints import write_tokenizer
from family_cases import write_family
from gpu_runner import pretend
from rank_threads import TurnRanks, Turns
from test_piecewise_engine import found
from test_ranks_runner import Follower, LedSteps, leader_of, part_of

from sgl.runtime.build import build_engine
from sgl.runtime.executor.ranks import rank_steps
from sgl.runtime.loop.expert_rebalancing import ExpertRebalancer
from sgl.runtime.parallel.ep import expert_migration
from sgl.runtime.parallel.ep.expert_balance import ExpertBalancer
from sgl.runtime.parallel.ep.expert_migration import ExpertMigrator
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit

WHOLE = ExpertParallelSplit(2)


class TurnDist:
    """What `expert_migration` asks of torch.distributed, of two ranks: what one
    has sent the other finds in the same order.
    """

    isend, irecv = "isend", "irecv"

    def __init__(self, turns: Turns) -> None:
        self._turns, self._sent = turns, (deque(), deque())

    def P2POp(self, kind: str, tensor: torch.Tensor, peer: int, group: None) -> Any:
        return kind, tensor, peer

    def batch_isend_irecv(self, travels: list[Any]) -> list[Any]:
        for kind, tensor, peer in travels:
            if kind == self.isend:
                self._sent[peer].append(tensor.clone())
        self._turns.turn.notify_all()
        for kind, tensor, peer in travels:
            if kind == self.irecv:
                assert self._turns.turn.wait_for(lambda own=1 - peer: self._sent[own], 20)
                tensor.copy_(self._sent[1 - peer].popleft())
        return []

    def all_gather_object(self, into: list[Any], own: Any, group: None) -> None:
        into[:] = [own] * len(into)


class MovingFollower(Follower):
    def move(self, slice: expert_migration.ExpertMigrationStep) -> None:
        self.mover.take(slice)


class BalancedSteps(LedSteps):
    """Experts are balanced anew after every other step, those of the steps of nobody too."""

    rebalancer: ExpertRebalancer

    def __call__(self, runner: Any, work: Any) -> Any:
        result = super().__call__(runner, work)
        with self._turn:
            self.rebalancer.stepped()
            assert self._turn.wait_for(lambda: not self._team._words or self._team.error, 60)
        return result


@pytest.mark.whole
def test_experts_move_between_steps_that_run_ahead_and_as_graphs(tmp_path, monkeypatch):
    path = write_tokenizer(write_family("qwen3 moe", tmp_path, num_hidden_layers=2))
    texts, scores, _ = found(path)
    pretend(monkeypatch)
    monkeypatch.setattr(rank_steps, "_mark", lambda: SimpleNamespace(query=lambda: True))
    turns, made = Turns(2), []
    ranks = TurnRanks(0, turns)
    monkeypatch.setattr(expert_migration, "dist", TurnDist(turns))

    def runner(model, attention, config, choice, context, states, windows, side):
        follower = MovingFollower(path, turns, attention.pool, config, context, whole=WHOLE)
        follower.mover = ExpertMigrator(follower.model, 1, 2)
        experts = ExpertBalancer(follower, ExpertMigrator(model, 0, 2), 2)
        leader = leader_of(model, attention, config, context, follower, ranks, BalancedSteps)
        leader.experts, leader.steps.rebalancer = experts, ExpertRebalancer(experts, 2, lambda: False)
        made.extend([follower, leader])
        return leader

    monkeypatch.setattr(build_engine, "make_runner", runner)
    monkeypatch.setattr(build_engine, "load_model", lambda path, dtype, *rest: part_of(path, 0, ranks, WHOLE))
    ours, our_scores, runs = found(path)
    follower, leader = made
    experts = leader.experts
    with turns.turn:
        assert turns.turn.wait_for(lambda: follower.error or follower.steps == leader.progress.launched, 60)
    assert follower.error is None and ours == texts and np.allclose(our_scores, scores, atol=1e-4)
    assert experts.moved > 10 and experts.count > 2 and experts.staged > 0
    counts = [sum(layer) for layer in leader.model.expert_counts()]
    assert counts == [sum(rows) for rows in experts.rows()] and counts == [
        sum(layer) for layer in follower.model.expert_counts()
    ]
    assert all(
        one.ffn.spread.held == other.ffn.spread.held
        for one, other in zip(leader.model.layers, follower.model.layers, strict=True)
    )
    assert (
        follower.runner._graphs._runs == leader._graphs._runs
        and max(leader._graphs._runs.values()) > 1
        and max(runs.values()) > 1
    )
