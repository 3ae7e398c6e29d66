"""The adapters of one engine: names, the host's tier and the device's slots together."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..common.argument_checks import shown
from ..errors import ConfigError
from ..step.adapter_rows import NONE
from .adapted_model import AdaptedModel
from .adapter_slots import AdapterSlots
from .adapter_store import AdapterHostStore, StoredAdapter
from .batch_adapters import BatchAdapters

log = logging.getLogger("sgl.runtime")
MOST_NAME = 200  # characters


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter as `engine.adapters.list()` reports it.

    digest: of its contents; equal digests are the same adapter.  rank: of its widest pair; padded: up to a multiple of
        8, with which it is computed and for which a slot is chosen.  bytes: of its pairs.
    where: "device" (in a slot), "host" (in main memory) or "disk" (it is read again when it is wanted).
    pinned: it stays in main memory.  uses: sequences that are open with it.  opened: how many ever were.
    outside: what it has because of which its steps do not run in the compiled step of a CPU, or in CUDA graphs, where
        others' do; empty: nothing.
    """

    name: str
    digest: str
    rank: int
    padded: int
    bytes: int
    where: str
    pinned: bool
    uses: int
    opened: int
    path: str
    outside: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class NamedAdapter:
    kept: StoredAdapter
    pinned: bool
    path: str
    outside: str


class AdapterManager(BatchAdapters):
    """What stands above `take` is thread-safe; the rest is the scheduler thread's. strict: adapters whose steps run
    outside of the compiled step or of CUDA graphs are refused.
    """

    def __init__(
        self, store: AdapterHostStore, slots: AdapterSlots, adapted_model: AdaptedModel, strict: bool = False
    ) -> None:
        super().__init__(slots, adapted_model)
        self.store, self._strict = store, strict
        self._names: dict[str, NamedAdapter] = {}

    def load(self, name: str, path: str, pin: bool = False) -> AdapterInfo:
        """Read an adapter; the name means it from here on, whatever it meant before."""
        _check_name(name)
        adapter = self.store.fresh(Path(path))
        self.slots.check_fits(adapter, name)
        outside = self.adapted_model.products.outside(adapter)
        if outside and self._strict:
            raise ConfigError(
                f"Engine(strict=True): adapter {name!r} changes {outside}, so its steps run outside of "
                f"{self.adapted_model.products.fast}; merge it into its base, or leave strict out"
            )
        with self.store.lock:
            before = self._names.get(name)
            self._names[name] = NamedAdapter(self.store.name(adapter, Path(path), pin), pin, path, outside)
            if before is not None:
                self.store.remove_name(before.kept, before.pinned)
            return self._info(name)

    def unload(self, name: str) -> None:
        """Forget a name and, with its last name, its adapter. Raises ConfigError while sequences use it."""
        with self.store.lock:
            found = self._named(name)
            if found.kept.uses and found.kept.names == 1:
                raise ConfigError(
                    f"adapter {name!r} is in use by {found.kept.uses} open "
                    f"sequence{'s' if found.kept.uses > 1 else ''}; close them first, or load another one under "
                    "this name: they keep theirs"
                )
            del self._names[name]
            self.store.remove_name(found.kept, found.pinned)

    def pin(self, name: str, pinned: bool = True) -> AdapterInfo:
        """Keep an adapter in main memory, or no longer."""
        with self.store.lock:
            found = self._named(name)
            found.kept.pinned += pinned - found.pinned
            found.pinned = pinned
            return self._info(name)

    def get(self, name: str) -> AdapterInfo:
        with self.store.lock:
            self._named(name)
            return self._info(name)

    def list(self) -> list[AdapterInfo]:
        with self.store.lock:
            return [self._info(name) for name in self._names]

    def digest_of(self, name: str) -> str:
        """What the name means now. Raises ConfigError for one that nothing is loaded under."""
        with self.store.lock:
            return self._named(name).kept.digest

    def describe(self) -> dict[str, Any]:
        """Counters, for `Stats.adapters`."""
        slots, store = self.slots, self.store
        by_name = {
            info.name: {"uses": info.uses, "opened": info.opened, "bytes": info.bytes, "where": info.where}
            for info in self.list()
        }
        return {
            "loaded": len(by_name),
            "host_bytes": store.bytes,
            "device_bytes": slots.bytes,
            "slots": len(slots.slots),
            "slots_held": sum(slot.holds > 0 for slot in slots.slots),
            "hits": slots.hits,
            "misses": slots.misses,
            "slot_loads": slots.loads,
            "slot_evictions": slots.evictions,
            "host_evictions": store.let_go,
            "reads": store.reads,
            "by_name": by_name,
        }

    # of sequences, from any thread

    def enter(self, digest: str) -> None:
        self.store.enter(digest)

    # on the scheduler thread

    def leave(self, digest: str) -> None:
        if self.store.leave(digest):
            self.slots.forget(digest)

    def take(self, digest: str, waits: bool) -> bool:
        """A place on the device for a sequence that joins the batch.

        See `AdapterSlots.take`. Raises what reading it again raised.
        """
        adapter = None if self.slots.has(digest) else self.store.memory(digest)
        return self.slots.take(digest, adapter, waits)

    def drop(self, digest: str) -> None:
        self.slots.drop(digest)

    def adapter_slots_for(self, digests: Iterable[str]) -> Sequence[int]:
        return [self.slots.slot_of(digest) if digest else NONE for digest in digests]

    def rebase(self) -> None:
        """The base's weights are others: what was laid out with those of before is read again. What cannot be
        is let go: the sequences that want it fail and say so.
        """
        for kept in self.store:
            if kept.on_base and (kept.adapter is not None or self.slots.has(kept.digest)):
                try:
                    self.slots.renew(self.store.renew(kept))
                except Exception as error:
                    log.warning(
                        "an adapter cannot be read again, as its factors and biases belong to other weights: %s", error
                    )
                    self.store.release(kept)
                    self.slots.forget(kept.digest)

    def close(self) -> None:
        """Hold nothing of the model and the device any more."""
        self.store.close()
        self.adapted_model.close()

    def _info(self, name: str) -> AdapterInfo:
        named = self._names[name]
        kept = named.kept
        where = "device" if self.slots.has(kept.digest) else "disk" if kept.adapter is None else "host"
        return AdapterInfo(
            name,
            kept.digest,
            kept.rank,
            kept.padded,
            kept.bytes,
            where,
            named.pinned,
            kept.uses,
            kept.opened,
            named.path,
            named.outside,
        )

    def _named(self, name: str) -> NamedAdapter:
        if name not in self._names:
            raise unknown(name, list(self._names))
        return self._names[name]


def unknown(name: object, names: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, names, 1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    loaded = (
        f"loaded are {', '.join(map(repr, sorted(names)[:20]))}{' ...' if len(names) > 20 else ''}"
        if names
        else "none is loaded: engine.adapters.load(name, path)"
    )
    return ConfigError(f"no adapter {shown(name)}; {loaded}{hint}")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= MOST_NAME:
        raise ConfigError(f"adapter name {shown(name)}: must be a text of 1 to {MOST_NAME} characters")
