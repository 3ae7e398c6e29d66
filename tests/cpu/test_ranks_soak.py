"""Ranks, stages and replicas under random faults, in short; the long form is in tests/slow/test_ranks_long.py."""

from __future__ import annotations

import pytest
from faults_rig import KINDS, soak


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_but_what_ran_on_the_dead(kind, tiny, tmp_path, monkeypatch):
    found = soak(tiny, kind, 2.0, 7, tmp_path, monkeypatch, ("delay", "kill", "delays of all"))
    assert found["restarts"] >= 1 and found["kill"] >= 1
