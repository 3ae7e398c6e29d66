"""POST /v1/completions: texts that go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from sgl.runtime.sequences.generation import Chunk, Generation
from sgl.runtime.text.tokenizer import Tokenizer

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError
from ...http.request_bodies import JsonBodyRoute
from ...http.response_size_limit import json_response
from ...http.sse_responses import SSEResponse, merged, primed, together
from ..openai_common.openai_logprobs import LogprobRow, LogprobRowStream, TextLogprobs, rows_of, rows_of_generation
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_request_types import CompletionRequest
from ..openai_common.openai_response_fields import Json, OpenAICompletion, finish_reason, response_head, usage

MOST_PROMPTS = 256  # in one request

router = APIRouter(route_class=JsonBodyRoute)


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: Json | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(OpenAICompletion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


@router.post("/v1/completions", responses=answers(TextCompletion, *OF_MODELS, media="text/event-stream"))
async def completions(body: CompletionRequest, request: Request) -> Response:
    """One text or `n` texts for each prompt; a stream of events with stream=true."""
    work = OpenAIRequestSetup(request)
    if len(body.prompt) > MOST_PROMPTS:
        raise RequestError(f"prompt has {len(body.prompt)} entries, send at most {MOST_PROMPTS}", param="prompt")
    work.check(body, body.max_tokens if "max_tokens" in body.model_fields_set else None, len(body.prompt))
    task = CompletionHandler(work, body)
    if body.stream:
        return SSEResponse(await primed(task.stream()))
    return await json_response(await task.whole())


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """What stands before the text of a choice: the prompt where it is echoed."""

    text: str = ""
    rows: list[LogprobRow] = field(default_factory=list)
    offset: int = 0  # characters before the first row


class CompletionHandler:
    """One request to /v1/completions."""

    def __init__(self, work: OpenAIRequestSetup, body: CompletionRequest) -> None:
        self.work, self.body = work, body
        self.tokenizer = work.engine.tokenizer
        self.head = response_head(work.engine, work.model, "cmpl", "text_completion")
        self.params = body.params(body.max_tokens, body.logprobs is not None, body.logprobs or 0)
        self.params.validate(self.tokenizer.vocab_size)

    async def whole(self) -> Json:
        grammar = await self.work.grammar(self.body)
        bridge, n = self.work.bridge, self.body.n
        groups = await together([bridge.generate(prompt, self.params, grammar, n) for prompt in self.body.prompt])
        openings = await self._openings()  # afterwards, so that `cached_tokens` counts what was there before
        choices = [
            self._choice(place * n + sample, openings[place], generation)
            for place, group in enumerate(groups)
            for sample, generation in enumerate(group)
        ]
        return {**self.head, "choices": choices, "usage": usage(groups)}

    async def stream(self) -> AsyncGenerator[Json, None]:
        grammar = await self.work.grammar(self.body)
        openings = await self._openings()
        bridge, n = self.work.bridge, self.body.n
        sources = [bridge.stream(prompt, self.params, grammar, n) for prompt in self.body.prompt]
        writers = [
            CompletionChoiceStream(self.tokenizer, self.body, i, openings[i // n]) for i in range(n * len(sources))
        ]
        common: Json = self.head | ({"usage": None} if self.body.with_usage else {})
        async with aclosing(merged(sources)) as chunks:
            async for place, (sample, chunk) in chunks:
                yield {**common, "choices": [writers[place * n + sample].take(chunk)]}
        if self.body.with_usage:
            ended = [writer.generation for writer in writers if writer.generation is not None]
            yield {**common, "choices": [], "usage": usage(ended[i : i + n] for i in range(0, len(ended), n))}

    def _choice(self, index: int, opening: EchoedPrompt, generation: Generation) -> Json:
        logprobs = None
        if self.body.logprobs is not None:
            rows = [*opening.rows, *rows_of_generation(generation)]
            logprobs = TextLogprobs(self.tokenizer, self.body.logprobs, opening.offset).take(rows)
        return _choice(index, opening.text + generation.text, logprobs, finish_reason(generation))

    # the prompt in the answer

    async def _openings(self) -> list[EchoedPrompt]:
        return await together([self._opening(prompt) for prompt in self.body.prompt])

    async def _opening(self, prompt: str | list[int]) -> EchoedPrompt:
        if not self.body.echo and self.body.logprobs is None:
            return EchoedPrompt()
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(await self._ids(prompt), False)
        if not self.body.echo:
            return EchoedPrompt(offset=len(text))
        if self.body.logprobs is None:
            return EchoedPrompt(text)
        return EchoedPrompt(text, await self._prompt_rows(prompt))

    async def _prompt_rows(self, prompt: str | list[int]) -> list[LogprobRow]:
        """A row for each token of the prompt; the first token of all has no log-probability.

        What the tokenizer puts before a text is no part of what the caller wrote, and has no row.
        """
        ids = await self._ids(prompt)
        top = self.body.logprobs or 0
        found, tops = await self.work.bridge.logprobs(ids, 1, top)
        rows = [LogprobRow(ids[0], None), *rows_of(found, tops)]
        return rows[_hidden(self.tokenizer, prompt, ids) :]

    async def _ids(self, prompt: str | list[int]) -> list[int]:
        return (await self.work.bridge.encode(prompt)).tolist()


class CompletionChoiceStream:
    """One choice of a stream: from the engine's chunks to entries of `choices`."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, index: int, opening: EchoedPrompt) -> None:
        self.generation: Generation | None = None
        self._index, self._opening = index, opening
        self._first = True
        self._rows = LogprobRowStream(tokenizer, body.skip_special_tokens)
        self._logprobs = None if body.logprobs is None else TextLogprobs(tokenizer, body.logprobs, opening.offset)

    def take(self, chunk: Chunk) -> Json:
        text, logprobs = chunk.text, None
        rows = [] if self._logprobs is None else self._rows.take(chunk)
        if self._first:
            text, rows, self._first = self._opening.text + text, [*self._opening.rows, *rows], False
        if self._logprobs is not None:
            logprobs = self._logprobs.take(rows)
        self.generation = chunk.generation
        return _choice(
            self._index, text, logprobs, None if chunk.generation is None else finish_reason(chunk.generation)
        )


def _choice(index: int, text: str, logprobs: Json | None, finish: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _hidden(tokenizer: Tokenizer, prompt: Any, ids: list[int]) -> int:
    """How many of the ids the tokenizer put before the caller's text."""
    prefix = tokenizer.prefix_ids
    if not isinstance(prompt, str) or tuple(ids[: len(prefix)]) != prefix:
        return 0
    shown = tokenizer.decode(prefix, skip_special_tokens=False)
    return 0 if shown and prompt.startswith(shown) else len(prefix)
