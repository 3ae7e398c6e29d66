"""The turns that a state has, and what its chat template writes between them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from ..errors import LanguageError, ProgramError
from .chat_turn_template import ChatTemplate, Messages


class DefaultTemplateWarning(UserWarning):
    """Roles are used with a model whose chat template is not known."""


@dataclass
class ConversationTurn:
    """A turn of a conversation: its content is the pieces [start:end] of the state's text."""

    role: str
    start: int
    end: int | None = None


@dataclass
class ConversationTurns:
    """Which turns a state has, and what text each role change adds. Knows roles, not contents."""

    template: ChatTemplate
    finished: list[ConversationTurn] = field(default_factory=list)
    current: ConversationTurn | None = None
    quiet: bool = False  # no warning about the default template: nothing is sent to a model

    def copy(self) -> ConversationTurns:
        current = self.current and ConversationTurn(self.current.role, self.current.start)
        return ConversationTurns(self.template, list(self.finished), current, self.quiet)

    def follow(self, other: ConversationTurns) -> None:
        """Continue where `other` is."""
        self.template, self.quiet = other.template, other.quiet
        self.finished.extend(other.finished)
        self.current = other.current and ConversationTurn(other.current.role, other.current.start)

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

    def opening(self, role: str) -> str:
        """What would open a turn of `role` here; "" where the template has no such turn here."""
        try:
            return self.template.get_prefix_and_suffix(role, self._history())[0]
        except LanguageError:
            return ""

    def begin(self, role: str, start: int) -> None:
        self.current = ConversationTurn(role, start)

    def suffix(self, role: str) -> str:
        """What closes the open turn. Raises ProgramError if that is not one of `role`."""
        if self.role != role:
            opened = (
                f"the open turn is a {self.role!r} turn" if self.role else f"no turn is open; {role}_begin() opens one"
            )
            raise ProgramError(f"end of a {role!r} turn, but {opened}")
        return self.template.get_prefix_and_suffix(role, self._history())[1]

    def end(self, end: int) -> None:
        if self.current:
            self.finished.append(ConversationTurn(self.current.role, self.current.start, end))
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
                f"chat template {self.template.name!r} has no role {role!r}: no text marks its turns", stacklevel=2
            )
