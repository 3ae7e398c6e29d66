"""Ollama's requests as requests to a chat."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable

from ...http.http_errors import RequestError
from ..chat.chat_types import ChatRequest
from ..chat.template_variables import switched
from ..openai_common.chat_translation import parse_chat_request
from ..openai_common.openai_response_fields import Json
from ..openai_common.sampling_fields import as_chat_fields, options_in
from .ollama_types import OllamaChat, OllamaGenerate, OllamaMessage, OllamaRequest

NAMES = {  # of a chat request's fields, in errors
    r"max_completion_tokens|max_tokens": "options.num_predict",
    r"response_format(?:\.json_schema)?": "format",
    **{option.names["openai"]: f"options.{option.names['ollama']}" for option in options_in("ollama")},
}


class UnansweredCalls:
    """Calls of one message without an answer yet, by their ids and names."""

    def __init__(self, calls: Iterable[tuple[str, str]]) -> None:
        self._names = dict(calls)
        self._of_name: dict[str, deque[str]] = {}
        for id, name in self._names.items():
            self._of_name.setdefault(name, deque()).append(id)

    def answered(self, message: OllamaMessage, place: int) -> str:
        """The id of the call that the message answers."""
        id, name = message.tool_call_id, message.tool_name or message.name
        if id is None and name is None:
            id = next(iter(self._names), None)
        elif id is None:
            ids = self._of_name.get(name or "", deque())
            while ids and ids[0] not in self._names:
                ids.popleft()
            id = ids[0] if ids else None
        if id is None or id not in self._names or name not in (None, self._names[id]):
            raise RequestError(
                f"messages.{place} answers no call of the assistant's message before it", f"messages.{place}"
            )
        del self._names[id]
        return id


def messages_of(body: OllamaChat | OllamaGenerate) -> list[Json]:
    """The messages of a chat. Answers of tools belong to the calls before them, by id, by name, else in their order."""
    if isinstance(body, OllamaGenerate):
        system = [] if body.system is None else [{"role": "system", "content": body.system}]
        return [*system, {"role": "user", "content": body.prompt}]
    found: list[Json] = []
    waiting = UnansweredCalls([])
    for place, message in enumerate(body.messages):
        if message.role == "tool":
            found.append({"role": "tool", "content": message.content, "tool_call_id": waiting.answered(message, place)})
            continue
        calls = [(call.id or f"call_{place}_{number}", call.function) for number, call in enumerate(message.tool_calls)]
        waiting = UnansweredCalls([(id, function.name) for id, function in calls])
        about = [
            {"id": id, "function": {"name": function.name, "arguments": json.dumps(function.arguments)}}
            for id, function in calls
        ]
        found.append(
            {
                "role": message.role,
                "content": message.content,
                "tool_calls": about or None,
                "reasoning_content": message.thinking,
            }
        )
    return found


def chat_of(body: OllamaChat | OllamaGenerate, variables: frozenset[str]) -> ChatRequest:
    """The same request to a chat.

    variables: those that the model's template reads. Raises RequestError, naming fields of the chat.
    """
    most = body.options.num_predict
    given: Json = as_chat_fields(body.options, "ollama") | {
        "max_completion_tokens": None if most is None or most < 0 else most,
        "model": body.model and body.model.removesuffix(":latest"),
        "messages": messages_of(body),
        "response_format": _format(body),
    }
    if isinstance(body, OllamaChat):
        given["tools"] = [tool.model_dump() for tool in body.tools]
    if isinstance(body.think, str) and "reasoning_effort" in variables:
        given["reasoning_effort"] = body.think
    if body.think is not None:
        given["chat_template_kwargs"] = switched(body.think is not False, variables)
    return parse_chat_request(ChatRequest, given)


def _format(body: OllamaRequest) -> Json | None:
    if not body.format:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}} if body.format == {} else None
    if body.format == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": body.format}}
