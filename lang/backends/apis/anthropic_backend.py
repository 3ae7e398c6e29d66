"""Programs on Anthropic's models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from ...backend import Generated, GenRequest, OnChunk, SelectRequest, Stream
from ...chat import ChatTemplate
from ...errors import BadValueError, RemoteError, RemoteProtocolError
from ...sampling.choices import ChoicesDecision
from ...sampling.token_prices import Prices
from ..openai.completions_backend import chunks_of, template_for
from ..openai.openai_constraints import ServerCapabilities, constraint_for
from ..openai.openai_request import stops_of
from ..openai.openai_select import choose_in_chat
from ..remote.base import RemoteBackend
from ..remote.remote_event_loop import PerEventLoop, remote_loop
from ..remote.remote_prompt import RemotePrompt
from ..speculation.text_speculation import speculating_stream
from .anthropic_request import check_options, messages_body
from .api_response import ApiResponseCollector, CallTokenUsage, finished, nothing_generated
from .provider_sdk import CONNECT_SECONDS, TokenUsage, require, sdk_errors

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class Anthropic(RemoteBackend):
    """A model of Anthropic's messages API. Programs consist of turns.

    Text that begins the assistant's turn is sent as its beginning (prefill); newer models refuse that. With
    `prefill=False` the model starts its turns itself. All system turns together are the system prompt of every call.
    `hf_chat_template` affects only `s.text()`. `extra_body`: fields sent with each call, such as "thinking".
    `timeout` (seconds for a call with its retries), `retries` (or `max_retries`), `backoff`, `max_concurrency` and
    `prices` are those of RemoteBackend; `api_key`, `base_url` and all others go to `anthropic.AsyncAnthropic`.
    `token_usage` counts the tokens of all calls.
    Raises MissingPackageError without the package, BadValueError for options that its client refuses.
    """

    provider = "anthropic"
    takes_media = frozenset({"image"})
    takes_seed = False

    def __init__(
        self,
        model_name: str,
        *args: Any,
        chat_template: ChatTemplate | str | None = None,
        prefill: bool = True,
        extra_body: dict[str, Any] | None = None,
        timeout: float = 600.0,
        retries: int = 3,
        max_retries: int | None = None,
        backoff: float = 0.5,
        max_concurrency: int = 256,
        prices: Prices | None = None,
        **client_kw: Any,
    ) -> None:
        super().__init__(
            timeout=timeout,
            retries=retries if max_retries is None else max_retries,
            backoff=backoff,
            max_concurrency=max_concurrency,
            prices=prices,
            chat_template=chat_template or template_for(model_name),
        )
        self.model_name = model_name
        self.prefill = prefill
        self.extra_body = dict(extra_body or {})
        self.token_usage = TokenUsage()
        self.traits = ServerCapabilities(f"Anthropic({model_name!r})", prefill=prefill)
        self._new_client = self._client_maker(args, client_kw)
        self._client = PerEventLoop(self._new_client)

    def open_speculating(self, num_api_spec_tokens: int) -> Stream:
        return speculating_stream(self, num_api_spec_tokens, chat=True)

    def get_model_name(self) -> str:
        return self.model_name

    def shutdown(self) -> None:
        """Close the connections. The backend can be used again."""
        client, self._client = self._client.peek(), PerEventLoop(self._new_client)
        if client is not None:
            asyncio.run_coroutine_threadsafe(client.close(), remote_loop()).result(CONNECT_SECONDS)

    # --- calls -------------------------------------------------------------------------------------------

    def check(self, request: GenRequest | SelectRequest) -> None:
        if isinstance(request, GenRequest):
            check_options(request.options, self.traits)
            constraint_for(request.options, self.traits)

    async def complete(self, prompt: RemotePrompt, request: GenRequest, emit: OnChunk | None) -> Generated:
        form = constraint_for(request.options, self.traits)
        body = messages_body(prompt, request, self.traits, form)
        if request.options.max_new_tokens == 0:
            return nothing_generated()
        writer = ApiResponseCollector(
            request,
            stops_of(request, self.traits, form),
            emit,
            form,
            body["max_tokens"],
            skip=_end_space(prompt.partial),
        )
        with sdk_errors():
            await (self._take_whole(body, writer) if emit is None else self._take_stream(body, writer))
        self.token_usage.add(writer.bill.prompt_tokens, writer.bill.completion_tokens)
        return finished(writer)

    async def choose(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        return await choose_in_chat(self.complete, prompt, request, self.traits)

    async def _send(self, body: dict[str, Any]) -> Any:
        fields = {name: body.pop(name) for name in ("messages", "max_tokens")}
        stream = body.pop("stream", False)
        extra = {**body, **self.extra_body}
        create = self._client.get().messages.create
        return await create(model=self.model_name, stream=stream, extra_body=extra or None, **fields)

    async def _take_whole(self, body: dict[str, Any], writer: ApiResponseCollector) -> None:
        answer = await self._send(body)
        if not isinstance(getattr(answer, "content", None), list) or getattr(answer, "usage", None) is None:
            raise RemoteProtocolError(f"the server answered without content: {str(answer)[:200]}")
        writer.bill = _token_usage(answer.usage, writer.bill)
        for block in answer.content:
            _take_block(writer, block)
        _finish(writer, answer)

    async def _take_stream(self, body: dict[str, Any], writer: ApiResponseCollector) -> None:
        async with aclosing(chunks_of(await self._send({**body, "stream": True}))) as events:
            async for event in events:
                _take_event(writer, event)

    def _client_maker(self, args: tuple[Any, ...], client_kw: dict[str, Any]) -> Callable[[], Any]:
        """Makes a client for a loop. The SDK's own retries and timeout are off: ours count."""
        sdk = require("anthropic", "anthropic")

        def make() -> Any:
            timeout = sdk.Timeout(None, connect=CONNECT_SECONDS)
            return sdk.AsyncAnthropic(*args, max_retries=0, timeout=timeout, **client_kw)

        try:
            _ = make().messages  # the SDK loads it when it is first used
        except (sdk.AnthropicError, TypeError, ValueError) as error:
            raise BadValueError(f"{self.traits.name}: {error}") from error
        return make


def _take_event(writer: ApiResponseCollector, event: Any) -> None:
    """One event of a stream."""
    if event.type == "message_start":
        writer.bill = _token_usage(event.message.usage, writer.bill)
    elif event.type == "content_block_start":
        _take_block(writer, event.content_block)
    elif event.type == "content_block_delta":
        writer.push(getattr(event.delta, "text", ""))
        _think(writer, getattr(event.delta, "thinking", ""))
    elif event.type == "message_delta":
        writer.bill = _token_usage(event.usage, writer.bill)
        _finish(writer, event.delta)


def _take_block(writer: ApiResponseCollector, block: Any) -> None:
    """One block of an answer: text, a thought, the call of a tool."""
    if block.type == "text":
        writer.push(block.text)
    elif block.type == "thinking":
        _think(writer, block.thinking)
    elif block.type == "tool_use":
        writer.meta.setdefault("tool_calls", []).append(block.model_dump())


def _think(writer: ApiResponseCollector, thought: str) -> None:
    if thought:
        writer.meta["reasoning_content"] = writer.meta.get("reasoning_content", "") + thought


def _finish(writer: ApiResponseCollector, answer: Any) -> None:
    if answer.stop_reason == "refusal":
        raise RemoteError("the model refused to answer")
    if answer.stop_reason is not None:
        writer.finish = _FINISH.get(answer.stop_reason, answer.stop_reason)
        writer.matched = answer.stop_sequence


def _token_usage(usage: Any, before: CallTokenUsage) -> CallTokenUsage:
    """The tokens so far; an event without them leaves what was known."""
    cached = getattr(usage, "cache_read_input_tokens", None) or 0
    written = getattr(usage, "cache_creation_input_tokens", None) or 0
    fresh = getattr(usage, "input_tokens", None)
    prompt = before.prompt_tokens if fresh is None else fresh + cached + written
    return CallTokenUsage(prompt, usage.output_tokens or 0, cached or before.cached_tokens or 0)


def _end_space(text: str) -> str:
    """The white space that a text ends with."""
    return text[len(text.rstrip()) :] if text.strip() else ""
