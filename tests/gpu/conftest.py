"""Engines of tests start at once: what is compiled ahead, and captured while nobody waits, would be most of their time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _unrehearsed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("rehearsed") is None:
        from sgl.runtime.loop.assemble import Assembly

        monkeypatch.setattr(Assembly, "rehearse", lambda self, core: None)
