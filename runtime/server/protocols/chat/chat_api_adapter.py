"""APIs whose requests become requests to a chat: one way through the engine, whatever a client speaks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fastapi import Request

from sgl.runtime.sequences.generation import Chunk

from ...generation_steps import GenerationStep
from ...http.http_errors import RequestError
from ..api_adapter import ApiAdapter
from ..openai_common.chat_translation import translated_errors
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from .chat_choice import ChatChoiceReader, ContentChunk
from .chat_plan import ChatPlan, tools_of
from .chat_prompt import build_chat_prompt
from .chat_types import ChatRequest


class ChatApiAdapter(ApiAdapter[list[ContentChunk]]):
    """Plans a request, runs its samples, and tells what comes of them.

    fields                        names of a chat request's fields in errors, and what the API calls them
    samples                       one for each that the request asks for, once it was parsed
    prompt_tokens, cached_tokens  of the prompt, once the first piece is there
    """

    fields: Mapping[str, str] = {}

    def __init__(self, request: Request, model: str | None, streamed: bool) -> None:
        self.request, self.streamed = request, streamed
        self.work = OpenAIRequestSetup(request, model)
        self.samples: list[ChatChoiceReader] = []
        self.prompt_tokens = self.cached_tokens = 0

    @abstractmethod
    async def read(self) -> ChatRequest:
        """The same request to a chat. Raises RequestError that names fields of the chat."""

    async def parse(self) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        """(index of the sample, what it tells next) until all have ended; unless streamed, all of a move at once."""
        with translated_errors(self.fields):
            chat = await self.read()
            self.work.check(chat, chat.limit)
            try:
                return await self.run(chat)
            except RecursionError:
                raise RequestError("the request is nested too deeply; send it flatter") from None

    async def count(self) -> int:
        """Tokens of the prompt."""
        with translated_errors(self.fields):
            chat = await self.read()
            return len((await build_chat_prompt(self.work, chat, tools_of(chat))).ids)

    async def run(self, chat: ChatRequest) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        """Have the engine answer the chat."""
        params = chat.params(chat.limit, chat.logprobs, chat.top_logprobs)
        params.validate(self.work.engine.tokenizer.vocab_size)
        plan = ChatPlan(self.work, chat, params)
        await plan.prepare()
        prompt = await build_chat_prompt(self.work, chat, plan.tools)
        self.samples = [ChatChoiceReader(plan, prompt.text) for _ in range(chat.n)]
        first = await plan.move(plan.begin(prompt.text), 0)
        return self._pieces(self.work.bridge.walk(prompt, first, self._go_on, chat.n, self.streamed))

    # inside

    async def _pieces(
        self, chunks: AsyncGenerator[tuple[int, Chunk], None]
    ) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        async with aclosing(chunks):
            async for index, chunk in chunks:
                if not self.prompt_tokens:
                    self.prompt_tokens, self.cached_tokens = chunk.prompt_tokens, chunk.cached_tokens
                yield index, self.samples[index].take(chunk)

    async def _go_on(self, index: int) -> GenerationStep | None:
        return await self.samples[index].go_on()
