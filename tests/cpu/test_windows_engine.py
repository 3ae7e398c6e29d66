"""A model with windowed layers in an engine: whatever was given back, its text is that of a cold run that keeps all."""

from __future__ import annotations

import pytest
from states_rig import prompt, run
from windows_rig import EVERY, Make, make, paths, quiet, walk

__all__ = ["make", "paths"]


@pytest.mark.parametrize("case", EVERY)
def test_texts_are_those_of_a_cold_run_whatever_was_there_before(case: str, make: Make) -> None:
    engine, cold = make(case, window_tokens=400), quiet(make, case)
    shared = prompt(1, 130)
    for cut in [130, 130, 33, 34, 64, 16, 40, 69, 1]:
        tokens = shared[:cut] + prompt(cut, 7)
        cold.flush_cache()
        assert run(engine, tokens, 40).token_ids == run(cold, tokens, 40).token_ids
    stats = engine.stats()
    assert stats.cached_tokens > 150 and stats.window_given_back > 500


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("seed", range(3))
def test_everything_at_once(case: str, seed: int, make: Make) -> None:
    """More of it in tests/slow."""
    assert walk(make, case, seed, 60) > 5
