"""The keyword options of batches, for type checkers and editors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..interpreter.token_usage import Budget
from ..sampling.adapter_selection import Adapters
from ..sampling.gen_options import SamplingNames


class BatchOptions(SamplingNames, total=False):
    """What `run_batch` and `arun_batch` take besides the items and what becomes of their results."""

    max_tokens: int | None
    backend: Any
    budget: Budget | int | None
    journal: str | Path | None
    adapter: Adapters
    num_threads: int | str


class BatchDisplayOptions(BatchOptions, total=False):
    """What `run_batch` takes more."""

    progress_bar: bool
