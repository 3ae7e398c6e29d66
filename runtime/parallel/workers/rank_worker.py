"""The process of a rank above 0, started by its group, which it does not outlive.

It decides nothing: it loads its share of the model, computes the steps that it receives, and ends with rank 0.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from sgl.common.child_process.message_channel import MessageChannel
from sgl.common.child_process.serialized_error import SerializedError

from ...errors import RuntimeFailure
from .worker_channel import READY, UNANSWERED, WHERE, RankStart

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


def begin(channel: MessageChannel) -> None:
    """channel: to rank 0."""
    import_module(ON_CPUS)
    if torch.cuda.is_available():
        with suppress(ImportError):  # it may be for the CPU
            import_module(ON_GPUS)  # while rank 0 finds out what it wants of this one
    main(channel)


def main(channel: MessageChannel) -> None:
    faulthandler.register(WHERE)
    heard: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, heard), daemon=True).start()
    try:
        _, payload = heard.get()
        follower = _begun(pickle.loads(payload))
        channel.make_sign = follower.heartbeat
        channel.send(READY, follower.ready())
        while True:
            kind, payload = heard.get()
            answer = follower.take(kind, payload)
            if kind not in UNANSWERED:
                channel.send(READY, answer)
    except BaseException as error:
        traceback.print_exc()
        channel.send_failure(error)
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
        return pickle.dumps((None, SerializedError.of(error, otherwise=RuntimeFailure)))


def _listen(channel: MessageChannel, heard: SimpleQueue[tuple[int, bytes]]) -> None:
    try:
        while True:
            heard.put(channel.receive())
    except (EOFError, OSError):
        os._exit(0)  # rank 0 is gone, or wants no more: whatever is computed is not used
