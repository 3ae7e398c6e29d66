"""The cache's part in one load of a model: an entry that belongs to it, or what is to be written once it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgl.common.file_cache import FileCache, caches_are_off

from ...errors import CheckpointError
from ...layers import cpu_kernels
from ...models.decoder import Decoder
from ...models.spec.model_spec import ModelSpec
from ...quantization.quantized_transform import LayerTransform, Transform
from ..checkpoint import OpenCheckpoint
from ..tensor_files.tensor_source import FileWeightSource
from .cache_key import entry_key
from .cached_weights import LoadRecorder, load_cached
from .content_digest import DamagedEntryError
from .entry_file import CachedEntry, EntryContents, read_entry, write_entry
from .known_sources import SourceIdentity, known_digest, note_digest
from .packed_cache_folder import packed_cache

log = logging.getLogger("sgl.runtime")
SUFFIX = ".weights"
LEAST = 4 * 2**20  # bytes of a checkpoint that take long enough to pack


class PackedWeights:
    """options: of the engine, those that change weights.

    outcome: what became of it, for `Engine.info`.  recorder: sees a load that is to be stored; None: it is not.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.outcome = "not used"
        self.recorder: LoadRecorder | None = None
        self._options, self._replaces = options, False
        self._origin: _Origin | None = None
        self._shown: dict[str, Any] = {}

    def show(self, loading: dict[str, Any]) -> None:
        """Keep what `Engine.info` says of loading up to date."""
        self._shown = loading
        self.tell(self.outcome)

    def tell(self, words: str, warn: bool = False) -> None:
        self.outcome = self._shown["cache"] = words
        if warn:
            log.warning("cache of packed weights: %s", words)

    def load(
        self,
        model: Decoder,
        checkpoint: OpenCheckpoint,
        transform: Transform | None,
        reading: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether the model has its weights from the cache. reading: see `read_entry`."""
        why = _refusal(model, checkpoint, transform)
        if why is not None:
            self.tell(f"not used: {why}")
            return False
        try:
            self._origin = _Origin.of(packed_cache(), model, checkpoint, self._options)
            entry = self._origin.entry(reading)
        except OSError as error:
            self.tell(f"not used: {error}", warn=True)
            return False
        except DamagedEntryError as error:
            return self._rebuild(error)
        if entry is None:
            return self._record("written once the engine runs")
        try:
            load_cached(model, entry, transform)
        except CheckpointError as error:
            self.tell(f"not used: an entry does not fit the model ({error})", warn=True)
            return False
        written = datetime.fromtimestamp(entry.summary["written"], UTC)
        self.tell(f"from the cache, written {written:%Y-%m-%d %H:%M:%S} UTC")
        return True

    def _rebuild(self, error: Exception) -> bool:
        self._replaces = True
        log.warning("an entry of the cache of packed weights is damaged (%s) and is written anew", error)
        return self._record(f"an entry was damaged ({error}); written anew once the engine runs")

    def _record(self, words: str) -> bool:
        self.tell(words)
        self.recorder = LoadRecorder()
        return False

    def contents(self, model: Decoder) -> EntryContents | None:
        """What is to be written of the loaded model, once; None: nothing."""
        recorder, self.recorder = self.recorder, None
        if recorder is None or self._origin is None:
            return None
        why = recorder.why or self._origin.refusal
        if why is not None:
            self.tell(f"not written: {why}")
            return None
        return recorder.contents(model, self._origin.where, time.time())

    def write(self, contents: EntryContents, going_on: Callable[[], None]) -> None:
        """Raises what `going_on` raises, which is called between pieces."""
        assert self._origin is not None
        try:
            self.tell(self._origin.write(contents, going_on, self._replaces))
        except OSError as error:
            self.tell(f"not written: {error}", warn=True)


class _Origin(NamedTuple):
    """What an entry is made of. where: the model, for people."""

    cache: FileCache
    model: ModelSpec
    where: str
    sources: tuple[SourceIdentity, ...]
    dtype: torch.dtype
    options: Mapping[str, Any]

    @classmethod
    def of(cls, cache: FileCache, model: Decoder, checkpoint: OpenCheckpoint, options: Mapping[str, Any]) -> _Origin:
        """Raises OSError."""
        files = [source.file for source in checkpoint.sources if isinstance(source, FileWeightSource)]
        identities = tuple(SourceIdentity.of(file) for file in files)
        return cls(cache, checkpoint.model, checkpoint.where, identities, model.dtype, options)

    def entry(self, reading: Callable[[], None]) -> CachedEntry | None:
        """None: there is none, or the contents of the files are not known. Raises OSError and DamagedEntryError."""
        known = [known_digest(self.cache, source) for source in self.sources]
        contents = [digest for digest in known if digest is not None]
        if len(contents) < len(known):
            return None
        name = self._name(contents)
        try:
            found = read_entry(self.cache.path(name), Path(name).stem, reading)
        except FileNotFoundError:
            return None
        except DamagedEntryError:
            self.cache.remove(name)
            raise
        self.cache.used(name)
        return found

    @property
    def refusal(self) -> str | None:
        """Why nothing is stored, for people."""
        new = next((source.path for source in self.sources if not source.settled), None)
        return None if new is None else f"{new} changed just before it was read"

    def write(self, contents: EntryContents, going_on: Callable[[], None], replace: bool) -> str:
        """What was done, for people. replace: an entry that is there. Raises OSError, and what `going_on` raises."""
        with suppress(FileNotFoundError):  # where there is no folder yet, `writing` makes it
            self.cache.make_room("", contents.bytes)
        digests = [note_digest(self.cache, source, going_on) for source in self.sources]
        found = [digest for digest in digests if digest is not None]
        if len(found) < len(digests):
            return "not written: the model's files have changed since they were read"
        name = self._name(found)
        if not replace and self.cache.path(name).exists():
            return "in the cache already"
        with self.cache.writing(name, contents.bytes) as stream:
            write_entry(stream, Path(name).stem, contents, going_on)
        return f"written to the cache, {contents.bytes / 1e6:.0f} MB"

    def _name(self, contents: list[str]) -> str:
        return entry_key(self.model, self.where, contents, self.dtype, self.options) + SUFFIX


def _refusal(model: Decoder, checkpoint: OpenCheckpoint, transform: Transform | None) -> str | None:
    """Why a load has nothing to do with the cache, for people."""
    if caches_are_off():
        return "SGL_CACHE=0"
    if not cpu_kernels.can_compute(model.dtype, model.device):
        return "it holds what the compiled kernels of the CPU read"
    if isinstance(transform, LayerTransform):
        return "the weights depend on the texts of a calibration"
    if checkpoint.packed is not None:
        return "the weights are packed already"
    if model.expert_places is not None or checkpoint.model.head_unit:
        return "the model's experts move" if model.expert_places is not None else "its head is normalized"
    if not all(isinstance(source, FileWeightSource) for source in checkpoint.sources):
        return "the weights are in no local files of tensors"
    size = sum(source.bytes for source in checkpoint.sources)
    return f"packing {size / 1e6:.1f} MB takes no time" if size < LEAST else None
