"""The embedded runtime. Names are resolved on first use, so that importing this costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache.view.cache_tree import CacheTree
    from .engine import Engine
    from .sampling.sampling_params import SamplingParams
    from .sequences.generation import Chunk, Generation
    from .sequences.sequence import Sequence
    from .text.tokenizer import Tokenizer
    from .watch.engine_stats import Stats
    from .watch.step_trace import StepRecord

__all__ = [
    "CacheTree",
    "Chunk",
    "Engine",
    "Generation",
    "SamplingParams",
    "Sequence",
    "Stats",
    "StepRecord",
    "Tokenizer",
]

_HOMES = {
    "CacheTree": "cache.view.cache_tree",
    "Chunk": "sequences.generation",
    "Engine": "engine",
    "Generation": "sequences.generation",
    "SamplingParams": "sampling.sampling_params",
    "Sequence": "sequences.sequence",
    "Stats": "watch.engine_stats",
    "StepRecord": "watch.step_trace",
    "Tokenizer": "text.tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .common.garbage_collection import import_uncollected

    return getattr(import_uncollected(f"{__name__}.{_HOMES[name]}"), name)
