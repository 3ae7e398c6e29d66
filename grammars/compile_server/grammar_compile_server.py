"""The compile process reads questions from its input and answers on its output.

It is started by `python -m sgl.grammars.compile_server.grammar_compile_server PARENT`.

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
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO

from sgl.common.process_memory import resident
from sgl.grammars.compile_client import grammar_compile_messages
from sgl.grammars.compile_server.served_transition_networks import ServedNetwork, ServedNetworks
from sgl.grammars.errors import GrammarLimitError

THREADS = 16
NICER = 10  # than the process that started it: what is computed goes first
SWITCH_INTERVAL = 0.0002  # seconds; short questions come between long ones
MOST_BYTES = 1 << 30  # of memory, beyond which all is forgotten
MOST_ADDRESSES = 8 << 30  # beyond which a grammar is refused
WATCH = 1.0  # seconds between looks whether its owner is there


class CompileServer:
    def __init__(self, output: BinaryIO) -> None:
        self._output, self._lock = output, threading.Lock()
        self._working = 0  # questions that are not answered yet
        self._shelf = ServedNetworks()
        self._makers, self._others = ThreadPoolExecutor(THREADS), ThreadPoolExecutor(THREADS)
        self._answers: dict[type, Callable[[Any], Any]] = {
            grammar_compile_messages.MakeNetwork: self._make,
            grammar_compile_messages.BuildRule: lambda request: self._held(
                request, lambda held: held.build(request.rule)
            ),
            grammar_compile_messages.FinishNetwork: lambda request: self._held(
                request, lambda held: held.finish(request.most)
            ),
            grammar_compile_messages.FindShortestEnd: lambda request: self._held(
                request, lambda held: held.shortest_end(request)
            ),
            grammar_compile_messages.NameRule: lambda request: self._held(
                request, lambda held: held.name(request.rule)
            ),
        }

    def serve(self, source: grammar_compile_messages.ByteSource) -> None:
        """Until the other side ends."""
        with suppress(EOFError):
            while True:
                number, data = grammar_compile_messages.read(source)
                request = grammar_compile_messages.unpacked(data)
                if isinstance(request, grammar_compile_messages.VocabularyMessage):
                    self._shelf.learn(request)
                elif isinstance(request, grammar_compile_messages.ForgetNetworks):
                    self._shelf.forget(request.networks)
                elif isinstance(request, grammar_compile_messages.UnreadableRequest):
                    self._send(number, request)
                else:
                    self._begin(number, request)

    def _begin(self, number: int, request: Any) -> None:
        with self._lock:
            self._working += 1
        pool = self._makers if isinstance(request, grammar_compile_messages.MakeNetwork) else self._others
        pool.submit(self._serve, number, request)

    def _serve(self, number: int, request: Any) -> None:
        try:
            answer = self._answers[type(request)](request)
        except MemoryError:
            answer = grammar_compile_messages.RemoteCompileError.of(
                GrammarLimitError("the grammar takes more memory than there is for it; simplify it")
            )
        except BaseException as error:
            answer = grammar_compile_messages.RemoteCompileError.of(error)
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
        data = pickle.dumps(answer)
        with self._lock:
            self._output.write(grammar_compile_messages.frame(number, data))
            self._output.flush()

    def _make(self, request: grammar_compile_messages.MakeNetwork) -> grammar_compile_messages.NetworkGrown:
        held = self._shelf.make(request)
        with held.lock:
            return held.made()

    def _held(self, request: Any, work: Callable[[ServedNetwork], Any]) -> Any:
        held = self._shelf.get(request.network)
        if held is None:
            return grammar_compile_messages.NetworkLost()
        with held.lock:
            return work(held)


def _bound() -> None:
    """Others go first, and memory has an end."""
    with suppress(OSError):
        os.nice(NICER)
    with suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = MOST_ADDRESSES if hard == resource.RLIM_INFINITY else min(hard, MOST_ADDRESSES)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _watch(parent: int) -> None:
    """End with the owner, even if another process holds the other end of the input open."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(0)


def _end() -> None:
    """Now, whatever the threads are doing."""
    os._exit(0)


def main(parent: int) -> None:
    _bound()
    sys.setswitchinterval(SWITCH_INTERVAL)
    source, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what prints does not speak to the other side
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    server = CompileServer(output)
    server._send(grammar_compile_messages.NO_VOCABULARY, None)
    server.serve(source)
    _end()


if __name__ == "__main__":
    main(int(sys.argv[1]))
