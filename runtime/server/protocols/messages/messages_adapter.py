"""The routes of /v1/messages."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from sgl.runtime.sequences.generation import Generation

from ...http.api_error_formats import ANTHROPIC_PATH
from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import problem
from ...http.request_bodies import JsonBodyRoute, in_worker_thread
from ...http.sse_responses import named_sse_event
from ..api_adapter import answer
from ..chat.chat_api_adapter import ChatApiAdapter
from ..chat.chat_choice import ContentChunk
from ..chat.chat_types import ChatRequest
from ..openai_common.openai_response_fields import Json
from .messages_to_chat import NAMES, chat_of
from .messages_types import AnthropicConversation, MessagesRequest
from .messages_writer import ContentBlockWriter

REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}

router = APIRouter(route_class=JsonBodyRoute)


class MessageUsage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(BaseModel):
    input_tokens: int


@router.post("/v1/messages", responses=answers(AnthropicMessage, *OF_MODELS, media="text/event-stream"))
async def create(body: MessagesRequest, request: Request) -> Response:
    """The assistant's next message; a stream of events with stream=true."""
    body.check_thread()
    return await answer(MessagesAdapter(request, body, body.stream, body.stop_sequences))


@router.post("/v1/messages/count_tokens", responses=answers(MessageTokens, *OF_MODELS))
async def count_tokens(body: AnthropicConversation, request: Request) -> Json:
    """How long the prompt of such a request is."""
    return {"input_tokens": await MessagesAdapter(request, body).count()}


class MessagesAdapter(ChatApiAdapter):
    fields, mark = NAMES, b""

    def __init__(
        self, request: Request, body: AnthropicConversation, streamed: bool = False, stops: Sequence[str] = ()
    ) -> None:
        super().__init__(request, body.model, streamed)
        self._body, self._stops = body, stops
        self._writer = ContentBlockWriter()
        self._head: Json = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self.work.model,
        }

    def line(self, event: Json) -> bytes:
        return named_sse_event(event)

    async def read(self) -> ChatRequest:
        variables = self.work.engine.tokenizer.chat_variables
        return await in_worker_thread(self.request, partial(chat_of, self._body, variables))

    def event(self, index: int, piece: list[ContentChunk]) -> list[Json]:
        return self._writer.write(piece)

    async def begin(self) -> list[Json]:
        usage = _counts(self.prompt_tokens, self.cached_tokens, 0)
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    async def end(self) -> list[Json]:
        made = self.samples[0].generations[0]
        return [{"type": "message_delta", "delta": self._reason(made), "usage": _usage(made)}, {"type": "message_stop"}]

    async def whole(self) -> Json:
        made = self.samples[0].generations[0]
        return {**self._head, "content": self._writer.content, **self._reason(made), "usage": _usage(made)}

    def failed(self, error: BaseException) -> list[Json]:
        return [problem(error).body(ANTHROPIC_PATH)]

    def _reason(self, made: Generation) -> Json:
        """Why it ended."""
        finish, matched = self.samples[0].finish, made.finish_reason.get("matched")
        token_id = self.work.engine.tokenizer.token_id
        given = self._stops if finish == "stop" and matched is not None else ()
        stop = next((text for text in given if matched in (text, token_id(text))), None)
        return {
            "stop_reason": REASONS.get(finish, "end_turn" if stop is None else "stop_sequence"),
            "stop_sequence": stop,
        }


def _usage(made: Generation) -> Json:
    return _counts(made.prompt_tokens, made.cached_tokens, made.completion_tokens)


def _counts(prompt: int, cached: int, written: int) -> Json:
    """Those of the prompt that came from the cache are counted apart."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": written,
    }
