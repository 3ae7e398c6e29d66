"""What the samples of a chat request do: the steps of the model's dialect as moves, their grammars compiled ahead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sgl.grammars import GrammarError
from sgl.runtime.dialects import Dialect, DialectStep, Tool, tool_of
from sgl.runtime.dialects.tool_dialect import FREE
from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Generation

from ...generation_steps import NOTHING, GenerationStep, SelectedChoice
from ...grammar_compiler import ANY_JSON
from ...http.http_errors import RequestError
from ..native.generate_request_reader import split_stops
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_request_types import Kind
from .chat_readers import ChatReaders
from .chat_types import ChatRequest

CHOICES = "choices"


def _is_open(step: DialectStep) -> bool:
    """Whether a request's own constraint can shape the text of the step."""
    return step.free and step.constraint is None and not step.stop


class ChatPlan:
    """The steps of every sample of one request.

    Steps that hold free text keep to what the request asks of texts: its stops, its least number of tokens, its
    constraint where the dialect has none. A call that the token limit cuts stays as it is written: no arguments are
    invented.
    """

    def __init__(self, work: OpenAIRequestSetup, body: ChatRequest, params: SamplingParams) -> None:
        self.work, self.body = work, body
        self.dialect: Dialect = work.dialect
        bounds = (params.max_tokens, work.settings.max_new_tokens or None)
        self._most = min((bound for bound in bounds if bound is not None), default=None)  # None: up to the context
        self.tools = tools_of(body)
        self.readers = ChatReaders(work, body, self.tools)
        self.params = self.readers.visible(params)
        self.first = FREE
        self._grammar: Any = None

    async def prepare(self) -> None:
        """Compile what the steps need. Raises RequestError for what the request asks for and cannot have."""
        self._grammar = await self.work.grammar(self.body)
        for place, tool in enumerate(self.tools):
            await self._check(place, tool)
        self.first = self._plan(self.body.choice)
        if (
            self._grammar is not None
            and self.body.choice == "auto"
            and not any(map(_is_open, self._reachable(self.first)))
        ):
            self.first = self._or_text(self.first)
        steps = list(self._reachable(self.first))
        if self.body.calls_tools and all(step.constraint is None for step in steps):
            steps += self._reachable(self._plan("required"))
        for step in steps:
            await self._compiled(step)

    def begin(self, prompt: str) -> DialectStep:
        """The first step after this prompt.

        A thought is ended before anything is constrained, and the request's stops do not end it.
        """
        bound = self._grammar is not None or self.first.constraint is not None or bool(self.first.stop)
        own = self.params
        stops = bool(own.stop or own.stop_token_ids or own.stop_regex)
        return self.readers.with_reasoning_step(self.first, prompt, bound, stops and self._grammar is None)

    async def move(self, step: DialectStep, used: int) -> GenerationStep:
        """The move of a step for which `used` tokens of the limit are gone."""
        encode = self.work.engine.tokenizer.encode
        prefix = encode(step.prefix) if step.prefix else NOTHING
        if step.constraint is not None and step.constraint[0] == CHOICES:
            choices = tuple(SelectedChoice(text, encode(text)) for text in step.constraint[1])
            return GenerationStep(self._limited(step, used), None, prefix, choices)
        return GenerationStep(self._limited(step, used), await self._compiled(step), prefix)

    def stop_of(self, step: DialectStep, made: Generation) -> str:
        """The one of the step's own stops that ended it; else empty."""
        matched = made.finish_reason.get("matched")
        token_id = self.work.engine.tokenizer.token_id
        return next((stop for stop in step.stop if matched is not None and matched in (stop, token_id(stop))), "")

    def included_stop(self, step: DialectStep, made: Generation) -> str:
        """The request's stop that ended a step which has its own stops, where it is to stay in the text; else empty."""
        matched = made.finish_reason.get("matched")
        return matched if self.params.keep_stop and step.free and step.stop and matched in self.params.stop else ""

    # inside

    def _plan(self, choice: str) -> DialectStep:
        try:
            allowed = self.body.allowed
            tools = [tool for tool in self.tools if allowed is None or tool.name in allowed]
            return self.dialect.plan(tools, choice, self.body.parallel_tool_calls)
        except ConfigError as error:
            raise RequestError(str(error), param="tools") from error

    def _or_text(self, step: DialectStep) -> DialectStep:
        """The step whose text is calls or keeps to what the request asks of texts.

        Raises RequestError where none can be.
        """
        kind, source, field = self.body.constraints()[0]
        calls = self._plan("required")
        if step.stop or calls.constraint is None or calls.prefix:
            raise RequestError(
                f"{field} and tools cannot be combined with this model; leave one out, or set tool_choice", field
            )
        either = {"type": "or", "elements": [_as_format(kind, source), json.loads(calls.constraint[1])["format"]]}
        return step._replace(constraint=("structural_tag", json.dumps({"type": "structural_tag", "format": either})))

    def _reachable(self, step: DialectStep) -> Iterator[DialectStep]:
        """The step, and those that its choices lead to."""
        yield step
        if step.constraint is not None and step.constraint[0] == CHOICES:
            for text in step.constraint[1]:
                following = step.then(text)
                if following is not None:
                    yield from self._reachable(following)

    async def _compiled(self, step: DialectStep) -> Any:
        if step.constraint is None:
            return self._grammar if _is_open(step) else None
        kind: Any = step.constraint[0]
        if kind == CHOICES:
            return None
        try:
            named: Any = "calls" if kind == "structural_tag" else kind
            return await self.work.compiled(named, step.constraint[1], self.body.resources)
        except GrammarError as error:
            raise RequestError(f"tools: {error}", "tools", "invalid_grammar") from error

    async def _check(self, place: int, tool: Tool) -> None:
        """Raise RequestError for arguments that no grammar can enforce, before a dialect builds on their schema."""
        try:
            await self.work.compiled("json_schema", tool.arguments_schema, self.body.resources)
        except GrammarError as error:
            raise RequestError(
                f"{tool.name}: {error}", f"tools.{place}.function.parameters", "invalid_grammar"
            ) from error

    def _limited(self, step: DialectStep, used: int) -> SamplingParams:
        """The request's parameters for one step."""
        left, own = None if self._most is None else max(0, self._most - used), self.params
        if not step.free:
            own = replace(own, min_tokens=0, stop=(), stop_token_ids=(), stop_regex=(), ignore_eos=False)
        texts, ids = split_stops(step.stop, self.work.engine.tokenizer)
        return replace(
            own,
            max_tokens=left,
            min_tokens=own.min_tokens if left is None else min(left, own.min_tokens),
            stop=(*own.stop, *texts),
            stop_token_ids=(*own.stop_token_ids, *ids),
            keep_stop=own.keep_stop and not step.stop,
        )


def _as_format(kind: Kind, source: Any) -> dict[str, Any]:
    """A request's constraint as a part of a structural tag."""
    if kind == "regex":
        return {"type": "regex", "pattern": source}
    if kind == "ebnf":
        return {"type": "grammar", "grammar": source}
    if kind == "choice":
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in source]}
    if kind == "structural_tag":
        return _format_of(json.loads(source) if isinstance(source, str) else source)
    if kind == "json_object":
        source = {"type": "object"}
    elif isinstance(source, str):
        source = True if source == ANY_JSON else json.loads(source)
    return {"type": "json_schema", "json_schema": source}


def _format_of(tag: dict[str, Any]) -> dict[str, Any]:
    """Raises RequestError where the tag is of the older form, which is no part of another."""
    if "format" not in tag:
        raise RequestError(
            "a structural_tag together with tools needs a 'format'; leave one of the two out",
            param="structured_outputs",
        )
    found: dict[str, Any] = tag["format"]
    return found


def tools_of(body: ChatRequest) -> list[Tool]:
    """Raises RequestError naming the tool at fault."""
    found = []
    for place, tool in enumerate(body.tools):
        try:
            found.append(tool_of(tool.model_dump()))
        except ConfigError as error:
            raise RequestError(str(error), param=f"tools.{place}") from error
    return found
