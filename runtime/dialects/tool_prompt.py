"""What the model sees of tools, calls and their answers: by its own chat template, and where that takes none by the
dialect.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.chat_templates.template_messages import text_of
from sgl.runtime.text.chat_templates.template_traits import (
    TemplateMessageEffect,
    TemplateTraits,
    ToolCallSupport,
    traits_of,
)

from .reasoning_marks import ReasoningMarks
from .tool_types import DialectToolCall, Tool

Message = dict[str, Any]
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


class DialectPrompt(ABC):
    """The half of a dialect that makes prompts.

    Attributes:
        reasoning: the marks around thoughts.
        tool_role: of messages with what tools answered, where the template takes no calls.
        stands_in: the dialect's own messages are second to the template's; False where the model was trained on them.
        traits: of the chat template that shows the messages; None for one that shows role and content alone.
    """

    name: str
    reasoning: ReasoningMarks | None = None
    tool_role = "tool"
    stands_in = True
    traits: TemplateTraits | None = None

    def templated(self, template: str | TemplateTraits | None) -> Self:
        """The same dialect for a chat template (Jinja source, or its traits): what the template takes, it gets."""
        other = copy.copy(self)
        other.traits = traits_of(template) if isinstance(template, str) else template
        return other

    @abstractmethod
    def describe(self, tools: Sequence[Tool]) -> str:
        """What the system turn says of the tools."""

    @abstractmethod
    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        """The text of a step: what is said, then the calls."""

    def messages(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[Message]:
        """OpenAI's messages as the model's template takes them.

        A template that takes calls gets them as `tool_calls`, and their answers in the role `tool`; one that takes
        tools gets them by `variables`. For other templates the dialect writes them into contents, and the log says so
        once.

        Thoughts stay where the assistant is still at work, after the last message of the user.

        Raises:
            ConfigError: a call whose arguments are no JSON object; says which.
        """
        if self.traits is not None and self.traits.one_call:
            messages = one_by_one(messages)
        last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
        turns: list[Message] = []
        for i, message in enumerate(messages):
            turns += self._turns(message, i > last)
        turns = _merged(turns) if self.calls_form is None else self._answered(turns)
        return self._described(turns, tools) if tools and not self.tools_name else turns

    def variables(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """The template's variables other than the messages."""
        return {self.tools_name: [tool.openai for tool in tools]} if tools and self.tools_name else {}

    @property
    def tools_name(self) -> str:
        return "" if self.traits is None else self.traits.tools

    @property
    def calls_form(self) -> ToolCallSupport | None:
        return None if self.traits is None else self.traits.calls

    def _turns(self, message: Mapping[str, Any], working: bool) -> list[Message]:
        role = message["role"]
        if role == "tool":
            return [
                self._answer(text_of(message.get("content")), message)
                if self.calls_form is None
                else self._with_short_ids(message)
            ]
        if role != "assistant":
            return [dict(message)]
        if self.calls_form is not None:
            return [self._tool_call_message(part, self.calls_form) for part in self._parted(message)]
        if message.get("tool_calls"):
            self._add_note("takes no tool_calls: calls and their answers are written as text")
        thought = message.get("reasoning_content") if working else None
        calls = [_call_of(call) for call in message.get("tool_calls") or ()]
        if thought and self.traits is not None and self.traits.thoughts:
            return [
                {**turn, "reasoning_content": thought}
                for turn in self._assistant("", text_of(message.get("content")), calls)
            ]
        return self._assistant(self._thought(thought), text_of(message.get("content")), calls)

    def _add_note(self, what: str) -> None:
        """A note that the dialect stands in."""
        if self.traits is not None and self.stands_in:
            self.traits.add_note(f"{what}, in the format {self.name}")

    def _assistant(self, thought: str, text: str, calls: list[DialectToolCall]) -> list[Message]:
        return [{"role": "assistant", "content": thought + (self.write(text, calls) if calls else text)}]

    def _parted(self, message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Text and calls in a message each, where the template leaves out calls next to a text."""
        if (
            self.traits is None
            or self.traits.calls_with_text
            or not (message.get("content") and message.get("tool_calls"))
        ):
            return [message]
        said = {key: value for key, value in message.items() if key != "tool_calls"}
        return [said, {"role": message["role"], "tool_calls": message["tool_calls"]}]

    def _tool_call_message(self, message: Mapping[str, Any], form: ToolCallSupport) -> Message:
        """The message of an assistant for a template that takes calls."""
        if not message.get("tool_calls"):
            return dict(message)
        calls = [_call_of(call) for call in message["tool_calls"]]
        found = {
            **message,
            "tool_calls": [{"id": call.id, "type": "function", "function": _function(call, form)} for call in calls],
        }
        text = text_of(message.get("content"))
        if text and self.traits is not None and not self.traits.text_with_calls:
            self.traits.add_note("leaves out what an assistant says with its calls")
        if message.get("content") is None:
            found = {**found, "content": "" if form.empty else None}
        return self._with_short_ids(found)

    def _with_short_ids(self, message: Mapping[str, Any]) -> Message:
        """Where the template insists on ids of nine letters and digits, as Mistral's do."""
        if self.traits is None or not self.traits.short_ids:
            return dict(message)
        calls = [{**call, "id": short_id(call["id"])} for call in message.get("tool_calls") or ()]
        answered = message.get("tool_call_id")
        return {
            **message,
            **({"tool_calls": calls} if calls else {}),
            **({"tool_call_id": short_id(answered)} if answered else {}),
        }

    def _answered(self, turns: list[Message]) -> list[Message]:
        """The turns, with what tools answered in the message of the call where the template takes it there alone."""
        if self.traits is None or not self.traits.responses:
            return turns
        found: list[Message] = []
        for turn in turns:
            if turn["role"] == "tool" and found and found[-1].get("tool_calls"):
                names = {call["id"]: call["function"]["name"] for call in found[-1]["tool_calls"]}
                name = names.get(turn.get("tool_call_id"), turn.get("name", "unknown"))
                found[-1].setdefault("tool_responses", []).append({"name": name, "response": text_of(turn["content"])})
            else:
                found.append(turn)
        return found

    def _answer(self, text: str, message: Mapping[str, Any]) -> Message:
        """The turn of what a tool answered. Turns of users in a row are one, which many templates insist on."""
        role = self._role_of_answers
        return {"role": role, "content": text, **({"answers": True} if role == "user" else {})}

    @property
    def _role_of_answers(self) -> str:
        """The dialect's own, or the first that the template shows."""
        roles = (self.tool_role, "tool", "user")
        if self.traits is None:
            return self.tool_role
        return next(
            (role for role in roles if self.traits.taken(role, first=False) is TemplateMessageEffect.SHOWN),
            self.tool_role,
        )

    def _thought(self, thought: str | None) -> str:
        marks = self.reasoning
        return f"{marks.begin}\n{thought}\n{marks.end}\n\n" if thought and marks is not None else ""

    def _described(self, turns: list[Message], tools: Sequence[Tool]) -> list[Message]:
        """The turns with the tools in the system turn, or in the user's first where the template takes no system
        turn."""
        self._add_note("shows no tools: they are described")
        if turns and turns[0]["role"] == "system":
            return [{**turns[0], "content": self._system(text_of(turns[0].get("content")), tools)}, *turns[1:]]
        if self.traits is None or self.traits.taken("system", first=True) is TemplateMessageEffect.SHOWN or not turns:
            return [{"role": "system", "content": self._system("", tools)}, *turns]
        return [{**turns[0], "content": f"{self.describe(tools)}\n\n{text_of(turns[0].get('content'))}"}, *turns[1:]]

    def _system(self, text: str, tools: Sequence[Tool]) -> str:
        return f"{text}\n\n{self.describe(tools)}" if text else self.describe(tools)


def _merged(turns: list[Message]) -> list[Message]:
    """Turns of users that only hold what tools answered, as one."""
    found: list[Message] = []
    for turn in turns:
        if found and turn.get("answers") and found[-1].get("answers"):
            found[-1] = {**turn, "content": f"{found[-1]['content']}\n{turn['content']}"}
        else:
            found.append(turn)
    return [{key: value for key, value in turn.items() if key != "answers"} for turn in found]


def one_by_one(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, each call in its own, followed by its answer."""
    found: list[Mapping[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool":
            id, places = message.get("tool_call_id"), range(len(found), 0, -1)
            found.insert(next((i for i in places if _asks_for(found[i - 1], id)), len(found)), message)
        elif len(calls) < 2:
            found.append(message)
        else:
            found += [
                {**message, "tool_calls": calls[:1]},
                *({"role": message["role"], "tool_calls": [call]} for call in calls[1:]),
            ]
    return found


def _asks_for(message: Mapping[str, Any], id: str | None) -> bool:
    return any(call["id"] == id for call in message.get("tool_calls") or ())


def short_id(id: str) -> str:
    """An id of the nine letters and digits that Mistral's templates insist on; one for each id."""
    return id if _SHORT_ID.fullmatch(id) else hashlib.blake2b(id.encode(), digest_size=5).hexdigest()[:9]


def _function(call: DialectToolCall, form: ToolCallSupport) -> dict[str, Any]:
    given = json.dumps(call.arguments, ensure_ascii=False) if form.text else call.arguments
    return {"name": call.name, "arguments": given}


def _call_of(call: Mapping[str, Any]) -> DialectToolCall:
    about = call["function"]
    given = about.get("arguments") or "{}"
    arguments = json_object(given) if isinstance(given, str) else given
    if not isinstance(arguments, dict):
        raise ConfigError(f"the arguments of the call {about['name']!r} are {given!r:.200}; send a JSON object as text")
    return DialectToolCall(about["name"], arguments, call.get("id") or "")


def json_object(text: str) -> dict[str, Any] | None:
    """None for what is no JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
