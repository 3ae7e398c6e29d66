"""The text of a grammar and its tokens, with places for errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError

END = "end"
_UNCLOSED = {
    '"': "a string that does not end",
    "'": "a string that does not end",
    "[": "a class that does not end",
    "/": "a regex or a comment that does not end",
}


class Token(NamedTuple):
    """`fresh` tells that it is the first one on its line."""

    kind: str
    text: str
    at: int
    fresh: bool


class TokenPattern:
    """`blank` is what may stand between tokens; `kinds` has a named group for every kind of token."""

    def __init__(self, blank: str, kinds: str) -> None:
        self.blank = re.compile(f"(?>(?:{blank})*)", re.ASCII)
        self.token = re.compile(f"(?>(?:{blank})*)(?:{kinds}|(?P<{END}>\\Z))", re.VERBOSE | re.ASCII)


class Source:
    def __init__(self, text: str) -> None:
        self.text = text

    def place(self, at: int) -> str:
        """line:column, both from 1."""
        return f"{self.text.count(chr(10), 0, at) + 1}:{at - self.text.rfind(chr(10), 0, at)}"

    def invalid(self, what: str, at: int) -> NoReturn:
        raise InvalidGrammarError(what, self.place(at))

    def unsupported(self, construct: str, at: int, hint: str = "") -> NoReturn:
        raise UnsupportedGrammarError(construct, self.place(at), hint)

    @contextmanager
    def inside(self, at: int) -> Iterator[None]:
        """Errors of what is embedded here get the place in this text in front of their own."""
        try:
            yield
        except InvalidGrammarError as error:
            raise InvalidGrammarError(error.what, f"{self.place(at)}, {error.where}") from error
        except UnsupportedGrammarError as error:
            raise UnsupportedGrammarError(error.keyword, f"{self.place(at)}, {error.where}") from error


class Tokens:
    """Reads one token ahead."""

    def __init__(self, source: Source, pattern: TokenPattern) -> None:
        self.source = source
        self._pattern = pattern
        self.next = self._read(0)

    def _read(self, at: int) -> Token:
        text = self.source.text
        found = self._pattern.token.match(text, at)
        if found is None or found.lastgroup is None:
            self._fail(at)
        start = found.start(found.lastgroup)
        fresh = at == 0 or (start > at and text.find("\n", at, start) >= 0)
        return Token(found.lastgroup, text[start : found.end()], start, fresh)

    def _fail(self, at: int) -> NoReturn:
        blank = self._pattern.blank.match(self.source.text, at)
        start = blank.end() if blank else at
        char = self.source.text[start]
        self.source.invalid(_UNCLOSED.get(char, f"unexpected {char!r}"), start)

    def jump(self, at: int) -> None:
        self.next = self._read(at)

    def take(self, kind: str, text: str | None = None) -> Token | None:
        """The next token if it is of this kind (and spelled so), which is then read."""
        token = self.next
        if token.kind != kind or (text is not None and token.text != text):
            return None
        if kind != END:
            self.next = self._read(token.at + len(token.text))
        return token

    def sign(self, text: str) -> bool:
        return self.take("sign", text) is not None

    def expect(self, kind: str, text: str | None = None, what: str = "") -> Token:
        return self.take(kind, text) or self.unexpected(what or repr(text))

    def unexpected(self, wanted: str) -> NoReturn:
        shown = repr(self.next.text) if self.next.kind != END else "end of the grammar"
        self.source.invalid(f"unexpected {shown}, expected {wanted}", self.next.at)


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the most similar name, or nothing."""
    found = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {found[0]!r}?" if found else ""
