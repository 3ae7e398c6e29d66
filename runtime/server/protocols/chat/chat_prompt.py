"""From the messages of a request to the tokens of a prompt, by the model's own template and its dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from sgl.runtime.dialects import Dialect, Tool, tool_of
from sgl.runtime.errors import ConfigError
from sgl.runtime.text.chat_templates.special_token_quoting import QuotedConversation
from sgl.runtime.text.chat_templates.template_messages import with_contents, with_roles
from sgl.runtime.text.chat_templates.template_traits import TemplateTraits
from sgl.runtime.text.tokenizer import Tokenizer

from ...engine_bridge import LONG_TEXT
from ...generation_steps import ChatPrompt
from ...http.http_errors import RequestError
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from .chat_types import ChatRequest
from .template_variables import template_variables_of

MARK = "\ue000\ue001"  # private use: where the text to continue ends; what the template adds after it is cut off
END = MARK + " "  # a template that trims takes the space

Check = Callable[[str], None]  # raises for a text that is too long to be made tokens
A_TURN = 40  # characters that a message takes as long as


async def build_chat_prompt(work: OpenAIRequestSetup, body: ChatRequest, tools: Sequence[Tool]) -> ChatPrompt:
    """`conversation`; long ones and those with schemas or calls are processed off the event loop."""
    length = sum(A_TURN + message.length for message in body.messages)
    nested = tools or body.chat_template_kwargs or any(message.tool_calls for message in body.messages)
    given = (work.engine.tokenizer, body, work.dialect, tools, work.bridge.check_size)
    return await asyncio.to_thread(conversation, *given) if nested or length > LONG_TEXT else conversation(*given)


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
    variables = template_variables_of(tokenizer, body)
    quotation = QuotedConversation(tokenizer, (given, variables, [tool.openai for tool in tools]))
    messages, variables, described = quotation.value
    shown = TemplateConversation(tokenizer.chat_traits(bool(tools)), dialect, [tool_of(tool) for tool in described])
    goes_on = body.continue_final_message
    text = tokenizer.render_chat(
        shown.messages(messages), body.add_generation_prompt and not goes_on, **variables, **shown.variables
    )
    text = _up_to_mark(text) if goes_on else text
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


class TemplateConversation:
    """A conversation as the template is to show it: by itself, and by the dialect where there are tools or calls."""

    def __init__(self, traits: TemplateTraits, dialect: Dialect, tools: Sequence[Tool]) -> None:
        self._traits, self._dialect, self._tools = traits, dialect.templated(traits), tools

    @property
    def variables(self) -> dict[str, Any]:
        return self._dialect.variables(self._tools)

    def messages(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raises RequestError for a call without a JSON object, or a message that the template leaves out."""
        try:
            turns = with_roles(messages, self._traits, bool(self._tools))
            if self._tools or any(message.get("tool_calls") or message.get("tool_call_id") for message in messages):
                turns = self._dialect.messages(turns, self._tools)
            return with_contents(turns, self._traits, bool(self._tools))
        except ConfigError as error:
            raise RequestError(str(error), param="messages") from error


def _mark_end(messages: list[dict[str, Any]]) -> None:
    last = messages[-1]
    if last["role"] != "assistant":
        raise RequestError(
            "continue_final_message needs an assistant's message at the end", param="continue_final_message"
        )
    if isinstance(last["content"], str):
        last["content"] += END
    else:
        last["content"] = [*last["content"][:-1], {"type": "text", "text": last["content"][-1]["text"] + END}]


def _up_to_mark(text: str) -> str:
    """The text before the mark; without white space where the template trims the content, as in transformers."""
    before, found, after = text.rpartition(MARK)
    if not found:
        raise RequestError(
            "continue_final_message: the model's chat template leaves out the end of the last message",
            param="continue_final_message",
        )
    return before if after.startswith(END.removeprefix(MARK)) else before.rstrip()
