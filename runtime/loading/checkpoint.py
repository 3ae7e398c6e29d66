"""A checkpoint on this machine, opened: what model it is, which tensors it has and how those of few bits are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..models.spec import Model
from ..quantization.readers import Readers
from .files import load_config, quantization_of, weight_files
from .plan import with_own_head
from .source import Source, safetensors


@dataclass(frozen=True)
class Checkpoint:
    """where: for errors.  readers: of weights in few bits."""

    model: Model
    sources: list[Source]
    readers: Readers
    where: str


def open_checkpoint(path: Path, context: int | None = None, weights: bool = True) -> Checkpoint:
    """Headers alone are read. context: the longest sequence that is wanted.  weights: they are wanted, not the configuration alone.

    Raises CheckpointError for files that are absent or damaged, ConfigError for a configuration that is not supported.
    """
    model = load_config(path, context)
    readers = Readers.of(*quantization_of(path))
    sources: list[Source] = [safetensors(file) for file in weight_files(path)] if weights else []
    return Checkpoint(with_own_head(model, sources), sources, readers, str(path))
