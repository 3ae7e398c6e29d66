"""A pattern, the place in it, and what holds there: dialect and flags."""

from __future__ import annotations

from typing import Literal as OneOf
from typing import NamedTuple, NoReturn

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError

Dialect = OneOf["python", "ecma"]


class RegexFlags(NamedTuple):
    """The flags in force, named by their letters in Python's `re`.

    Without `ascii` and `unicode`, `\\d \\w \\s` are Python's (Unicode) or ECMA's (ASCII but for `\\s`); letters fold as
    Unicode says.
    """

    ignore_case: bool = False
    dot_all: bool = False
    verbose: bool = False
    multi_line: bool = False
    ascii: bool = False
    unicode: bool = False


class PatternScanner:
    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self.text = pattern
        self.dialect = dialect
        self.at = 0
        self.flags = RegexFlags()

    def invalid(self, what: str, at: int | None = None) -> NoReturn:
        place = self.at if at is None else at
        raise InvalidGrammarError(f"{what} in the regex {self.text!r}", f"position {place}")

    def unsupported(self, construct: str, at: int, hint: str = "") -> NoReturn:
        raise UnsupportedGrammarError(construct, f"position {at} of the regex {self.text!r}", hint)

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        if found:
            self.at += len(text)
        return found

    def done(self) -> bool:
        return self.at >= len(self.text)

    def next(self) -> str:
        if self.at >= len(self.text):
            self.invalid("unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    def run(self, allowed: str, most: int) -> str:
        """The longest run of at most `most` allowed characters."""
        start = self.at
        while self.at < min(len(self.text), start + most) and self.text[self.at] in allowed:
            self.at += 1
        return self.text[start : self.at]

    def until(self, end: str, start: int) -> str:
        """The text before `end`, which is read as well; `start` is where the construct began."""
        stop = self.text.find(end, self.at)
        if stop < 0:
            self.invalid(f"missing {end!r}", start)
        found = self.text[self.at : stop]
        self.at = stop + 1
        return found
