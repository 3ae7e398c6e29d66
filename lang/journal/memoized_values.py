"""Values that Python computes inside a program: computed once, then remembered by the journal."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ..concurrency.one_shot_callbacks import when_done
from ..errors import BadValueError, JournalError
from ..places.source_location import caller_place
from .journal_node import describe, rebuild
from .journal_request import JournalRequest
from .replay_mismatch import mismatch
from .replay_session import ReplaySession

if TYPE_CHECKING:
    from .recorded_call import StreamPosition

_NEW = object()


def once(s: Any, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `fn(*args, **kwargs)` once; a replayed or resumed run uses the recorded value instead.

    Use it for anything a body does besides the model: calling a tool, reading the clock, drawing a number. The value
    is recorded under `name` at this place of the state `s`. If the text before it or the arguments change, the function
    is called again. Without a journal it is simply called. A coroutine function returns an awaitable.

    The value must be JSON (str, numbers, bool, None, lists, dicts with str keys), otherwise BadValueError is raised. If
    it cannot be written (a full disk), the run continues and closing the journal raises JournalError.
    """
    stream = getattr(getattr(s, "stream_executor", None), "stream", None)
    place = getattr(stream, "once", None)
    remembered: MemoizedValues | None = place(name, args, kwargs, caller_place()) if place else None
    if remembered is None:
        return fn(*args, **kwargs)
    call = partial(fn, *args, **kwargs)
    return remembered.avalue(call) if inspect.iscoroutinefunction(fn) else remembered.value(call)


class MemoizedValues:
    """The place of a value in a journal."""

    def __init__(self, session: ReplaySession, request: JournalRequest, spot: Future[StreamPosition]) -> None:
        self._session = session
        self._request = request
        self._spot = spot

    def value(self, call: Callable[[], Any]) -> Any:
        """The recorded value, else what `call` gives, recorded."""
        if self._session.may_have(self._request.shape):
            self._known().result()
            value = self._recorded()
            if value is not _NEW:
                return value
        started = self._session.begin()
        try:
            value = _json(self._request.name, call())
        except BaseException as error:
            self._end(started, error=describe(error))
            raise
        self._end(started, value)
        return value

    async def avalue(self, call: Callable[[], Any]) -> Any:
        """As `value`, for functions that are awaited."""
        if self._session.may_have(self._request.shape):
            await asyncio.wait([asyncio.wrap_future(self._known())])
            value = self._recorded()
            if value is not _NEW:
                return value
        started = self._session.begin()
        try:
            value = _json(self._request.name, await call())
        except BaseException as error:
            self._end(started, error=describe(error))
            raise
        self._end(started, value)
        return value

    def _known(self) -> Future[None]:
        """Done when all that precedes the value is there, or has failed."""
        known: Future[None] = Future()

        def placed(spot: Future[StreamPosition]) -> None:
            if spot.exception():
                known.set_result(None)
            else:
                spot.result().content.when_known(lambda: known.set_result(None))

        when_done(self._spot, placed)
        return known

    def _recorded(self) -> Any:
        key = self._key()
        if key is None:
            return _NEW
        node = self._session.take(key, self._request)
        if node is None and self._session.inner is None:
            raise mismatch(self._session.journal, self._request, self._spot.result().last)
        if node is not None and node.error is not None:
            raise rebuild(node.error)
        return _NEW if node is None else json.loads(json.dumps(node.value))

    def _key(self) -> str | None:
        """None after a node that failed: what follows it has no address."""
        try:
            return self._spot.result().content.address(self._request.content.address)
        except Exception:
            return None

    def _end(self, started: float, value: Any = None, error: dict[str, Any] | None = None) -> None:
        seconds = time.perf_counter() - started

        def write(known: Future[None]) -> None:
            try:
                if key := self._key():
                    node = self._request.node(key, self._spot.result().previous, seconds)
                    node.value, node.error = value, error
                    self._session.add(node)
            except JournalError as failure:
                self._session.unwritten(failure)
            finally:
                self._session.end()

        when_done(self._known(), write)


def _json(name: str | None, value: Any) -> Any:
    """The value, if JSON gives it back as it is."""
    try:
        same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        same = False
    if not same:
        raise BadValueError(
            f"once({name!r}) returned {value!r:.80}, which JSON cannot represent; return str, numbers, bool, None, "
            "lists "
            f"or dicts with str keys"
        )
    return value
