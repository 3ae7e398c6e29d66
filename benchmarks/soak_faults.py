"""Faults while the soak runs: the engine's process killed, the server's processes stopped for a moment."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import psutil
from server_client import Client
from server_process import Served

LONGEST_STOP = 1.0  # seconds
BACK_SECONDS = 60.0  # in which the engine must be there again


class Faults:
    """Kills the engine's process every `kill` seconds, and stops one of the
    processes every `stop` seconds; 0: never.
    """

    def __init__(self, server: Served, client: Client, seed: int, kill: float, stop: float) -> None:
        self._server, self._client, self._random = server, client, random.Random(seed)
        self._kill, self._stop = kill, stop
        self.done: Counter[str] = Counter()
        self.kills: list[float] = []  # when, by time.monotonic()
        self.back: list[float] = []  # seconds from each kill to the first good answer of the engine

    async def run(self) -> None:
        """Until it is cancelled."""
        await asyncio.gather(self._every(self._kill, self._kill_engine), self._every(self._stop, self._stop_one))

    async def _every(self, seconds: float, fault: object) -> None:
        while seconds:
            await asyncio.sleep(seconds * self._random.uniform(0.7, 1.3))
            await fault()  # type: ignore[operator]

    async def _kill_engine(self) -> None:
        engine = self._server.engine()
        if engine is None:
            return
        engine.kill()
        self.done["engine killed"] += 1
        killed = time.monotonic()
        self.kills.append(killed)
        while time.monotonic() < killed + BACK_SECONDS:
            await asyncio.sleep(0.1)
            async with self._client.asked("/health_generate") as answer:
                if answer.status == 200:
                    self.back.append(time.monotonic() - killed)
                    return
        self.done["engine not back"] += 1

    async def _stop_one(self) -> None:
        process = self._random.choice(self._server.processes())
        with suppress(psutil.NoSuchProcess):  # killed meanwhile
            process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(self._random.uniform(0.1, LONGEST_STOP))
            finally:  # also when the soak ends just now
                process.send_signal(signal.SIGCONT)
            self.done["process stopped"] += 1
