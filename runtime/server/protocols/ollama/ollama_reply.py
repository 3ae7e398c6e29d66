"""One request to Ollama's routes, from its body to its answer or stream."""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial

from sgl.runtime.dialects import ContentDelta, ReasoningDelta, ToolCallEnd

from ...http.sse_responses import primed
from ..chat.chat_choice import ContentChunk, ToolCallChunk
from ..chat.chat_request_run import ChatRequestRun
from ..openai_common.chat_translation import Aside, translated_errors
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json, finish_reason
from .ollama_to_chat import NAMES, chat_of
from .ollama_types import OllamaChat, OllamaGenerate

NANOSECONDS = 1_000_000_000


class OllamaReply:
    """aside: does the work with a long body off the event loop."""

    def __init__(self, work: OpenAIRequestSetup, body: OllamaChat | OllamaGenerate, aside: Aside) -> None:
        work.check_model(body.model and body.model.removesuffix(":latest"))
        self._work, self._body, self._aside = work, body, aside

    @property
    def loads(self) -> bool:
        """Whether nothing is asked: clients do so to have a model loaded."""
        body = self._body
        return not (body.prompt if isinstance(body, OllamaGenerate) else body.messages)

    def loaded(self) -> Json:
        return self._line("", done=True, done_reason="load")

    async def whole(self) -> Json:
        chat_run = await self._chat_run()
        async with aclosing(await self._begin(chat_run, streamed=False)) as steps:
            async for _ in steps:
                pass
        [sample] = chat_run.samples
        return self._line(
            sample.content, sample.thought, [call for call in sample.calls if call.complete], **_end(chat_run)
        )

    async def stream(self) -> AsyncGenerator[Json, None]:
        """The lines. What is refused, also by the engine, is raised before the first."""
        chat_run = await self._chat_run()
        async with aclosing(await primed(await self._begin(chat_run, streamed=True))) as steps:
            async for _, pieces in steps:
                for line in self._lines(chat_run, pieces):
                    yield line
        yield self._line("", **_end(chat_run))

    # inside

    def _lines(self, chat_run: ChatRequestRun, pieces: Iterable[ContentChunk]) -> Iterable[Json]:
        for chunk in pieces:
            match chunk.event:
                case ContentDelta(text):
                    yield self._line(text, done=False)
                case ReasoningDelta(text):
                    yield self._line("", text, done=False)
                case ToolCallEnd(index, True):
                    yield self._line("", "", [chat_run.samples[0].calls[index]], done=False)

    def _line(self, text: str, thought: str = "", calls: Iterable[ToolCallChunk] = (), **fields: object) -> Json:
        moment = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        head: Json = {"model": self._body.model or self._work.model, "created_at": moment}
        thinking = {"thinking": thought} if thought else {}
        if isinstance(self._body, OllamaGenerate):
            return head | {"response": text} | thinking | fields
        made = [{"function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in calls]
        message = {"role": "assistant", "content": text} | thinking | ({"tool_calls": made} if made else {})
        return head | {"message": message} | fields

    async def _chat_run(self) -> ChatRequestRun:
        with translated_errors(NAMES):
            chat = await self._aside(partial(chat_of, self._body, self._work.engine.tokenizer.chat_variables))
            self._work.check(chat, chat.limit)
            return ChatRequestRun(self._work, chat)

    async def _begin(
        self, chat_run: ChatRequestRun, streamed: bool
    ) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        with translated_errors(NAMES):
            return await chat_run.begin(streamed)


def _end(chat_run: ChatRequestRun) -> Json:
    """What the last line says of all."""
    made = chat_run.samples[0].generations[0]
    total, first = (int(seconds * NANOSECONDS) for seconds in (made.e2e_latency, made.first_token_seconds))
    return {
        "done": True,
        "done_reason": finish_reason(made),
        "total_duration": total,
        "load_duration": 0,
        "prompt_eval_count": made.prompt_tokens,
        "prompt_eval_duration": min(first, total),
        "eval_count": made.completion_tokens,
        "eval_duration": total - min(first, total),
    }
