"""A pattern, the place in it, and what holds there: dialect and flags."""

from __future__ import annotations

from typing import Literal as OneOf
from typing import NamedTuple, NoReturn

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError

Dialect = OneOf["python", "ecma"]
_NAMES = {"i": "ignore_case", "s": "dot_all", "x": "verbose", "m": "multi_line", "a": "ascii", "u": "unicode"}
_TYPES = "au"


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


def set_letters(scan: PatternScanner, letters: str, at: int) -> RegexFlags:
    """The flags in force with some more switched on.

    Raises:
        InvalidGrammarError: a letter is unknown, or `a` and `u` come together.
    """
    for letter in letters:
        if letter not in _NAMES:
            scan.invalid(f"unknown flag {letter!r}", at)
    if "a" in letters and "u" in letters:
        scan.invalid("the flags 'a' and 'u' exclude each other", at)
    flags = scan.flags
    if any(letter in _TYPES for letter in letters):
        flags = flags._replace(ascii=False, unicode=False)
    return flags._replace(**{_NAMES[letter]: True for letter in letters})


def read_flags(scan: PatternScanner, start: int) -> tuple[RegexFlags, bool]:
    """The flags after `(?`, up to and with the closing `)` or the `:`, and whether they hold for a group only."""
    flags = set_letters(scan, scan.run("".join(_NAMES), len(scan.text)), start)
    if scan.take(")"):
        return flags, False
    if scan.take("-"):
        off = scan.run("ismx", len(scan.text))
        if not off or any(getattr(flags, _NAMES[x]) and not getattr(scan.flags, _NAMES[x]) for x in off):
            scan.invalid("missing flag, or a flag both on and off", start)
        flags = flags._replace(**{_NAMES[letter]: False for letter in off})
    if not scan.take(":"):
        scan.invalid(f"unknown extension {scan.text[start : scan.at + 1]}", start)
    return flags, True
