"""Which sampler a device gets."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from sgl.runtime.sampling.sampler import Launches, Sampler


def make_sampler(vocab_size: int | None, device: torch.device) -> Launches:
    """The kernels' sampler on a CUDA device where Triton is installed, else torch's operations."""
    if device.type == "cuda" and find_spec("triton"):
        from sgl.runtime.sampling.device import DeviceSampler

        return DeviceSampler(vocab_size, device)
    return Sampler(vocab_size)
