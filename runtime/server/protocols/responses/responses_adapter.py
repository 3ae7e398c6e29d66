"""The routes of /v1/responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from sgl.runtime.errors import RequestAborted

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError, problem
from ...http.request_bodies import JsonBodyRoute, in_worker_thread
from ...http.sse_responses import named_sse_event
from ..api_adapter import answer
from ..chat.chat_api_adapter import ChatApiAdapter
from ..chat.chat_choice import ContentChunk
from ..chat.chat_plan import tools_of
from ..chat.chat_prompt import build_chat_prompt
from ..chat.chat_types import MOST_MESSAGES, ChatMessage, ChatRequest
from ..openai_common.chat_translation import few
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json
from .response_items import ItemReference, ResponseItem, item_of, kept
from .response_object import ResponseBuilder, ResponseObject, usage_of
from .response_store import ENDED, RUNNING, ResponseStore, as_json
from .responses_to_chat import NAMES, PlacedMessage, chat_of, messages_of
from .responses_types import ENCRYPTED, ResponseRequest
from .responses_writer import ResponseOutputWriter

router = APIRouter(route_class=JsonBodyRoute)


class ResponseTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


@router.post("/v1/responses", responses=answers(ResponseObject, *OF_MODELS, media="text/event-stream"))
async def create(body: ResponseRequest, request: Request) -> Response:
    """The next items of a conversation; a stream of events with stream=true."""
    return await answer(ResponsesAdapter(request, body))


@router.post("/v1/responses/input_tokens", responses=answers(ResponseTokens, *OF_MODELS))
async def input_tokens(body: ResponseRequest, request: Request) -> Json:
    """How long the prompt of such a request is."""
    return {"object": "response.input_tokens", "input_tokens": await ResponsesAdapter(request, body).count()}


class ResponsesAdapter(ChatApiAdapter):
    """Keeps the response where the request asks for that, from its first event on."""

    fields, mark = NAMES, b""

    def __init__(self, request: Request, body: ResponseRequest) -> None:
        super().__init__(request, body.model, body.stream)
        self._body = body
        self._store: ResponseStore = request.app.state.responses
        self._stored = body.store and self._store.most > 0
        self._answer = ResponseBuilder(body, self.work.model, self._stored)
        self._writer = ResponseOutputWriter(body.summary, ENCRYPTED in body.include)
        self._sent = 0  # events
        self._input: list[ResponseItem] = []
        self._known: dict[str, Json] = {}  # items that were kept, of responses that the input refers to

    def line(self, event: Json) -> bytes:
        self._sent += 1
        return named_sse_event({**event, "sequence_number": self._sent - 1})

    def event(self, index: int, piece: list[ContentChunk]) -> list[Json]:
        return self._writer.write(piece)

    async def whole(self) -> Json:
        ended = self._ended()
        await self._keep(ended)
        return ended

    async def begin(self) -> list[Json]:
        begun = self._answer.json(RUNNING, [])
        await self._keep(begun)
        return [{"type": f"response.{name}", "response": begun} for name in ("created", RUNNING)]

    async def end(self) -> list[Json]:
        return [self._last(self._ended())]

    def failed(self, error: BaseException) -> list[Json]:
        """A response that was cancelled has ended early."""
        found, broken, output = problem(error), self._writer.break_off(), self._writer.output
        if isinstance(error, RequestAborted):
            return [*broken, self._last(self._answer.json("cancelled", output), "incomplete")]
        return [*broken, self._last(self._answer.json("failed", output, problem=found))]

    def left(self) -> None:
        self._writer.break_off()
        self._last(self._answer.json("cancelled", self._writer.output))

    def _ended(self) -> Json:
        [sample] = self.samples
        usage = usage_of(sample.generations, sample.thought, self.work.engine.tokenizer)
        return self._answer.json("incomplete" if sample.finish == "length" else "completed", self._writer.output, usage)

    def _last(self, response: Json, name: str = "") -> Json:
        """The last event of a stream."""
        if self._stored:
            self._store.update(response)
        return {"type": f"response.{name or response['status']}", "response": response}

    # before the model

    async def run(self, chat: ChatRequest) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        return await super().run(await truncate_to_fit(self.work, chat) if self._body.truncation == "auto" else chat)

    async def read(self) -> ChatRequest:
        given = self._body.input
        refers = isinstance(given, list) and any(
            isinstance(item, dict) and item.get("type") == "item_reference" for item in given
        )
        if self._body.previous_response_id is not None or refers:
            return await asyncio.to_thread(self._chat)
        return await in_worker_thread(self.request, self._chat)

    def _chat(self) -> ChatRequest:
        items = [*self._history(), *self._given()]
        return chat_of(self._body, messages_of(items, self._body.instructions))

    def _history(self) -> Iterator[PlacedMessage]:
        """The items of what this response follows."""
        previous = self._body.previous_response_id
        if previous is None:
            return
        found = 0
        for one in self._store.chain(previous):
            if one.status not in ENDED:
                raise RequestError(
                    f"the response {previous!r} is {one.status} and cannot be followed", "previous_response_id"
                )
            items = one.conversation
            found += len(items)
            if found > MOST_MESSAGES:
                raise RequestError(
                    f"what the response {previous!r} follows has more than {MOST_MESSAGES} items",
                    "previous_response_id",
                )
            for item in items:
                yield PlacedMessage(item_of(item, item["id"]), item["id"])

    def _given(self) -> Iterator[PlacedMessage]:
        """The items of the request itself."""
        given = self._body.input
        few(given if isinstance(given, list) else [], "input")
        for place, value in enumerate([{"role": "user", "content": given}] if isinstance(given, str) else given):
            item = item_of(value, "input", place)
            if isinstance(item, ItemReference):
                item = item_of(self._referred(item.id), "input", place)
            self._input.append(item)
            yield PlacedMessage(item, f"input.{place}")

    def _referred(self, id: str) -> Json:
        if id not in self._known:
            self._known |= self._store.siblings(id)
        return self._known[id]

    # what stays

    async def _keep(self, answer: Json) -> None:
        if self._stored:
            await asyncio.to_thread(self._put, answer)

    def _put(self, answer: Json) -> None:
        items = [kept(item) for item in self._input]
        self._store.put(answer, as_json(items), [item["id"] for item in items], self.request.state.request_id)


async def truncate_to_fit(work: OpenAIRequestSetup, chat: ChatRequest) -> ChatRequest:
    """`truncation: auto`: the request without its first turns, as few as have to go for prompt and answer to find room.

    A turn is a user's message with all that follows it. The system's messages before the first one stay, and the last
    turn: where these are too long by themselves, they are what is given back.
    """
    starts = [place for place, message in enumerate(chat.messages) if message.role == "user"]
    if len(starts) < 2 or await _fits(work, chat):
        return chat
    least, most = 1, len(starts) - 1
    while least < most:  # the least number of turns to leave out
        middle = (least + most) // 2
        if await _fits(work, _from(chat, starts, middle)):
            most = middle
        else:
            least = middle + 1
    return _from(chat, starts, least)


def _from(chat: ChatRequest, starts: Sequence[int], turn: int) -> ChatRequest:
    head: list[ChatMessage] = [message for message in chat.messages[: starts[0]] if message.role == "system"]
    return chat.model_copy(update={"messages": head + chat.messages[starts[turn] :]})


async def _fits(work: OpenAIRequestSetup, chat: ChatRequest) -> bool:
    most = min(work.context - (chat.limit or 1), work.settings.max_prompt_tokens or work.context)
    try:
        prompt = await build_chat_prompt(work, chat, tools_of(chat))
    except RequestError as error:
        if error.code == "context_length_exceeded":
            return False
        raise
    return len(prompt.ids) <= most
