"""The keyword options of one run, for type checkers and editors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..interpreter.token_usage import Budget
from ..sampling.gen_options import SamplingNames


class RunOptions(SamplingNames, total=False):
    """What `run` and `arun` take besides the program's arguments. See `SglFunction.run`."""

    max_tokens: int | None
    backend: Any
    stream: bool
    use_thread: bool
    budget: Budget | int | None
    journal: str | Path | None
    adapter: str | None
