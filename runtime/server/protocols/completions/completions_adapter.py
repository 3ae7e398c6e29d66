"""POST /v1/completions: texts after prompts, with log-probabilities, and the prompt too where that is asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from sgl.runtime.sequences.generation import Chunk
from sgl.runtime.text.tokenizer import Tokenizer

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError
from ...http.request_bodies import JsonBodyRoute
from ...http.sse_responses import merged, together
from ..api_adapter import ApiAdapter, answer
from ..openai_common.openai_logprobs import LogprobRow, LogprobRowStream, TextLogprobs, rows_of
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
    return await answer(CompletionsAdapter(request, body))


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """What is before the text of a choice: the prompt where it is echoed."""

    text: str = ""
    rows: list[LogprobRow] = field(default_factory=list)
    offset: int = 0  # characters before the first row


class CompletionsAdapter(ApiAdapter[Chunk]):
    """The samples of the first prompt are the first ones."""

    def __init__(self, request: Request, body: CompletionRequest) -> None:
        if len(body.prompt) > MOST_PROMPTS:
            raise RequestError(f"prompt has {len(body.prompt)} entries, send at most {MOST_PROMPTS}", param="prompt")
        self.streamed = body.stream
        self._work, self._body = OpenAIRequestSetup(request, body.model), body
        self._work.check(body, body.max_tokens if "max_tokens" in body.model_fields_set else None, len(body.prompt))
        self._tokenizer = self._work.engine.tokenizer
        self._head: Json = response_head(self._work.engine, self._work.model, "cmpl", "text_completion")
        if body.with_usage:
            self._head["usage"] = None
        self._writers: list[CompletionChoiceWriter] = []
        self._last: dict[int, Chunk] = {}  # of each sample

    async def parse(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        params = self._body.params(self._body.max_tokens, self._body.logprobs is not None, self._body.logprobs or 0)
        params.validate(self._tokenizer.vocab_size)
        grammar = await self._work.grammar(self._body)
        if self.streamed:
            self._writers = await self._choice_writers()
        stream, n = self._work.bridge.stream, self._body.n
        return self._pieces([stream(prompt, params, grammar, n, self.streamed) for prompt in self._body.prompt])

    async def _pieces(
        self, sources: list[AsyncGenerator[tuple[int, Chunk], None]]
    ) -> AsyncGenerator[tuple[int, Chunk], None]:
        async with aclosing(merged(sources)) as chunks:
            async for place, (sample, chunk) in chunks:
                yield place * self._body.n + sample, chunk

    def event(self, index: int, piece: Chunk) -> list[Json]:
        if piece.generation is not None:
            self._last[index] = piece
        return [{**self._head, "choices": [self._writers[index].take(piece)]}] if self.streamed else []

    async def end(self) -> list[Json]:
        return [{**self._head, "choices": [], "usage": self._usage()}] if self._body.with_usage else []

    async def whole(self) -> Json:
        writers = await self._choice_writers()  # afterwards, so that `cached_tokens` counts what was there before
        choices = [writer.take(self._last[index]) for index, writer in enumerate(writers)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    def _usage(self) -> Json:
        made = [chunk.generation for _, chunk in sorted(self._last.items()) if chunk.generation is not None]
        return usage(made[i : i + self._body.n] for i in range(0, len(made), self._body.n))

    # the prompt in the answer

    async def _choice_writers(self) -> list[CompletionChoiceWriter]:
        openings = await together([self._opening(prompt) for prompt in self._body.prompt])
        n = self._body.n
        return [
            CompletionChoiceWriter(self._tokenizer, self._body, i, openings[i // n]) for i in range(n * len(openings))
        ]

    async def _opening(self, prompt: str | list[int]) -> EchoedPrompt:
        if not self._body.echo and self._body.logprobs is None:
            return EchoedPrompt()
        text = prompt if isinstance(prompt, str) else self._tokenizer.decode(await self._ids(prompt), False)
        if not self._body.echo:
            return EchoedPrompt(offset=len(text))
        if self._body.logprobs is None:
            return EchoedPrompt(text)
        return EchoedPrompt(text, await self._prompt_rows(prompt))

    async def _prompt_rows(self, prompt: str | list[int]) -> list[LogprobRow]:
        """A row for each token of the prompt; the first token of all has no log-probability.

        What the tokenizer puts before a text is no part of what the caller wrote, and has no row.
        """
        ids = await self._ids(prompt)
        top = self._body.logprobs or 0
        found, tops = await self._work.bridge.logprobs(ids, 1, top)
        rows = [LogprobRow(ids[0], None), *rows_of(found, tops)]
        return rows[_hidden(self._tokenizer, prompt, ids) :]

    async def _ids(self, prompt: str | list[int]) -> list[int]:
        return (await self._work.bridge.encode(prompt)).tolist()


class CompletionChoiceWriter:
    """One choice: from the engine's chunks to entries of `choices`."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, index: int, opening: EchoedPrompt) -> None:
        self._index, self._opening = index, opening
        self._first = True
        self._rows = LogprobRowStream(tokenizer, body.skip_special_tokens)
        self._logprobs = None if body.logprobs is None else TextLogprobs(tokenizer, body.logprobs, opening.offset)

    def take(self, chunk: Chunk) -> Json:
        text, made = chunk.text, chunk.generation
        rows = [] if self._logprobs is None else self._rows.take(chunk)
        if self._first:
            text, rows, self._first = self._opening.text + text, [*self._opening.rows, *rows], False
        return {
            "index": self._index,
            "text": text,
            "logprobs": None if self._logprobs is None else self._logprobs.take(rows),
            "finish_reason": None if made is None else finish_reason(made),
        }


def _hidden(tokenizer: Tokenizer, prompt: Any, ids: list[int]) -> int:
    """How many of the ids the tokenizer put before the caller's text."""
    prefix = tokenizer.prefix_ids
    if not isinstance(prompt, str) or tuple(ids[: len(prefix)]) != prefix:
        return 0
    shown = tokenizer.decode(prefix, skip_special_tokens=False)
    return 0 if shown and prompt.startswith(shown) else len(prefix)
