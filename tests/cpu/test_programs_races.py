"""Rare orders of events on the engine: late results, stopped samples and forks, scoring while pages run out."""

from __future__ import annotations

import gc
import random
import time

import pytest

import sgl
from sgl.lang.errors import ProgramCancelled, ProgramError
from sgl.runtime import SamplingParams
from sgl.runtime.sequences.ops.sequence_ops import Logprobs

LONG = 1500  # tokens: some seconds of work


@pytest.fixture(scope="module")
def model():
    with sgl.Engine(kv_tokens=16384, context=2048) as made:
        yield made


def all_free(engine, seconds=5.0):
    """True once nothing runs and no page is held."""
    gc.collect()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        engine.flush_cache()
        stats = engine.stats()
        if stats.pages_free == stats.pages_total and not (stats.running or stats.waiting):
            engine.check()
            return True
        time.sleep(0.02)
    return False


def test_a_text_survives_that_what_follows_it_cannot_begin(model):
    @sgl.function
    def program(s):
        s += "Hello" + sgl.gen("a", max_tokens=4, temperature=0, ignore_eos=True)
        s += " word" * 3000 + sgl.gen("b", max_tokens=4)

    @sgl.function
    def alone(s):
        s += "Hello" + sgl.gen("a", max_tokens=4, temperature=0, ignore_eos=True)

    state = program.run(backend=model)
    assert state["a"] == alone.run(backend=model)["a"]
    with pytest.raises(ProgramError, match="context"):
        state["b"]


def test_cancelled_samples_stop_at_once(model):
    @sgl.function
    def program(s):
        s += "Hello" + sgl.gen("a", n=4, max_tokens=LONG, ignore_eos=True)

    state = program.run(backend=model)
    time.sleep(0.1)
    state.cancel()
    with pytest.raises(ProgramCancelled):
        state["a"]
    assert all_free(model, 1.0), "samples go on that nobody waits for"


def test_a_fork_that_is_cancelled_before_it_is_born_holds_nothing(model):
    held = []

    @sgl.function
    def program(s):
        s += "Hello, the answer is"
        for i in range(40):
            s += sgl.select(f"x{i}", [" yes", " no", " maybe"])
        child = s.fork(1)[0]
        child += " indeed" + sgl.gen("y")
        child.cancel()
        held.append(child)

    state = program.run(backend=model)
    assert state["x39"] in (" yes", " no", " maybe")
    assert all_free(model)
    del state


def chain(engine, prompt, choice):
    """The oracle of scoring: the prompt and the choice as one row of a sequence of its own."""
    sequence = engine.open()
    sequence.extend(prompt + choice)
    return sequence.logprobs(len(prompt)).result(30)[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("page_size", [1, 4])
def test_scores_are_right_when_probes_lose_their_pages(open_engine, page_size):
    oracle = open_engine(kv_tokens=4096)
    lost = 0
    for seed in range(8):
        draw = random.Random(seed)
        engine = open_engine(kv_tokens=144, page_size=page_size, step_tokens=7, max_running=16)
        prompts = [[draw.randint(4, 12) for _ in range(draw.randint(1, 20))] for _ in range(4)]
        choices = [[[draw.randint(4, 12) for _ in range(draw.randint(20, 50))] for _ in range(3)] for _ in prompts]
        sequences = [engine.open() for _ in prompts]
        for sequence, prompt in zip(sequences, prompts, strict=True):
            sequence.extend(prompt)
        writers = [engine.open() for _ in range(2)]  # they write more than was expected of them
        for writer in writers:
            writer.extend([5, 6, 7])
            writer.generate(SamplingParams(max_tokens=50, ignore_eos=True))
        futures = [sequence.score(rows) for sequence, rows in zip(sequences, choices, strict=True)]
        for future, prompt, rows in zip(futures, prompts, choices, strict=True):
            for found, row in zip(future.result(30), rows, strict=True):
                assert [token for _, token in found] == row
                expected = [value for value, _ in chain(oracle, prompt, row)]
                assert [value for value, _ in found] == pytest.approx(expected, abs=1e-3)
        lost += engine.stats().preemptions
        engine.close()
    assert lost, "no probe was preempted: the test tests nothing"


def test_logprobs_that_lost_their_pages_go_on_where_they_were():
    class Row:
        class tokens:
            array = None

        def __len__(self):
            return 40

    op = Logprobs(10)
    op.found = [(0.0, 1)] * 5
    assert op.rows(Row(), 8, 30) == range(14, 30), "rows 9..13 were read before the pages were taken"
    assert op.rows(Row(), 20, 30) == range(20, 30)


def test_a_sequence_goes_on_behind_a_score_that_nobody_wants_any_more(open_engine):
    engine = open_engine(step_tokens=4)
    sequence = engine.open()
    sequence.extend([5, 6, 7])
    score = sequence.score([[5] * 40, [6] * 40])
    assert score.cancel()
    sequence.prefill().result(5)


@pytest.mark.parametrize("wait", [False, True])
def test_what_stands_behind_a_truncated_gen_fails_with_it(engine, wait):
    """Queued before the failure is known or after it: nothing is generated behind a text that is not there."""

    @sgl.function
    def program(s):
        s += "x" + sgl.gen("cut", max_tokens=1, regex="[a-z]{40}", error_on_truncation=True)
        if wait:
            s.error()
        s += sgl.gen("after", max_tokens=4) + sgl.select("choice", ["a", "b"])

    made = engine.stats().generations
    state = program.run(backend=engine)
    for name in ("cut", "after", "choice"):
        with pytest.raises(sgl.ProgramError, match=r"Gen\('cut'\) failed: TruncatedError"):
            state[name]
    assert state.text() == "x"
    assert engine.stats().generations <= made + (1 if wait else 2)
