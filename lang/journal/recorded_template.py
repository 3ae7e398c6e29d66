"""The chat template of a recorded run, for a replay that has no model to ask."""

from __future__ import annotations

from typing import Any

from ..chat import ChatTemplate, ChatTemplateStyle, Messages
from ..errors import JournalError, ReplayMismatch
from .replay_session import ReplaySession


class RecordingTemplate(ChatTemplate):
    """Another template, each turn of which goes into the journal: it is code, or belongs to a tokenizer."""

    def __init__(self, inner: ChatTemplate, session: ReplaySession) -> None:
        super().__init__(**_plain_fields(inner))
        self._inner = inner
        self._session = session

    def get_prefix_and_suffix(self, role: str, hist_messages: Messages) -> tuple[str, str]:
        texts = self._inner.get_prefix_and_suffix(role, hist_messages)
        self._session.journal.add_turn(_roles(hist_messages), role, *texts)
        return texts

    def get_prompt(self, messages: Messages) -> str:
        return self._inner.get_prompt(messages)


class RecordedTemplate(ChatTemplate):
    """The turns that a RecordingTemplate wrote down."""

    def __init__(self, header: dict[str, Any], session: ReplaySession) -> None:
        super().__init__(**_from_json(header))
        self._turns = session.journal.turns
        self._path = session.journal.path

    def get_prefix_and_suffix(self, role: str, hist_messages: Messages) -> tuple[str, str]:
        history = _roles(hist_messages)
        if (history, role) not in self._turns:
            raise ReplayMismatch(
                f"{self._path} has no turn of {role!r} after the turns {list(history)}; the program was recorded with "
                f"others. Resume it with a backend instead of replaying it"
            )
        return self._turns[history, role]


def header_of(template: ChatTemplate) -> dict[str, Any]:
    """A template as JSON; `noted` if its turns are not all known."""
    fields = _plain_fields(template)
    roles = {role: list(texts) for role, texts in template.role_prefix_and_suffix.items()}
    style = template.style.value
    fields.update(
        stop_str=list(template.stops), role_prefix_and_suffix=roles, style=style, noted=not _is_data(template)
    )
    return fields


def for_recording(template: ChatTemplate, session: ReplaySession) -> ChatTemplate:
    return template if _is_data(template) else RecordingTemplate(template, session)


def for_replay(header: dict[str, Any], session: ReplaySession) -> ChatTemplate:
    """Raises JournalError for an invalid template: the first line was edited."""
    try:
        return RecordedTemplate(header, session) if header["noted"] else ChatTemplate(**_from_json(header))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise JournalError(
            f"{session.journal.path}:1 has a chat_template that is none ({type(error).__name__}: {error}); restore "
            "the file"
        ) from error


def _is_data(template: ChatTemplate) -> bool:
    return type(template) is ChatTemplate


def _plain_fields(template: ChatTemplate) -> dict[str, Any]:
    return {
        "name": template.name,
        "default_system_prompt": template.default_system_prompt,
        "role_prefix_and_suffix": dict(template.role_prefix_and_suffix),
        "stop_str": template.stops,
        "image_token": template.image_token,
        "audio_token": template.audio_token,
        "style": template.style,
    }


def _from_json(header: dict[str, Any]) -> dict[str, Any]:
    roles = {role: (prefix, suffix) for role, (prefix, suffix) in header["role_prefix_and_suffix"].items()}
    fields = {name: value for name, value in header.items() if name != "noted"}
    return {
        **fields,
        "stop_str": tuple(header["stop_str"]),
        "role_prefix_and_suffix": roles,
        "style": ChatTemplateStyle(header["style"]),
    }


def _roles(messages: Messages) -> tuple[str, ...]:
    return tuple(message["role"] for message in messages)
