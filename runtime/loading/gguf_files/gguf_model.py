"""A model from a GGUF file.

    opened = open_gguf(path)              # reads headers alone; checks them
    opened.config                         # as the config.json of the same model, for `read_model`
    opened.model(context)                 # the `ModelSpec`, its weights as the file holds them; use this one to load
    opened.tensors                        # [(file, Stored)], all parts, by the file's names
    opened.names                          # {the file's name: what the tensor is called in `Decoder.places`}
    opened.metadata                       # for `runtime.text.tokenizer_files.gguf_tokenizer`

A `StoredTensor` has the kind of its weights as dtype: F32, F16, BF16, F64 or a key of `BLOCKS`, whose bytes `decode`
turns into a `QuantizedWeight` of the tensor's shape. Tensors that are not in `names` are used up: rotary factors are in
the configuration.

`opened.model()` differs from `read_model(opened.config)` in the layout of weights, not in what it computes: rows of
queries and keys may be interleaved (`RopeParameters.order` brings them back when the decoder is sealed), and Gemma's
norms hold the 1 that others add.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import CheckpointError
from ...models.families import read_model
from ...models.spec.json_fields import shown
from ...models.spec.model_spec import ModelSpec
from ..tensor_files.safetensors_header import StoredTensor
from .gguf_config import architecture_of, config_of
from .gguf_file import GGUFFile, read_parts
from .gguf_tensor_names import FACTORS, as_stored, places_of, to_model_layout

MOST_FACTORS = 2**12


def is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf"


class GGUFModel(NamedTuple):
    """See above. where: the file, for errors."""

    where: str
    metadata: dict[str, Any]
    config: dict[str, Any]
    tensors: list[tuple[Path, StoredTensor]]
    names: dict[str, str]

    def model(self, context: int | None = None) -> ModelSpec:
        """As `read_model` gives it, laid out as in the file. context: the longest sequence that is wanted."""
        return _model(self.config, self.metadata, [stored for _, stored in self.tensors], self.where, context)


def open_gguf(path: Path) -> GGUFModel:
    """The model of a GGUF file, or of all parts of a split one.

    Raises CheckpointError for damaged files, absent parts and tensors without a place, ConfigError for architectures
    and keys that are not supported; before memory is taken for weights.
    """
    parts = read_parts(path)
    metadata, where = parts[0].metadata, str(parts[0].file)
    tensors = [(part.file, to_model_layout(stored)) for part in parts for stored in part.tensors]
    stored = [tensor for _, tensor in tensors]
    config = config_of(metadata, stored, _factors(parts), where)
    model = _model(config, metadata, stored, where)
    return GGUFModel(
        where, metadata, config, tensors, places_of(model, stored, where, architecture_of(metadata, where)[1].roles)
    )


def _model(
    config: dict[str, Any],
    metadata: dict[str, Any],
    tensors: list[StoredTensor],
    where: str,
    context: int | None = None,
) -> ModelSpec:
    _, found = architecture_of(metadata, where)
    return as_stored(read_model(config, f"{where} (keys as config.json has them)", context), found, tensors)


def _factors(parts: list[GGUFFile]) -> dict[str, list[float]]:
    found = {}
    for part in parts:
        for stored in part.tensors:
            name = stored.name.removesuffix(".weight")
            if name in FACTORS:
                found[name] = _numbers(part.file, stored)
    return found


def _numbers(file: Path, stored: StoredTensor) -> list[float]:
    if stored.dtype != "F32" or len(stored.shape) != 1 or stored.shape[0] > MOST_FACTORS:
        raise CheckpointError(
            f"{file}: tensor {shown(stored.name)} is {stored.dtype} {shown(stored.shape)}, not a list of F32; fetch "
            "the file again"
        )
    with open(file, "rb") as stream:
        stream.seek(stored.start)
        numbers: list[float] = np.frombuffer(stream.read(stored.stop - stored.start), "<f4").tolist()
    return numbers
