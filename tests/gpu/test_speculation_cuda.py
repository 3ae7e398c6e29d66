"""With drafts the text on a GPU is the text without them, to the bit, whatever is
guessed; their steps replay the graphs of decodes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from draft_rig import Told, cases, grammars, opened, parts, speculation
from draft_walk import walk

from sgl.runtime import Engine, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

OPTIONS: dict[str, Any] = {
    "device": "cuda",
    "kv_tokens": 16_384,
    "max_running": 32,
    "deterministic": True,
    "poison_freed": True,
}


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def without(dtype: str) -> tuple[list[Any], list[Any]]:
    """What is written without drafts.

    The engine is closed then: one that opens waits for the device, which ends captures of another.
    """
    with Engine(dtype=dtype, **OPTIONS) as engine:
        kinds = grammars(engine)
        found = [opened(engine, text).generate(params, kinds[kind]).result(150) for text, params, kind in cases(engine)]
        return found, [walk(engine, seed, 12) for seed in range(3)]


@pytest.fixture(scope="module", params=[1, 16], ids=["pages of 1", "pages of 16"])
def drafting(dtype: str, without: Any, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(dtype=dtype, page_size=request.param, speculation="auto", **OPTIONS) as engine:
        engine._core.after_step = engine._core.check
        assert engine.info()["run_ahead"]
        yield engine


def watched(engine: Engine) -> list[list[int]]:
    """New tokens of each sequence, of the steps with guesses that did not replay one graph."""
    runner, seen = engine._core.runner, []
    once = runner.__class__._decode

    def forward(work: Any) -> Any:
        lengths = [hi - lo for _, lo, hi in work]
        if any(seq.draft is not None for seq, *_ in work):
            seen.append(lengths)
        return runner.__class__.forward(runner, work)

    def decode(*args: Any) -> Any:
        if len(args) > 4:
            seen.pop()
        return once(runner, *args)

    runner.forward, runner._decode = forward, decode
    return seen


@pytest.mark.parametrize("how", ["right", "mixed", "long"])
def test_the_text_is_the_text_without(drafting: Engine, without: Any, how: str) -> None:
    kinds, (wanted, _) = grammars(drafting), without
    answers = {
        tuple(drafting.tokenizer.encode(text).tolist()): found.token_ids
        for (text, *_), found in zip(cases(drafting), wanted, strict=True)
    }
    speculation(drafting, Told(how, answers))
    seen, before = watched(drafting), drafting.stats()
    for (text, params, kind), expected in zip(cases(drafting), wanted, strict=True):
        assert parts(opened(drafting, text).generate(params, kinds[kind]).result(150)) == parts(expected), (
            text,
            params,
            kind,
        )
    assert (drafting.stats() - before).accepted_tokens > (15 if how == "mixed" else 40)
    assert all(max(lengths) > 17 for lengths in seen), seen


def test_random_programs(drafting: Engine, without: Any) -> None:
    """Schemas, forks, aborts and cuts; many at once, guesses of all drafters."""
    for seed, wanted in enumerate(without[1]):
        assert walk(drafting, seed, 12) == wanted, seed


def test_steps_without_guesses_run_ahead(drafting: Engine) -> None:
    """A drafter that knows nothing is asked less and less."""

    class Nothing(Told):
        asked = 0

        def propose(self, seq: Any, op: Any, most: int) -> None:
            self.asked += 1

    drafter = Nothing()
    speculation(drafting, drafter)
    opened(drafting, "x").generate(SamplingParams(max_tokens=200, ignore_eos=True)).result(150)
    assert 5 < drafter.asked < 30
