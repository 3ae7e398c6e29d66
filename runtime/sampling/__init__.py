"""Choosing the next tokens. Importing this does not import torch; the names below do, on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgl.runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from sgl.runtime.sampling.batch import SamplingBatch, SamplingRow
    from sgl.runtime.sampling.kinds import make_sampler
    from sgl.runtime.sampling.logprobs import launch_top_logprobs, top_logprobs
    from sgl.runtime.sampling.sampler import Sampler, Samples

__all__ = [
    "Sampler", "Samples", "SamplingBatch", "SamplingParams", "SamplingRow", "launch_top_logprobs", "make_sampler",
    "top_logprobs",
]  # fmt: skip

_HOMES = {
    "Sampler": "sampler",
    "Samples": "sampler",
    "SamplingBatch": "batch",
    "SamplingRow": "batch",
    "launch_top_logprobs": "logprobs",
    "make_sampler": "kinds",
    "top_logprobs": "logprobs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
