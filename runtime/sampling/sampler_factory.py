"""Which sampler a device gets."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from sgl.runtime.layers import cpu
from sgl.runtime.sampling.sampler import Launches, Sampler


def sampled_by(device: torch.device) -> str:
    """What chooses tokens there: "triton" or "compiled" kernels, or "torch" where these are missing."""
    if device.type == "cuda":
        return "triton" if find_spec("triton") else "torch"
    return "compiled" if device.type == "cpu" and cpu.kernels is not None else "torch"


def make_sampler(vocab_size: int | None, device: torch.device) -> Launches:
    if sampled_by(device) == "triton":
        from sgl.runtime.sampling.device import DeviceSampler

        return DeviceSampler(vocab_size, device)
    return Sampler(vocab_size)
