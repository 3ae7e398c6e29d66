"""What the tests of remote models share: a model, its text, and time that is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sgl.runtime import Engine

SECONDS = 10.0  # within which a failure is told, on a busy machine too
OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_tokens": 512}


def text_of(model: str | Path, **options: Any) -> str:
    with Engine(model, **OPTIONS, **options) as engine:
        text: str = engine.generate("The quick brown", max_tokens=12, temperature=0, ignore_eos=True).text
        return text


@contextmanager
def fails(error: type[Exception], words: str) -> Iterator[None]:
    """Within bounded time."""
    started = time.monotonic()
    with pytest.raises(error, match=words):
        yield
    assert time.monotonic() - started < SECONDS
