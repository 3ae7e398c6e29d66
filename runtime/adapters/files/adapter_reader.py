"""Reads an adapter of PEFT: its configuration, then its pairs, checked against the model before anything is copied."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ...common.argument_checks import shown
from ...errors import CheckpointError
from ...loading.gguf_files.gguf_model import is_gguf
from ...loading.load_plan import renamed
from ...loading.model_files.bounded_json import read_json
from ...loading.tensor_files.pickle_tensors import pickle_source
from ...loading.tensor_files.safetensors_header import FLOATS, StoredTensor
from ...loading.tensor_files.tensor_source import FileWeightSource, WeightSource, safetensors
from ...loading.tensor_files.torch_dtypes import DTYPES
from ...memory.huge_pages import huge_page_tensor
from ...models.spec.model_spec import ModelSpec
from ..adapter import Adapter, AdapterPacker
from ..adapter_extras import AdapterWeightChanges, Pair
from ..adapter_sites import WEIGHT, AdapterSite
from .adapter_base_weights import BaseWeights
from .adapter_extras_reader import ASKED, BASE, EMBEDDING_A, EMBEDDING_B, AdapterExtrasReader, end_of
from .expert_adapter_targets import expert_modules_of
from .gguf_adapter import GGUFRowOrder, read_adapter
from .peft_config import PeftConfig
from .peft_file_names import CONFIG, PICKLED, SAFETENSORS

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
WHOLE = {2: (np.int16, np.uint16), 4: (np.int32, np.uint32), 8: (np.int64, np.uint64)}  # by bytes of a number


def read_pairs(source: WeightSource, wanted: Iterable[StoredTensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """By name, in the file's type; what is wider than float32, in this. Raises CheckpointError where `dtype`, the
    model's, cannot hold them.
    """
    found: dict[str, Tensor] = {}
    for run in _runs(source, wanted):
        numbers = _numbers(source, run)
        parts = numbers.split([(stored.stop - stored.start) // numbers.itemsize for stored in run])
        if not are_held(numbers, dtype):
            raise spoilt_pair_error(
                source,
                next(stored for stored, part in zip(run, parts, strict=True) if not are_held(part, dtype)),
                dtype,
            )
        found |= {stored.name: _narrow(part.view(stored.shape)) for stored, part in zip(run, parts, strict=True)}
    return found


def are_held(numbers: Tensor, dtype: torch.dtype) -> bool:
    """Whether all stay numbers in this type: as whole numbers, bits of floats are in the order of
    what they stand for, infinity and nan above all.
    """
    if not numbers.numel():
        return True
    signed, unsigned = WHOLE[numbers.itemsize]
    bits = numbers.view(torch.uint8).numpy().view(unsigned)
    ends = np.array(
        [bits.view(signed).max(), bits.max().view(signed)]
    )  # the largest, and of those below zero, if any, the smallest
    return bool(torch.from_numpy(ends).view(numbers.dtype).to(dtype).isfinite().all())


def spoilt_pair_error(source: WeightSource, stored: StoredTensor, dtype: torch.dtype) -> CheckpointError:
    return CheckpointError(
        f"{source.name}: tensor {shown(stored.name)} holds nan or values beyond {dtype}; the training diverged, or "
        "the file is damaged"
    )


def _runs(source: WeightSource, wanted: Iterable[StoredTensor]) -> Iterator[list[StoredTensor]]:
    """Those of one type that follow each other in a file."""
    run: list[StoredTensor] = []
    for stored in sorted(wanted, key=lambda each: (each.start, each.stop)):
        if run and (
            not isinstance(source, FileWeightSource) or (run[-1].stop, run[-1].dtype) != (stored.start, stored.dtype)
        ):
            yield run
            run = []
        run.append(stored)
    if run:
        yield run


def _numbers(source: WeightSource, run: list[StoredTensor]) -> Tensor:
    """One dimension, all tensors of a run. A file that is cut short lacks the last of them."""
    size = run[-1].stop - run[0].start
    part = huge_page_tensor(size)
    source.read(run[-1]._replace(start=run[0].start), 0, part)
    return part.view(DTYPES[run[0].dtype])


def _narrow(values: Tensor) -> Tensor:
    """Rounded twice on the way to the model's type, as float32 is what adapters are computed in."""
    return values.float() if values.dtype is torch.float64 else values


class PacksAdapters(Protocol):
    """See `adapter.AdapterPacker`."""

    def pack(self, pairs: dict[str, Pair], changes: AdapterWeightChanges | None = None) -> Adapter: ...


class AdapterTarget(NamedTuple):
    """A module that can be adapted: its matrix is [outputs, inputs]."""

    module: str
    outputs: int
    inputs: int


class AdapterReader:
    """Of adapters for one model. pickles: .bin files are read too (`load_format="pt"`).

    base: the model's weights, with which extras are laid out; None: only pairs are read.
    packing: packs pairs into memory; None: for one rank.  file: the model is that of a GGUF file.
    """

    def __init__(
        self,
        model: ModelSpec,
        sites: tuple[AdapterSite, ...],
        dtype: torch.dtype,
        pickles: bool = False,
        base: BaseWeights | None = None,
        packing: PacksAdapters | None = None,
        file: Path | None = None,
    ) -> None:
        self._file_rows = None if file is None else GGUFRowOrder(file, model)
        self._model, self._pickles, self._dtype, self._base = model, pickles, dtype, base
        self._packing = packing or AdapterPacker(sites, dtype, model)
        self._targets = {
            module: AdapterTarget(module, size, site.inputs)
            for site in sites
            for module, size in zip(site.modules, site.sizes, strict=True)
        }
        self._places = {name + WEIGHT for name in (*self._targets, model.names.embedding, model.names.head)}

    def read(self, path: Path) -> Adapter:
        """path: a directory of PEFT's, or a GGUF file. Raises CheckpointError naming what is missing, damaged or not
        supported.
        """
        if is_gguf(path):
            return self._packing.pack(self._of_gguf(path))
        if not path.is_dir():
            raise CheckpointError(
                f"{path} is not a directory; an adapter is one with {CONFIG} and {SAFETENSORS}, or a .gguf file"
            )
        if not (path / CONFIG).is_file():
            raise CheckpointError(
                f"{path} holds no {CONFIG}; an adapter is a directory with it and {SAFETENSORS}, or a .gguf file"
            )
        config = PeftConfig.of(read_json(path / CONFIG), str(path / CONFIG), self._base is not None)
        source = self._source(path)
        found, others = self._sorted(source)
        for module, pair in found.items():
            self._check(source, config, module, pair)
        stored = read_pairs(source, (half for pair in found.values() for half in pair.values()), self._dtype)
        pairs = {
            self._name(module): (stored[pair[A].name], stored[pair[B].name], config.scaling(module))
            for module, pair in found.items()
        }
        if self._file_rows is not None:
            pairs = {
                module: (first, self._file_rows.of(module, second), scale)
                for module, (first, second, scale) in pairs.items()
            }
        changes = (
            AdapterWeightChanges()
            if self._base is None
            else self._extras_reader(source, config, self._base).read(others, pairs)
        )
        if not pairs and not changes:
            raise CheckpointError(f"{source.name} holds no pairs lora_A and lora_B")
        check_magnitudes(config.where, pairs, changes, self._dtype)
        adapter = self._packing.pack(pairs, changes)
        return adapter.called(_contents(source, config)) if adapter.on_base else adapter

    def _of_gguf(self, file: Path) -> dict[str, Pair]:
        shapes = {target.module: (target.outputs, target.inputs) for target in self._targets.values()}
        pairs = read_adapter(file, self._model, shapes, self._tensor, self._file_rows is not None)
        check_magnitudes(str(file), pairs, AdapterWeightChanges(), self._dtype)
        return pairs

    def _extras_reader(self, source: WeightSource, config: PeftConfig, base: BaseWeights) -> AdapterExtrasReader:
        sizes = {module: target.outputs for module, target in self._targets.items()}
        return AdapterExtrasReader(self._model, sizes, base, source, config, partial(self._tensor, source))

    def _source(self, path: Path) -> WeightSource:
        if (path / SAFETENSORS).is_file():
            return safetensors(path / SAFETENSORS)
        if (path / PICKLED).is_file() and self._pickles:
            return pickle_source(path / PICKLED)
        there = (
            f"; {PICKLED} is there, which is read with Engine(load_format='pt')" if (path / PICKLED).is_file() else ""
        )
        raise CheckpointError(f"{path / SAFETENSORS} is missing{there}")

    def _sorted(
        self, source: WeightSource
    ) -> tuple[dict[str, dict[str, StoredTensor]], dict[str, dict[str, StoredTensor]]]:
        """The pairs of products, by module, as the checkpoint calls it, and by what they are of it; the others, as the
        model calls it.
        """
        found: dict[str, dict[str, StoredTensor]] = {}
        others: dict[str, dict[str, StoredTensor]] = {}
        for stored in source.tensors:
            end = end_of(stored.name)
            if end is None or not stored.name.startswith(PREFIX):
                raise CheckpointError(
                    f"{source.name}: tensor {shown(stored.name)} is not supported: {_what(stored.name)}"
                )
            module = stored.name[len(PREFIX) : -len(end)]
            if end in (A, B) and self._target(module) is not None:
                found.setdefault(module, {})[end] = stored
                continue
            if self._base is None and end not in (A, B):
                raise CheckpointError(
                    f"{source.name}: tensor {shown(stored.name)} is not supported here: {_what(stored.name)}"
                )
            name = self._name(module)
            if name not in self._targets and (self._base is None or not self._is_extra_tensor(name)):
                raise CheckpointError(f"{source.name}: tensor {shown(stored.name)}: {self._no_target(module)}")
            others.setdefault(name, {})[end] = stored
        return found, others

    def _is_extra_tensor(self, name: str) -> bool:
        """Whether it is no product of `sites`, but may be adapted."""
        mixtures = expert_modules_of(self._model)
        return (
            name in (self._model.names.embedding, self._model.names.head)
            or name in mixtures.modules
            or mixtures.layer_of(name) is not None
        )

    def _target(self, module: str) -> AdapterTarget | None:
        return self._targets.get(self._name(module))

    def _name(self, module: str) -> str:
        """As the model calls it."""
        return renamed(module + WEIGHT, self._model, self._places).removesuffix(WEIGHT)

    def _no_target(self, module: str) -> str:
        ends = sorted({name.rpartition(".")[2] for name in self._targets})
        return (
            f"{self._model.architecture} has no module {shown(module)} that adapters can change here; supported "
            f"are {', '.join(ends)} of its layers"
        )

    def _tensor(self, source: WeightSource, stored: StoredTensor) -> Tensor:
        """In float32. What the model's type cannot hold, or is no number, would spoil every text computed with it."""
        _check_floats(source, stored)
        part = torch.empty(stored.stop - stored.start, dtype=torch.uint8)
        source.read(stored, 0, part)
        found = part.view(DTYPES[stored.dtype])
        if not are_held(found, self._dtype):
            raise spoilt_pair_error(source, stored, self._dtype)
        return found.view(stored.shape).float()

    def _check(self, source: WeightSource, config: PeftConfig, module: str, pair: dict[str, StoredTensor]) -> None:
        target, rank = self._target(module), config.rank_of(module)
        assert target is not None
        for end, shape in ((A, [rank, target.inputs]), (B, [target.outputs, rank])):
            if end not in pair:
                raise CheckpointError(f"{source.name} lacks {shown(PREFIX + module + end)}, the other half of a pair")
            stored = pair[end]
            if stored.shape != shape:
                raise CheckpointError(
                    f"{source.name}: tensor {shown(stored.name)} has shape {stored.shape}; rank {rank} by {CONFIG} "
                    f"and the model ask for {shape}"
                )
            _check_floats(source, stored)


def _check_floats(source: WeightSource, stored: StoredTensor) -> None:
    if stored.dtype not in FLOATS:
        raise CheckpointError(
            f"{source.name}: tensor {shown(stored.name)} holds {stored.dtype}; supported are {', '.join(FLOATS)}"
        )


def _contents(source: WeightSource, config: PeftConfig) -> str:
    """A digest of what was read, whatever the base is."""
    found = hashlib.sha256(repr(replace(config, where="")).encode())
    for stored in sorted(source.tensors, key=lambda each: each.name):
        part = torch.empty(stored.stop - stored.start, dtype=torch.uint8)
        source.read(stored, 0, part)
        found.update(f"{stored.name} {stored.dtype} {stored.shape}".encode())
        found.update(part.numpy().data)
    return found.hexdigest()[:32]


def _what(name: str) -> str:
    embedding = "an adapter of an embedding"
    asked = {
        EMBEDDING_A: embedding,
        EMBEDDING_B: embedding,
        BASE: "a tensor of the base, as PEFT saves it with an adapter of an embedding",
        **ASKED,
    }
    found = next((what for end, what in asked.items() if name.endswith(end)), None)
    return found or ("a trained bias" if name.endswith(".bias") else "none of PEFT's pairs")


def check_magnitudes(where: str, pairs: dict[str, Pair], changes: AdapterWeightChanges, dtype: torch.dtype) -> None:
    """Refuses numbers that are too large for the model's type: each step that used them would end in infinities.

    where: for errors. Raises CheckpointError for a scale, or a pair multiplied with it, that `dtype` or float32 cannot
    hold.
    """
    most = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    for module, (_, second, scale) in _scaled(pairs, changes):
        if not abs(scale) <= most:
            raise CheckpointError(
                f"{where}: {shown(module)} is scaled by {scale:.3g}, which {dtype} cannot hold; lower lora_alpha or "
                "alpha_pattern"
            )
        if second.numel() and not abs(scale) * _largest(second) <= most:
            raise CheckpointError(
                f"{where}: B of {shown(module)}, multiplied with its scale {scale:.3g}, is no number of {dtype}; "
                "lower lora_alpha or alpha_pattern, or train it again"
            )
    for module, values in (*changes.gains.items(), *changes.offsets.items()):
        if values.numel() and not _largest(values) <= most:
            raise CheckpointError(
                f"{where}: the factors or biases of {shown(module)} are no numbers of {dtype}; the training "
                "diverged, or the file is damaged"
            )


def _scaled(pairs: dict[str, Pair], changes: AdapterWeightChanges) -> Iterator[tuple[str, Pair]]:
    yield from pairs.items()
    yield from ((module, pair) for module, several in changes.mixtures.items() for pair in several)
    for name, table in (("the embedding", changes.embedding), ("the head", changes.head)):
        if table is not None and table.first is not None and table.second is not None:
            yield name, (table.first, table.second, table.scale)


def _largest(values: Tensor) -> float:
    """nan where one is."""
    least, most = values.aminmax()
    return max(-float(least), float(most)) if most.isfinite() and least.isfinite() else float("nan")
