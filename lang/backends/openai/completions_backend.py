"""The backends of OpenAI's protocol: what they have in common, with any transport."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...backend import Generated, GenRequest, OnChunk, SelectRequest, Stream
from ...chat import ChatTemplate, get_chat_template, match_chat_template
from ...errors import BadValueError
from ...sampling.choices import ChoicesDecision
from ..apis.api_response import ApiResponseCollector, CallTokenUsage, finished, nothing_generated
from ..apis.provider_sdk import TokenUsage, sdk_errors
from ..remote.base import RemoteBackend
from ..remote.remote_prompt import RemotePrompt
from ..speculation.text_speculation import speculating_stream
from .openai_constraints import ServerCapabilities, constraint_for
from .openai_request import Body, body_of, check_options, limit_of, stops_of
from .openai_response import take_chat, take_chat_chunk, take_text, take_text_chunk, token_usage_of
from .openai_select import EchoLogprobScorer, choose_in_chat

_REASONING = re.compile(r"(.*/)?(o\d|gpt-5(?!-chat))")


class CompletionsBackend(RemoteBackend):
    """A model served by chat completions or text completions. Subclasses write `send`.

    The options are described at OpenAI; `sparse` sends sampling options only if they are given, for providers
    that refuse some even at their defaults. `token_usage` counts what calls have cost.
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool,
        chat_template: ChatTemplate | str | None = None,
        *,
        constrained: bool | str = False,
        prefill: bool = False,
        reasoning: bool | None = None,
        tokenizer: Any = None,
        sparse: bool = False,
        **remote: Any,
    ) -> None:
        super().__init__(chat_template=chat_template or template_for(model_name), **remote)
        self.model_name = model_name
        self.is_chat_model = is_chat_model
        self.token_usage = TokenUsage()
        self.names_tokens = True  # until the server refuses log-probabilities
        self.takes_media = frozenset({"image"}) if is_chat_model else frozenset()
        self._tokenizer_given = tokenizer
        self.traits = ServerCapabilities(
            f"{type(self).__name__}({model_name!r})",
            chat=is_chat_model,
            reasoning=bool(_REASONING.match(model_name)) if reasoning is None else reasoning,
            constrained=_servers(constrained),
            prefill=prefill,
            sparse=sparse,
            tokenizer=lambda: self._tokenizer,
        )
        self._scorer = EchoLogprobScorer(self._ask, self.traits)

    def open_speculating(self, num_api_spec_tokens: int) -> Stream:
        return speculating_stream(self, num_api_spec_tokens, self.is_chat_model)

    def get_model_name(self) -> str:
        return self.model_name

    @property
    def prefill(self) -> bool:
        """True if the server continues the text that the assistant's turn begins with."""
        return self.traits.prefill

    @abstractmethod
    async def send(self, body: Body) -> Any:
        """Make one call with these fields; gives the SDK's answer or, with `stream`, its stream of chunks."""

    def check(self, request: GenRequest | SelectRequest) -> None:
        if isinstance(request, GenRequest):
            check_options(request.options, self.traits)
            constraint_for(request.options, self.traits)

    async def complete(self, prompt: RemotePrompt, request: GenRequest, emit: OnChunk | None) -> Generated:
        form = constraint_for(request.options, self.traits)
        body = body_of(prompt, request, self.traits, form)
        if request.options.max_new_tokens == 0:
            if not request.options.return_logprob:
                return nothing_generated()
            emit = None
        writer = ApiResponseCollector(request, stops_of(request, self.traits, form), emit, form, limit_of(body))
        await (self._take_whole(body, writer) if emit is None else self._take_stream(body, writer))
        return finished(writer)

    async def choose(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        if self.is_chat_model:
            return await choose_in_chat(self.complete, prompt, request, self.traits)
        return await self._scorer.choose(prompt, request)

    async def _take_whole(self, body: Body, writer: ApiResponseCollector) -> None:
        take = take_chat if self.is_chat_model else take_text
        take(writer, await self._ask(body))

    async def _take_stream(self, body: Body, writer: ApiResponseCollector) -> None:
        take = take_chat_chunk if self.is_chat_model else take_text_chunk
        with sdk_errors():
            stream = await self.send({**body, "stream": True, "stream_options": {"include_usage": True}})
            async with aclosing(chunks_of(stream)) as chunks:
                async for chunk in chunks:
                    take(writer, chunk)
        self._pay(writer.bill)

    async def _ask(self, body: Body) -> Any:
        """The whole answer to a call."""
        with sdk_errors():
            answer = await self.send(body)
        self._pay(token_usage_of(answer) or CallTokenUsage())
        return answer

    def _pay(self, bill: CallTokenUsage) -> None:
        self.token_usage.add(bill.prompt_tokens, bill.completion_tokens)

    @cached_property
    def _tokenizer(self) -> Any:
        if self._tokenizer_given is not None:
            return PlainTokenizer(self._tokenizer_given)
        try:
            import tiktoken

            return PlainTokenizer(tiktoken.encoding_for_model(self.model_name))
        except Exception:  # not installed, a model that it does not know, or no network for its table
            return None


class PlainTokenizer:
    """A tokenizer whose encode() adds no marks and returns a list, from any library."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:
            found = self._tokenizer.encode(text)
        return [int(token) for token in getattr(found, "ids", found)]

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))


def template_for(model_name: str) -> ChatTemplate:
    """The template of a model's name. The API takes messages, so an unknown one gives no warning."""
    return match_chat_template(model_name) or replace(get_chat_template("default"), name="messages")


async def chunks_of(stream: Any) -> AsyncGenerator[Any, None]:
    """The chunks of an SDK's stream, which is closed at the end, whatever the end is."""
    try:
        async for chunk in stream:
            yield chunk
    finally:
        close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
        if close is not None:
            await close()


def _servers(constrained: bool | str) -> frozenset[str]:
    known = frozenset({"sglang", "vllm"})
    if isinstance(constrained, bool):
        return known if constrained else frozenset()
    if constrained not in known:
        raise BadValueError(f"constrained is {constrained!r}; give 'sglang', 'vllm', True or False")
    return frozenset({constrained})
