"""Writes an entry of the cache while the engine runs, in a thread that gives way to everything else."""

from __future__ import annotations

import logging
import threading
import time

from ...common.thread_priority import yield_priority
from ...models.decoder import Decoder
from .entry_file import EntryContents
from .packed_weights import PackedWeights

log = logging.getLogger("sgl.runtime")
REST = 1.0  # seconds after the start in which the first answer is computed
LOOK = 0.02  # seconds between looks whether the program ends
PATIENCE, PER_GB = 10.0, 2.0  # seconds that the end of the program, or of the engine, waits, and more for each gigabyte


class _GivenUp(Exception):
    """Nothing is to be written any more."""


class PackedWeightsWriter:
    """Python waits for its thread at the end of the program, so that a short one leaves an entry too."""

    def __init__(self, packed: PackedWeights, contents: EntryContents) -> None:
        self._packed, self._contents = packed, contents
        self._hurry, self._stopped = threading.Event(), threading.Event()
        self._patience = PATIENCE + PER_GB * contents.bytes / 1e9
        self._ends: float | None = None
        self._thread = threading.Thread(target=self._run, name="sgl-packed-cache", daemon=False)

    @classmethod
    def started(cls, packed: PackedWeights, model: Decoder) -> PackedWeightsWriter | None:
        """None: there is nothing to write."""
        contents = packed.contents(model)
        if contents is None:
            return None
        writer = cls(packed, contents)
        writer._thread.start()
        return writer

    def stop(self) -> None:
        """Give up at once: the weights are about to change."""
        self._stopped.set()
        self._hurry.set()
        self._thread.join()

    def finish(self) -> None:
        """Wait until it is written, for a time that is bounded."""
        self._hurry.set()
        self._thread.join(self._patience)
        self.stop()

    def _run(self) -> None:
        yield_priority()
        rested = time.monotonic() + REST
        while time.monotonic() < rested and not self._hurry.wait(LOOK) and not _program_ends():
            pass
        try:
            self._packed.write(self._contents, self._go_on)
        except _GivenUp:
            self._packed.tell("not written: the engine ended, or its weights changed, before that was done")
        except Exception as error:
            log.warning("the cache of packed weights failed", exc_info=error)
            self._packed.tell(f"not written: {type(error).__name__}: {error}")
        del self._contents

    def _go_on(self) -> None:
        if self._ends is None and _program_ends():
            self._ends = time.monotonic() + self._patience
        if self._stopped.is_set() or (self._ends is not None and time.monotonic() > self._ends):
            raise _GivenUp


def _program_ends() -> bool:
    return not threading.main_thread().is_alive()
