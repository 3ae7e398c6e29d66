"""From the messages of a request to the tokens of a prompt, by the model's own template and its dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from sgl.runtime.dialects import Dialect, Tool, tool_of
from sgl.runtime.errors import ConfigError
from sgl.runtime.text.quoting import Quotation
from sgl.runtime.text.tokenizer import Tokenizer

from ..bridge import LONG_TEXT
from ..errors import RequestError
from .moves import ChatPrompt
from .types import SETTLED, ChatRequest

MARK = "\ue000\ue001"  # private use: where the text that goes on ends; what the template puts behind is cut off

Check = Callable[[str], None]  # raises for a text that is too long to be made tokens
A_TURN = 40  # characters that a message takes as long as


async def prompt_of(
    tokenizer: Tokenizer, body: ChatRequest, dialect: Dialect, tools: Sequence[Tool], check: Check | None = None
) -> ChatPrompt:
    """`conversation`, of long ones and of those with schemas or calls in them beside the event loop."""
    length = sum(A_TURN + len(message.content or "") + len(message.reasoning_content or "") for message in body.messages)
    nested = tools or body.chat_template_kwargs or any(message.tool_calls for message in body.messages)
    if nested or length > LONG_TEXT:
        return await asyncio.to_thread(conversation, tokenizer, body, dialect, tools, check)
    return conversation(tokenizer, body, dialect, tools, check)


def conversation(
    tokenizer: Tokenizer, body: ChatRequest, dialect: Dialect, tools: Sequence[Tool], check: Check | None = None
) -> ChatPrompt:
    """The messages, and the beginning of the assistant's unless its last one goes on. `check` sees the text first.

    What the messages spell of special tokens stays text; what the dialect writes of them is meant.

    Raises:
        RequestError: continue_final_message without a message of the assistant at the end, an unknown variable.
        ConfigError: the template refuses the messages.
    """
    given = [_read(message.plain()) for message in body.messages]
    if body.continue_final_message:
        _mark_end(given)
    variables = _variables(tokenizer, body)
    quotation = Quotation(tokenizer, (given, variables, [tool.openai for tool in tools]))
    messages, variables, described = quotation.value
    if tools or any(message.tool_calls or message.tool_call_id for message in body.messages):
        shown = [tool_of(tool) for tool in described]
        messages, variables = _in_dialect(dialect, messages, shown), {**variables, **dialect.variables(shown)}
    goes_on = body.continue_final_message
    text = tokenizer.render_chat(messages, body.add_generation_prompt and not goes_on, **variables)
    text = text.rpartition(MARK)[0] if goes_on else text
    if check is not None:
        check(text)
    return ChatPrompt(text, quotation.encode(text, special_prefix=True))


def _read(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls read: JSON may spell a special token in escapes."""
    for call in message.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            pass  # the dialect says what is wrong with it
    return message


def _in_dialect(dialect: Dialect, messages: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    try:
        return dialect.messages(messages, tools)
    except ConfigError as error:
        raise RequestError(str(error), param="messages") from error


def _mark_end(messages: list[dict[str, Any]]) -> None:
    last = messages[-1]
    if last["role"] != "assistant":
        raise RequestError("continue_final_message needs an assistant's message at the end", param="continue_final_message")
    last["content"] += MARK


def _variables(tokenizer: Tokenizer, body: ChatRequest) -> dict[str, Any]:
    """What the request tells the template besides. Raises RequestError for what the template does not read."""
    known = tokenizer.chat_variables - SETTLED
    for name in body.chat_template_kwargs.keys() - known:
        words = ", ".join(sorted(known)) or "none"
        raise RequestError(f"this model's template reads no {name!r}; it reads: {words}", param=f"chat_template_kwargs.{name}")
    if body.reasoning_effort is None:
        return body.chat_template_kwargs
    if "reasoning_effort" not in known:
        raise RequestError("this model's template knows no reasoning_effort; leave it out", param="reasoning_effort")
    return {"reasoning_effort": body.reasoning_effort, **body.chat_template_kwargs}
