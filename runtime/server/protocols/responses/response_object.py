"""The response object: what was asked for, and what has become of it."""

from __future__ import annotations

import time
from typing import Literal

from pydantic import BaseModel

from sgl.runtime.sequences.generation import Generation
from sgl.runtime.text.tokenizer import Tokenizer

from ...http.http_errors import RequestError
from ..openai_common.openai_response_fields import Json
from .response_items import new_id
from .responses_types import ResponseRequest

CUT = {"reason": "max_output_tokens"}
CODES = {429: "rate_limit_exceeded"}  # else server_error: clients know no others


class ResponseObject(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
    error: Json | None
    incomplete_details: Json | None
    model: str
    output: list[Json]
    usage: Json | None
    previous_response_id: str | None
    store: bool


class ResponseBuilder:
    """One response; `id` is its own from the beginning."""

    def __init__(self, body: ResponseRequest, model: str, stored: bool) -> None:
        self.id, self._created = new_id("resp"), time.time()
        self._common = _echo(body) | {"model": model, "store": stored}

    def json(
        self, status: str, output: list[Json], usage: Json | None = None, problem: RequestError | None = None
    ) -> Json:
        """The response at this moment. problem: what made it fail."""
        error = (
            None if problem is None else {"code": CODES.get(problem.status, "server_error"), "message": problem.message}
        )
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self._created),
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": CUT if status == "incomplete" else None,
            **self._common,
            "output": output,
            "usage": usage,
        }


def _echo(body: ResponseRequest) -> Json:
    """What was asked for, as answers repeat it."""
    given = body.model_dump(by_alias=True, exclude_none=True, include={"tools", "tool_choice", "text"})
    format = given["text"]["format"]
    if format["type"] != "json_schema":
        given["text"]["format"] = {"type": format["type"]}
    same = (
        "instructions",
        "previous_response_id",
        "metadata",
        "max_output_tokens",
        "max_tool_calls",
        "temperature",
        "top_p",
        "top_logprobs",
        "parallel_tool_calls",
        "truncation",
        "background",
        "user",
        "safety_identifier",
        "prompt_cache_key",
    )
    reasoning = {"effort": body.reasoning.effort, "summary": body.reasoning.summary}
    return given | {name: getattr(body, name) for name in same} | {"reasoning": reasoning, "service_tier": "default"}


def usage_of(made: list[Generation], thought: str, tokenizer: Tokenizer) -> Json:
    """Token counts of one sample; those of its thoughts are of their text, encoded anew."""
    prompt, cached = (made[0].prompt_tokens, made[0].cached_tokens) if made else (0, 0)
    written = sum(one.completion_tokens for one in made)
    thinking = min(written, len(tokenizer.encode(thought))) if thought else 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thinking},
        "total_tokens": prompt + written,
    }
