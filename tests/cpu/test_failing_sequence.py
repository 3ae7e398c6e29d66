"""What one request breaks on the scheduler's thread, wherever it does, fails that request and leaks nothing."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sgl import grammars
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.cache import PagePool, PrefixCache, WindowPages, WindowPrefixCache
from sgl.runtime.errors import RuntimeFailure, note_sequence, take_noted_sequences
from sgl.runtime.executor import logit_rows, step_arrays
from sgl.runtime.executor.ranks import step_plan_message
from sgl.runtime.loop import step_execution
from sgl.runtime.loop.failing_sequence import bare, failing_sequence
from sgl.runtime.scheduling import scheduler as scheduling
from sgl.runtime.scheduling.batch_admission import KVCapacity
from sgl.runtime.scheduling.length_estimate import LengthEstimate, ReservedTokens
from sgl.runtime.sequences.draft_tokens import DraftSource, DraftTokens
from sgl.runtime.sequences.ops.embed_op import Embed
from sgl.runtime.sequences.ops.generate_op import Generate
from sgl.runtime.sequences.ops.score_op import Score
from sgl.runtime.sequences.ops.sequence_ops import Extend, Fork, Logprobs, Prefill
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState, SequenceStatus
from sgl.runtime.speculative.speculation import Speculation
from sgl.runtime.watch import step_trace

SECONDS = 20
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True)
METHODS = (
    "begin",
    "admitted",
    "reuse",
    "target",
    "rows",
    "pool",
    "wanted",
    "collect",
    "add",
    "mark_requested",
    "resolve",
)
KINDS: dict[str, Callable[[], SequenceOp]] = {
    "generate": lambda: Generate(GREEDY),
    "prefill": lambda: Prefill(),
    "score": lambda: Score([np.array([5, 6], np.int32), np.array([7], np.int32)]),
    "logprobs": lambda: Logprobs(1, top=2),
    "embed": lambda: Embed(),
    "fork": lambda: Fork([]),
    "extend": lambda: Extend(np.array([5], np.int32), 0),
}


def broken(kind: type[SequenceOp], method: str, at: int, error: BaseException) -> type[SequenceOp]:
    """The kind of operation whose method raises from its `at`th call on."""
    calls, usual = itertools.count(1), getattr(kind, method)

    def call(self: Any, *args: Any) -> Any:
        if next(calls) >= at:
            raise error
        return usual(self, *args)

    return type(f"Broken{kind.__name__}", (kind,), {method: call, "__slots__": ()})


def prompt(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(5, 300, count).tolist()


def prompted(engine: Engine, tokens: list[int]) -> Any:
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence


def clean(engine: Engine) -> None:
    """Everything is let go, and every page is back."""
    engine.flush_cache()
    engine.check()
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total and not stats.running and not stats.waiting
    assert engine.up


@pytest.fixture
def beside(engine):
    """Generations that run while something breaks, and what they give alone."""
    mark_requested = [(prompt(1, 30), GREEDY), (prompt(1, 20), SEEDED), (prompt(2, 70), GREEDY)]
    alone = [prompted(engine, tokens).generate(params).result(SECONDS).token_ids for tokens, params in mark_requested]

    def run() -> Callable[[], None]:
        futures = [prompted(engine, tokens).generate(params) for tokens, params in mark_requested]

        def check() -> None:
            assert [future.result(SECONDS).token_ids for future in futures] == alone

        return check

    return run


@pytest.mark.few(3)
@pytest.mark.parametrize("name", KINDS)
def test_an_operation_that_breaks_anywhere_fails_alone(engine, beside, name):
    kind, errors = type(KINDS[name]()), itertools.cycle([ValueError, SystemExit])
    for method, at in itertools.product([each for each in METHODS if hasattr(kind, each)], (1, 3)):
        op, sequence = KINDS[name](), prompted(engine, prompt(1, 40))
        op.__class__ = broken(kind, method, at, next(errors)("odd"))
        check = beside()
        future, behind = engine._core.submit(sequence._state, op), sequence.generate(GREEDY)
        told = behind.exception(SECONDS)
        assert told is None or "odd" in str(told), (method, at, told)
        assert told is None or method == "resolve" or future.exception(SECONDS) is not None
        check()
        assert sequence.generate(GREEDY).result(SECONDS).completion_tokens == 12
        sequence.close()
        del sequence
        clean(engine)


@pytest.mark.parametrize(
    "name", ["remaining", "finished", "reusable", "wait", "_give", "start", "publish", "generated"]
)
@pytest.mark.parametrize("at", [1, 2])
def test_what_the_engine_does_for_a_sequence_may_break(engine, beside, monkeypatch, name, at):
    """By chance at one sequence: it fails, or nobody does."""
    core = engine._core
    places: list[Any] = [core.scheduler.estimate, core.scheduler, core.cache, core.stats, core.life]
    owner = next(place for place in places if hasattr(place, name))
    victim = prompted(engine, prompt(1, 40))
    number = victim._state.id
    usual, calls = getattr(type(owner), name), itertools.count(1)

    def breaks(self: Any, seq: Any, *args: Any) -> Any:
        mine = getattr(seq, "id", None) == number or (hasattr(seq, "op") and seq.op is op)
        if mine and next(calls) == at:
            raise OverflowError("it broke")
        return usual(self, seq, *args)

    op = Generate(GREEDY)
    with monkeypatch.context() as patch:
        if name == "finished":
            patch.setattr(
                type(owner), name, lambda self, made, *args: 1 / 0 if made == 11 else usual(self, made, *args)
            )
            op = Generate(SamplingParams(max_tokens=11, temperature=0, ignore_eos=True))
        else:
            patch.setattr(type(owner), name, breaks)
        check = beside()
        future = core.submit(victim._state, op)
        error = future.exception(SECONDS)
        check()
    assert error is None or "it broke" in str(error) or "division" in str(error)
    assert at > 1 or name == "finished" or next(calls) > 1  # it is on the way
    del victim, future
    clean(engine)


def test_a_row_that_cannot_be_sampled_is_found_among_many(engine, beside, monkeypatch):
    from sgl.runtime.sampling.sampling_batch import SamplingBatch

    usual = SamplingBatch.__init__

    def build(self: Any, rows: Any) -> None:
        if any(row.seed == 12345 for row in rows):
            raise OverflowError("int too large to convert to float")
        usual(self, rows)

    monkeypatch.setattr(SamplingBatch, "__init__", build)
    check = beside()
    bad = prompted(engine, prompt(1, 30)).generate(SamplingParams(max_tokens=12, seed=12345))
    with pytest.raises(RuntimeFailure, match="sampling failed: OverflowError"):
        bad.result(SECONDS)
    check()
    clean(engine)


def test_a_step_that_breaks_with_nobody_to_blame_fails_what_runs(engine, monkeypatch):
    """And the engine goes on; where it breaks again at once, it ends."""
    plan, broken = engine._core.traces.plan, itertools.chain([False, True], itertools.repeat(False))
    monkeypatch.setattr(engine._core.traces, "plan", lambda: 1 / 0 if next(broken) else plan())
    with pytest.raises(RuntimeFailure, match="a step of the engine failed: ZeroDivisionError"):
        prompted(engine, prompt(1, 30)).generate(GREEDY).result(SECONDS)
    assert engine.generate("x", GREEDY).completion_tokens == 12
    clean(engine)
    monkeypatch.setattr(engine._core.traces, "plan", lambda: 1 / 0)
    futures = [prompted(engine, prompt(1, 30)).generate(GREEDY) for _ in range(2)]
    assert all("ZeroDivisionError" in str(future.exception(SECONDS)) for future in futures)
    assert "ZeroDivisionError" in str(prompted(engine, prompt(1, 30)).generate(GREEDY).exception(SECONDS))
    engine._core.wait()
    assert not engine.up


@pytest.mark.parametrize("depth", [50, 1500])
def test_a_chain_of_forks_may_be_longer_than_the_stack(engine, depth):
    for tokens, works in (([5, 6, 7], True), ([5, 999], False)):
        chain = [prompted(engine, tokens)]
        for _ in range(depth):
            chain.append(chain[-1].fork(1)[0])
        futures = [chain[-1].generate(GREEDY), chain[depth // 2].prefill()]
        assert [future.exception(SECONDS) is None for future in futures] == [works, works]
        for sequence in chain:
            sequence.close()
        del chain, sequence
        clean(engine)


def test_a_fork_that_breaks_among_its_children_takes_them_all_along(engine, monkeypatch):
    born, usual = itertools.count(1), type(engine._core.life).spawn_children

    def spawn_children(self: Any, parent: Any, child: Any) -> int:
        if next(born) == 3:
            raise MemoryError
        return usual(self, parent, child)

    monkeypatch.setattr(type(engine._core.life), "spawn_children", spawn_children)
    parent = prompted(engine, prompt(1, 30))
    children = parent.fork(5)
    futures = [child.generate(GREEDY) for child in children]
    assert all(isinstance(future.exception(SECONDS), MemoryError) for future in futures)
    assert all(isinstance(child.generate(GREEDY).exception(SECONDS), MemoryError) for child in children)
    assert parent.generate(GREEDY).result(SECONDS).completion_tokens == 12
    parent.close()
    del parent, children
    clean(engine)


def test_a_grammar_that_breaks_fails_alone(engine, beside):
    grammar = grammars.compile_regex("[a-z]{8,20}", engine.vocabulary)

    class Broken:
        vocabulary, recipe = grammar.vocabulary, grammar.recipe

        def matcher(self) -> Any:
            raise SystemExit("no matcher today")

    check = beside()
    assert isinstance(prompted(engine, prompt(1, 30)).generate(GREEDY, Broken()).exception(SECONDS), SystemExit)
    check()
    clean(engine)


class Sound(Embed):
    """Wants logits and sums of every position."""

    def target(self, seq: SequenceState) -> int:
        return len(seq) + 4

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(lo, hi)

    def pool(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(lo, hi)


class Unsound(Generate):
    """Cannot answer anything."""

    def _broken(self, *args: Any) -> Any:
        raise OverflowError("it broke")

    target = rows = pool = reuse = admitted = leaves = _broken
    streamed = property(_broken)


def sequences(ops: dict[int, SequenceOp]) -> list[SequenceState]:
    """Four that run, of 30 tokens, of which all but the last are computed."""
    found = [SequenceState(number) for number in range(4)]
    for seq in found:
        seq.tokens.extend(range(30))
        seq.slots.extend(range(30))
        seq.computed, seq.status = 29, SequenceStatus.RUNNING
        seq.ops = deque([ops.get(seq.id, Sound())])
    return found


class NoPages(PrefixCache):
    """Can do nothing for the third sequence."""

    def _broken(self, seq: Any, *args: Any) -> Any:
        if seq.id == 2:
            raise OverflowError("it broke")
        return 0

    grow = missing = mark = release = shed = _broken


class NoWindows(WindowPrefixCache):
    _take_over = NoPages._broken


def planner(running: list[SequenceState], cache: PrefixCache | None = None) -> scheduling.Scheduler:
    made = scheduling.Scheduler(cache or NoPages(PagePool(256, 1)), 64, 8)
    made.running += running
    for seq in running:
        made.counters.tenant_arrived(seq.terms.tenant)
    return made


def no_windows(seqs: list[SequenceState]) -> bool:
    cache = NoWindows(PagePool(256, 1), WindowPages(64, 1, 8, 256))
    cache._twice = True
    return cache.share_equal_prefixes(seqs)


def laid(seqs: list[SequenceState]) -> list[bool]:
    drafts = Speculation([], NoPages(PagePool(256, 1)), None)
    return [drafts._lay(seq, DraftTokens([1], DraftSource("test"))) for seq in seqs]


def guessed(seqs: list[SequenceState]) -> list[Any]:
    """A drafter that ends its thread for one sequence."""

    def propose(seq: SequenceState, *args: Any) -> None:
        if seq.id == 2:
            raise SystemExit("it broke")

    drafts = Speculation([SimpleNamespace(propose=propose)], NoPages(PagePool(256, 1)), None)
    drafting: Any = SimpleNamespace(decoding=SimpleNamespace(limit=9, output=[]))
    return [drafts._proposed(seq, drafting) for seq in seqs]


def parked(seqs: list[SequenceState]) -> bool:
    made = planner([])
    made.resident = dict.fromkeys(seqs[2:])
    return made._park_one()


def filled(work: list[ScheduledWork]) -> Any:
    """What is to be sent of steps of several tokens."""
    return step_plan_message.plan_message([ScheduledWork(seq, lo - 1, hi) for seq, lo, hi in work], range(4))


def columns(work: list[ScheduledWork]) -> Any:
    for item in work:
        item.seq.slots.truncate(30 if item.seq.id != 2 else 0)
        item.seq.slots._data = item.seq.slots._data[: len(item.seq.slots)]
    return step_plan_message._columns(work, range(4), ())


def unknown(work: list[ScheduledWork]) -> Any:
    """The host lacks the tokens of the first, and what it has of the third does not fit its place."""
    for item in work:
        item.seq.tokens.truncate({0: 29, 2: 20}.get(item.seq.id, 30))
    work = [item._replace(hi=30, lo=29 if item.seq.id != 2 else 10) for item in work]
    work[2].seq.tokens.extend(range(20))
    return step_arrays._token_ids(work, [0, 1, 2, 3], np.array([0, 1, 2, 3, 4], np.int32))


def decodes(work: list[ScheduledWork]) -> bool:
    pytest.importorskip("triton")
    from sgl.runtime.executor import cuda_runner

    return cuda_runner._is_decode(work)


def emptied(work: list[ScheduledWork]) -> list[int]:
    work[2].seq.tokens._data = work[2].seq.tokens._data[:0]
    return step_arrays.last_tokens(work, [0, 1, 2, 3])


OP: dict[int, SequenceOp] = {2: Unsound(GREEDY)}
LOOPS: dict[str, tuple[dict[int, SequenceOp], Callable[[list[SequenceState]], Any]]] = {
    "target": (OP, lambda seqs: [seq.target for seq in seqs]),
    "single tokens and chunks": (OP, lambda seqs: planner(seqs)._sides()),
    "pages of single tokens": ({}, lambda seqs: planner(seqs)._give_each(seqs, None, {})),
    "a chunk": (OP, lambda seqs: planner(seqs)._share(seqs[2:3], 8, {})),
    "the oldest chunk": (OP, lambda seqs: planner(seqs)._share(seqs[2:], 8, {})),
    "streams": (OP, scheduling._any_streamed),
    "pages that are taken": ({}, parked),
    "a place that is taken": ({}, lambda seqs: planner(seqs).preempt(seqs[2])),
    "states that are shed": ({}, lambda seqs: planner(seqs)._shed_one()),
    "expected lengths": (OP, lambda seqs: [LengthEstimate().expected_length(seq) for seq in seqs]),
    "reserved tokens": (OP, lambda seqs: ReservedTokens(planner(seqs)).of(seqs)),
    "pages that are kept": ({}, lambda seqs: KVCapacity(NoPages(PagePool(256, 1)), [], seqs)),
    "pages that are pinned": ({}, lambda seqs: KVCapacity(NoPages(PagePool(256, 1)), seqs, [])),
    "windows": ({}, no_windows),
    "drafts": ({}, laid),
    "drafters": ({}, guessed),
}
STEPS: dict[str, tuple[dict[int, SequenceOp], Callable[[list[ScheduledWork]], Any]]] = {
    "wanted rows": (OP, step_execution._wants),
    "sums": ({2: type("", (Sound,), {"pool": Unsound._broken})()}, step_execution._pooled),
    "traces": (OP, lambda work: [step_trace._part(item, dict.fromkeys([item.seq], (0, 0))) for item in work]),
    "logit rows": (OP, logit_rows.logit_rows),
    "pooled rows": (OP, logit_rows.pooled_rows),
    "last tokens": ({}, emptied),
    "token ids": ({}, unknown),
    "decodes": (OP, decodes),
    "plans of single tokens": (OP, lambda work: step_plan_message.plan_message(work, range(4))),
    "columns of plans": ({}, columns),
    "plans": (OP, filled),
}


def blamed(call: Callable[[Any], Any], argument: Any, live: list[SequenceState]) -> SequenceState | None:
    try:
        call(argument)
    except BaseException as error:
        return failing_sequence(error, live)
    return None


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_done_for_many_sequences_says_for_which_it_failed(name):
    ops, call = LOOPS[name]
    seqs = sequences(ops)
    assert blamed(call, seqs, seqs) is seqs[2]


@pytest.mark.parametrize("name", STEPS)
def test_what_makes_a_step_says_for_which_sequence_it_failed(name):
    ops, call = STEPS[name]
    seqs = sequences(ops)
    assert blamed(call, [ScheduledWork(seq, 29, 30) for seq in seqs], seqs) is seqs[2]


@dataclass(frozen=True)
class Frozen(Exception):
    words: str


def test_the_innermost_live_sequence_with_operations_is_blamed():
    seqs = sequences({})
    seqs[0].ops.clear()
    error = Frozen("no attribute can be set")
    for seq in seqs:
        note_sequence(error, seq)
    assert failing_sequence(error, [seqs[0], *seqs[2:]]) is seqs[2]
    assert failing_sequence(error, seqs) is None and not vars(error).keys() - {"words"}


def test_an_error_that_is_kept_holds_no_sequence():
    inner, outer = ValueError("inner"), ValueError("outer")
    outer.__cause__ = inner
    for error in (inner, outer):
        note_sequence(error, sequences({})[0])
    bare(outer)
    assert not take_noted_sequences(inner) and not take_noted_sequences(outer)


def test_the_error_of_a_failed_operation_holds_no_sequence(engine, monkeypatch):
    error = RuntimeFailure("no rows today")
    bad = prompted(engine, prompt(1, 40))
    with monkeypatch.context() as patch:
        patch.setattr(Generate, "rows", broken(Generate, "rows", 1, error).rows)
        found = bad.generate(GREEDY).exception(SECONDS)
    assert found is error and not vars(error)
    bad.close()
    clean(engine)


def test_a_sequence_whose_place_cannot_be_taken_fails_alone(open_engine, monkeypatch):
    engine, failed = open_engine(kv_tokens=128), []
    usual = PrefixCache.release

    def release(self: Any, seq: Any, publish: bool = True) -> None:
        if seq.status is SequenceStatus.RUNNING and not failed:
            failed.append(seq.id)
            raise OverflowError("it broke")
        usual(self, seq, publish)

    monkeypatch.setattr(PrefixCache, "release", release)
    mark_requested = [prompted(engine, prompt(seed, 30)) for seed in range(4)]
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    futures = [sequence.generate(params) for sequence in mark_requested]
    errors = {each._state.id: future.exception(SECONDS) for each, future in zip(mark_requested, futures, strict=True)}
    assert [number for number, error in errors.items() if error is not None] == failed
    assert "it could not be planned: OverflowError('it broke')" in str(errors[failed[0]])
    for sequence in mark_requested:
        sequence.close()
    clean(engine)
