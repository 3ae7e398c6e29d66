"""Which layers with states compute prompts by chunks of tokens, whose bits depend on where a prompt is cut."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..errors import ConfigError
from ..layers import cpu
from .recurrent_spec import Delta, Mamba2
from .spec import Beside, Mixer, Model


def chunked(model: Model, device: torch.device) -> str | None:
    """The first of them, for people; None: each token follows the one before, as in C on a CPU."""
    for index, layer in enumerate(model.layers):
        for part in _mixers(layer.mixer):
            if isinstance(part, Delta | Mamba2) and not (device.type == "cpu" and part.state[1].shape[1] <= cpu.most_keys()):
                return f"layer {index} ({type(part).__name__}) computes prompts by chunks of tokens on {device.type}"
    return None


def require_exact(model: Model, device: torch.device) -> None:
    """Raises ConfigError for `deterministic` with such layers."""
    if why := chunked(model, device):
        raise ConfigError(f"Engine(deterministic=True): {why}, whose bits depend on where a prompt is cut; run it without deterministic")


def _mixers(mixer: Mixer | None) -> Iterator[Mixer]:
    if isinstance(mixer, Beside):
        yield from mixer.mixers
    elif mixer is not None:
        yield mixer
