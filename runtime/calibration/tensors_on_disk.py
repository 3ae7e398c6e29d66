"""Weights that come as tensors, laid on disk for a model in another process: so all that is true of a model's directory
is true of them.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, ConfigError
from ..loading.model_files.bounded_json import read_json
from ..loading.model_files.model_directory import QUANTIZATION, QUANTIZATION_FILES
from ..loading.sharded_state import MANIFEST
from ..loading.tensor_files.torch_dtypes import DTYPES
from ..models.spec.json_fields import shown
from .shard_writer import CONFIG, ShardWriter


class TensorsOnDisk:
    """Of one engine.

    The newest stay until there are newer ones, or `close`: a process that is started again begins with them.
    """

    def __init__(self) -> None:
        self._kept: tempfile.TemporaryDirectory[str] | None = None
        self._turn = threading.Lock()

    @contextmanager
    def written(self, origin: Path, tensors: Mapping[str, Tensor]) -> Iterator[Path]:
        """A directory of these tensors, kept unless something is raised.

        origin: that of the model, for all else. Raises CheckpointError for what is no tensor.
        """
        if not (origin / CONFIG).is_file():
            raise ConfigError(
                f"update_weights of tensors: the model of another process came from {origin}, whose {CONFIG} they "
                "need; give a model directory"
            )
        with self._turn:
            made = tempfile.TemporaryDirectory(prefix="sgl-weights-")
            try:
                yield _write(Path(made.name, "model"), origin, tensors)
            except BaseException:
                made.cleanup()
                raise
            self.close()
            self._kept = made

    def close(self) -> None:
        if self._kept is not None:
            self._kept.cleanup()
        self._kept = None


def _write(folder: Path, origin: Path, tensors: Mapping[str, Tensor]) -> Path:
    with ShardWriter(folder) as shards:
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES.values():
                raise CheckpointError(
                    f"update_weights: {shown(name)} is "
                    f"{tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__}, not a tensor of "
                    f"{', '.join(DTYPES)}"
                )
            plain = torch.empty(tensor.shape, dtype=tensor.dtype)  # in separate memory, which files need
            shards.add({name: plain.copy_(tensor.detach())})
        shards.index()
        shards.finish(origin, _dense(read_json(origin / CONFIG)), (MANIFEST, *QUANTIZATION_FILES))
    return folder


def _dense(config: dict[str, Any]) -> dict[str, Any]:
    """Without what it says of weights in few bits: these are none."""
    return {
        key: _dense(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in QUANTIZATION
    }
