"""Read before any test: without a GPU, Triton's kernels run in its
interpreter, which must be said before its import.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from alone import INSIDE
from quick_interpreter import quicken

pytest_plugins = ["selection"]
os.environ["SGL_CACHE"] = "0"  # but for tests of caches, which name a folder


def _gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if "TRITON_INTERPRET" not in os.environ and not _gpu():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure() -> None:
    """Grammars are compiled where tests change how, unless a test asks for the process that does it."""
    from sgl.grammars.compile_client import grammar_compile_policy

    grammar_compile_policy.WORTHWHILE = float("inf")


def pytest_runtest_setup() -> None:
    quicken()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay as they are: without them the full collection of each
    engine's start takes a tenth of its time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What the tests of a file have imported and remembered is frozen behind the last of them, for the same reason."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            _freeze()


def _freeze() -> None:
    if INSIDE not in os.environ:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """At its end Python looks through everything once more, or extensions complain of what it left."""
    gc.unfreeze()
