"""What both of OpenAI's routes do before they ask the engine."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request

from sgl.grammars import GrammarError
from sgl.runtime.engine import Engine

from .bridge import Bridge
from .compiling import Compiler
from .errors import RequestError
from .openai_types import Sampling
from .settings import ServerSettings


class Work:
    """The parts of the application that a request needs, and the refusals that every request may meet."""

    def __init__(self, request: Request) -> None:
        state = request.app.state
        self.bridge: Bridge = state.bridge
        self.engine: Engine = state.engine
        self.settings: ServerSettings = state.settings
        self.model: str = state.model
        self._compiler: Compiler = state.compiler

    @property
    def context(self) -> int:
        """The most tokens that prompt and answer have together."""
        return self.engine.info()["context"]

    def check(self, body: Sampling, max_tokens: int | None) -> None:
        """Raise RequestError for another model's name, for too many samples or tokens."""
        if body.model is not None and body.model != self.model:
            raise RequestError(
                f"there is no model {body.model!r} here; this server has {self.model!r}",
                param="model",
                code="model_not_found",
                status=404,
            )
        most, limit = self.settings.max_choices, self.settings.max_new_tokens
        if body.n > most:
            raise RequestError(f"n={body.n} is more than the {most} samples that this server gives", param="n")
        if limit is not None and max_tokens is not None and max_tokens > limit:
            raise RequestError(f"max_tokens={max_tokens} is more than this server's {limit}; ask for less", param="max_tokens")

    async def grammar(self, body: Sampling) -> Any:
        """The compiled constraint, None without one. Raises RequestError naming the field at fault."""
        given = body.constraints()
        if len(given) > 1:
            names = " and ".join(field for _, _, field in given)
            raise RequestError(f"{names} cannot be combined; give one of them", param=given[1][2])
        if not given:
            return None
        kind, source, field = given[0]
        try:
            return await self._compiler.compile(kind, json.dumps(source) if isinstance(source, bool) else source)
        except GrammarError as error:
            raise RequestError(f"{field}: {error}", param=field, code="invalid_grammar") from error
