"""sgl with parts switched off: a backend around the engine's own that leaves out what a switch names.

cache     off: every sequence has its own namespace and finds nothing of the others
fork      off: a child is a new sequence that gets the whole text of its parent, once that is known
fusion    off: a node goes to the engine when the one before it is answered, as over a connection
sequence  off: each gen and select is a new sequence with the whole text so far, as a request to a server is
jumps     off: an engine with `jump_forward=False`; what a grammar forces is sampled
batching  off: one program after the other
grammars  off: as many tokens without the constraint
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sgl.lang.backend import Backend, Generated, GenRequest, SelectRequest, Stream
from sgl.lang.backends.embedded.embedded_backend import EmbeddedBackend
from sgl.lang.backends.embedded.embedded_stream import EmbeddedStream
from sgl.lang.backends.pending_calls import forward_result, gather_results

from .work import Workload

Operation = Callable[[], Future[Any] | None]  # what it returns must be done before the next one


@dataclass(frozen=True)
class Switches:
    """What is on. free_tokens: how long a gen is whose grammar is off."""

    cache: bool = True
    fork: bool = True
    fusion: bool = True
    sequence: bool = True
    jumps: bool = True
    batching: bool = True
    grammars: bool = True
    free_tokens: int = 0


REQUESTS = Switches(fork=False, fusion=False, sequence=False)


def settings(workload: Workload) -> dict[str, Switches]:
    """By name, what is measured of a workload: everything on, each part off that has an effect, all of them off."""
    found = {"everything on": Switches(), "no prefix cache": Switches(cache=False)}
    if workload.forks:
        found["no fork"] = Switches(fork=False)
    if workload.chains:
        found["no fusion"] = Switches(fusion=False)
        found["requests"] = REQUESTS
        found["no reuse"] = replace(REQUESTS, cache=False)
    if workload.grammars:
        found["no jump-forward"] = Switches(jumps=False)
        found["no grammar"] = Switches(grammars=False)
    found["no batching"] = Switches(batching=False)
    return found | {"all off": replace(REQUESTS, cache=False, jumps=False, batching=False)}


class SwitchedBackend(Backend):
    """Streams on an engine, without what is switched off."""

    def __init__(self, engine: Any, switches: Switches) -> None:
        self.engine, self.switches = engine, switches
        self.inner = EmbeddedBackend.of(engine)
        self.chat_template = self.inner.get_chat_template()
        self.workers = ThreadPoolExecutor(4, "switched")
        self._names = itertools.count()

    def open(self) -> Stream:
        return SwitchedStream(self, self.fresh())

    def fresh(self) -> Stream:
        namespace = "" if self.switches.cache else f"alone {next(self._names)}"
        return EmbeddedStream(self.inner, self.engine.open(namespace=namespace))

    def wanted(self, request: GenRequest) -> GenRequest:
        """The request, without its grammar if that is off."""
        if self.switches.grammars:
            return request
        length = self.switches.free_tokens
        options = replace(request.options, json_schema=None, max_new_tokens=length, min_new_tokens=length)
        return replace(request, options=options)


class SwitchedStream(Stream):
    """A queue of operations before a stream of the engine; `inner` is None until a fork has begun."""

    def __init__(
        self, backend: SwitchedBackend, inner: Stream | None, texts: list[str | Future[Any]] | None = None
    ) -> None:
        self._backend, self._inner = backend, inner
        self._inherited = texts or []  # the text before its birth: literals, and what gens and selects give
        self._texts = list(self._inherited)  # ... and since
        self._queue: deque[Operation] = deque()
        self._busy = inner is None
        self._lock = threading.RLock()

    def append(self, text: str) -> None:
        self._texts.append(text)
        self._do(lambda: self._stream.append(text))

    def generate(self, request: GenRequest, on_chunk: Any = None) -> Future[Generated]:
        return self._ask(lambda: self._stream.generate(self._backend.wanted(request), on_chunk))

    def select(self, request: SelectRequest) -> Future[Any]:
        return self._ask(lambda: self._stream.select(request))

    def fork(self, size: int) -> list[Stream]:
        children = [SwitchedStream(self._backend, None, self._texts.copy()) for _ in range(size)]
        self._do(partial(self._give_birth, children))
        return list(children)

    def close(self) -> None:
        self._do(lambda: self._stream.close())

    def abort(self) -> None:
        if self._inner is not None:
            self._inner.abort()

    @property
    def _stream(self) -> Stream:
        assert self._inner is not None
        return self._inner

    def _ask(self, call: Callable[[], Future[Any]]) -> Future[Any]:
        result: Future[Any] = Future()
        before = self._texts.copy()
        self._texts.append(result)

        def run() -> Future[Any] | None:
            if not self._backend.switches.sequence:
                self._stream.close()
                self._inner = self._anew(before)
            forward_result(call(), result, lambda value: value)
            return None if self._backend.switches.fusion else result

        self._do(run)
        return result

    def _do(self, operation: Operation) -> None:
        with self._lock:
            self._queue.append(operation)
            self._drain()

    def _drain(self) -> None:
        while self._queue and not self._busy:
            before = self._queue.popleft()()
            if before is not None:
                self._busy = True
                before.add_done_callback(lambda done: self._backend.workers.submit(self._go_on))

    def _go_on(self, inner: Stream | None = None) -> None:
        with self._lock:
            self._inner = inner or self._inner
            self._busy = False
            self._drain()

    def _give_birth(self, children: list[SwitchedStream]) -> None:
        if self._backend.switches.fork:
            for child, inner in zip(children, self._stream.fork(len(children)), strict=True):
                child._go_on(inner)
            return
        for child in children:
            known = gather_results([part for part in child._inherited if isinstance(part, Future)])
            known.add_done_callback(lambda done, child=child: self._backend.workers.submit(child._start_anew))

    def _start_anew(self) -> None:
        self._go_on(self._anew(self._inherited))

    def _anew(self, texts: list[str | Future[Any]]) -> Stream:
        """A new sequence with the text so far; what the model wrote keeps its tokens."""
        inner = self._backend.fresh()
        for part in texts:
            said = part.result() if isinstance(part, Future) else part
            if isinstance(said, Generated):
                inner.restore(said)
            else:
                inner.append(said if isinstance(said, str) else said.decision)
        return inner
