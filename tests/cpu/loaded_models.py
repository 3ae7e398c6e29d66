"""Models with the weights that a test gives them, and the parts that ranks load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgl.runtime.models.decoder import Decoder
from sgl.runtime.parallel.pp.pipeline_stages import RankPlace, load_rank_part
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit


class GivenWeights:
    """fill: is called with each tensor's name and memory, in the order of the model."""

    bytes, ahead = 0, False

    def __init__(self, fill: Callable[[str, torch.Tensor], object]) -> None:
        self.fill = fill

    def fetch(self, index: int, part: Any) -> GivenWeights:
        for place in part.places():
            self.fill(place.name, place.target)
        return self

    def wait(self) -> None: ...


def load_share(
    path: Path, dtype: torch.dtype, device: torch.device, split: TensorParallelSplit, *more: Any, **options: Any
) -> Decoder:
    """A rank's part of the only stage."""
    return load_stage(path, dtype, device, RankPlace(0, 1, split), *more, **options)


def load_stage(
    path: Path,
    dtype: torch.dtype,
    device: torch.device,
    place: RankPlace,
    seed: int | None = None,
    transform: Any = None,
) -> Decoder:
    return load_rank_part(place.open(path, weights=seed is None), place, dtype, device, seed, transform)
