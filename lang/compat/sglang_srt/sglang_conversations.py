"""`sglang.srt.conversation`: chat templates as conversations to which messages are appended."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from ...chat import ChatTemplate, chat_template_registry, match_chat_template
from ...chat.chat_turn_template import Messages

ROLES = ("user", "assistant")


@dataclass
class Conversation:
    """Turns in the words of a known chat template; `messages` are [role, text], None for one that is still to come."""

    name: str
    template: ChatTemplate
    roles: tuple[str, str] = ROLES
    system_message: str = ""
    messages: list[list[Any]] = field(default_factory=list)
    offset: int = 0

    @property
    def image_token(self) -> str:
        return self.template.image_token

    @property
    def audio_token(self) -> str:
        return self.template.audio_token

    @property
    def stop_str(self) -> list[str]:
        return list(self.template.stops)

    def set_system_message(self, system_message: str) -> None:
        self.system_message = system_message

    def append_message(self, role: str, message: str | None) -> None:
        """Add a turn; one of None ends the prompt where the model is to write."""
        self.messages.append([role, message])

    def update_last_message(self, message: str) -> None:
        self.messages[-1][1] = message

    def get_prompt(self) -> str:
        """The text of the turns so far, with the template's words around them."""
        prompt, turns = "", self._turns()
        for index, (role, message) in enumerate(turns):
            history: Messages = [{"role": role, "content": ""} for role, _ in turns[:index]]
            before, after = self.template.get_prefix_and_suffix(role, history)
            prompt += before if message is None else f"{before}{message}{after}"
        return prompt

    def to_openai_api_messages(self) -> list[dict[str, Any]]:
        """The turns as chat APIs take them, without one that is still to come."""
        return [{"role": role, "content": message} for role, message in self._turns() if message is not None]

    def _turns(self) -> list[tuple[str, str | None]]:
        """(role, text) of all turns, the system's first."""
        system = [("system", self.system_message)] if self.system_message else []
        return [*system, *((role, message) for role, message in self.messages)]

    def copy(self) -> Conversation:
        return Conversation(
            self.name, self.template, self.roles, self.system_message, deepcopy(self.messages), self.offset
        )

    def dict(self) -> dict[str, Any]:
        return {
            "template_name": self.name,
            "system_message": self.system_message,
            "roles": self.roles,
            "messages": self.messages,
            "offset": self.offset,
        }


def _begun(template: ChatTemplate) -> Conversation:
    return Conversation(template.name, template, system_message=template.default_system_prompt or "")


chat_templates: dict[str, Conversation] = {name: _begun(template) for name, template in chat_template_registry.items()}


def get_conv_template_by_model_path(model_path: str) -> str | None:
    """The name of the template of a model, None if none is known."""
    found = match_chat_template(model_path)
    return None if found is None else found.name


def register_conv_template(template: Conversation, override: bool = False) -> None:
    if template.name in chat_templates and not override:
        raise ValueError(f"there is a conversation template {template.name!r} already; say override=True to replace it")
    chat_templates[template.name] = template


def chat_template_exists(template_name: str) -> bool:
    return template_name in chat_templates
