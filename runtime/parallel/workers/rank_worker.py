"""The process of a rank above 0, started by its group, which it does not outlive.

It decides nothing: it loads its share of the model, computes the steps that it receives, and ends with rank 0.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from ...errors import RuntimeFailure
from .worker_channel import ALIVE, FAILED, READY, UNANSWERED, WHERE, RankChannel, RankStart

BEAT = 0.5  # seconds between two signs of life
# whose `begun` a rank takes
ON_CPUS, ON_GPUS = "sgl.runtime.executor.ranks.cpu_rank_worker", "sgl.runtime.executor.ranks.gpu_rank_worker"


class RankCommands(Protocol):
    """What a rank above 0 does."""

    def heartbeat(self) -> bytes:
        """With each sign of life."""

    def ready(self) -> bytes:
        """What it says once it has loaded."""

    def take(self, kind: int, payload: bytes) -> bytes:
        """Do what rank 0 says; what it answers."""


def begin(descriptor: str) -> None:
    """descriptor: of the socket to rank 0."""
    import_module(ON_CPUS)
    if torch.cuda.is_available():
        with suppress(ImportError):  # it may be for the CPU
            import_module(ON_GPUS)  # while rank 0 finds out what it wants of this one
    main(int(descriptor))


def main(descriptor: int) -> None:
    faulthandler.register(WHERE)
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0's affair
        signal.signal(number, signal.SIG_IGN)
    line = RankChannel(socket.socket(fileno=descriptor))
    heard: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(line, heard), daemon=True).start()
    beating: list[RankCommands] = []
    threading.Thread(target=_beat, args=(line, beating), daemon=True).start()
    try:
        _, payload = heard.get()
        follower = _begun(pickle.loads(payload))
        beating.append(follower)
        line.send(READY, follower.ready())
        while True:
            kind, payload = heard.get()
            answer = follower.take(kind, payload)
            if kind not in UNANSWERED:
                line.send(READY, answer)
    except BaseException as error:
        traceback.print_exc()
        line.send(FAILED, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def _begun(begin: RankStart) -> RankCommands:
    """It loads the model and meets the others."""
    following: RankCommands = import_module(ON_GPUS if begin.device.type == "cuda" else ON_CPUS).begun(begin)
    return following


def answered(call: Callable[[str, tuple[Any, ...]], Any], name: str, arguments: tuple[Any, ...]) -> bytes:
    """What a method of a rank returns, or the error that it raises: rank 0 goes on with either."""
    try:
        return pickle.dumps((call(name, arguments), None))
    except Exception as error:
        return pickle.dumps((None, _sendable(error)))


def _sendable(error: Exception) -> Exception:
    """An error as another process may read it: without what it holds."""
    try:
        pickle.loads(pickle.dumps(bare := type(error)(*error.args)))
    except Exception:
        return RuntimeFailure(f"{type(error).__name__}: {error}")
    return bare


def _listen(line: RankChannel, heard: SimpleQueue[tuple[int, bytes]]) -> None:
    try:
        while True:
            heard.put(line.receive())
    except (EOFError, OSError):
        os._exit(0)  # rank 0 is gone, or wants no more: whatever is computed is not used


def _beat(line: RankChannel, beating: list[RankCommands]) -> None:
    """Signs of life; once it has loaded, with what it says then."""
    pause = threading.Event()
    try:
        while not pause.wait(BEAT):
            line.send(ALIVE, beating[0].heartbeat() if beating else b"")
    except OSError:
        os._exit(0)
