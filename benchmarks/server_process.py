"""`sgl serve` as a separate process, and what it takes: memory, threads, files, processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from sgl.grammars.compile_server.grammar_compile_server import THREADS

READY = re.compile(r"ready at (http://\S+)")
START_SECONDS = 60.0


@dataclass(frozen=True)
class Account:
    """What the server's processes hold together. `memory` is resident, in bytes; `threads` leaves those out with which
    processes of grammars answer, which begin by need and are bounded there."""

    memory: int
    threads: int
    files: int
    processes: int

    def __str__(self) -> str:
        return f"{self.memory / 2**20:,.0f} MiB, {self.threads} threads, {self.files} files, {self.processes} processes"


class Served:
    """A running server; `url` is where."""

    def __init__(self, process: subprocess.Popen[str], log: Any, url: str) -> None:
        self.url, self._process, self._log = url, process, log
        self._known: dict[int, psutil.Process] = {}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """The server and what it has started."""
        try:
            server = psutil.Process(self._process.pid)
            found = [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        self._known |= {process.pid: process for process in found}
        return found

    def engine(self) -> psutil.Process | None:
        """The process of its engine, where that is a separate one."""
        return next((p for p in self.processes()[1:] if "sgl.runtime.process.engine_worker" in _command(p)), None)

    def account(self) -> Account:
        held = []
        for process in self.processes():
            try:
                held.append((process.memory_info().rss, _threads(process), process.num_fds()))
            except psutil.NoSuchProcess:
                continue
        return Account(*(sum(column) for column in zip(*held, strict=True)), len(held)) if held else Account(0, 0, 0, 0)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def end(self, seconds: float = 25.0) -> int:
        """SIGTERM; the exit status. Raises TimeoutExpired where it does not end."""
        self.processes()
        self._process.terminate()
        return self._process.wait(seconds)

    def left(self) -> list[int]:
        """Ids of processes that it started and that still run."""
        return [p.pid for p in self._known.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        for process in self.processes():
            process.kill()
        self._process.wait()


@contextmanager
def served(*words: str, **environment: str) -> Iterator[Served]:
    """`sgl serve` with these words on a free port, ready. It is killed after the block if it still runs."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sgl.cli", "serve", "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environment},
        )
        server = Served(process, log, "")
        try:
            server.url = _await_url(process, server)
            yield server
        finally:
            if server.alive:
                server.kill()


def _await_url(process: subprocess.Popen[str], server: Served) -> str:
    assert process.stdout is not None
    end = time.monotonic() + START_SECONDS
    while line := process.stdout.readline():
        if found := READY.search(line):
            return found[1]
        if time.monotonic() > end:
            break
    raise RuntimeError(f"the server did not start: {server.log()[-2000:]}")


def _threads(process: psutil.Process) -> int:
    pooled = 2 * THREADS if "sgl.grammars.compile_server.grammar_compile_server" in _command(process) else 0
    return max(process.num_threads() - pooled, 0)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
