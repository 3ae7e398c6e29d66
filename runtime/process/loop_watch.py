"""The engine's process tells that it runs, and ends where its loop does not go on."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from sgl.common.child_process.message_channel import MessageChannel

from .message_outbox import MessageOutbox

if TYPE_CHECKING:
    from ..loop.engine_core import EngineCore

BROKEN, HUNG = 70, 71  # exit codes: the engine's loop failed, or did not go on
STEP = 20  # times the limit of silence that one turn of the loop may take: a prefill, kernels that are compiled


class LoopWatch:
    """heartbeat: seconds of silence that the parent bears; None: it does not listen for them.

    Signs of life are given while the model is loaded, kernels are compiled and steps are long. So a hanging loop is
    found by the process itself, each time that it gives one.
    """

    def __init__(self, channel: MessageChannel, outbox: MessageOutbox, heartbeat: float | None) -> None:
        self._channel, self._outbox, self._heartbeat = channel, outbox, heartbeat
        self._core: EngineCore | None = None
        channel.make_sign = self._look

    def watch(self, core: EngineCore) -> None:
        """From now on an engine runs here.

        One whose loop failed is of no use: the process ends, the parent starts the next.
        """
        self._core = core
        threading.Thread(target=self._wait_for_end, args=(core,), name="sgl-watch", daemon=True).start()

    def _look(self) -> bytes:
        if self._core is not None and self._heartbeat is not None and self._core.stuck > STEP * self._heartbeat:
            print(
                f"the engine's loop has not moved for {self._core.stuck:.0f} s; its threads:",
                file=sys.stderr,
                flush=True,
            )
            faulthandler.dump_traceback()
            leave(HUNG)
        return b""

    def _wait_for_end(self, core: EngineCore) -> None:
        core.wait()
        if core.cause is not None:
            self.broken(core.cause)

    def broken(self, cause: BaseException) -> None:
        """Say why nothing more can be computed here, and end."""
        self._outbox.end()
        with suppress(OSError):
            self._channel.send_failure(cause)
        leave(BROKEN)


def leave(code: int) -> None:
    """End without waiting for a grammar that is being compiled, or taking the modules apart."""
    logging.shutdown()
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(code)
