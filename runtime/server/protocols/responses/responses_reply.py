"""One request to /v1/responses, from its body to its answer or stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from sgl.runtime.errors import RequestAborted

from ...http.http_errors import RequestError, problem
from ...http.sse_responses import primed
from ..chat.chat_choice import ContentChunk
from ..chat.chat_plan import tools_of
from ..chat.chat_prompt import build_chat_prompt
from ..chat.chat_request_run import ChatRequestRun
from ..chat.chat_types import MOST_MESSAGES, ChatRequest
from ..openai_common.chat_translation import Aside, few, translated_errors
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json
from .conversation_truncation import truncate_to_fit
from .response_items import ItemReference, ResponseItem, item_of, kept
from .response_object import ResponseBuilder, usage_of
from .response_store import ENDED, RUNNING, ResponseStore, as_json
from .responses_to_chat import NAMES, PlacedMessage, chat_of, messages_of
from .responses_types import ENCRYPTED, ResponseRequest
from .responses_writer import ResponseOutputWriter


class ResponsesReply:
    """run: the id of the request, by which it can be aborted. aside: does the work with a long body off
    the event loop.
    """

    def __init__(
        self, work: OpenAIRequestSetup, body: ResponseRequest, store: ResponseStore, run: str, aside: Aside
    ) -> None:
        work.check_model(body.model)
        self._work, self._body, self._run, self._aside = work, body, run, aside
        self._store = store
        self._stored = body.store and store.most > 0
        self._answer = ResponseBuilder(body, work.model, self._stored)
        self._writer = ResponseOutputWriter(body.summary, ENCRYPTED in body.include)
        self._input: list[ResponseItem] = []
        self._known: dict[str, Json] = {}  # items that were kept, of responses that the input refers to

    async def whole(self) -> Json:
        """The response, ended."""
        chat_run = await self._chat_run()
        async with aclosing(await self._begin(chat_run, streamed=False)) as steps:
            async for _, pieces in steps:
                self._writer.write(pieces)
        ended = self._ended(chat_run)
        await self._keep(ended)
        return ended

    async def stream(self) -> AsyncGenerator[Json, None]:
        """Its events, numbered. What is refused, also by the engine, is raised before the first."""
        number = 0
        async with aclosing(self._events()) as events:
            async for event in events:
                yield {**event, "sequence_number": number}
                number += 1

    # inside

    async def _events(self) -> AsyncGenerator[Json, None]:
        chat_run = await self._chat_run()
        async with aclosing(await primed(await self._begin(chat_run, streamed=True))) as steps:
            begun = self._answer.json(RUNNING, [])
            await self._keep(begun)
            try:
                yield {"type": "response.created", "response": begun}
                yield {"type": "response.in_progress", "response": begun}
                async for _, pieces in steps:
                    for event in self._writer.write(pieces):
                        yield event
                last, name = self._ended(chat_run), ""
            except Exception as error:
                for event in self._writer.break_off():
                    yield event
                last, name = self._failed(error)
            except BaseException:  # the client is gone
                self._writer.break_off()
                self._update(self._answer.json("cancelled", self._writer.output))
                raise
            self._update(last)
            yield {"type": f"response.{name or last['status']}", "response": last}

    def _ended(self, chat_run: ChatRequestRun) -> Json:
        [sample] = chat_run.samples
        usage = usage_of(sample.generations, sample.thought, self._work.engine.tokenizer)
        return self._answer.json("incomplete" if sample.finish == "length" else "completed", self._writer.output, usage)

    def _failed(self, error: Exception) -> tuple[Json, str]:
        """The response that came to nothing, and the name of its last event. A cancelled one has ended early."""
        found, output = problem(error), self._writer.output
        if isinstance(error, RequestAborted):
            return self._answer.json("cancelled", output), "incomplete"
        return self._answer.json("failed", output, problem=found), "failed"

    # before the model

    async def count(self) -> int:
        """Tokens of the prompt."""
        work = self._work
        with translated_errors(NAMES):
            chat = await self._chat_request()
            work.check_model(chat.model)
            prompt = await build_chat_prompt(
                work.engine.tokenizer, chat, work.dialect, tools_of(chat), work.bridge.check_size
            )
        return len(prompt.ids)

    async def _begin(
        self, chat_run: ChatRequestRun, streamed: bool
    ) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        with translated_errors(NAMES):
            return await chat_run.begin(streamed)

    async def _chat_run(self) -> ChatRequestRun:
        """Raises RequestError for what cannot be answered."""
        with translated_errors(NAMES):
            chat = await self._chat_request()
            self._work.check(chat, chat.limit)
            return ChatRequestRun(
                self._work, await truncate_to_fit(self._work, chat) if self._body.truncation == "auto" else chat
            )

    async def _chat_request(self) -> ChatRequest:
        given = self._body.input
        refers = isinstance(given, list) and any(
            isinstance(item, dict) and item.get("type") == "item_reference" for item in given
        )
        if self._body.previous_response_id is not None or refers:
            return await asyncio.to_thread(self._chat)
        chat: ChatRequest = await self._aside(self._chat)
        return chat

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
        self._store.put(answer, as_json(items), [item["id"] for item in items], self._run)

    def _update(self, answer: Json) -> None:
        if self._stored:
            self._store.update(answer)
