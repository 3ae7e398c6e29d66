"""One request to /v1/messages, from its body to its answer or stream."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from sgl.runtime.sequences.generation import Generation

from ...http.sse_responses import primed
from ..chat.chat_choice import ContentChunk
from ..chat.chat_plan import tools_of
from ..chat.chat_prompt import build_chat_prompt
from ..chat.chat_request_run import ChatRequestRun
from ..chat.chat_types import ChatRequest
from ..openai_common.chat_translation import Aside, translated_errors
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json
from .messages_to_chat import NAMES, chat_of
from .messages_types import AnthropicConversation, MessagesRequest
from .messages_writer import ContentBlockWriter

REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}


class MessagesReply:
    """aside: does the work with a long body off the event loop."""

    def __init__(self, work: OpenAIRequestSetup, body: MessagesRequest, aside: Aside) -> None:
        work.check_model(body.model)
        self._work, self._body, self._aside = work, body, aside
        self._writer = ContentBlockWriter()
        self._head: Json = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": work.model,
        }

    async def whole(self) -> Json:
        chat_run = await self._chat_run()
        async with aclosing(await self._begin(chat_run, streamed=False)) as steps:
            async for _, pieces in steps:
                self._writer.write(pieces)
        made = chat_run.samples[0].generations[0]
        return {**self._head, "content": self._writer.content, **self._end(chat_run, made), "usage": _usage(made)}

    async def stream(self) -> AsyncGenerator[Json, None]:
        """The events. What is refused, also by the engine, is raised before the first."""
        chat_run = await self._chat_run()
        async with aclosing(await primed(await self._begin(chat_run, streamed=True))) as steps:
            begun = False
            async for _, pieces in steps:
                if not begun:
                    usage = _counts(chat_run.prompt_tokens, chat_run.cached_tokens, 0)
                    message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
                    yield {"type": "message_start", "message": message}
                    yield {"type": "ping"}
                    begun = True
                for event in self._writer.write(pieces):
                    yield event
        made = chat_run.samples[0].generations[0]
        yield {"type": "message_delta", "delta": self._end(chat_run, made), "usage": _usage(made)}
        yield {"type": "message_stop"}

    # inside

    async def _chat_run(self) -> ChatRequestRun:
        chat = await translated(self._work, self._body, self._aside)
        with translated_errors(NAMES):
            self._work.check(chat, chat.limit)
            return ChatRequestRun(self._work, chat)

    async def _begin(
        self, chat_run: ChatRequestRun, streamed: bool
    ) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        with translated_errors(NAMES):
            return await chat_run.begin(streamed)

    def _end(self, chat_run: ChatRequestRun, made: Generation) -> Json:
        """Why it ended."""
        finish, matched = chat_run.samples[0].finish, made.finish_reason.get("matched")
        token_id = self._work.engine.tokenizer.token_id
        given = self._body.stop_sequences if finish == "stop" and matched is not None else []
        stop = next((text for text in given if matched in (text, token_id(text))), None)
        reason = REASONS.get(finish, "end_turn" if stop is None else "stop_sequence")
        return {"stop_reason": reason, "stop_sequence": stop}


async def translated(work: OpenAIRequestSetup, body: AnthropicConversation, aside: Aside) -> ChatRequest:
    """The request to a chat."""
    with translated_errors(NAMES):
        chat: ChatRequest = await aside(partial(chat_of, body, work.engine.tokenizer.chat_variables))
        return chat


async def count(work: OpenAIRequestSetup, body: AnthropicConversation, aside: Aside) -> int:
    """Tokens of the prompt that a request would have. Raises RequestError."""
    chat = await translated(work, body, aside)
    with translated_errors(NAMES):
        work.check_model(chat.model)
        prompt = await build_chat_prompt(
            work.engine.tokenizer, chat, work.dialect, tools_of(chat), work.bridge.check_size
        )
    return len(prompt.ids)


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
