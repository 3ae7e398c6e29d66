"""`POST /generate` of the native protocol: one call for a text, a batch of them, samples, scores, and streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import accumulate
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import Response
from pydantic import BaseModel

from sgl.runtime.errors import RequestAborted
from sgl.runtime.sequences.generation import Generation
from sgl.runtime.text.tokenizer import Tokenizer

from ...engine_bridge import EngineBridge, Prompt
from ...grammar_compiler import RequestGrammarCompiler
from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError, problem
from ...http.request_bodies import JsonBodyRoute, parse_in_worker_thread
from ...http.sse_responses import merged
from ...request_context import ADAPTER, apply_caller
from ...served_adapters import check_adapters
from ..api_adapter import ApiAdapter, answer
from .generate_request_reader import GenerateRequest, PromptRequest, read_request
from .generate_response import GenerateResponseWriter, Json, PromptLogprobs
from .native_types import GenerateFields, unread

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
async def generate(data: Annotated[dict[str, Any], unread(GenerateFields), Body()], request: Request) -> Response:
    state = request.app.state
    call = await parse_in_worker_thread(
        request, read_request, data, state.engine.tokenizer, state.settings.max_new_tokens
    )
    return await answer(GenerateAdapter(request, call))


class GenerateAdapter(ApiAdapter[Json]):
    """The texts of the first prompt are the first ones; a piece is what there is so far of a text.

    The first error ends the whole call.
    """

    def __init__(self, request: Request, call: GenerateRequest) -> None:
        state = request.app.state
        self._bridge: EngineBridge = state.bridge
        self._compiler: RequestGrammarCompiler = state.compiler
        self._tokenizer: Tokenizer = state.engine.tokenizer
        self._call, self.streamed = call, call.stream
        check_adapters([request.adapter for request in call.prompts], state.adapters)
        apply_caller(state.settings, call.priority, call.timeout)
        self._last: dict[int, Json] = {}  # of each text

    async def parse(self) -> AsyncGenerator[tuple[int, Json], None]:
        self._bridge.admission.check(sum(request.n for request in self._call.prompts))
        return self._pieces()

    def event(self, index: int, piece: Json) -> list[Json]:
        self._last[index] = piece
        return [{**piece, "index": index} if self._call.listed else piece]

    async def whole(self) -> Json | list[Json]:
        texts = [piece for _, piece in sorted(self._last.items())]
        return texts if self._call.listed else texts[0]

    def failed(self, error: BaseException) -> list[Json]:
        found = problem(error)
        return [{"error": {"message": found.message, "code": found.status}}]

    # inside

    async def _pieces(self) -> AsyncGenerator[tuple[int, Json], None]:
        starts = [0, *accumulate(request.n for request in self._call.prompts)]
        async with aclosing(merged([self._texts(request) for request in self._call.prompts])) as pieces:
            async for place, (index, piece) in pieces:
                yield starts[place] + index, piece

    async def _texts(self, request: PromptRequest) -> AsyncGenerator[tuple[int, Json], None]:
        """What there is so far of the texts of one prompt. The last of each is whole, or tells that it was aborted."""
        ADAPTER.set(request.adapter)
        writers = [GenerateResponseWriter(request, self._tokenizer.token_bytes, index) for index in range(request.n)]
        if not self.streamed and not request.named:  # a client that aborts it wants no text
            async for index, piece in self._written(request, writers, streamed=False):
                yield index, piece
            return
        with self._bridge.runs.named(request.rid, *filter(None, [request.batch])) as run:
            try:
                async with aclosing(self._written(request, writers, streamed=True)) as pieces:
                    async for index, piece in pieces:
                        yield index, piece
            except RequestAborted:
                if not run.aborted:
                    raise
        for index, writer in enumerate(writers):
            if not writer.ended:
                yield index, writer.aborted()

    async def _written(
        self, request: PromptRequest, writers: list[GenerateResponseWriter], streamed: bool
    ) -> AsyncGenerator[tuple[int, Json], None]:
        prompt, grammar = await self._prompt(request), await self._grammar(request)
        ended: dict[int, Generation] = {}
        async with aclosing(self._bridge.stream(prompt, request.params, grammar, request.n, streamed)) as chunks:
            async for index, chunk in chunks:
                if chunk.generation is None:
                    if (piece := writers[index].take(chunk)) is not None:
                        yield index, piece
                elif streamed:
                    yield index, writers[index].whole(chunk.generation, await self._inputs(request, prompt))
                else:
                    ended[index] = chunk.generation
        inputs = await self._inputs(request, prompt) if ended else None
        for index, made in ended.items():
            yield index, writers[index].whole(made, inputs)

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


def _start_token(tokenizer: Tokenizer) -> int:
    """What is before a text that begins with a generation: BOS, else the token that ends texts."""
    return tokenizer.bos_id if tokenizer.bos_id is not None else next(iter(tokenizer.eos_ids), 0)
