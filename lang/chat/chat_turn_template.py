"""A chat template: the text around the turns of a conversation."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]


class ChatTemplateStyle(enum.Enum):
    PLAIN = "plain"
    LLAMA2 = "llama2"  # the system turn is inside the first user turn


@dataclass
class ChatTemplate:
    """Prefix and suffix of each role's turns. `stop_str` are the texts that end the model's turn."""

    name: str
    default_system_prompt: str | None
    role_prefix_and_suffix: dict[str, tuple[str, str]]
    stop_str: Iterable[str] = ()
    image_token: str = "<image>"
    audio_token: str = "<audio>"
    style: ChatTemplateStyle = ChatTemplateStyle.PLAIN

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop_str,) if isinstance(self.stop_str, str) else tuple(self.stop_str)

    def get_prefix_and_suffix(self, role: str, hist_messages: Messages) -> tuple[str, str]:
        """What surrounds a turn of `role` after the finished turns `hist_messages`; ("", "") if unknown."""
        prefix, suffix = self.role_prefix_and_suffix.get(role, ("", ""))
        if self.style is not ChatTemplateStyle.LLAMA2:
            return prefix, suffix
        if role == "system" and not hist_messages:
            return self.role_prefix_and_suffix.get("user", ("", ""))[0] + prefix, suffix
        if role == "user" and len(hist_messages) == 1 and hist_messages[0]["content"] is not None:
            return "", suffix
        return prefix, suffix

    def get_prompt(self, messages: Messages) -> str:
        """The text of a whole conversation. A system message without content means the default one."""
        prompt = ""
        for index, message in enumerate(messages):
            role, content = message["role"], message["content"]
            if role == "system" and content is None:
                content = self.default_system_prompt
            if content is not None:
                prefix, suffix = self.get_prefix_and_suffix(role, messages[:index])
                prompt += f"{prefix}{content}{suffix}"
        return prompt
