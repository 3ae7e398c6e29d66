"""The GPU's runners of two ranks on the CPU, kernels interpreted: the second computes the plans
that it is told, and the texts are those of one.
"""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

from gpu_runner import Attention, pretend
from layer_checks import lay_plain
from loaded_models import load_share, load_stage
from rank_threads import TurnRanks, Turns
from test_piecewise_engine import found

from sgl.runtime.build import build_engine
from sgl.runtime.cache import StateCheckpoint, WindowPages, WindowPageTable
from sgl.runtime.cache.recurrent_state_slots import SCRAP_SLOT
from sgl.runtime.executor import cuda_runner
from sgl.runtime.executor.gpu_page_table import MirroredPageTable
from sgl.runtime.executor.ranks import cuda_rank_runner as rank_runners
from sgl.runtime.executor.ranks import rank_steps
from sgl.runtime.executor.ranks.cuda_rank_runner import cuda_rank_runner
from sgl.runtime.executor.ranks.micro_batches import pieces
from sgl.runtime.executor.ranks.rank_steps import BroadcastSteps, cuda_message, gpu_progress
from sgl.runtime.executor.ranks.step_plan_message import SequenceMirrors, plan_message
from sgl.runtime.executor.step_arrays import StepArrays
from sgl.runtime.kernels.launch.compile_ahead import is_compiling
from sgl.runtime.parallel.pp.pipeline_stages import RankPlace
from sgl.runtime.parallel.rank_collectives import joined
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit
from sgl.runtime.sequences.draft_tokens import DraftSource, DraftTokens
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState

CPU = torch.device("cpu")


class TurnLinks:
    """Of two stages."""

    stages = 2

    def __init__(self, model: Any, turns: Turns, sent: tuple[deque, deque]) -> None:
        self._model, self._turns, self.sent = model, turns, sent
        self.parts: list[int] = []

    def begin(self) -> None:
        self.parts.append(0)

    def end(self) -> None: ...

    def _next(self, queue: deque) -> torch.Tensor:
        assert self._turns.turn.wait_for(lambda: bool(queue), 20)
        return queue.popleft()

    def take(self, out: torch.Tensor) -> None:
        if not is_compiling():
            out.copy_(self._next(self.sent[0]))

    def post(self, x: torch.Tensor) -> None:
        if not len(x):
            return
        self.parts[-1] += 1
        self.sent[0 if self._model.config.stage.begins else 1].append(x.clone())
        self._turns.turn.notify_all()

    def result(self, rows: int, pools: int) -> tuple[Any, Any]:
        logits = self._next(self.sent[1]) if rows else self._model.no_logits()
        return logits, self._next(self.sent[1]) if pools else None


def part_of(path: Any, rank: int, ranks: Any, whole: Any = None, by_rows: bool = False) -> Any:
    """A rank's part of the model: of each layer, or with `ranks` None some of the
    layers. whole, by_rows: see `TensorParallelSplit`.
    """
    if ranks is None:
        return load_stage(path, torch.float32, CPU, RankPlace(rank, 2, TensorParallelSplit(0, 1)))
    model = load_share(path, torch.float32, CPU, TensorParallelSplit(rank, 2, whole, by_rows))
    if whole is not None or by_rows:
        lay_plain(model)
    return joined(model, ranks)


class Follower(threading.Thread):
    """Rank 1, in a thread."""

    def __init__(
        self, path: Any, turns: Turns, pool: Any, config: Any, context: int, sent: Any = None, whole: Any = None
    ) -> None:
        super().__init__(daemon=True)
        self._turns, self._words, self.error = turns, deque(), None
        self.ranks, self._mirrors = TurnRanks(1, turns), SequenceMirrors(config.max_running)
        ranks = self.ranks
        self.model = model = part_of(path, 1, None if sent else ranks, whole)
        model.fused = True
        layout = model.config.attention
        if sent:
            ranks.broadcast = lambda x: None
        self.progress = gpu_progress()
        self.runner = cuda_rank_runner(
            model,
            Attention(layout.pool(pool.slots, torch.float32, CPU, 0), layout.groups[0]),
            CPU,
            context=context,
            page_size=config.page_size,
            max_running=config.max_running,
            ranks=ranks,
            progress=self.progress,
            links=TurnLinks(model, turns, sent) if sent else None,
            mirrors=self._mirrors.rows,
        )
        self.steps = 0
        self.start()

    def step(self, words: bytes) -> None:
        self._words.append(words)

    def tell(self, name: str, *arguments: Any) -> None:
        self._words.append((name, arguments))

    def report_failed_step(self, error: BaseException) -> None:
        self.error = error

    def close(self) -> None: ...

    def run(self) -> None:
        with self._turns.turn:
            while True:
                self._turns.turn.wait_for(lambda: bool(self._words))
                words = self._words.popleft()
                try:
                    if isinstance(words, tuple):
                        getattr(self, words[0])(*words[1])
                        continue
                    self.runner.forward(self._mirrors.work(words))
                except BaseException as error:
                    self.error = error
                    raise
                self.steps += 1
                self._turns.turn.notify_all()


class LedSteps:
    """Rank 0's, which are over when rank 1 has done its own."""

    def __init__(self, steps: Any, ranks: Any, team: Any) -> None:
        self._steps, self._turn, self._team = steps, ranks._turns.turn, team

    def __call__(self, runner: Any, work: Any) -> Any:
        with self._turn:
            result = self._steps(runner, work)
            self._finish()
            return result

    def _finish(self) -> None:
        assert self._turn.wait_for(lambda: not self._team._words, 60)


def leader_of(
    model: Any, attention: Any, config: Any, context: int, team: Any, ranks: Any, led: Any = LedSteps, **options: Any
) -> Any:
    """Rank 0's runner, with what tests look at in addition."""
    progress = gpu_progress()
    runner = cuda_rank_runner(
        model,
        attention,
        CPU,
        context=context,
        page_size=config.page_size,
        max_running=config.max_running,
        ranks=ranks,
        progress=progress,
        gathers=True,
        **options,
    )
    runner.team, runner.progress, runner.links = team, progress, options.get("links")
    runner.steps = led(BroadcastSteps(runner.steps, team, cuda_message), ranks, team)
    return runner


def test_two_stages_that_run_ahead_and_as_graphs(tiny, monkeypatch):
    texts, scores, _ = found(tiny)
    pretend(monkeypatch)
    monkeypatch.setattr(rank_steps, "_mark", lambda: SimpleNamespace(query=lambda: True))
    monkeypatch.setattr(rank_runners, "FIXED_ON_GPUS", 2)  # so that short steps are cut
    turns, made, sent = Turns(2), [], (deque(), deque())
    ranks = TurnRanks(0, turns)
    ranks.broadcast = lambda x: None

    def runner(model, attention, config, choice, context, states, windows, side):
        made.append(Follower(tiny, turns, attention.pool, config, context, sent))
        links = TurnLinks(model, turns, sent)
        made.append(leader_of(model, attention, config, context, made[0], ranks, links=links))
        return made[1]

    monkeypatch.setattr(build_engine, "make_runner", runner)
    monkeypatch.setattr(build_engine, "load_model", lambda path, *rest: part_of(path, 0, None))
    ours, our_scores, _ = found(tiny)
    follower, leader = made
    with turns.turn:
        assert turns.turn.wait_for(lambda: follower.error or follower.steps == leader.progress.launched, 60)
    assert follower.error is None and ours == texts
    assert np.allclose(our_scores, scores, atol=1e-4)
    assert max(leader.links.parts) > 1 and not any(sent)
    assert follower.runner._graphs._runs == leader._graphs._runs and len(leader._graphs)


@pytest.mark.whole
def test_two_ranks_that_run_mixed_steps_in_pieces_ahead_and_as_graphs(tiny, monkeypatch):
    texts, scores, _ = found(tiny)
    pretend(monkeypatch)
    monkeypatch.setattr(rank_steps, "_mark", lambda: SimpleNamespace(query=lambda: True))
    turns, made = Turns(2), []
    ranks = TurnRanks(0, turns)

    def runner(model, attention, config, choice, context, states, windows, side):
        made.append(Follower(tiny, turns, attention.pool, config, context))
        made.append(leader_of(model, attention, config, context, made[0], ranks, memory=states))
        return made[1]

    monkeypatch.setattr(build_engine, "make_runner", runner)
    monkeypatch.setattr(build_engine, "load_model", lambda path, dtype, *rest: part_of(path, 0, ranks))
    ours, our_scores, runs = found(tiny)
    follower, leader = made
    with turns.turn:
        assert turns.turn.wait_for(lambda: follower.error or follower.steps == leader.progress.launched, 60)
    assert follower.error is None and follower.progress.launched == leader.progress.launched and follower.steps > 10
    assert ours == texts
    assert np.allclose(our_scores, scores, atol=1e-4)
    assert follower.runner._mixed._runs == runs and max(runs.values()) > 1
    assert follower.runner._graphs._runs == leader._graphs._runs


class Wants(SequenceOp):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def rows(self, seq, lo, hi):
        return range(hi - min(self._count, hi - lo), hi)

    def pool(self, seq, lo, hi):
        return range(lo, hi if self._count > 1 else lo)


@pytest.mark.parametrize("seed", range(20))
def test_mirrors_make_the_plans_of_rank_0(seed):
    """Sequences grow, are cut, lose their rows and have drafts; some wait for a token of the step before."""
    rng, apart = np.random.default_rng(seed), seed % 2 == 1  # windows apart, or states
    windows, theirs = (WindowPages(1000, 200, 2, 9), WindowPageTable(1000, 2, 9)) if apart else (None, None)
    mirrors = SequenceMirrors(4, theirs)
    tables = [
        cuda_runner.GpuPageTable(4, 128, 2, CPU, windows),
        MirroredPageTable(4, 128, 2, CPU, mirrors.rows, theirs),
    ]
    live = [SequenceState(number) for number in range(6)]
    for seq in live:
        seq.tokens.extend(rng.integers(0, 99, 40))
    for _ in range(30):
        work = []
        for seq in sorted(rng.choice(6, rng.integers(1, 5), replace=False)):
            seq = live[seq]
            if rng.random() < 0.3:
                seq.computed = int(rng.integers(0, seq.computed + 1))
                seq.slots.truncate(seq.computed)
            lo = seq.computed
            hi = min(120, lo + int(rng.integers(1, 7)))
            seq.tokens.length = hi - int(rng.random() < 0.3)
            seq.slots.extend(np.arange(2 * 100 * seq.id + 200 + len(seq.slots), 2 * 100 * seq.id + 200 + hi))
            seq.ops.clear()
            seq.ops.append(Wants(int(rng.integers(0, 3))))
            seq.trail, seq.into = (
                [StateCheckpoint(lo, int(slot)) for slot in rng.integers(2, 50, rng.integers(0, 3))],
                int(rng.choice([0, SCRAP_SLOT, 60])),
            )
            work.append(ScheduledWork(seq, lo, hi))
            seq.computed = hi
        work.sort(key=lambda item: item.hi - item.lo)
        held = [] if windows is None else placed(windows, work)
        told = mirrors.work(
            plan_message(work, tables[0].rows_of(work), moved=None if windows is None else windows.moved())
        )
        rows = [
            table.place(each, lambda array: torch.from_numpy(np.ascontiguousarray(array)))
            for table, each in zip(tables, (work, told), strict=True)
        ]
        assert rows[0] == rows[1] and torch.equal(tables[0].pages, tables[1].pages)
        ours, mirrored = (
            StepArrays.of(each, own, not apart, places)
            for each, own, places in ((work, rows[0], windows), (told, rows[1], theirs))
        )
        assert len(ours.arrays) == (9 if apart else 10)
        assert (
            all(np.array_equal(a, b) for a, b in zip(ours.arrays, mirrored.arrays, strict=True))
            and ours.pools == mirrored.pools
        )
        assert all(np.array_equal(a, b) for a, b in zip(ours.context_slots, mirrored.context_slots, strict=True))
        if windows is not None:
            assert torch.equal(tables[0].window_pages, tables[1].window_pages) and np.array_equal(
                windows.where, theirs.where
            )
            assert all(np.array_equal(a, b) for a, b in zip(ours.windows, mirrored.windows, strict=True))
            windows.let_go(held)


def placed(windows, work):
    """Every page that the step sees has a place, held once; others lose theirs."""
    seen = np.unique(np.concatenate([seq.slots.array[windows.first(lo) * 2 : hi] // 2 for seq, lo, hi in work]))
    there = windows.where[seen] != 0
    windows.hold(seen[there])
    assert windows.make_room(int((~there).sum()))
    windows.give(seen[~there])
    return seen


def test_a_step_with_drafts_is_cut_alike_on_all_ranks():
    """A sequence with a draft stays whole: the others have to know of it."""
    mirrors, work = SequenceMirrors(3), []
    for number, (count, guesses) in enumerate([(4, 3), (5, 4), (4, 0)]):
        seq = SequenceState(number)
        seq.tokens.extend(np.arange(10 + count - guesses))
        if guesses:
            seq.draft = DraftTokens(list(range(guesses)), DraftSource("told"))
            seq.tokens.append_rows(seq.draft.tokens)
        seq.slots.extend(np.arange(10 + count) + 20 * number)
        seq.ops.append(Wants(1))
        work.append(ScheduledWork(seq, 10, 10 + count))

    def cut(work):
        return [[(lo, hi) for _, lo, hi in part] for part in pieces(work, 2, 1)]

    for drafted in (True, False):
        told = mirrors.work(plan_message(work, [0, 1, 2]))
        assert [seq.draft is not None for seq, *_ in told] == [drafted, drafted, False]
        assert [seq.known for seq, *_ in told] == [seq.known for seq, *_ in work]
        assert cut(told) == cut(work) and len(cut(work)) > 1
        for seq, *_ in work:
            seq.tokens.put(len(seq), seq.tokens.reaching(seq.known)[len(seq) :].copy())
            seq.draft = None
