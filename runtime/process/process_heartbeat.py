"""The engine's process tells that it runs, and ends where its loop does not go on."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from .message_outbox import MessageOutbox
from .process_messages import ALIVE, DONE, EXIT_MESSAGE, ProcessAnswer, SerializedError

if TYPE_CHECKING:
    from ..loop.engine_core import EngineCore

BROKEN, HUNG = 70, 71  # exit codes: the engine's loop failed, or did not go on
BEAT = 1.0  # seconds between two signs of life, less where the limit is short
STEP = 20  # times the limit of silence that one turn of the loop may take: a prefill, kernels that are compiled


class Heartbeat:
    """heartbeat: seconds of silence that the parent bears; None: it does not listen for them.

    A separate thread beats while the model is loaded, kernels are compiled and steps are long. It says nothing when
    the process is stopped, or something holds Python's lock; a hanging loop is found by the process itself.
    """

    def __init__(self, outbox: MessageOutbox, heartbeat: float | None) -> None:
        self._outbox, self._heartbeat = outbox, heartbeat
        self._core: EngineCore | None = None
        self._interval = BEAT if heartbeat is None else min(BEAT, heartbeat / 4)
        threading.Thread(target=self._run, name="sgl-heartbeat", daemon=True).start()

    def watch(self, core: EngineCore) -> None:
        """From now on an engine runs here.

        One whose loop failed is of no use: the process ends, the parent starts the next.
        """
        self._core = core
        threading.Thread(target=self._wait_for_end, args=(core,), name="sgl-watch", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._interval):
            self._outbox.post(ProcessAnswer(ALIVE, DONE, None))
            if self._core is not None and self._heartbeat is not None and self._core.stuck > STEP * self._heartbeat:
                print(
                    f"the engine's loop has not moved for {self._core.stuck:.0f} s; its threads:",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback()
                leave(HUNG)

    def _wait_for_end(self, core: EngineCore) -> None:
        core.wait()
        if core.cause is not None:
            self.broken(core.cause)

    def broken(self, cause: BaseException) -> None:
        """Say why nothing more can be computed here, and end."""
        self._outbox.post(ProcessAnswer(EXIT_MESSAGE, DONE, SerializedError.of(cause)))
        self._outbox.end()
        leave(BROKEN)


def leave(code: int) -> None:
    """End without waiting for a grammar that is being compiled, or taking the modules apart."""
    logging.shutdown()
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(code)
