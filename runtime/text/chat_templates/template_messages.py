"""Messages as a chat template shows them: roles that it knows, and contents in the form that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sgl.runtime.errors import ConfigError

from .template_traits import Message, TemplateMessageEffect, TemplateTraits

AS_SYSTEM = "shows no messages of the role developer: they are handed on as system messages"


def with_roles(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits, tools: bool = False) -> list[Message]:
    """The messages, those of a developer as system messages where the template does not show the role.

    One right after the first system message is joined to it, and so is a second system message where the template
    takes one alone, at the beginning.
    """
    found: list[Message] = []
    for message in messages:
        role = message["role"]
        as_system = role == "developer" and traits.taken(role, not found, tools) is not TemplateMessageEffect.SHOWN
        if as_system:
            traits.add_note(AS_SYSTEM)
        after_system = len(found) == 1 and found[0]["role"] == "system"
        if after_system and (
            as_system or (role == "system" and traits.taken(role, False, tools) is not TemplateMessageEffect.SHOWN)
        ):
            found[0]["content"] = _joined(found[0].get("content"), message.get("content"))
        else:
            found.append({**message, "role": "system" if as_system else role})
    return found


def with_contents(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits, tools: bool = False) -> list[Message]:
    """The messages, their contents as texts or as lists of text parts: as they were sent where the template shows that.

    Raises:
        ConfigError: the template leaves out a message of that role in that place.
    """
    return [
        _in_form(message, i == 0, traits, tools) if message.get("content") else dict(message)
        for i, message in enumerate(messages)
    ]


def _in_form(message: Mapping[str, Any], first: bool, traits: TemplateTraits, tools: bool) -> Message:
    role, content = message["role"], message["content"]
    sent = not isinstance(content, str)
    parts = traits.reads_parts(role, first, sent, tools)
    if not message.get("tool_calls") and traits.fate(role, first, parts, tools) is TemplateMessageEffect.LEFT_OUT:
        place = "at the beginning" if first else "after the first message"
        raise ConfigError(
            f"the model's chat template leaves out a message of the role {role!r} {place} ({text_of(content)!r:.80}); "
            "send its text in another role, or give another template: Engine(chat_template=...)"
        )
    return dict(message) if parts == sent else {**message, "content": _parts(content) if parts else text_of(content)}


def text_of(content: Any) -> str:
    """The content of a message as one text; empty for none."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


def _parts(content: Any) -> list[Message]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _joined(one: Any, other: Any) -> str:
    return "\n\n".join(text for text in (text_of(one), text_of(other)) if text)
