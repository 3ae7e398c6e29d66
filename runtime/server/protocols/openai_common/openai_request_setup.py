"""What OpenAI's routes do before they ask the engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from sgl.grammars import Grammar, GrammarError
from sgl.runtime.dialects import Dialect
from sgl.runtime.engine import Engine

from ...engine_bridge import EngineBridge
from ...grammar_compiler import Kind, RequestGrammarCompiler, Resources
from ...http.http_errors import RequestError
from ...observability.request_record import RECORD
from ...request_context import ADAPTER, apply_caller
from ...served_adapters import ServedAdapters, listed
from ...server_settings import ServerSettings
from .openai_request_types import OpenAISampling

ANY_MODEL = ("", "default")  # what asks for no model by its name


def find_model(name: str | None, models: Sequence[str], adapters: ServedAdapters) -> tuple[str, str | None]:
    """The name by which a request calls a model, and the adapter that it means: "ADAPTER" or "MODEL:ADAPTER".

    A model of exactly that name comes first. Raises RequestError where there is none.
    """
    if name is None or (name in ANY_MODEL and name not in models):
        return models[0], None
    if name in models:
        return name, None
    for adapter in (name, *(name.removeprefix(f"{model}:") for model in models if name.startswith(f"{model}:"))):
        if adapters.has(adapter):
            return name, adapter
    known = " and ".join(map(repr, models))
    others = adapters.names()
    more = f", and the adapters {listed(others)}" if others else ""
    raise RequestError(
        f"there is no model {name!r} here; this server has {known}{more}", "model", "model_not_found", 404
    )


class OpenAIRequestSetup:
    """The parts of the application that a request needs, and the refusals that every request may meet.

    model: the name by which the request calls it, and by which of several names answers call it too. From here on what
    the request opens runs under the adapter that the name means. Raises RequestError for another model's name.
    """

    def __init__(self, request: Request, model: str | None = None) -> None:
        state = request.app.state
        self.bridge: EngineBridge = state.bridge
        self.engine: Engine = state.engine
        self.settings: ServerSettings = state.settings
        self.model, adapter = find_model(model, state.models, state.adapters)
        ADAPTER.set(adapter)
        if (record := RECORD.get()) is not None:
            record.adapter = adapter
        self.dialect: Dialect = state.dialect
        self._compiler: RequestGrammarCompiler = state.compiler

    @property
    def context(self) -> int:
        """The most tokens that prompt and answer have together."""
        return self.engine.fixed_info["context"]

    def check(self, body: OpenAISampling, max_tokens: int | None, prompts: int = 1) -> None:
        """Raise RequestError for too many samples or tokens, and where there is no room now.

        From here on the request has the priority and the deadline that it asks for.
        """
        most, limit = self.settings.max_choices, self.settings.max_new_tokens
        if body.n > most:
            raise RequestError(f"n={body.n} is more than the {most} samples that this server gives", param="n")
        if limit is not None and max_tokens is not None and max_tokens > limit:
            raise RequestError(
                f"max_tokens={max_tokens} is more than this server's {limit}; ask for less", param="max_tokens"
            )
        apply_caller(self.settings, body.priority, body.timeout)
        self.bridge.admission.check(prompts * body.n)

    async def grammar(self, body: OpenAISampling) -> Any:
        """The compiled constraint, None without one. Raises RequestError naming the field at fault."""
        given = body.constraints()
        if len(given) > 1:
            names = " and ".join(field for _, _, field in given)
            raise RequestError(f"{names} cannot be combined; give one of them", param=given[1][2])
        if not given:
            return None
        kind, source, field = given[0]
        try:
            return await self.compiled(kind, json.dumps(source) if isinstance(source, bool) else source, body.resources)
        except GrammarError as error:
            raise RequestError(f"{field}: {error}", param=field, code="invalid_grammar") from error

    async def compiled(
        self, kind: Kind, source: str | dict[str, Any] | list[str], resources: Resources | None = None
    ) -> Grammar:
        """The grammar of a source, whose schemas may refer to other documents. Raises GrammarError."""
        return await self._compiler.compile(kind, source, resources)
