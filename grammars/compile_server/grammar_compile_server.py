"""The compile process answers questions.

Each is answered on a separate thread. So a rule that a text waits for need not wait until a schema is read, also where
so many schemas are read that more of them have to wait. Memory is bounded: beyond MOST_BYTES all networks are
forgotten, and made again when needed.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sgl.common.child_process.message_channel import MessageChannel
from sgl.common.child_process.serialized_error import SerializedError
from sgl.common.process_memory import limit_memory, resident
from sgl.grammars.compile_client import grammar_compile_messages
from sgl.grammars.compile_server.served_transition_networks import ServedNetworks
from sgl.grammars.errors import GrammarLimitError

THREADS = 16
NICER = 10  # than the process that started it: what is computed goes first
SWITCH_INTERVAL = 0.0002  # seconds; short questions come between long ones
MOST_BYTES = 1 << 30  # of memory, beyond which all is forgotten
MOST_ADDRESSES = 8 << 30  # beyond which a grammar is refused


class CompileServer:
    def __init__(self, channel: MessageChannel) -> None:
        self._channel, self._lock = channel, threading.Lock()
        self._working = 0  # questions that are not answered yet
        self._shelf = ServedNetworks()
        self._makers, self._others = ThreadPoolExecutor(THREADS), ThreadPoolExecutor(THREADS)

    def serve(self) -> None:
        """Until the other side ends."""
        with suppress(EOFError, OSError):
            while True:
                number, data = self._channel.receive()
                try:
                    request = pickle.loads(data)
                except Exception:  # whatever is in it may do anything
                    self._send(number, SerializedError.of(grammar_compile_messages.RequestNotSent()))
                    continue
                if isinstance(request, grammar_compile_messages.VocabularyMessage):
                    self._shelf.learn(request)
                elif isinstance(request, grammar_compile_messages.ForgetNetworks):
                    self._shelf.forget(request.networks)
                else:
                    self._begin(number, request)

    def _begin(self, number: int, request: Any) -> None:
        with self._lock:
            self._working += 1
        pool = self._makers if isinstance(request, grammar_compile_messages.MakeNetwork) else self._others
        pool.submit(self._serve, number, request)

    def _serve(self, number: int, request: Any) -> None:
        try:
            answer = self._answer(request)
        except MemoryError:
            answer = SerializedError.of(
                GrammarLimitError("the grammar takes more memory than there is for it; simplify it")
            )
        except BaseException as error:
            answer = SerializedError.of(error)
        self._send(number, answer)
        with self._lock:
            self._working -= 1
        self._make_room()

    def _make_room(self) -> None:
        """Forget what is held where it is too much.

        Where the rest is, such as caches, a new process begins without it.
        """
        if resident() > MOST_BYTES:
            self._shelf.clear()
            gc.collect()
            if resident() > MOST_BYTES and not self._working:
                _end()

    def _send(self, number: int, answer: Any) -> None:
        self._channel.send(number, pickle.dumps(answer))

    def _answer(self, request: Any) -> Any:
        if isinstance(request, grammar_compile_messages.MakeNetwork):
            held, method, arguments = self._shelf.make(request), "made", tuple[Any, ...]()
        else:
            held, method, arguments = self._shelf.get(request.network), request.method, request.arguments
        with held.lock:
            return getattr(held, method)(*arguments)


def _bound() -> None:
    """Others go first, and memory has an end."""
    with suppress(OSError):
        os.nice(NICER)
    limit_memory(MOST_ADDRESSES)


def _end() -> None:
    """Now, whatever the threads are doing."""
    os._exit(0)


def begin(channel: MessageChannel) -> None:
    """channel: to the process that asks."""
    _bound()
    sys.setswitchinterval(SWITCH_INTERVAL)
    os.dup2(2, 1)  # what prints does not write into its output
    server = CompileServer(channel)
    server._send(grammar_compile_messages.NO_VOCABULARY, None)
    server.serve()
    _end()
