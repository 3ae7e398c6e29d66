"""What stays of a backend in states that were pickled or copied: its name and its template, for those who read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from ..backend import Backend
from ..chat import ChatTemplate, ConversationTurns
from ..errors import StateEndedError


class DetachedBackend(Backend):
    """Stands for the backend of a state that can only be read any more."""

    def __init__(self, model: str, template: ChatTemplate) -> None:
        self.model = model
        self.chat_template = template

    def get_model_name(self) -> str:
        return self.model

    def open(self) -> NoReturn:
        raise StateEndedError(
            "this state was pickled or copied and can only be read; run its program again to continue"
        )


def detached(backend: Backend) -> Backend:
    if isinstance(backend, DetachedBackend):
        return backend
    return DetachedBackend(str(backend.get_model_name()), bare(backend.get_chat_template()))


def bare(template: ChatTemplate) -> ChatTemplate:
    """The template without what only a running model has (a tokenizer)."""
    known = type(template) is ChatTemplate
    return (
        template
        if known
        else ChatTemplate(template.name, template.default_system_prompt, dict(template.role_prefix_and_suffix))
    )


def resting(conversation: ConversationTurns | None) -> ConversationTurns | None:
    return conversation and replace(conversation, template=bare(conversation.template), quiet=True)


def slots_of(value: Any, *left_out: str) -> dict[str, Any]:
    """The attributes in `__slots__`, those left out as None."""
    names = (name for name in type(value).__slots__ if name != "__weakref__" and hasattr(value, name))
    return {name: None if name in left_out else getattr(value, name) for name in names}


def set_slots(value: Any, state: dict[str, Any]) -> None:
    for name, item in state.items():
        setattr(value, name, item)
