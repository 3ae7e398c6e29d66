"""Thousands of random operations on one engine; tree, pages and rows are walked after every step."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule, run_state_machine_as_test

from sgl.runtime import Engine, SamplingParams, Sequence
from sgl.runtime.errors import RequestAborted

TOKENS = st.lists(st.integers(4, 12), min_size=1, max_size=12)
COUNT = st.integers(1, 8)


class Model:
    """What a sequence must hold: known tokens, or None after an abort, whose moment is not known."""

    def __init__(self, sequence: Sequence, tokens: list[int] | None) -> None:
        self.sequence, self.tokens = sequence, tokens


class EngineMachine(RuleBasedStateMachine):
    sequences = Bundle("sequences")
    path: Path
    options: ClassVar[dict[str, Any]]
    greedy: ClassVar[dict[tuple[tuple[int, ...], int], list[int]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(
            self.path,
            dtype="float32",
            threads=1,
            poison_freed=True,
            kv_tokens=240,
            page_size=2,
            step_tokens=16,
            max_running=6,
            **self.options,
        )
        self.engine._core.after_step = self.engine._core.check
        self.oracle = Engine(self.path, device="cpu", dtype="float32", threads=1, kv_tokens=512)
        self.pending: list[tuple[Future, list[int] | np.ndarray | None]] = []
        self.handles: list[Sequence] = []

    def expect(self, tokens: list[int], count: int) -> list[int]:
        key = (tuple(tokens), count)
        if key not in self.greedy:
            self.oracle.flush_cache()
            sequence = self.oracle.open()
            sequence.extend(tokens)
            params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
            self.greedy[key] = sequence.generate(params).result(30).token_ids
        return self.greedy[key]

    @rule(
        target=sequences,
        tokens=TOKENS,
        priority=st.integers(-1, 1),
        names=st.tuples(st.sampled_from("ab"), st.sampled_from("ab")),
    )
    def open(self, tokens, priority, names):
        sequence = self.engine.open(priority, tenant=names[0], namespace=names[1], timeout=1000)
        sequence.extend(tokens)
        self.handles.append(sequence)
        return Model(sequence, tokens)

    @rule(model=sequences, tokens=TOKENS, drop=st.integers(0, 1))
    def extend(self, model, tokens, drop):
        if model.tokens is not None and len(model.tokens) < 60:
            model.sequence.extend(tokens, drop)
            model.tokens = model.tokens[: len(model.tokens) - drop] + tokens

    @rule(model=sequences, count=COUNT)
    def generate(self, model, count):
        if model.tokens is None or len(model.tokens) > 80:
            return
        params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
        future = model.sequence.generate(params)
        expected = self.expect(model.tokens, count)
        self.pending.append((future, expected))
        model.tokens = model.tokens + expected

    @rule(model=sequences, choices=st.lists(TOKENS, min_size=1, max_size=4))
    def score(self, model, choices):
        self.pending.append((model.sequence.score(choices), None))

    @rule(model=sequences)
    def prefill(self, model):
        self.pending.append((model.sequence.prefill(), None))

    @rule(model=sequences)
    def embed(self, model):
        if model.tokens is not None:
            sequence = self.oracle.open()
            sequence.extend(model.tokens)
            self.pending.append((model.sequence.embed(), sequence.embed().result(30)))

    @rule(target=sequences, model=sequences, count=st.integers(1, 3))
    def fork(self, model, count):
        children = model.sequence.fork(count)
        self.handles += children
        return multiple(*[Model(child, None if model.tokens is None else list(model.tokens)) for child in children])

    @rule(model=sequences)
    def abort(self, model):
        model.sequence.abort()
        model.tokens = None

    @rule(model=consumes(sequences))
    def close(self, model):
        model.sequence.close()

    @rule()
    def flush(self):
        self.engine.flush_cache()

    @rule()
    def settle(self):
        for future, expected in self.pending:
            try:
                result = future.result(30)
            except RequestAborted:
                continue
            if isinstance(expected, np.ndarray):
                np.testing.assert_allclose(result, expected, atol=1e-3)
            elif expected is not None:
                assert result.token_ids == expected
        self.pending.clear()

    def teardown(self):
        self.settle()
        for sequence in self.handles:
            sequence.close()
        self.engine.check()  # everything posted so far has arrived
        deadline = time.monotonic() + 30
        while self.engine._core.life.live and time.monotonic() < deadline:
            time.sleep(0.001)
        assert (
            not self.engine._core.life.live
        )  # before the next question: it counts as alive until just after its answer
        self.engine.flush_cache()
        stats = self.engine.stats()
        assert stats.pages_free == stats.pages_total, "pages were lost"
        self.engine.close()
        self.oracle.close()


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("run_ahead", [False, True])
def test_random_operations_lose_no_page_and_change_no_text(tiny, run_ahead):
    EngineMachine.path, EngineMachine.options = tiny, {"device": "cpu", "run_ahead": run_ahead}
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=30, stateful_step_count=80, deadline=None, print_blob=True)
    )
