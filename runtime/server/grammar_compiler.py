"""The grammars of requests, which do not wait for them on the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal

from sgl.grammars import Grammar, InvalidGrammarError, SchemaOptions, Vocabulary
from sgl.grammars.compile import GrammarRecipe
from sgl.grammars.schema.schema_options import resources_of
from sgl.runtime.engine import Engine
from sgl.runtime.sequences.grammar_compile_pool import GrammarCompilePool

from .request_context import CALLER, PATIENCE, deadline_error, seconds_left

Kind = Literal["regex", "json_schema", "ebnf", "structural_tag", "json_object", "choice", "calls"]
Resources = Mapping[str, Any]
CALLS = "calls"  # a structural tag that may write the special tokens among the marks of calls

_KINDS = {
    "regex": "regex",
    "json_schema": "JSON schema",
    "ebnf": "ebnf",
    "structural_tag": "structural tag",
    "json_object": "JSON schema",
    "choice": "choices",
    CALLS: "structural tag",
}
LONGEST = 1_000_000  # characters of a source: so many take seconds
ANY_JSON = "$$ANY$$"  # what the native protocol calls the schema of any value


class RequestGrammarCompiler:
    """Compiles for one engine's vocabulary. A compilation that no request waits for any more is not begun."""

    def __init__(
        self, engine: Engine, observe: Callable[[float], None] | None = None, of_calls: Vocabulary | None = None
    ) -> None:
        """observe: is called with the seconds of each compilation, on the thread that did it. of_calls: for "calls"."""
        self._pool = GrammarCompilePool(engine.vocabulary, observe)
        self._marks = frozenset[int]() if of_calls is None else of_calls.shown
        self._options = SchemaOptions.of(engine.config.json_options or {})
        self._waiting: Counter[Future[Grammar]] = Counter()

    async def compile(
        self, kind: Kind, source: str | dict[str, Any] | list[str], resources: Resources | None = None
    ) -> Grammar:
        """The grammar of a source: text, a dict for schemas and structural tags, texts for a choice; "json_object"
        ignores it.

        `resources` are other documents, by their addresses, to which references in schemas may lead.

        Raises GrammarError: what is malformed or not supported, and where; TimeoutError at the caller's deadline.
        """
        recipe = self._recipe(kind, source, resources or {})
        while True:
            future = self._pool.grammar(recipe, CALLER.get().tenant)
            try:
                return await self._result(future)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # another server of the same engine gave up the compilation before it was begun

    async def _result(self, future: Future[Grammar]) -> Grammar:
        self._waiting[future] += 1
        try:
            if future.done() and not future.cancelled():
                return future.result()
            async with asyncio.timeout(seconds_left(CALLER.get())):
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            raise deadline_error(PATIENCE.get()) from None
        finally:
            self._leave(future)

    def _leave(self, future: Future[Grammar]) -> None:
        self._waiting[future] -= 1
        if not self._waiting[future]:
            del self._waiting[future]
            future.cancel()  # if it was not begun

    def _recipe(self, kind: Kind, source: Any, resources: Resources) -> GrammarRecipe:
        if isinstance(source, str):
            _check_length(kind, source)
        elif kind in ("regex", "ebnf"):
            raise InvalidGrammarError(f"{kind} must be a text, got {type(source).__name__}")
        if resources and kind not in ("json_schema", "structural_tag", CALLS):
            raise InvalidGrammarError(f"resources belong to a JSON schema, and {kind} has none")
        if kind in ("regex", "ebnf", "choice"):
            _check_length(kind, *(source if kind == "choice" else ()))
            return GrammarRecipe.of(_KINDS[kind], source)
        if kind == "json_object":
            source = {"type": "object"}
        elif kind == "json_schema" and source == ANY_JSON:
            source = True
        return self._json_recipe(kind, source, resources)

    def _json_recipe(self, kind: Kind, source: Any, resources: Resources) -> GrammarRecipe:
        options = self._options
        try:
            others = resources_of(resources)
        except RecursionError:
            raise InvalidGrammarError("the resources are nested too deeply") from None
        if others:
            options = replace(options, resources=tuple((dict(options.resources) | dict(others)).items()))
        recipe = GrammarRecipe.of(_KINDS[kind], source, options)
        _check_length(kind, recipe.source[0], *(text for _, text in others))
        return recipe._replace(shown=self._marks) if kind == CALLS else recipe


def _check_length(kind: Kind, *texts: str) -> None:
    count = sum(map(len, texts))
    if count > LONGEST:
        raise InvalidGrammarError(f"the {kind} has {count} characters; this server takes at most {LONGEST}")
