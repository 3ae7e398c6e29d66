"""Reads an adapter of PEFT: its configuration, then its pairs, checked against the model before anything is copied."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..loading.header import DTYPES, FLOATS, Stored
from ..loading.objects import read_json
from ..loading.pickles import pickled
from ..loading.plan import renamed
from ..loading.source import Source, safetensors
from ..models.spec import Model
from ..values import shown
from .adapter import Adapter, Packing
from .peft_config import PeftConfig
from .sites import WEIGHT, Site

PREFIX = "base_model.model."
CONFIG, SAFETENSORS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
A, B = ".lora_A.weight", ".lora_B.weight"
OTHERS = {  # what else PEFT stores
    ".lora_magnitude_vector": "DoRA (use_dora)", ".lora_embedding_A": "an adapter of an embedding", ".lora_embedding_B": "an adapter of an embedding",
    ".base_layer.": "a tensor of the base, as PEFT saves it beside an adapter of an embedding", ".lora_B.bias": "biases of pairs (lora_bias)", ".token_adapter.": "rows of an embedding (trainable_token_indices)",
}  # fmt: skip


class Target(NamedTuple):
    """A module that can be adapted: its matrix is [outputs, inputs]."""

    module: str
    outputs: int
    inputs: int


class Reader:
    """Of adapters for one model. pickles: .bin files are read too (`load_format="pt"`)."""

    def __init__(self, model: Model, sites: tuple[Site, ...], dtype: torch.dtype, pickles: bool = False) -> None:
        self._model, self._pickles, self._dtype = model, pickles, dtype
        self._packing = Packing(sites, dtype)
        self._targets = {module: Target(module, size, site.inputs) for site in sites for module, size in zip(site.modules, site.sizes, strict=True)}
        self._places = {module + WEIGHT for module in self._targets}

    def read(self, path: Path) -> Adapter:
        """path: a directory of PEFT's. Raises CheckpointError naming what is missing, damaged or not supported."""
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a directory; an adapter is one with {CONFIG} and {SAFETENSORS}")
        config = PeftConfig.of(read_json(path / CONFIG), str(path / CONFIG))
        source = self._source(path)
        found = self._sorted(source)
        for module, pair in found.items():
            self._check(source, config, module, pair)
        if not found:
            raise CheckpointError(f"{source.name} holds no pairs lora_A and lora_B")
        return self._packing.pack({
            target.module: (self._tensor(source, pair[A]), self._tensor(source, pair[B]), config.scaling(module)) for module, pair in found.items() if (target := self._target(module))
        })

    def _source(self, path: Path) -> Source:
        if (path / SAFETENSORS).is_file():
            return safetensors(path / SAFETENSORS)
        if (path / PICKLED).is_file() and self._pickles:
            return pickled(path / PICKLED)
        there = f"; {PICKLED} is there, which is read with Engine(load_format='pt')" if (path / PICKLED).is_file() else ""
        raise CheckpointError(f"{path / SAFETENSORS} is missing{there}")

    def _sorted(self, source: Source) -> dict[str, dict[str, Stored]]:
        """The tensors by module, as the base model calls it, and by what they are of it."""
        found: dict[str, dict[str, Stored]] = {}
        for stored in source.tensors:
            end = next((end for end in (A, B) if stored.name.endswith(end)), None)
            if end is None or not stored.name.startswith(PREFIX):
                raise CheckpointError(f"{source.name}: tensor {shown(stored.name)} is not supported: {_what(stored.name)}")
            module = stored.name[len(PREFIX) : -len(end)]
            if self._target(module) is None:
                raise CheckpointError(f"{source.name}: tensor {shown(stored.name)}: {self._no_target(module)}")
            found.setdefault(module, {})[end] = stored
        return found

    def _target(self, module: str) -> Target | None:
        name = renamed(module + WEIGHT, self._model, self._places)
        return self._targets.get(name.removesuffix(WEIGHT))

    def _no_target(self, module: str) -> str:
        ends = sorted({name.rpartition(".")[2] for name in self._targets})
        return f"{self._model.architecture} has no module {shown(module)} that adapters can change here; supported are {', '.join(ends)} of its layers"

    def _tensor(self, source: Source, stored: Stored) -> Tensor:
        """In float32. What the model's type cannot hold, or is no number, would spoil every text computed with it."""
        part = torch.empty(stored.stop - stored.start, dtype=torch.uint8)
        source.read(stored, 0, part)
        found = part.view(DTYPES[stored.dtype]).view(stored.shape).float()
        if not bool(found.to(self._dtype).isfinite().all()):
            raise CheckpointError(f"{source.name}: tensor {shown(stored.name)} holds nan or values beyond {self._dtype}; the training diverged, or the file is damaged")
        return found

    def _check(self, source: Source, config: PeftConfig, module: str, pair: dict[str, Stored]) -> None:
        target, rank = self._target(module), config.rank_of(module)
        assert target is not None
        for end, shape in ((A, [rank, target.inputs]), (B, [target.outputs, rank])):
            if end not in pair:
                raise CheckpointError(f"{source.name} lacks {shown(PREFIX + module + end)}, the other half of a pair")
            stored = pair[end]
            if stored.shape != shape:
                raise CheckpointError(
                    f"{source.name}: tensor {shown(stored.name)} has shape {stored.shape}; rank {rank} by {CONFIG} and the model ask for {shape}"
                )
            if stored.dtype not in FLOATS:
                raise CheckpointError(f"{source.name}: tensor {shown(stored.name)} holds {stored.dtype}; supported are {', '.join(FLOATS)}")


def _what(name: str) -> str:
    found = next((what for part, what in OTHERS.items() if part in name), None)
    return found or ("a trained bias" if name.endswith(".bias") else "a whole module (modules_to_save), or none of PEFT's pairs")


