"""Grammars of requests, compiled off the event loop, each once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

from sgl.grammars import (
    Grammar,
    InvalidGrammarError,
    Vocabulary,
    compile_choices,
    compile_ebnf,
    compile_json_schema,
    compile_regex,
    compile_structural,
)
from sgl.runtime.common.thread_priority import yield_priority
from sgl.runtime.engine import Engine

from .request_context import CALLER, PATIENCE, deadline_error, seconds_left

Kind = Literal["regex", "json_schema", "ebnf", "structural_tag", "json_object", "choice", "calls"]
Key = tuple[str, str, str]  # kind, source, other documents
Resources = Mapping[str, Any]
CALLS = "calls"  # a structural tag that may write the special tokens among the marks of calls

THREADS = 2
MOST_KEPT = 256
LONGEST = 1_000_000  # characters of a source: so many take seconds
ANY_JSON = "$$ANY$$"  # what the native protocol calls the schema of any value


class RequestGrammarCompiler:
    """Compiles for one engine's vocabulary. Equal sources share one grammar, also while it is being made.

    Tenants take turns. A compilation that no request waits for any more is not begun.
    """

    def __init__(
        self, engine: Engine, observe: Callable[[float], None] | None = None, of_calls: Vocabulary | None = None
    ) -> None:
        """observe: is called with the seconds of each compilation, on the thread that did it. of_calls: for "calls"."""
        self._engine, self._observe = engine, observe
        self._of_calls = of_calls or engine.vocabulary
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sgl-compile", initializer=yield_priority)
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Future[Grammar]] = OrderedDict()
        self._turns: dict[str, deque[tuple[Key, Future[Grammar]]]] = {}  # what each tenant waits for; the first is next
        self._waiting: Counter[Future[Grammar]] = Counter()

    async def compile(
        self, kind: Kind, source: str | dict[str, Any] | list[str], resources: Resources | None = None
    ) -> Grammar:
        """The grammar of a source: text, a dict for schemas and structural tags, texts for a choice; "json_object"
        ignores it.

        `resources` are other documents, by their addresses, to which references in schemas may lead.

        Raises GrammarError: what is malformed or not supported, and where; TimeoutError at the caller's deadline.
        """
        text = _canonical(kind, source)
        others = _others(kind, resources)
        if len(text) + len(others) > LONGEST:
            raise InvalidGrammarError(
                f"the {kind} has {len(text) + len(others)} characters; this server takes at most {LONGEST}"
            )
        key = (kind, text, others)
        future = self._future(key)
        try:
            if future.done():
                return future.result()
            async with asyncio.timeout(seconds_left(CALLER.get())):
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            raise deadline_error(PATIENCE.get()) from None
        finally:
            self._leave(key, future)

    def _future(self, key: Key) -> Future[Grammar]:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = Future()
                self._turns.setdefault(CALLER.get().tenant, deque()).append((key, found))
                self._pool.submit(self._take_turn)
                if len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            if key in self._kept:
                self._kept.move_to_end(key)
            self._waiting[found] += 1
        return found

    def _leave(self, key: Key, future: Future[Grammar]) -> None:
        with self._lock:
            self._waiting[future] -= 1
            if not self._waiting[future]:
                del self._waiting[future]
                future.cancel()  # if it was not begun
            failed = future.done() and (future.cancelled() or future.exception() is not None)
            if failed and self._kept.get(key) is future:
                del self._kept[key]

    def _take_turn(self) -> None:
        with self._lock:
            tenant, waiting = next(iter(self._turns.items()))
            del self._turns[tenant]
            key, future = waiting.popleft()
            if waiting:
                self._turns[tenant] = waiting
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._make(*key))
        except BaseException as error:
            future.set_exception(error)

    def _make(self, kind: str, text: str, others: str) -> Grammar:
        vocabulary, options = self._engine.vocabulary, self._json_options
        if others:
            options = {**options, "resources": {**dict(options.get("resources", ())), **json.loads(others)}}
        makers: dict[str, Callable[[], Grammar]] = {
            "regex": lambda: compile_regex(text, vocabulary),
            "choice": lambda: compile_choices(json.loads(text), vocabulary),
            "ebnf": lambda: compile_ebnf(text, vocabulary),
            "json_schema": lambda: compile_json_schema(text, vocabulary, **options),
            "json_object": lambda: compile_json_schema({"type": "object"}, vocabulary, **options),
            "structural_tag": lambda: compile_structural(text, vocabulary, **options),
            CALLS: lambda: compile_structural(text, self._of_calls, **options),
        }
        started = time.perf_counter()
        made = makers[kind]().prepared()
        if self._observe is not None:
            self._observe(time.perf_counter() - started)
        return made

    @property
    def _json_options(self) -> dict[str, Any]:
        return self._engine.config.json_options or {}


def _others(kind: Kind, resources: Resources | None) -> str:
    """Other documents as one text, empty where there are none."""
    if not resources:
        return ""
    if kind not in ("json_schema", "structural_tag", CALLS):
        raise InvalidGrammarError(f"resources belong to a JSON schema, and {kind} has none")
    return _canonical("json_schema", dict(resources))


def _canonical(kind: Kind, source: str | dict[str, Any] | list[str]) -> str:
    """One text for equal sources. The order of a schema's keys is part of its meaning."""
    if kind == "json_object":
        return ""
    if kind == "json_schema" and source == ANY_JSON:
        return "true"
    if isinstance(source, str):
        return source
    if kind in ("regex", "ebnf"):
        raise InvalidGrammarError(f"{kind} must be a text, got {type(source).__name__}")
    try:
        return json.dumps(source, ensure_ascii=False)
    except RecursionError:
        raise InvalidGrammarError(f"the {kind} is nested too deeply") from None
