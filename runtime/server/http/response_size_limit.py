"""How large an answer may get: log-probabilities, which a small request can ask for by the million, and their JSON."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from json import JSONEncoder
from typing import Any

from starlette.responses import JSONResponse, Response

from .http_errors import RequestError

MOST_LOGPROBS = 1_000_000  # in one answer, the top logprobs of each counted
LARGE = 20_000  # of them: their JSON is written off the event loop
FEW = 32  # items of a list that are written one by one

_encode = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class LogprobBudget:
    """What one request has taken of log-probabilities, all its prompts and samples together."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, tokens: int, top: int) -> None:
        """So many tokens with so many top logprobs each. Raises RequestError where that is too much."""
        self.taken += tokens * (1 + top)
        if self.taken > MOST_LOGPROBS:
            raise RequestError(
                f"the answer has more than {MOST_LOGPROBS} log-probabilities; ask for fewer top ones, tokens, "
                "samples or prompts",
                param="logprobs",
            )


ALLOWANCE: ContextVar[LogprobBudget | None] = ContextVar("ALLOWANCE", default=None)


def take(tokens: int, top: int) -> None:
    """From the allowance of the request that this runs for."""
    found = ALLOWANCE.get()
    if found is not None:
        found.take(tokens, top)


async def json_response(answer: Any) -> Response:
    """The answer as JSON; what is large is written piece by piece in a thread, so that others have their turn."""
    found = ALLOWANCE.get()
    if found is None or found.taken <= LARGE:
        return JSONResponse(answer)
    return Response(await asyncio.to_thread(written, answer), media_type="application/json")


def written(value: Any) -> str:
    """As JSON, in many small calls of the encoder: other threads run in between."""
    if isinstance(value, dict):
        return "{" + ",".join([f"{_encode(name)}:{written(item)}" for name, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written if len(value) <= FEW else _encode, value)) + "]"
    return _encode(value)
