"""From items to the messages of a chat, and a whole request as one of a chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...http.http_errors import RequestError
from ..chat.chat_types import ChatRequest
from ..openai_common.chat_translation import parse_chat_request
from ..openai_common.openai_response_fields import Json
from ..openai_common.sampling_fields import as_chat_fields
from .response_items import CallItem, MessageItem, OutputItem, ReasoningItem, ResponseItem
from .responses_types import ResponseAllowedTools, ResponseNamedTool, ResponseRequest

NAMES = {  # of a chat request's fields, in errors
    r"tools\.(\d+)\.function\.": r"tools.\1.",
    r"tool_choice\.function\.name": "tool_choice.name",
    r"tool_choice\.allowed_tools\.tools": "tool_choice.tools",
    r"messages": "input",
    r"max_completion_tokens|max_tokens": "max_output_tokens",
    r"response_format\.json_schema": "text.format",
    r"response_format": "text.format",
    r"reasoning_effort": "reasoning.effort",
}


class PlacedMessage(NamedTuple):
    """An item, and where it stands: "input.3", or in what the server keeps."""

    item: ResponseItem
    place: str


class _ChatTurn:
    """A turn of the assistant: neighbouring messages, thoughts and calls."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[tuple[CallItem, str]] = []

    def add(self, item: ResponseItem, place: str) -> None:
        if isinstance(item, MessageItem):
            self.texts.append(item.content)
        elif isinstance(item, CallItem):
            self.calls.append((item, place))
        elif isinstance(item, ReasoningItem):
            try:
                self.thoughts.append(item.text)
            except ValueError as error:
                raise RequestError(f"{place}: {error}", f"{place}.encrypted_content", "invalid_value") from None

    def messages(self, answers: dict[str, str]) -> Iterator[Json]:
        """The turn's message, and the answers to its calls.

        Calls that the token limit cut may go without, and are left out.
        """
        calls = [call for call, place in self.calls if _answered(call, place, answers)]
        message: Json = {"role": "assistant", "content": "\n".join(self.texts) or (None if calls else "")}
        if thought := "\n".join(filter(None, self.thoughts)):
            message["reasoning_content"] = thought
        if calls:
            about = [(call.call_id, {"name": call.name, "arguments": call.arguments}) for call in calls]
            message["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in about]
        yield message
        for call in calls:
            yield {"role": "tool", "tool_call_id": call.call_id, "content": answers[call.call_id]}


def _answered(call: CallItem, place: str, answers: dict[str, str]) -> bool:
    if call.call_id not in answers and call.status != "incomplete":
        raise RequestError(
            f"{place}: the call {call.call_id!r} has no output; send an item of type 'function_call_output' with "
            "that call_id",
            f"{place}.call_id",
        )
    return call.call_id in answers


def messages_of(items: Iterable[PlacedMessage], instructions: str | None) -> list[Json]:
    """The messages of a chat; what stands before the conversation is one message of the system.

    Raises RequestError for calls without output, outputs without a call before them, and second ones.
    """
    items = list(items)
    answers = _answers(items)
    found: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    turn: _ChatTurn | None = None
    for item, place in items:
        if isinstance(item, CallItem | ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant"):
            turn = turn or _ChatTurn()
            turn.add(item, place)
            continue
        found += [] if turn is None else turn.messages(answers)
        turn = None
        if isinstance(item, MessageItem):
            _put(found, "system" if item.role == "developer" else item.role, item.content)
    return [*found, *([] if turn is None else turn.messages(answers))]


def _put(messages: list[Json], role: str, text: str) -> None:
    if role == "system" and len(messages) == 1 and messages[0]["role"] == "system":
        messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
    else:
        messages.append({"role": role, "content": text})


def _answers(items: Iterable[PlacedMessage]) -> dict[str, str]:
    """What came of each call, by its id."""
    called: set[str] = set()
    found: dict[str, str] = {}
    for item, place in items:
        if isinstance(item, CallItem):
            if item.call_id in called:
                raise RequestError(
                    f"{place}: there is a call {item.call_id!r} before it; give each its own", f"{place}.call_id"
                )
            called.add(item.call_id)
        elif isinstance(item, OutputItem):
            if item.call_id not in called or item.call_id in found:
                why = "has an output already" if item.call_id in found else "is none of the calls before it"
                raise RequestError(f"{place}: call_id is {item.call_id!r}, which {why}", f"{place}.call_id")
            found[item.call_id] = item.output
    return found


def chat_of(body: ResponseRequest, messages: list[Json]) -> ChatRequest:
    """The same request to a chat. Raises RequestError, naming fields of the chat."""
    given = {
        "model": body.model,
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "tools": [
            {"type": "function", "function": tool.model_dump(exclude={"type", "defer_loading", "output_schema"})}
            for tool in body.tools
        ],
        "tool_choice": _choice(body),
        "response_format": _format(body),
        "reasoning_effort": body.reasoning.effort,
        "logprobs": body.logprobs,
    }
    same = ("top_logprobs", "parallel_tool_calls", "chat_template_kwargs", "priority", "timeout")
    given |= as_chat_fields(body, "responses") | {name: getattr(body, name) for name in same}
    return parse_chat_request(ChatRequest, given)


def _format(body: ResponseRequest) -> Json:
    format = body.text.format
    if format.type != "json_schema":
        return {"type": format.type}
    return {"type": "json_schema", "json_schema": {"name": format.name or "answer", "schema": format.schema_}}


def _choice(body: ResponseRequest) -> str | Json:
    """`tool_choice` in the chat's words."""
    choice = body.tool_choice
    if isinstance(choice, ResponseNamedTool):
        return _of_chat(choice)
    if not isinstance(choice, ResponseAllowedTools):
        return choice
    return {"type": choice.type, choice.type: {"mode": choice.mode, "tools": [_of_chat(tool) for tool in choice.tools]}}


def _of_chat(tool: ResponseNamedTool) -> Json:
    return {"type": "function", "function": {"name": tool.name}}
