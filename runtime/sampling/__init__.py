"""Choosing the next tokens. Importing this does not import torch; the names below do, on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgl.runtime.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sgl.runtime.sampling.sampler import SampledTokens, Sampler
    from sgl.runtime.sampling.sampler_factory import make_sampler
    from sgl.runtime.sampling.sampling_batch import SamplingBatch
    from sgl.runtime.sampling.sampling_row import SamplingRow
    from sgl.runtime.sampling.token_logprobs import launch_top_logprobs, top_logprobs

__all__ = [
    "SampledTokens",
    "Sampler",
    "SamplingBatch",
    "SamplingParams",
    "SamplingRow",
    "launch_top_logprobs",
    "make_sampler",
    "top_logprobs",
]

_HOMES = {
    "Sampler": "sampler",
    "SampledTokens": "sampler",
    "SamplingBatch": "sampling_batch",
    "SamplingRow": "sampling_row",
    "launch_top_logprobs": "token_logprobs",
    "make_sampler": "sampler_factory",
    "top_logprobs": "token_logprobs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
