"""Which sampler a device gets."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.sampling.sampler import LaunchesSampling, Sampler


def sampler_kind(device: torch.device) -> str:
    """What chooses tokens there: "triton" or "compiled" kernels, or "torch" where these are missing."""
    if device.type == "cuda":
        return "triton" if find_spec("triton") else "torch"
    return "compiled" if device.type == "cpu" and cpu_kernels.kernels is not None else "torch"


def make_sampler(vocab_size: int | None, device: torch.device) -> LaunchesSampling:
    if sampler_kind(device) == "triton":
        from sgl.runtime.sampling.device_sampler import DeviceSampler

        return DeviceSampler(vocab_size, device)
    return Sampler(vocab_size)
