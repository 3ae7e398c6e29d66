"""A start with the cache of packed weights, and what a test compares of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rig import Rig, Row

from sgl.runtime.loading import load_model
from sgl.runtime.loading.packed_cache import known_sources, packed_cache_folder, packed_weights
from sgl.runtime.loading.packed_cache.background_writer import PackedWeightsWriter
from sgl.runtime.loading.packed_cache.packed_weights import PackedWeights
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.quantization import transform_for

CPU = torch.device("cpu")
TOKENS = [5, 6, 7, 61, 11, 40]
FOUND = "from the cache, written"


def use_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of its files, for models however small and however new."""
    monkeypatch.setenv("SGL_CACHE", str(folder))
    monkeypatch.setattr(packed_weights, "LEAST", 0)
    monkeypatch.setattr(known_sources, "GRAIN", -1e9)
    return folder / packed_cache_folder.FOLDER


def entry_of(folder: Path) -> Path:
    (found,) = folder.glob(f"*{packed_weights.SUFFIX}")
    return found


def load(
    path: Path, dtype: torch.dtype = torch.float32, weights: str = "auto", context: int | None = None
) -> tuple[Decoder, PackedWeights]:
    """As an engine loads it."""
    packed, transform = PackedWeights({"weights": weights}), transform_for(weights, False, CPU)
    return load_model(path, dtype, transform=transform, context=context, packed=packed), packed


def start(path: Path, *more: Any) -> tuple[Decoder, str]:
    """Loaded, and the entry written where there was none; and what became of the cache."""
    model, packed = load(path, *more)
    if (writer := PackedWeightsWriter.started(packed, model)) is not None:
        writer.finish()
    return model, packed.outcome


def logits(path: Path, model: Decoder) -> torch.Tensor:
    return Rig(path, model.dtype, model=model).step([(Row(TOKENS), len(TOKENS))], every_row=True)


def without(path: Path, monkeypatch: pytest.MonkeyPatch, *more: Any) -> torch.Tensor:
    """The logits without the cache."""
    with monkeypatch.context() as patch:
        patch.setenv("SGL_CACHE", "0")
        model, _ = start(path, *more)
        return logits(path, model)


def same(path: Path, expected: torch.Tensor, model: Decoder) -> bool:
    return torch.equal(logits(path, model), expected)
