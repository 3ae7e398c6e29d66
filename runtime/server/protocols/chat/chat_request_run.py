"""A chat request on its way through the engine, whatever the API that it came by."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Chunk

from ...http.http_errors import RequestError
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from .chat_choice import ChatChoiceReader, ContentChunk
from .chat_plan import ChatPlan
from .chat_prompt import build_chat_prompt
from .chat_types import ChatRequest
from .generation_steps import ChatPrompt, GenerationStep


class ChatRequestRun:
    """Plans a request, runs its samples, and tells what comes of them.

    samples                       one for each that the request asks for, once `begin` is through
    prompt_tokens, cached_tokens  of the prompt, once the first chunk is there
    """

    def __init__(self, work: OpenAIRequestSetup, body: ChatRequest) -> None:
        self.work, self.body = work, body
        self.plan = ChatPlan(work, body, self._params())
        self.samples: list[ChatChoiceReader] = []
        self.prompt_tokens = self.cached_tokens = 0

    async def begin(self, streamed: bool) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        """(index of the sample, what it tells next) until all have ended; unless `streamed`, all of a move at once.

        What is refused is refused by this call, what goes wrong later by the iterator. To be left with `aclosing`.
        """
        try:
            prompt = await self._prepared()
        except RecursionError:
            raise RequestError("the request is nested too deeply; send it flatter") from None
        self.samples = [ChatChoiceReader(self.plan, prompt.text) for _ in range(self.body.n)]
        first = await self.plan.move(self.plan.begin(prompt.text), 0)
        return self._chunks(self.work.bridge.walk(prompt, first, self._go_on, self.body.n, streamed))

    async def _chunks(
        self, chunks: AsyncGenerator[tuple[int, Chunk], None]
    ) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        async with aclosing(chunks):
            async for index, chunk in chunks:
                if not self.prompt_tokens:
                    self.prompt_tokens, self.cached_tokens = chunk.prompt_tokens, chunk.cached_tokens
                yield index, self.samples[index].take(chunk)

    async def _go_on(self, index: int) -> GenerationStep | None:
        return await self.samples[index].go_on()

    async def _prepared(self) -> ChatPrompt:
        await self.plan.prepare()
        tokenizer, check = self.work.engine.tokenizer, self.work.bridge.check_size
        return await build_chat_prompt(tokenizer, self.body, self.plan.dialect, self.plan.tools, check)

    def _params(self) -> SamplingParams:
        body = self.body
        params = body.params(body.limit, body.logprobs, body.top_logprobs)
        params.validate(self.work.engine.tokenizer.vocab_size)
        return params
