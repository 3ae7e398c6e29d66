"""A prompt beside generations is cut to what was measured to take `prompt_seconds`."""

from __future__ import annotations

import pytest
from test_engine import prompt, run
from test_scheduler_pressure import Running, make, some

__all__ = ["make"]

LEAST, LONG = 256, 400


def longest_beside(engine, streamed: bool = True) -> int:
    """The most tokens of prompts in a step in which another one got a token."""
    if streamed:
        Running(engine, prompt(1, 10)).wait()
    else:
        sequence = engine.open()
        sequence.extend(prompt(1, 10))
        sequence.generate(some(4000))
    with engine.trace_steps() as steps:
        run(engine, prompt(2, LONG), some(2))
    mixed = [[part.tokens for part in step.parts] for step in steps if len(step.parts) > 1]
    return max(max(parts) for parts in mixed)


@pytest.mark.parametrize("run_ahead", [False, True])
def test_prompts_beside_generations_are_cut(make, run_ahead):
    engine = make(prompt_seconds=1e-9, run_ahead=run_ahead)
    assert engine.stats().prompt_budget == engine.info()["step_tokens"]
    cold = run(engine, prompt(9, LONG), some(4))
    assert engine.stats().prompt_budget == LEAST, "a step was measured"
    assert longest_beside(engine) == LEAST
    assert run(engine, prompt(9, LONG), some(4)) == cold


def test_alone_they_are_not(make):
    engine = make(prompt_seconds=1e-9)
    run(engine, prompt(8, LONG), some(2))
    with engine.trace_steps() as steps:
        run(engine, prompt(9, LONG), some(2))
    assert max(step.tokens for step in steps) == LONG


def test_nor_where_nobody_looks_on(make):
    engine = make(prompt_seconds=1e-9)
    run(engine, prompt(9, LONG), some(2))
    assert longest_beside(engine, streamed=False) == LONG


def test_nor_where_generations_may_wait(make):
    engine = make(prompt_seconds=0)
    run(engine, prompt(9, LONG), some(2))
    assert longest_beside(engine) == LONG
