"""From Anthropic's messages to those of a chat, and a whole request as one of a chat."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from ...http.http_errors import RequestError
from ..chat.chat_types import ChatRequest
from ..chat.template_variables import switched
from ..openai_common.chat_translation import few, parse_chat_request
from ..openai_common.openai_response_fields import Json
from ..openai_common.sampling_fields import as_chat_fields
from .messages_types import (
    AnthropicConversation,
    AnthropicInputMessage,
    ContentBlock,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
)

NAMES = {  # of a chat request's fields, in errors
    r"tools\.(\d+)\.function\.parameters": r"tools.\1.input_schema",
    r"tools\.(\d+)\.function\.": r"tools.\1.",
    r"tool_choice\.function\.name": "tool_choice.name",
    r"max_completion_tokens": "max_tokens",
    r"response_format\.json_schema": "output_config.format",
    r"response_format": "output_config.format",
    r"reasoning_effort": "output_config.effort",
    r"stop": "stop_sequences",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
Turn = tuple[str, list[ContentBlock], str]  # role, blocks, place


def messages_of(body: AnthropicConversation) -> list[Json]:
    """The messages of a chat. Neighbours of one role are one.

    Raises RequestError for calls without a result right after them, and results without a call right before them.
    """
    found: list[Json] = [] if body.system is None else [{"role": "system", "content": body.system}]
    waiting: list[str] = []
    for role, blocks, place in _turns(body.messages):
        answers = {block.tool_use_id: block.content for block in blocks if isinstance(block, ToolResultBlock)}
        _check(waiting, [block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock)], place)
        found += [{"role": "tool", "tool_call_id": id, "content": answers[id]} for id in waiting]
        waiting = [block.id for block in blocks if isinstance(block, ToolUseBlock)]
        if role == "assistant":
            found.append(_assistant_message(blocks))
        elif texts := [block.text for block in blocks if isinstance(block, TextBlock)]:
            found.append({"role": role, "content": "\n".join(texts)})
    _check(waiting, [], "messages")
    return found


def _turns(messages: Sequence[object]) -> list[Turn]:
    """Role, blocks and place of each."""
    few(messages, "messages")
    turns: list[Turn] = []
    for place, value in enumerate(messages):
        message = parse_chat_request(AnthropicInputMessage, value, "messages", place)
        blocks = blocks_of(message.role, message.content, "messages", place, "content")
        if turns and turns[-1][0] == message.role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message.role, blocks, f"messages.{place}"))
    return turns


def _check(calls: list[str], answers: list[str], place: str) -> None:
    """Every call is answered, once, and nothing else is."""
    known, given = set(calls), set(answers)
    if id := next((id for id in calls if id not in given), None):
        raise RequestError(
            f"the tool_use {id!r} has no tool_result in the next message; send one with that tool_use_id", place
        )
    if id := next((id for id in answers if id not in known), None):
        names = ", ".join(map(repr, calls)) or "none"
        raise RequestError(f"tool_use_id {id!r} is not a tool_use of the message before it; those are: {names}", place)
    if id := _twice(answers):
        raise RequestError(f"tool_use_id {id!r} is answered already", place)
    if id := _twice(calls):
        raise RequestError(f"two blocks of tool_use have the id {id!r}; give each its own", place)


def _twice(ids: list[str]) -> str | None:
    """One that is there more than once."""
    return next((id for id, count in Counter(ids).items() if count > 1), None) if len(set(ids)) < len(ids) else None


def _assistant_message(blocks: list[ContentBlock]) -> Json:
    """The assistant's message."""
    calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    message: Json = {"role": "assistant", "content": text or (None if calls else "")}
    if thought := "\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)):
        message["reasoning_content"] = thought
    if calls:
        about = [
            (block.id, {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)})
            for block in calls
        ]
        message["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in about]
    return message


def chat_of(body: AnthropicConversation, variables: frozenset[str]) -> ChatRequest:
    """The same request to a chat.

    variables: those that the model's template reads. Raises RequestError, naming fields of the chat.
    """
    messages = messages_of(body)
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in body.tools
    ]
    goes_on = messages[-1]["role"] == "assistant"
    choice = "none" if goes_on and body.tool_choice.type == "auto" else _choice(body)
    given = {
        "model": body.model,
        "messages": messages,
        "tools": [{"type": "function", "function": tool} for tool in tools],
        "tool_choice": choice,
        "parallel_tool_calls": not body.tool_choice.disable_parallel_tool_use,
        "response_format": _format(body),
        "reasoning_effort": body.output_config.effort if "reasoning_effort" in variables else None,
        "chat_template_kwargs": _switches(body, variables) | body.chat_template_kwargs,
        "continue_final_message": goes_on,
    }
    return parse_chat_request(ChatRequest, given | (_sampling(body) if isinstance(body, MessagesRequest) else {}))


def _sampling(body: MessagesRequest) -> Json:
    own = {"max_completion_tokens": body.max_tokens, "priority": body.priority, "timeout": body.timeout}
    return own | as_chat_fields(body, "messages")


def _choice(body: AnthropicConversation) -> str | Json:
    choice = body.tool_choice
    if (choice.name is not None) != (choice.type == "tool"):
        raise RequestError("the field name belongs to type 'tool', and only to it", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}} if choice.type == "tool" else CHOICES[choice.type]


def _format(body: AnthropicConversation) -> Json | None:
    format = body.output_config.format
    return (
        None if format is None else {"type": "json_schema", "json_schema": {"name": "answer", "schema": format.schema_}}
    )


def _switches(body: AnthropicConversation, variables: frozenset[str]) -> Json:
    """Whether to think, as templates expect it."""
    return {} if body.thinking is None else switched(body.thinking.type != "disabled", variables)
