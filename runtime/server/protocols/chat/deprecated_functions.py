"""OpenAI's functions, which tools have replaced: read as tools, and answered as they were."""

from __future__ import annotations

from typing import Any

from ...http.http_errors import RequestError
from ..openai_common.openai_response_fields import Json


def as_tools(body: dict[str, Any]) -> dict[str, Any]:
    """A chat's body with `functions` and `function_call` said as tools too, calls and results of its messages
    instead."""
    functions, messages = body.get("functions"), body.get("messages")
    if isinstance(messages, list):
        body = body | {"messages": _messages(messages)}
    if not isinstance(functions, list):
        return body
    for name in ("tools", "tool_choice"):
        if body.get(name) is not None:
            raise RequestError(f"{name} and functions cannot be combined; give tools alone", param=name)
    tools = [{"type": "function", "function": function} for function in functions]
    return body | {"tools": tools, "parallel_tool_calls": False} | _choice(body.get("function_call"))


def _choice(call: Any) -> dict[str, Any]:
    if call is None:
        return {}
    return {"tool_choice": {"type": "function", "function": call} if isinstance(call, dict) else call}


def _messages(messages: list[Any]) -> list[Any]:
    """Ids are made for calls, as these had none: a result belongs to the call before it."""
    found, called = [], None
    for place, message in enumerate(messages):
        if isinstance(message, dict) and message.get("function_call") is not None:
            called = f"call_{place}"
            call = {"id": called, "type": "function", "function": message["function_call"]}
            message = {name: value for name, value in message.items() if name != "function_call"} | {
                "tool_calls": [call]
            }
        elif isinstance(message, dict) and message.get("role") == "function":
            message = message | {"role": "tool", "tool_call_id": called}
        found.append(message)
    return found


def as_functions(entry: Json) -> Json:
    """An entry of `choices`, of an answer or of a stream, with its call as these had it."""
    name = "message" if "message" in entry else "delta"
    said = dict(entry[name])
    calls = said.pop("tool_calls", None)
    if calls:
        said["function_call"] = calls[0]["function"]
    finish = "function_call" if entry["finish_reason"] == "tool_calls" else entry["finish_reason"]
    return entry | {name: said, "finish_reason": finish}
