"""Which layers with states compute prompts by chunks of tokens, whose bits depend on where a prompt is cut."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import torch

from ..errors import ConfigError
from ..layers import cpu_kernels
from .spec.model_spec import Mixer, ModelSpec, ParallelMixersSpec
from .spec.recurrent_spec import DeltaNetSpec, Mamba2Spec
from .spec.unsupported_fields import name_of


def chunked(model: ModelSpec, device: torch.device, dtype: torch.dtype) -> str | None:
    """The first of them, for people; None: each token follows the one before, as
    in C on a CPU, or in the kernels of a GPU.
    """
    whys = _left_on_gpu(model, dtype) if device.type == "cuda" else [None] * len(model.layers)
    for index, (layer, why) in enumerate(zip(model.layers, whys, strict=True)):
        for part in _mixers(layer.mixer):
            if isinstance(part, DeltaNetSpec | Mamba2Spec) and (why or not _follow(part, device)):
                told = f" ({why})" if why else ""
                return f"layer {index} ({name_of(part)}) computes prompts by chunks of tokens on {device.type}{told}"
    return None


def require_exact(model: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
    """Raises ConfigError for `deterministic` with such layers. dtype: of the model."""
    if why := chunked(model, device, dtype):
        raise ConfigError(
            f"Engine(deterministic=True): {why}, whose bits depend on where a prompt is cut; run it without "
            "deterministic"
        )


def _follow(part: DeltaNetSpec | Mamba2Spec, device: torch.device) -> bool:
    return device.type == "cuda" or (device.type == "cpu" and part.state[1].shape[1] <= cpu_kernels.most_keys())


def _left_on_gpu(model: ModelSpec, dtype: torch.dtype) -> list[str | None]:
    """Of each layer why the GPU's kernels leave it."""
    from .decoder import Decoder
    from .gpu.gpu_support import gpu_refusal

    if importlib.util.find_spec("triton") is None:
        return ["triton is not installed"] * len(model.layers)
    return [gpu_refusal(block, dtype) for block in Decoder(model, dtype, "meta").layers]


def _mixers(mixer: Mixer | None) -> Iterator[Mixer]:
    if isinstance(mixer, ParallelMixersSpec):
        yield from mixer.mixers
    elif mixer is not None:
        yield mixer
