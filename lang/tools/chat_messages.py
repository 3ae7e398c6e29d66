"""A conversation as chat APIs have it, a list of messages, as an expression."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BadValueError, nearest
from ..nodes.ir import SglExpr, SglExprList, SglImage, SglPastCalls
from ..nodes.primitives import ROLES, as_node, role_turn
from .formats import format_named
from .tool_calls import ToolCall

_ROLES = {**{role: role for role in ROLES}, "developer": "system"}
_KEYS = {
    "system": ("role", "content"),
    "user": ("role", "content"),
    "assistant": ("role", "content", "tool_calls"),
    "tool": ("role", "content", "tool_call_id", "name"),
}


def messages(messages: Iterable[Any], format: str | None = None) -> SglExprList:
    """Turn a list of messages in OpenAI's chat format into turns, as if written with `system`, `user`, ...

        s += sgl.messages([{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}])

    A message is a dict, or an object with `model_dump()`. Its role is system (or developer), user, assistant or tool.
    Its content is a text, an expression, or a list of parts (`{"type": "text", ...}`, `{"type": "image_url", ...}`).
    The `tool_calls` of an assistant message are written in the format of the backend's model, or in `format` (see
    `sgl.tools`); ids (`tool_call_id`) are left out. Raises BadValueError naming the message.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise BadValueError(
            f"messages({messages!r:.60}): give a list of messages, such as [{{'role': ..., 'content': ...}}]"
        )
    chosen = None if format is None else format_named(format)
    return SglExprList([part for place, one in enumerate(messages) for part in _turn(_Message(place, one), chosen)])


class _Message:
    """A message with its place in the list, for errors."""

    def __init__(self, place: int, given: Any) -> None:
        given = given.model_dump() if hasattr(given, "model_dump") and not isinstance(given, type) else given
        self.place = place
        if not isinstance(given, Mapping):
            raise self.wrong(f"is {given!r:.80}; give a dict with 'role' and 'content'")
        self.said = {key: value for key, value in given.items() if not _is_absent(value)}
        self.role = self._role()
        for key in self.said:
            if key not in _KEYS[self.role]:
                known = ", ".join(_KEYS[self.role])
                raise self.wrong(f"has {key!r}, which no turn of {self.role!r} can say; it takes {known}")

    def _role(self) -> str:
        role = self.said.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise self.wrong(f"has the role {role!r}; {nearest(str(role), _ROLES)}")
        return _ROLES[role]

    def wrong(self, why: str) -> BadValueError:
        return BadValueError(f"messages: message {self.place} {why}")


def _is_absent(value: Any) -> bool:
    """As dumps of messages have it: None, or no calls."""
    return value is None or (isinstance(value, list) and not value)


def _turn(message: _Message, format: Any) -> list[SglExpr]:
    """RoleBegin, the content, RoleEnd."""
    content = message.said.get("content")
    if calls := message.said.get("tool_calls"):
        return role_turn(message.role, _past_calls(message, content, calls, format)).expr_list
    if content is None:
        raise message.wrong("has no content; only an assistant's message with tool_calls goes without")
    return role_turn(message.role, _content(message, content)).expr_list


def _content(message: _Message, content: Any) -> SglExpr:
    if isinstance(content, str | SglExpr):
        return as_node(content)
    if not isinstance(content, list | tuple):
        raise message.wrong(f"has the content {content!r:.80}; give a text or a list of parts")
    return SglExprList([_part(message, part) for part in content])


def _part(message: _Message, part: Any) -> SglExpr:
    """One part of a content: a text or a picture."""
    if isinstance(part, str | SglExpr):
        return as_node(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str | SglExpr):
        return as_node(part["text"])
    if kind == "image_url":
        shown = part.get("image_url")
        url = shown.get("url") if isinstance(shown, Mapping) else shown
        if isinstance(url, str):
            return SglImage(url)
    raise message.wrong(f"has the part {part!r:.80}; a part is a text or an image_url")


def _past_calls(message: _Message, content: Any, calls: Any, format: Any) -> SglPastCalls:
    if content is not None and not isinstance(content, str):
        raise message.wrong(f"has tool_calls and the content {content!r:.80}; next to calls give a text")
    if not isinstance(calls, list | tuple):
        raise message.wrong(f"has the tool_calls {calls!r:.80}; give a list")
    return SglPastCalls(content or "", [_call(message, call) for call in calls], format)


def _call(message: _Message, call: Any) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    about = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(about, Mapping) or not isinstance(about.get("name"), str):
        raise message.wrong(f"has the call {call!r:.80}; a call is {{'function': {{'name': ..., 'arguments': ...}}}}")
    return ToolCall(about["name"], _arguments(message, about), call.get("id") or "")


def _arguments(message: _Message, about: Mapping[str, Any]) -> dict[str, Any]:
    given = about.get("arguments")
    try:
        found = json.loads(given or "{}" if isinstance(given, str | None) else json.dumps(given))
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise message.wrong(f"calls {about['name']!r} with {given!r:.80}; give a JSON object, as text or dict")
    return found
