"""What one request breaks on the scheduler's thread, wherever it does, fails that request and leaks nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sgl import grammars
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import RuntimeFailure
from sgl.runtime.sequences.ops.embed_op import Embed
from sgl.runtime.sequences.ops.generate_op import Generate
from sgl.runtime.sequences.ops.score_op import Score
from sgl.runtime.sequences.ops.sequence_ops import Extend, Fork, Logprobs, Prefill
from sgl.runtime.sequences.sequence_state import SequenceOp

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
