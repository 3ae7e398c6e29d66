"""Chat templates: the text around the turns of a conversation."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .errors import ProgramError, TemplateError, nearest

Messages = list[dict[str, Any]]
Matcher = Callable[[str], str | None]


class ChatTemplateStyle(enum.Enum):
    PLAIN = "plain"
    LLAMA2 = "llama2"  # the system turn lies inside the first user turn


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


@dataclass
class Turn:
    """A turn of a conversation: its content is the pieces [start:end] of the state's text."""

    role: str
    start: int
    end: int | None = None


@dataclass
class Conversation:
    """Which turns a state has, and what text each role change adds. Knows roles, not contents."""

    template: ChatTemplate
    finished: list[Turn] = field(default_factory=list)
    current: Turn | None = None
    quiet: bool = False  # no warning about the default template: nothing is sent to a model

    def copy(self) -> Conversation:
        current = self.current and Turn(self.current.role, self.current.start)
        return Conversation(self.template, list(self.finished), current, self.quiet)

    def follow(self, other: Conversation) -> None:
        """Go on where `other` is."""
        self.template, self.quiet = other.template, other.quiet
        self.finished.extend(other.finished)
        self.current = other.current and Turn(other.current.role, other.current.start)

    @property
    def role(self) -> str | None:
        return self.current.role if self.current else None

    def wants_default_system(self, role: str) -> bool:
        """True if a system turn has to be put before the first turn, which is one of `role`."""
        return role != "system" and not self.finished and self.template.default_system_prompt is not None

    def prefix(self, role: str) -> str:
        """What opens a turn of `role`. Raises ProgramError inside another turn."""
        if self.current:
            raise ProgramError(
                f"Nested roles are not allowed: {role!r} begins inside the open turn of {self.current.role!r}"
            )
        if not self.quiet:
            self._warn(role)
        return self.template.get_prefix_and_suffix(role, self._history())[0]

    def begin(self, role: str, start: int) -> None:
        self.current = Turn(role, start)

    def suffix(self, role: str) -> str:
        """What closes the open turn. Raises ProgramError if that is not one of `role`."""
        if self.role != role:
            raise ProgramError(f"the end of a {role!r} turn, but the open turn is that of {self.role!r}")
        return self.template.get_prefix_and_suffix(role, self._history())[1]

    def end(self, end: int) -> None:
        if self.current:
            self.finished.append(Turn(self.current.role, self.current.start, end))
            self.current = None

    def _history(self) -> Messages:
        return [{"role": turn.role, "content": ""} for turn in self.finished]

    def _warn(self, role: str) -> None:
        if self.finished:
            return
        roles = self.template.role_prefix_and_suffix
        if self.template.name == "default":
            warnings.warn(
                "the model has no known chat template: roles are written as SYSTEM:, USER:, ASSISTANT:. If "
                "it has one, set engine.chat_template = sgl.lang.chat.get_chat_template(name)",
                DefaultTemplateWarning,
                stacklevel=2,
            )
        elif roles and role not in roles:
            warnings.warn(
                f"chat template {self.template.name!r} has no role {role!r}: no text marks its turns",
                stacklevel=2,
            )


class DefaultTemplateWarning(UserWarning):
    """Roles are used with a model whose chat template is not known."""


chat_template_registry: dict[str, ChatTemplate] = {}
matching_function_registry: list[Matcher] = []


def register_chat_template(template: ChatTemplate) -> None:
    """Make a template known by its name; a later one replaces an earlier one."""
    chat_template_registry[template.name] = template


def register_chat_template_matching_function(matcher: Matcher) -> Matcher:
    """Add a function from model path to template name (or None). Usable as a decorator."""
    matching_function_registry.append(matcher)
    return matcher


def get_chat_template(name: str) -> ChatTemplate:
    """The template of that name. Raises TemplateError (a KeyError)."""
    try:
        return chat_template_registry[name]
    except KeyError:
        raise TemplateError(f"no chat template {name!r}; {nearest(name, chat_template_registry)}") from None


def match_chat_template(model_path: str) -> ChatTemplate | None:
    """The template of the first matching function that knows the model path."""
    for matcher in matching_function_registry:
        if name := matcher(model_path):
            return get_chat_template(name)
    return None


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """As `match_chat_template`, with `default` for models that none knows."""
    return match_chat_template(model_path) or get_chat_template("default")


from . import templates  # noqa: E402, F401  the known templates register themselves
