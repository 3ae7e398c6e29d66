"""Streams a checkpoint into a decoder: each tensor straight to its place, merged and converted on the way."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from .files import load_config, open_weights, weight_files

FLOATS = ("F64", "F32", "F16", "BF16")


def load_model(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    dummy_seed: int | None = None,
) -> Decoder:
    """The decoder of a model directory, its weights converted to `dtype` on `device`.

    Reads local files only. With `dummy_seed` nothing but the configuration is read and the weights are random.
    Raises CheckpointError for files and tensors that are absent, unexpected, damaged or wrongly shaped, and
    ConfigError for a configuration that is not supported.
    """
    config = load_config(path)
    if dummy_seed is not None:
        return dummy_model(config, dtype, device, dummy_seed)
    model = Decoder(config, dtype, device)
    fill(model, Path(path))
    return model.seal()


def dummy_model(
    config: ModelConfig, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seed: int = 0
) -> Decoder:
    """A decoder with random weights, the same for the same seed; norms are one, biases small."""
    model = Decoder(config, dtype, device)
    generator = torch.Generator().manual_seed(seed)
    for name, target in model.parameters().items():
        if name.endswith("norm.weight"):
            target.fill_(1.0)
        else:
            target.copy_(torch.empty(target.shape).normal_(0.0, 0.02, generator=generator))
    return model.seal()


@torch.inference_mode()
def fill(model: Decoder, path: Path) -> None:
    """Copy every tensor of the checkpoint in `path` to its place in an unsealed model."""
    waiting = model.parameters()
    places = dict(waiting)
    ignored = _ignored(model.config)
    for file in weight_files(path):
        with open_weights(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is no mapping)
                if name in places:
                    _copy(tensors, name, places[name], file)
                    waiting.pop(name, None)
                elif not ignored(name):
                    raise CheckpointError(_unexpected(name, file, places))
    if waiting:
        some = ", ".join(sorted(waiting)[:5])
        raise CheckpointError(
            f"{path} lacks {len(waiting)} of {len(places)} tensors: {some}"
            f"{' ...' if len(waiting) > 5 else ''}; the weights do not belong to config.json or are incomplete"
        )


def _copy(tensors: Any, name: str, place: Tensor, file: Path) -> None:
    stored = tensors.get_slice(name)
    if list(stored.get_shape()) != list(place.shape):
        raise CheckpointError(
            f"{file}: tensor {name!r} has shape {list(stored.get_shape())}, config.json asks for {list(place.shape)}"
        )
    if stored.get_dtype() not in FLOATS:
        raise CheckpointError(
            f"{file}: tensor {name!r} holds {stored.get_dtype()}, supported are {', '.join(FLOATS)}; "
            "use the checkpoint before its quantisation"
        )
    place.copy_(tensors.get_tensor(name))


def _ignored(config: ModelConfig) -> Callable[[str], bool]:
    """Tensors that a checkpoint may hold without a place here: a tied head's copy, saved rotary tables."""
    tied_head = f"{config.architecture.names.head}.weight" if config.tied_embeddings else None
    return lambda name: name == tied_head or name.endswith("rotary_emb.inv_freq")


def _unexpected(name: str, file: Path, places: dict[str, Tensor]) -> str:
    near = difflib.get_close_matches(name, places, 1)
    hint = f"; nearest expected name: {near[0]!r}" if near else ""
    return f"{file}: tensor {name!r} has no place in the model that config.json describes{hint}"
