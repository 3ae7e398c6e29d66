"""Text that comes in pieces, for readers written as if it were all there: they wait where they need more.

A reader is a generator; it yields where the text ends for now. What it decides depends on the characters alone and
not on how they were split, because it looks at no more than the next ones that it waited for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]


class IncrementalText:
    """The text and a place in it. `take` gives what was passed; `flow` gets it by itself whenever the tape waits."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0  # everything before it was looked at
        self.ended = False
        self.flow: Callable[[str], None] | None = None
        self._taken = 0

    def add(self, piece: str, last: bool) -> None:
        self.text = self.text[self._taken :] + piece
        self.at -= self._taken
        self._taken = 0
        self.ended = self.ended or last

    def take(self) -> str:
        """What was passed since the last time."""
        start, self._taken = self._taken, self.at
        return self.text[start : self.at]

    @property
    def place(self) -> int:
        """Characters since the last `take`."""
        return self.at - self._taken

    def since(self, place: int) -> str:
        return self.text[self._taken + place : self.at]

    def back(self, place: int) -> None:
        self.at = self._taken + place

    def wait(self) -> Reading[None]:
        if self.flow is not None and self.place:
            self.flow(self.take())
        yield

    def peek(self) -> Reading[str]:
        """The next character, empty at the end of the text."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield from self.wait()
        return self.text[self.at]

    def visible(self) -> Reading[str]:
        """`peek` after the blanks, which are those of JSON."""
        while (char := (yield from self.peek())) and char in " \t\n\r":
            self.at += 1
        return char

    def skip(self, literal: str) -> Reading[bool]:
        """Pass a literal, if it is what comes next."""
        for i, char in enumerate(literal):
            while self.at + i >= len(self.text):
                if self.ended:
                    return False
                yield from self.wait()
            if self.text[self.at + i] != char:
                return False
        self.at += len(literal)
        return True

    def until(self, marks: TextMarks) -> Reading[str]:
        """Go to the first of some marks, giving out what comes before it by `flow`; pass and return it. Empty: the
        end."""
        while True:
            half = len(self.text) if self.ended else marks.half(self.text, self.at)
            found = marks.pattern.search(self.text, self.at)
            if found and half <= found.start():  # it may turn out to be a longer one
                found = None
            self.at = found.start() if found else half
            if self.flow is not None and self.place:
                self.flow(self.take())
            if found:
                self.at = found.end()
                return found[0]
            if self.ended:
                return ""
            yield


class TextMarks:
    """Texts to look for, at one place the longest.

    None of them holds another, or begins it, after its first character.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted(texts, key=len, reverse=True))
        self.pattern = re.compile("|".join(map(re.escape, self.texts)) or "(?!)")
        self._most = max(map(len, self.texts), default=1) - 1

    def half(self, text: str, at: int) -> int:
        """Where at the end of the text a mark may have begun; its length where none may."""
        for start in range(max(at, len(text) - self._most), len(text)):
            if any(len(mark) > len(text) - start and mark.startswith(text[start:]) for mark in self.texts):
                return start
        return len(text)
