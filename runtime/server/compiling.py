"""Grammars of requests, compiled beside the event loop, each once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

from sgl.grammars import (
    Grammar,
    InvalidGrammarError,
    compile_ebnf,
    compile_json_schema,
    compile_regex,
    compile_structural,
)
from sgl.runtime.engine import Engine

Kind = Literal["regex", "json_schema", "ebnf", "structural_tag", "json_object"]
Key = tuple[str, str]

THREADS = 2
MOST_KEPT = 256
ANY_JSON = "$$ANY$$"  # what the native protocol calls the schema of any value


class Compiler:
    """Compiles for one engine's vocabulary. Equal sources share one grammar, also while it is being made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sgl-compile")
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Future[Grammar]] = OrderedDict()

    async def compile(self, kind: Kind, source: str | dict[str, Any]) -> Grammar:
        """The grammar of a source: text, or a dict for schemas and structural tags; "json_object" ignores it.

        Raises GrammarError: what is malformed or not supported, and where.
        """
        text = _canonical(kind, source)
        future = self._future((kind, text))
        if future.done():
            return future.result()
        return await asyncio.shield(asyncio.wrap_future(future))

    def _future(self, key: Key) -> Future[Grammar]:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = self._pool.submit(self._make, *key)
                if len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
        found.add_done_callback(lambda done: self._forget_failure(key, done))
        return found

    def _forget_failure(self, key: Key, future: Future[Grammar]) -> None:
        if future.exception() is None:
            return
        with self._lock:
            if self._kept.get(key) is future:
                del self._kept[key]

    def _make(self, kind: str, text: str) -> Grammar:
        vocabulary = self._engine.vocabulary
        makers: dict[str, Callable[[], Grammar]] = {
            "regex": lambda: compile_regex(text, vocabulary),
            "ebnf": lambda: compile_ebnf(text, vocabulary),
            "json_schema": lambda: compile_json_schema(text, vocabulary, **self._json_options),
            "json_object": lambda: compile_json_schema({"type": "object"}, vocabulary, **self._json_options),
            "structural_tag": lambda: compile_structural(text, vocabulary, **self._json_options),
        }
        return makers[kind]()

    @property
    def _json_options(self) -> dict[str, Any]:
        return self._engine.config.json_options or {}


def _canonical(kind: Kind, source: str | dict[str, Any]) -> str:
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
