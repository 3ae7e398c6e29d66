"""Which recurrent layers compute prompts by chunks of tokens, so that bits depend on where a prompt is cut."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import torch

from ..errors import ConfigError
from ..layers import compiled_kernels
from .spec.model_spec import Mixer, ModelSpec, ParallelMixersSpec
from .spec.recurrent_spec import DeltaNetSpec, Mamba2Spec
from .spec.unsupported_fields import part_name


def chunked(model: ModelSpec, device: torch.device, dtype: torch.dtype) -> str | None:
    """The first such layer, for people.

    None: every layer scans token by token, as in C on a CPU or in the GPU kernels.
    """
    whys = _left_on_gpu(model, dtype) if device.type == "cuda" else [None] * len(model.layers)
    for index, (layer, why) in enumerate(zip(model.layers, whys, strict=True)):
        for part in _mixers(layer.mixer):
            if isinstance(part, DeltaNetSpec | Mamba2Spec) and (why or not _follow(part, device)):
                reason = f" ({why})" if why else ""
                return (
                    f"layer {index} ({part_name(part)}) computes prompts by chunks of tokens on {device.type}{reason}"
                )
    return None


def require_exact(model: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
    """Raises ConfigError if `deterministic` is set and the model has such layers. dtype: of the model."""
    if why := chunked(model, device, dtype):
        raise ConfigError(
            f"Engine(deterministic=True): {why}, whose bits depend on where a prompt is cut; run it without "
            "deterministic"
        )


def _follow(part: DeltaNetSpec | Mamba2Spec, device: torch.device) -> bool:
    keys = part.state[1].shape[1]
    return device.type == "cuda" or (device.type == "cpu" and keys <= compiled_kernels.limit("MOST_KEYS"))


def _left_on_gpu(model: ModelSpec, dtype: torch.dtype) -> list[str | None]:
    """For each layer, why the GPU kernels do not support it."""
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
