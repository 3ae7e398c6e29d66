"""Grammars written with `::=` in Lark's syntax, so that lark reads them too; nothing of our own reader takes part."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sgl.grammars.second_opinion.no_verdict_error import NoVerdictError

_TOKEN = re.compile(
    r"""
      (?P<blank>\s+|\#[^\n]*|/\*(?s:.*?)\*/)
    | (?P<head>[\w-]+)(?=\s*::=)\s*::=
    | (?P<name>[\w-]+)
    | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | (?P<class>\[\^?(?:\\.|[^\]\\\n])*\])
    | \{\s*(?P<count>[0-9]*\s*,?\s*[0-9]*)\s*\}
    | (?P<sign>[()|*+?.])
    """,
    re.VERBOSE | re.ASCII,
)
_CHARACTER = re.compile(r"\\x..|\\u.{4}|\\U.{8}|\\.|.", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}


def in_larks_syntax(grammar: str, start: str) -> str:
    """The grammar, whose start rule is called `start`. Raises NoVerdictError: it has what Lark's syntax has not."""
    return _Translation(start).read(grammar)


def _tokens(grammar: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None:
            raise NoVerdictError(f"Lark's syntax has no {grammar[at : at + 20]!r}")
        kind = found.lastgroup or ""
        if kind != "blank":
            yield kind, found[kind]
        at = found.end()


class _Translation:
    """Groups and repeats become rules: lark multiplies out the alternatives within one."""

    def __init__(self, start: str) -> None:
        self._names: dict[str, int] = {start: 0}
        self._lines: list[str] = []

    def read(self, grammar: str) -> str:
        items: list[str] = []
        for kind, text in _tokens(grammar):
            if kind == "head":
                self._lines.append(" ".join(items))
                items = [f"{self._named(text)}:"]
            elif kind == "count" or text in ("*", "+", "?"):
                items[-1] = self._rule(_repeated(items[-1], text))
            elif text == ")":
                opening = len(items) - 1 - items[::-1].index("(")
                items[opening:] = [self._rule(" ".join(items[opening + 1 :]))]
            else:
                items.append(self._named(text) if kind == "name" else _terminal(kind, text))
        return "\n".join([*self._lines, " ".join(items), "start: rule0", ""])

    def _named(self, name: str) -> str:
        return f"rule{self._names.setdefault(name, len(self._names))}"

    def _rule(self, body: str) -> str:
        self._lines.append(f"part{len(self._lines)}: {body}")
        return self._lines[-1].partition(":")[0]


def _repeated(item: str, how: str) -> str:
    if how in ("*", "+", "?"):
        return f"{item}{how}"
    least, comma, most = (part.strip() for part in how.partition(","))
    if comma and not most:
        return f"{item}~{least or 0} {item}*"
    return f"{item}~{least or 0}..{most if comma else least}"


def _terminal(kind: str, text: str) -> str:
    if kind == "string":
        characters = "".join(map(_regex_character, _CHARACTER.findall(text[1:-1])))
        return f"/{characters}/" if characters else "()"
    if kind == "class":
        return f"/[{_class_items(text[1:-1])}]/"
    return "/(?s:.)/" if text == "." else text


def _class_items(items: str) -> str:
    negated = items.startswith("^")
    found = _CHARACTER.findall(items[negated:])
    return "^" * negated + "".join(c if c == "-" else _regex_character(c) for c in found)


def _regex_character(spelled: str) -> str:
    """A character of a string or class as a regex in Lark has it, where only some escapes stay what they are."""
    char = spelled
    if len(spelled) > 2:
        char = chr(int(spelled[2:], 16))
    elif len(spelled) == 2:
        char = _ESCAPES.get(spelled[1], spelled[1])
    if char.isalnum() or char == "_" or ord(char) > 0x7F:
        return char
    return rf"\x{ord(char):02x}" if ord(char) < 0x20 or ord(char) == 0x7F else f"\\{char}"
