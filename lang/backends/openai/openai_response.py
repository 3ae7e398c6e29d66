"""What a server of OpenAI's protocol answers: whole, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import RemoteError, RemoteProtocolError
from ..apis.api_response import ApiResponseCollector, CallTokenUsage, Entry


def take_chat(writer: ApiResponseCollector, answer: Any) -> None:
    """A whole chat completion."""
    choice = first_choice(answer)
    _refusal(choice.message)
    _read_extras(writer, choice.message)
    rows, tops = _chat_logprobs(choice)
    _finish(writer, answer, choice)
    writer.push(choice.message.content or "", rows, tops)


def take_text(writer: ApiResponseCollector, answer: Any) -> None:
    """A whole text completion."""
    choice = first_choice(answer)
    rows, tops = text_logprobs(choice)
    _finish(writer, answer, choice)
    writer.push(choice.text or "", rows, tops)


def take_chat_chunk(writer: ApiResponseCollector, chunk: Any) -> None:
    """A chunk of a chat completion; the last one has no choices but the usage."""
    writer.bill = token_usage_of(chunk) or writer.bill
    for choice in (chunk.choices or [])[:1]:
        rows, tops = _chat_logprobs(choice)
        _read_extras(writer, choice.delta)
        writer.push(getattr(choice.delta, "content", None) or "", rows, tops)
        writer.finish = choice.finish_reason or writer.finish


def take_text_chunk(writer: ApiResponseCollector, chunk: Any) -> None:
    writer.bill = token_usage_of(chunk) or writer.bill
    for choice in (chunk.choices or [])[:1]:
        writer.push(choice.text or "", *text_logprobs(choice))
        writer.finish = choice.finish_reason or writer.finish


def first_choice(answer: Any) -> Any:
    """The only answer. Raises RemoteProtocolError if there is none."""
    choices = getattr(answer, "choices", None)
    if not choices:
        raise RemoteProtocolError(f"the server answered without choices: {str(answer)[:200]}")
    return choices[0]


def token_usage_of(answer: Any) -> CallTokenUsage | None:
    """The tokens of a call, where the answer reports them."""
    usage = getattr(answer, "usage", None)
    if usage is None:
        return None
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None)
    return CallTokenUsage(usage.prompt_tokens or 0, usage.completion_tokens or 0, cached)


def text_logprobs(choice: Any) -> tuple[list[Entry], list[list[Entry]]]:
    """The tokens of a text completion with their log-probabilities, and the best ones at each place."""
    found = choice.logprobs
    if found is None or not found.tokens:
        return [], []
    values = found.token_logprobs or [None] * len(found.tokens)
    rows = [[value, None, token] for value, token in zip(values, found.tokens, strict=True)]
    tops = [[[value, None, token] for token, value in (top or {}).items()] for top in found.top_logprobs or []]
    return rows, tops


def _chat_logprobs(choice: Any) -> tuple[list[Entry], list[list[Entry]]]:
    logprobs = getattr(choice, "logprobs", None)
    tokens: Sequence[Any] = getattr(logprobs, "content", None) or ()
    rows = [[token.logprob, None, token.token] for token in tokens]
    tops = [[[other.logprob, None, other.token] for other in token.top_logprobs or ()] for token in tokens]
    return rows, tops


def _finish(writer: ApiResponseCollector, answer: Any, choice: Any) -> None:
    writer.bill = token_usage_of(answer) or writer.bill
    writer.finish = choice.finish_reason or "stop"


def _refusal(message: Any) -> None:
    if getattr(message, "refusal", None) and not message.content:
        raise RemoteError(f"the model refused to answer: {message.refusal}")


def _read_extras(writer: ApiResponseCollector, message: Any) -> None:
    """What a message has besides the text: reasoning, tool calls."""
    thought = getattr(message, "reasoning_content", None)
    if thought:
        writer.meta["reasoning_content"] = writer.meta.get("reasoning_content", "") + thought
    if calls := getattr(message, "tool_calls", None):
        found = [call.model_dump() if hasattr(call, "model_dump") else call for call in calls]
        writer.meta.setdefault("tool_calls", []).extend(found)
