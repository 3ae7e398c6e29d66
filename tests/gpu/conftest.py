"""Engines of tests start at once: what is compiled ahead, and captured while
nobody waits, would be most of their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _asked() -> Iterator[set[str]]:
    """Not empty while a test runs that is marked as rehearsed. Engines of a whole module are not rehearsed either."""
    from sgl.runtime.build.build_engine import EngineBuilder

    asked, usual = set[str](), EngineBuilder.warm_up
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineBuilder, "warm_up", lambda self, core: usual(self, core) if asked else None)
        yield asked


@pytest.fixture(autouse=True)
def _rehearsed(request: Any, _asked: set[str]) -> Iterator[None]:
    if request.node.get_closest_marker("rehearsed") is not None:
        _asked.add(request.node.nodeid)
    yield
    _asked.clear()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Where there is a GPU, all of its tests run."""
    item.add_marker(pytest.mark.product)
