"""`POST /generate` of the native protocol: one call for a text, a batch of them, samples, scores, and streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import accumulate
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

from sgl.runtime.errors import RequestAborted
from sgl.runtime.text.tokenizer import Tokenizer

from ...engine_bridge import EngineBridge, Prompt
from ...grammar_compiler import RequestGrammarCompiler
from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError, problem
from ...http.request_bodies import JsonBodyRoute, parse_in_worker_thread
from ...http.response_size_limit import json_response
from ...http.sse_responses import merged, together
from ...request_context import ADAPTER, apply_caller
from ...served_adapters import check_adapters
from .generate_request_reader import GenerateRequest, PromptRequest, read_request
from .generate_response import GenerateResponseWriter, Json, PromptLogprobs
from .native_types import GenerateBody

router = APIRouter(route_class=JsonBodyRoute)


class NativeMeta(BaseModel):
    id: str
    finish_reason: Json
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class NativeAnswer(BaseModel):
    text: str
    output_ids: list[int]
    meta_info: NativeMeta


@router.post("/generate", responses=answers(NativeAnswer | list[NativeAnswer], *OF_MODELS, media="text/event-stream"))
async def generate(data: Annotated[GenerateBody, Body()], request: Request) -> Response:
    state = request.app.state
    call = await parse_in_worker_thread(
        request, read_request, data, state.engine.tokenizer, state.settings.max_new_tokens
    )
    check_adapters([request.adapter for request in call.prompts], state.adapters)
    apply_caller(state.settings, call.priority, call.timeout)
    state.bridge.admission.check(sum(request.n for request in call.prompts))
    service = GenerateService(state.bridge, state.compiler, state.engine.tokenizer)
    if call.stream:
        return StreamingResponse(await _started(service.events(call)), media_type="text/event-stream")
    answers = await service.answers(call)
    return await json_response(answers if call.listed else answers[0])


class GenerateService:
    """Answers calls in the words of the protocol."""

    def __init__(self, bridge: EngineBridge, compiler: RequestGrammarCompiler, tokenizer: Tokenizer) -> None:
        self._bridge, self._compiler, self._tokenizer = bridge, compiler, tokenizer

    async def answers(self, call: GenerateRequest) -> list[Json]:
        """One for each text, those of the first prompt first. The first error ends the whole call."""
        found = await together([self._answers(request) for request in call.prompts])
        return [answer for answers in found for answer in answers]

    async def events(self, call: GenerateRequest) -> AsyncGenerator[Json, None]:
        """What there is so far of one text with each event; `index` counts the texts, if there may be several."""
        starts = [0, *accumulate(request.n for request in call.prompts)]
        async with aclosing(merged([self._events(request) for request in call.prompts])) as events:
            async for place, (index, event) in events:
                yield {**event, "index": starts[place] + index} if call.listed else event

    async def _answers(self, request: PromptRequest) -> list[Json]:
        ADAPTER.set(request.adapter)
        if request.named:
            return await self._last_events(request)
        prompt, grammar = await self._prompt(request), await self._grammar(request)
        generations = await self._bridge.generate(prompt, request.params, grammar, request.n)
        inputs = await self._inputs(request, prompt)
        return [self._writer(request, i).whole(generation, inputs) for i, generation in enumerate(generations)]

    async def _last_events(self, request: PromptRequest) -> list[Json]:
        """The answers of a call that may be aborted, which then are what there is so far."""
        last: dict[int, Json] = {}
        async with aclosing(self._events(request)) as events:
            async for index, event in events:
                last[index] = event
        return [last[index] for index in range(request.n)]

    async def _events(self, request: PromptRequest) -> AsyncGenerator[tuple[int, Json], None]:
        """The last one of each text is whole, or tells that it was aborted."""
        ADAPTER.set(request.adapter)
        writers = [self._writer(request, index) for index in range(request.n)]
        with self._bridge.runs.named(request.rid, *filter(None, [request.batch])) as run:
            try:
                async with aclosing(self._written(request, writers)) as events:
                    async for index, event in events:
                        yield index, event
            except RequestAborted:
                if not run.aborted:
                    raise
        for index, writer in enumerate(writers):
            if not writer.ended:
                yield index, writer.aborted()

    async def _written(
        self, request: PromptRequest, writers: list[GenerateResponseWriter]
    ) -> AsyncGenerator[tuple[int, Json], None]:
        prompt, grammar = await self._prompt(request), await self._grammar(request)
        async with aclosing(self._bridge.stream(prompt, request.params, grammar, request.n)) as chunks:
            async for index, chunk in chunks:
                if chunk.generation is None:
                    if (event := writers[index].take(chunk)) is not None:
                        yield index, event
                else:
                    yield index, writers[index].whole(chunk.generation, await self._inputs(request, prompt))

    async def _prompt(self, request: PromptRequest) -> Prompt:
        """The prompt as it is, or its tokens where some of them are to be scored."""
        prompt = request.prompt
        if prompt == "" and not self._tokenizer.prefix_ids:
            prompt = [_start_token(self._tokenizer)]
        if request.logprob_start < 0:
            return prompt
        ids: list[int] = (await self._bridge.encode(prompt)).tolist()
        if request.logprob_start >= len(ids):
            raise RequestError(
                f"logprob_start_len is {request.logprob_start}, but the prompt has {len(ids)} tokens; give one of them",
                param="logprob_start_len",
            )
        return ids

    async def _grammar(self, request: PromptRequest) -> Any:
        constraint = request.constraint
        return constraint and await self._compiler.compile(constraint.kind, constraint.source, constraint.resources)

    async def _inputs(self, request: PromptRequest, prompt: Prompt) -> PromptLogprobs | None:
        """Requested after the generation, so that `cached_tokens` counts what was there before the call."""
        start = request.logprob_start
        if start < 0 or isinstance(prompt, str):
            return None
        top = request.params.top_logprobs
        found, tops = await self._bridge.logprobs(prompt, start + 1, top)
        return PromptLogprobs(prompt[start], found, tops)

    def _writer(self, request: PromptRequest, index: int) -> GenerateResponseWriter:
        return GenerateResponseWriter(request, self._tokenizer.token_bytes, index)


def _start_token(tokenizer: Tokenizer) -> int:
    """What stands before a text that begins with a generation: BOS, else the token that ends texts."""
    return tokenizer.bos_id if tokenizer.bos_id is not None else next(iter(tokenizer.eos_ids), 0)


async def _started(events: AsyncGenerator[Json, None]) -> AsyncIterator[str]:
    """The stream from its first event on; what fails before that is raised here, while a status can still tell it."""
    first = await anext(events)
    return _lines(first, events)


async def _lines(first: Json, events: AsyncGenerator[Json, None]) -> AsyncGenerator[str, None]:
    """The lines of the stream. An error in the middle is its last event before the end mark."""
    async with aclosing(events):
        try:
            yield _line(first)
            async for event in events:
                yield _line(event)
        except Exception as error:
            found = problem(error)
            yield _line({"error": {"message": found.message, "code": found.status}})
        yield "data: [DONE]\n\n"


def _line(event: Json) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n"
