"""Random hostile requests beside plain ones: what the loop does for a step's grammars is bounded, and everybody gets an
answer.

The long form is tests/slow/test_hostile_requests_all.py; what the plain ones wait is measured by
benchmarks/grammar_stalls.py.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hostile_requests import hostile

from sgl.grammars import GrammarError
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.loop.engine_core import STEP_WORK

TOGETHER, PLAIN = 12, 2
OVER = 300_000  # steps that one thing may take once it has begun: the threads of a state are sorted at once


def walk(engine: Engine, seed: int, count: int) -> Counter[str]:
    """How so many hostile requests ended, which plain ones ran beside."""
    draw, ended, most = random.Random(seed), Counter[str](), [0]
    core, spent = engine._core, [engine._core._meter.spent]

    def look() -> None:
        most[0] = max(most[0], core._meter.spent - spent[0])
        spent[0] = core._meter.spent

    core.after_step = look
    for start in range(0, count, TOGETHER):
        plain = [_began(engine, SamplingParams(max_tokens=24, seed=i), None) for i in range(PLAIN)]
        going = [
            _began(engine, *one)
            for _ in range(min(TOGETHER, count - start))
            if (one := _drawn(engine, draw, ended)) is not None
        ]
        for _, future in going:
            try:
                future.result(120)
                ended["text"] += 1
            except GrammarError as error:
                ended[type(error).__name__] += 1
        assert all(future.result(60).completion_tokens for _, future in plain)
    core.call(int)
    core.after_step = None
    assert most[0] <= STEP_WORK + OVER
    return ended


def _drawn(engine: Engine, draw: random.Random, ended: Counter[str]):
    params = SamplingParams(
        max_tokens=draw.randrange(2, 16),
        temperature=1.5,
        seed=draw.randrange(10**6),
        close_at_limit=draw.random() < 0.3,
        error_on_truncation=False,
    )
    try:
        return params, hostile(draw).compile(engine.vocabulary).prepared()
    except GrammarError:
        ended["refused"] += 1
        return None


def _began(engine: Engine, params: SamplingParams, grammar):
    sequence = engine.open()
    sequence.extend(engine.tokenizer.encode("Value: ", special_prefix=True))
    return sequence, sequence.generate(params, grammar)


@pytest.mark.whole
@pytest.mark.parametrize("seed", [1, 2])
def test_a_few_of_each_kind(bundled, seed):
    before = bundled.stats().late_masks
    ended = walk(bundled, seed, 84)
    assert sum(ended.values()) == 84 and ended["text"] > 60
    assert bundled.stats().late_masks > before
