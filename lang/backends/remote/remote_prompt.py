"""The prompt of a remote call: the text of a stream and the same as messages."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

from ...backend import Media
from ...media.message_content import Message, content_of


@dataclass(frozen=True)
class RemotePrompt:
    """All that precedes a generation.

    `text` is the raw text, template marks and image tokens included, a `QuotedText` where it has text from outside the
    program. `messages` are the finished turns; their contents are left-stripped, and lists of content parts (text,
    image_url) where a turn has pictures. `role` is that of the open turn (None outside turns), `partial` its text
    so far. `media` are all pictures, in order; their `source` is a URL (http, https or data). `spoken` is False if
    no turn was ever opened. `loose` is the text outside of all turns. `open_message` is the open turn as a message
    of what it has so far (None outside turns or if it is empty).
    """

    text: str = ""
    messages: list[Message] = field(default_factory=list)
    role: str | None = None
    partial: str = ""
    media: list[Media] = field(default_factory=list)
    spoken: bool = False
    loose: str = ""
    open_message: Message | None = None


@dataclass
class RemotePromptBuilder:
    """The prompt of a stream while it is being written."""

    text: str = ""
    messages: list[Message] = field(default_factory=list)
    role: str | None = None
    turn: list[str | Media] = field(default_factory=list)  # the parts of the open turn
    media: list[Media] = field(default_factory=list)
    spoken: bool = False
    loose: str = ""

    def write(self, text: str) -> None:
        self.text += text
        text = str(text)
        if self.role is None:
            self.loose += text
        elif self.turn and isinstance(self.turn[-1], str):
            self.turn[-1] += text
        else:
            self.turn.append(text)

    def begin(self, role: str, prefix: str) -> None:
        self.text += prefix
        self.role, self.turn, self.spoken = role, [], True

    def end(self, role: str, suffix: str) -> None:
        self.text += suffix
        self.messages.append({"role": role, "content": content_of(self.turn)})
        self.role, self.turn = None, []

    def attach(self, media: Media, token: str) -> None:
        self.text += token
        self.media.append(media)
        if self.role is not None:
            self.turn.append(media)

    def copy(self) -> RemotePromptBuilder:
        duplicate = copy(self)
        duplicate.messages, duplicate.turn, duplicate.media = list(self.messages), list(self.turn), list(self.media)
        return duplicate

    def prompt(self) -> RemotePrompt:
        return RemotePrompt(
            self.text,
            list(self.messages),
            self.role,
            "".join(part for part in self.turn if isinstance(part, str)),
            list(self.media),
            self.spoken,
            self.loose,
            self._open_message(),
        )

    def _open_message(self) -> Message | None:
        content = content_of(self.turn)
        return {"role": self.role, "content": content} if self.role is not None and content else None
