"""The embedded runtime. Names are resolved on first use, so that importing this costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache.tree import CacheTree
    from .engine import Engine
    from .metrics import Stats
    from .ops import Chunk, Generation
    from .sampling.params import SamplingParams
    from .sequence import Sequence
    from .step_trace import StepRecord
    from .tokenizer import Tokenizer

__all__ = ["CacheTree", "Chunk", "Engine", "Generation", "SamplingParams", "Sequence", "Stats", "StepRecord", "Tokenizer"]

_HOMES = {
    "CacheTree": "cache.tree",
    "Chunk": "ops",
    "Engine": "engine",
    "Generation": "ops",
    "SamplingParams": "sampling.params",
    "Sequence": "sequence",
    "Stats": "metrics",
    "StepRecord": "step_trace",
    "Tokenizer": "tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
