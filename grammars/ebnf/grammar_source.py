"""The text of a grammar and its tokens, with places for errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError

END = "end"
_COMMENT_OR_JOINED_LINES = re.compile(r"//[^\n]*|#[^\n]*|\\[ ]*\n")
_UNCLOSED = {
    '"': "a string that does not end",
    "'": "a string that does not end",
    "[": "a class that does not end",
    "/": "a regex or a comment that does not end",
}


class GrammarToken(NamedTuple):
    """`fresh` tells that it is the first one on its line."""

    kind: str
    text: str
    at: int
    fresh: bool


class GrammarTokenPattern:
    """`blank` is what may stand between tokens; `kinds` has a named group for every kind of token."""

    def __init__(self, blank: str, kinds: str) -> None:
        self.blank = re.compile(f"(?>(?:{blank})*)", re.ASCII)
        self.token = re.compile(f"(?>(?:{blank})*)(?:{kinds}|(?P<{END}>\\Z))", re.VERBOSE | re.ASCII)


class GrammarText:
    """A grammar's text; `name` is that of one that is imported."""

    def __init__(self, text: str, name: str = "") -> None:
        self.text = text
        self._prefix = f"{name}:" if name else ""

    def place(self, at: int) -> str:
        """line:column, both from 1."""
        return f"{self._prefix}{self.text.count(chr(10), 0, at) + 1}:{at - self.text.rfind(chr(10), 0, at)}"

    def invalid(self, what: str, at: int) -> NoReturn:
        raise InvalidGrammarError(what, self.place(at))

    def unsupported(self, construct: str, at: int, hint: str = "") -> NoReturn:
        raise UnsupportedGrammarError(construct, self.place(at), hint)

    @contextmanager
    def inside(self, at: int) -> Iterator[None]:
        """Errors of embedded grammars get the place in this text in front of the place within them."""
        try:
            yield
        except InvalidGrammarError as error:
            raise InvalidGrammarError(error.what, self._within(at, error.where)) from error
        except UnsupportedGrammarError as error:
            raise UnsupportedGrammarError(error.keyword, self._within(at, error.where), error.hint) from error

    def _within(self, at: int, where: str) -> str:
        place = self.place(at)
        return where if where.split(", ")[0] == place else f"{place}, {where}"


class GrammarTokenStream:
    """Reads one token ahead."""

    def __init__(self, source: GrammarText, pattern: GrammarTokenPattern) -> None:
        self.source = source
        self._pattern = pattern
        self._match = pattern.token.match
        self.next = self._read(0)

    def _read(self, at: int) -> GrammarToken:
        text = self.source.text
        found = self._match(text, at)
        kind = found and found.lastgroup
        if found is None or kind is None:
            self._fail(at)
        start, end = found.span(kind)
        fresh = at == 0 or (start > at and _has_line_break(text[at:start]))
        return GrammarToken(kind, text[start:end], start, fresh)

    def _fail(self, at: int) -> NoReturn:
        blank = self._pattern.blank.match(self.source.text, at)
        start = blank.end() if blank else at
        char = self.source.text[start]
        self.source.invalid(_UNCLOSED.get(char, f"unexpected {char!r}"), start)

    def jump(self, at: int) -> None:
        self.next = self._read(at)

    def take(self, kind: str, text: str | None = None) -> GrammarToken | None:
        """The next token if it is of this kind (and spelled so), which is then read."""
        token = self.next
        if token.kind != kind or (text is not None and token.text != text):
            return None
        if kind != END:
            self.next = self._read(token.at + len(token.text))
        return token

    def follows(self, text: str, *kinds: str) -> bool:
        """Whether a token of these kinds comes after the next one, which is spelled so."""
        return self._read(self.next.at + len(text)).kind in kinds

    def sign(self, text: str) -> bool:
        token = self.next
        if token.text != text or token.kind != "sign":
            return False
        self.next = self._read(token.at + len(text))
        return True

    def expect(self, kind: str, text: str | None = None, what: str = "") -> GrammarToken:
        return self.take(kind, text) or self.unexpected(what or repr(text))

    def unexpected(self, wanted: str) -> NoReturn:
        shown = repr(self.next.text) if self.next.kind != END else "end of the grammar"
        self.source.invalid(f"unexpected {shown}, expected {wanted}", self.next.at)


def _has_line_break(blank: str) -> bool:
    """Whether a line ends in it; a backslash joins its line with the next one."""
    return "\n" in (_COMMENT_OR_JOINED_LINES.sub("", blank) if "\\" in blank else blank)


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the most similar name, or nothing."""
    found = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {found[0]!r}?" if found else ""
