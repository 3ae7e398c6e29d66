"""The sharded state of a model: a directory whose weights are stored as they are computed with, by each rank its part.
Its manifest, and its names.

Tensors outside the packed projections have the names and shapes of the places of the rank's own model. Those of a
packed projection
are called packed.PART.NUMBER.NAME: the number counts the projections of a part (embedding, layers, head) in their
    order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError, ConfigError
from ..models.spec.json_fields import shown
from ..quantization.weight_forms import PACKED_KINDS
from .model_files.bounded_json import read_json
from .tensor_files.safetensors_header import metadata_tensors

MANIFEST = "sgl_state.json"
VERSION = 3
PREFIX = "packed."
RANK = "rank"  # the key of its metadata in a file
MOST_MANIFEST = 64 * 2**20  # bytes
MOST_RANKS = 2**16
AGAIN = "write it again with `sgl shard`"


class ParallelSizes(NamedTuple):
    """Into what parts a model is cut, one for each rank: the engine's options of these names."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    redundant_experts: int = 0

    @property
    def ranks(self) -> int:
        """Processes."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def wrong(self) -> str | None:
        """Why there are no such parts, for people."""
        counts = (self.tensor_parallel, self.pipeline_parallel)
        if not all(type(count) is int and count >= 1 for count in counts) or self.ranks > MOST_RANKS:
            return (
                f"numbers of ranks and stages are whole and positive, with {MOST_RANKS:,} ranks in all at most, "
                f"here {shown(counts)}"
            )
        if (
            type(self.redundant_experts) is not int
            or not 0 <= self.redundant_experts <= MOST_RANKS
            or type(self.expert_parallel) is not bool
        ):
            return f"expert_parallel and redundant_experts are {shown(self[2:])}"
        if self.expert_parallel and (self.tensor_parallel == 1 or self.pipeline_parallel > 1):
            return "whole experts are spread over the ranks of tensor_parallel, two or more of them, without stages"
        return (
            "redundant_experts are copies of whole experts: take expert_parallel as well, or leave them out"
            if self.redundant_experts and not self.expert_parallel
            else None
        )

    @property
    def command(self) -> str:
        """That writes such a state."""
        stages = f" --stages {self.pipeline_parallel}" if self.pipeline_parallel > 1 else ""
        experts = " --expert-parallel" if self.expert_parallel else ""
        copies = f" --redundant-experts {self.redundant_experts}" if self.redundant_experts else ""
        return f"sgl shard MODEL OUT --ranks {self.tensor_parallel}{stages}{experts}{copies}"

    def __str__(self) -> str:
        """As an engine is asked for them."""
        asked = {
            name: value
            for name, value in self._asdict().items()
            if value != getattr(WHOLE, name) or name == "tensor_parallel"
        }
        return ", ".join(f"{name}={value}" for name, value in asked.items())


WHOLE = ParallelSizes()


class PackedProjectionEntry(NamedTuple):
    """Of a packed projection. numbers: its fields that are no tensors."""

    kind: str
    numbers: dict[str, int]

    @property
    def format(self) -> str:
        return f"packed {self.kind}"


class RankShare(NamedTuple):
    """What a rank has. files: their bytes by their names.  packed: by "PART.NUMBER"."""

    files: dict[str, int]
    packed: dict[str, PackedProjectionEntry]


@dataclass(frozen=True)
class ShardedStateManifest:
    """shares: of each rank.  weights: what was asked for when it was written."""

    parts: ParallelSizes
    shares: tuple[RankShare, ...]
    weights: str

    def as_json(self) -> dict[str, Any]:
        ranks = [
            {"files": share.files, "packed": {key: entry._asdict() for key, entry in share.packed.items()}}
            for share in self.shares
        ]
        return {"version": VERSION, "weights": self.weights, **self.parts._asdict(), "ranks": ranks}


def file_name(rank: int, number: int) -> str:
    """number: of the file, from 1."""
    return f"state-rank-{rank}-part-{number:05}.safetensors"


def has_sharded_state(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def rank_share_in(path: Path, parts: ParallelSizes, rank: int) -> RankShare:
    """What a rank of an engine with these parts reads.

    Raises ConfigError where the state has others, CheckpointError for files of another rank; see `read_manifest`.
    """
    manifest = read_manifest(path)
    if manifest.parts != parts:
        raise ConfigError(
            f"{path} is a sharded state for {manifest.parts}, the engine has {parts}: open it with {manifest.parts}, "
            f"or write the model for this engine: {parts.command}"
        )
    for name in manifest.shares[rank].files:
        if (said := metadata_tensors(path / name).get(RANK)) != str(
            rank
        ):  # its tensors have the names and shapes of any rank's
            raise CheckpointError(
                f"{path / name} says that it is of rank {shown(said)}: another file has been copied over it; copy it "
                "again"
            )
    return manifest.shares[rank]


def read_manifest(path: Path) -> ShardedStateManifest:
    """Of a directory.

    Raises CheckpointError where there is none, for another version, and for what is damaged or lacks files of any rank.
    """
    file = path / MANIFEST
    if not file.exists():
        raise CheckpointError(
            f"{path} has no {MANIFEST}: it is no sharded state; write one with `sgl shard`, or leave load_format at "
            "'auto'"
        )
    said = read_json(file, MOST_MANIFEST)
    if said.get("version") != VERSION:
        raise CheckpointError(f"{file} is of version {shown(said.get('version'))}, version {VERSION} is read; {AGAIN}")
    parts = ParallelSizes(*(said.get(name) for name in ParallelSizes._fields))  # type: ignore[arg-type]
    if parts.wrong is not None:
        raise CheckpointError(f"{file}: {parts.wrong}; {AGAIN}")
    ranks = said.get("ranks")
    if not isinstance(ranks, list) or len(ranks) != parts.ranks:
        raise CheckpointError(
            f"{file}: ranks must be a list of {parts.ranks}, for {parts}, it is {shown(ranks)}; {AGAIN}"
        )
    return ShardedStateManifest(
        parts, tuple(_share(file, rank, value) for rank, value in enumerate(ranks)), str(said.get("weights"))
    )


def _share(file: Path, rank: int, value: object) -> RankShare:
    files, packed = (value.get("files"), value.get("packed")) if isinstance(value, dict) else (None, None)
    if not isinstance(files, dict) or not files or not isinstance(packed, dict):
        raise CheckpointError(
            f"{file}: files and packed of rank {rank} are {shown(files)} and {shown(packed)}; {AGAIN}"
        )
    for number, (name, size) in enumerate(files.items(), 1):
        if name != file_name(rank, number) or type(size) is not int:
            raise CheckpointError(
                f"{file}: rank {rank} has {shown(name)} of {shown(size)} bytes as file {number}, which is called "
                f"{file_name(rank, number)}; {AGAIN}"
            )
        _require(file.parent / name, size)
    return RankShare(files, {key: _entry(file, key, value) for key, value in packed.items()})


def _require(file: Path, size: int) -> None:
    if not file.is_file():
        raise CheckpointError(f"{file.parent} lacks {file.name}, which {MANIFEST} names; complete the copy")
    if (there := file.stat().st_size) != size:
        raise CheckpointError(f"{file} has {there:,} bytes, {MANIFEST} says {size:,}; copy it again")


def _entry(file: Path, key: str, value: object) -> PackedProjectionEntry:
    kind, numbers = (value.get("kind"), value.get("numbers")) if isinstance(value, dict) else (None, None)
    if (
        not isinstance(kind, str)
        or kind not in PACKED_KINDS
        or not isinstance(numbers, dict)
        or not all(type(number) is int and abs(number) < 2**53 for number in numbers.values())
    ):
        raise CheckpointError(
            f"{file}: packed projection {shown(key)} is {shown(value)}; known kinds: {', '.join(PACKED_KINDS)}; {AGAIN}"
        )
    return PackedProjectionEntry(kind, numbers)
