"""A checkpoint on this machine, opened: what model it is, which tensors it has and how those of few bits are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..models.spec.model_spec import ModelSpec
from ..quantization.readers.gguf_reader import GGUFWeightReaders
from ..quantization.readers.weight_reader_match import OF_ACTIVATIONS
from .gguf_files.gguf_file import read_parts
from .gguf_files.gguf_model import is_gguf, open_gguf
from .load_plan import FindsWeightReader, with_own_head
from .model_files.model_directory import load_config, quantization_of, weight_files
from .remote import is_remote, remote_sources
from .remote.range_source import RangeSource
from .sharded_state import (
    WHOLE,
    PackedProjectionEntry,
    ParallelSizes,
    RankShare,
    has_sharded_state,
    rank_share_in,
    read_manifest,
)
from .stored_kv_scales import kv_scales_note
from .tensor_files.safetensors_header import StoredTensor
from .tensor_files.stacked_expert_source import with_stacks_as_stored
from .tensor_files.tensor_source import FileWeightSource, WeightSource, safetensors

UNUSED = {
    tuple(f".{name}" for name in OF_ACTIVATIONS): (
        "the checkpoint's scales of activations (input_scale and the like) are not used: where a kernel rounds "
        "activations, each row has its own scale"
    )
}  # ends of names


@dataclass(frozen=True)
class OpenCheckpoint:
    """where: for errors.  readers: of weights in few bits.  packed: of a sharded state, whose sources
    are a rank's own, see `RankShare`; None: it is none.
    """

    model: ModelSpec
    sources: list[WeightSource]
    readers: FindsWeightReader
    where: str
    packed: Mapping[str, PackedProjectionEntry] | None = None


def open_checkpoint(
    path: Path,
    context: int | None = None,
    weights: bool = True,
    load_format: str = "auto",
    parts: ParallelSizes = WHOLE,
    rank: int = 0,
) -> OpenCheckpoint:
    """Headers alone are read. context: the longest sequence that is wanted.  weights: they are wanted, not the
    configuration alone.

    load_format: "pt" takes pickled files where there are no safetensors, "sharded_state" nothing but that.
    parts, rank: whose share of a sharded state is wanted.

    Raises CheckpointError for files that are absent or damaged, ConfigError for a configuration that is not supported,
    and for a state of other parts.
    """
    if is_gguf(path):
        return _gguf(path, context)
    from ..quantization.readers.weight_readers import WeightReaders

    model = load_config(path, context)
    readers = WeightReaders.of(*quantization_of(path))
    share = rank_share_in(path, parts, rank) if weights and is_state(path, load_format) else None
    sources = _files(path, share) if share is not None else sources_of(path, load_format) if weights else []
    model = with_stacks_as_stored(with_own_head(model, sources), sources)
    notes = (*readers.notes, *kv_scales_note(model, sources, readers.other_kv), *_left_out(sources))
    return OpenCheckpoint(
        replace(model, notes=(*model.notes, *notes)),
        sources,
        readers.with_metadata(metadata_of_sources(sources)),
        str(path),
        None if share is None else share.packed,
    )


def metadata_of_sources(sources: Iterable[WeightSource]) -> dict[str, Any]:
    """The metadata of all files."""
    return {
        name: said
        for source in sources
        if isinstance(source, FileWeightSource | RangeSource)
        for name, said in source.metadata.items()
    }


def _left_out(sources: list[WeightSource]) -> tuple[str, ...]:
    """What the files hold and no load uses, where it would change results."""
    return tuple(
        note
        for names, note in UNUSED.items()
        if any(stored.name.endswith(names) for source in sources for stored in source.tensors)
    )


def sources_of(path: Path, load_format: str = "auto") -> list[WeightSource]:
    """The tensors of a directory or GGUF file, as their headers name them, of a sharded state those of all ranks.

    Raises CheckpointError for what is absent or damaged.
    """
    if is_state(path, load_format):
        return [source for share in read_manifest(path).shares for source in _files(path, share)]
    if is_gguf(path):
        return [FileWeightSource(part.file, part.tensors) for part in read_parts(path)]
    if is_remote(path):
        return [*remote_sources(path)]
    return [
        safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
        for file in weight_files(path, load_format)
    ]


def _pickled(file: Path) -> WeightSource:
    from .tensor_files.pickle_tensors import pickle_source

    return pickle_source(file)


def _files(path: Path, share: RankShare) -> list[WeightSource]:
    return [safetensors(path / name) for name in share.files]


def is_state(path: Path, load_format: str = "auto") -> bool:
    """Whether it is read as a sharded state."""
    return load_format == "sharded_state" or (not is_remote(path) and has_sharded_state(path))


def _gguf(path: Path, context: int | None) -> OpenCheckpoint:
    """Of one file or its parts; tensors under the names that the model knows them by."""
    opened = open_gguf(path)
    parts: dict[Path, list[StoredTensor]] = {}
    for file, stored in opened.tensors:
        if stored.name in opened.names:
            parts.setdefault(file, []).append(stored._replace(name=opened.names[stored.name]))
    sources: list[WeightSource] = [FileWeightSource(file, tensors) for file, tensors in parts.items()]
    return OpenCheckpoint(opened.model(context), sources, GGUFWeightReaders(), opened.where)
