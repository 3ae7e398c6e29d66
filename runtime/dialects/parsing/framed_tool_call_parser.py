"""Calls with marks around the name and the arguments: one reader, configured by a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sgl.grammars.structural.parameter_styles import STYLES, ParameterStyle

from ..model_output_parser import ModelOutputParser, ToolCallSyntax
from ..reasoning_marks import ReasoningMarks
from .incremental_text import Reading
from .incremental_text import TextMarks as Wanted
from .unquoted_values import TEXT, TYPES, json_of, quoted, types_of

JSON = "json"
WRAPPED = "<![CDATA[", "]]>"
NUMBER, ID = "%d", "%s"  # stand for the number of a call and for its id
PLACES = re.compile("(%[ds])")
OTHER_TYPES = ("null", "boolean", "number", "array", "object")


def style_marks(style: str | ParameterStyle) -> ParameterStyle:
    """The marks of parameters, which may be those of a known style."""
    return STYLES[style] if isinstance(style, str) else style


@dataclass(frozen=True)
class FramedToolCallSyntax(ToolCallSyntax):
    """The marks around a call. Wherever one of these texts has white space, any amount of it is read, or none.

    Attributes:
        head: before a name, after the mark.
        links: between a name and its arguments, one of them.
        end: after the arguments.
        separator: between calls.
        many: one mark opens any number of calls, up to `close`.
        numbered: the name goes on with `:` and a number, which make the call's id.
        id_before: the text before the id in such a call.
        style: of the arguments, "json", one of `STYLES`, or the marks themselves.
        padded: a value has a line to itself.
    """

    head: str = ""
    links: tuple[str, ...] = ("",)
    end: str = ""
    separator: str = ""
    many: bool = False
    numbered: bool = False
    id_before: str = ""
    style: str | ParameterStyle = JSON
    padded: bool = False


class FramedToolCallParser(ModelOutputParser):
    """Parses a FramedToolCallSyntax. `names` may be a mapping of the tools' names to their parameters' schemas."""

    form: FramedToolCallSyntax

    def __init__(
        self, form: FramedToolCallSyntax, names: Collection[str] = (), marks: ReasoningMarks | None = None
    ) -> None:
        super().__init__(form, names, marks)
        self._schemas: Mapping[str, Any] = names if isinstance(names, Mapping) else {}
        self._id = ""  # of the call that is read

    def _call(self, strict: bool) -> Reading[bool]:
        while (yield from self._framed()) and self.form.many:
            start = self.tape.place
            if not (yield from self._pieces(self.form.separator)):
                self.tape.back(start)
        return False

    def _framed(self) -> Reading[bool]:
        """One call with all that is around it."""
        start, self._id = self.tape.place, ""
        if not (yield from self._pieces(self.form.head)):
            self.tape.back(start)
            return False
        yield from self.tape.visible()
        name = yield from self._word()
        if not name:
            return False
        id = (yield from self._number(name)) if self.form.numbered else ""
        if not (yield from self._link()):
            return False
        if self.form.style == JSON:
            return (yield from self._json(name, id or self._id))
        return (yield from ToolParameterParser(self, style_marks(self.form.style), name, id or self._id).read())

    def _pieces(self, text: str) -> Reading[bool]:
        """Pass a text whose blanks may be others."""
        for piece in text.split():
            yield from self.tape.visible()
            for part in PLACES.split(piece):
                if part == NUMBER:
                    yield from self._digits()
                elif part == ID:
                    self._id = yield from self._given_id()
                elif not (yield from self.tape.skip(part)):
                    return False
        return True

    def _given_id(self) -> Reading[str]:
        start = self.tape.place
        while (char := (yield from self.tape.peek())) and char.isascii() and (char.isalnum() or char in "_-"):
            self.tape.at += 1
        return self.tape.since(start)

    def _digits(self) -> Reading[str]:
        start = self.tape.place
        while (yield from self.tape.peek()).isdigit():
            self.tape.at += 1
        return self.tape.since(start)

    def _link(self) -> Reading[bool]:
        start = self.tape.place
        for link in self.form.links:
            if (yield from self._pieces(link)):
                return True
            self.tape.back(start)
        return False

    def _word(self) -> Reading[str]:
        start = self.tape.place
        while (char := (yield from self.tape.peek())) and (char.isalnum() or char in "_.-"):
            self.tape.at += 1
        return self.tape.since(start)

    def _number(self, name: str) -> Reading[str]:
        """The id that a name and the number after it make."""
        if not (yield from self.tape.skip(":")):
            return ""
        number = yield from self._digits()
        return f"{self.form.id_before}{name}:{number}"

    def _json(self, name: str, id: str) -> Reading[bool]:
        if (yield from self.tape.visible()) != "{":
            return False
        begun = yield from self._commit(name, id)
        if begun is None:
            return False
        yield from self._passed_end()
        self._end(*begun)
        return True

    def _passed_end(self) -> Reading[None]:
        """Skip as much as there is of the marks after the arguments."""
        for piece in self.form.end.split():
            yield from self.tape.visible()
            if not (yield from self.tape.skip(piece)):
                break


class ToolParameterParser:
    """The parameters of one call, emitted as JSON: strings incrementally, every other value when it is complete."""

    def __init__(self, reader: FramedToolCallParser, style: ParameterStyle, name: str, id: str) -> None:
        self._reader, self._tape, self._style, self._id = reader, reader.tape, style, id
        self._schema = reader._schemas.get(name)
        self._closing = Wanted([style.closing])
        self._index, head = reader._begin(name, id)
        self._written = [head]
        self._before = "{"

    def read(self) -> Reading[bool]:
        """All of them and the end of the call; False where it breaks off or goes wrong."""
        first, *_ = self._reader.form.end.split()
        while True:
            yield from self._tape.visible()
            if (yield from self._tape.skip(self._style.opening)):
                if not (yield from self._parameter()):
                    return self._cut()
            elif (yield from self._tape.skip(first)):
                self._tape.at -= len(first)
                yield from self._reader._passed_end()
                self._tell("{}" if self._before == "{" else "}")
                self._reader._end(self._index, self._id)
                return True
            else:
                return self._cut()

    def _parameter(self) -> Reading[bool]:
        key = yield from self._key()
        types = types_of(self._schema, key)
        if self._style.typed is not None and (yield from self._other(self._style.typed)):
            types = types - TEXT or TYPES
        elif not (yield from self._named(self._style.naming)):
            return False
        elif self._style.typed is not None:
            types = TEXT
        self._tell(f"{self._before}{quoted(key)}: ")
        self._before = ", "
        if self._reader.form.padded:
            yield from self._tape.skip("\n")
        wrapped = self._style.cdata and (yield from self._tape.skip(WRAPPED[0]))
        self._written.append(self._tape.take())
        if wrapped:
            return (yield from self._text(Wanted([WRAPPED[1] + self._style.closing])))
        return (yield from self._text(self._closing) if types == TEXT else self._value(types))

    def _key(self) -> Reading[str]:
        """Everything up to the mark after it, which begins with a character that no key has."""
        start, stop = self._tape.place, self._style.naming[0][0]
        while (char := (yield from self._tape.peek())) and char not in (stop, "\n"):
            self._tape.at += 1
        return self._tape.since(start)

    def _other(self, pieces: tuple[str, ...]) -> Reading[bool]:
        """The marks before a value that is no string, of whatever type."""
        for one in OTHER_TYPES if self._style.tells_types else ("",):
            if (yield from self._named(tuple(piece.format(one) for piece in pieces))):
                return True
        return False

    def _named(self, pieces: tuple[str, ...]) -> Reading[bool]:
        start = self._tape.place
        for piece in pieces:
            yield from self._tape.visible() if piece != pieces[0] else ()
            if not (yield from self._tape.skip(piece)):
                self._tape.back(start)
                return False
        return True

    def _text(self, closing: Wanted) -> Reading[bool]:
        """A string while it comes; of a line to itself the last line break is held back."""
        self._tell('"')
        line = _LineEmitter(self._reader.form.padded, self._emit_string)
        self._tape.flow = partial(self._flow, line)
        mark = yield from self._tape.until(closing)
        self._tape.flow = None
        if not mark:
            return False
        self._tell('"')
        self._written.append(self._tape.take())
        return True

    def _flow(self, line: _LineEmitter, text: str) -> None:
        self._written.append(text)
        line.add(text)

    def _emit_string(self, text: str) -> None:
        self._tell(quoted(text)[1:-1])

    def _value(self, types: frozenset[str]) -> Reading[bool]:
        start = self._tape.place
        mark = yield from self._tape.until(self._closing)
        if not mark:
            return False
        text = self._tape.since(start)[: -len(mark)]
        text = text.removesuffix("\n") if self._reader.form.padded else text
        self._tell(json_of(text, types, self._style.python))
        self._written.append(self._tape.take())
        return True

    def _tell(self, text: str) -> None:
        self._reader._argue(self._index, [], text)

    def _cut(self) -> bool:
        self._written.append(self._tape.take())
        self._reader._break(self._index, "".join(self._written), self._id)
        return False


class _LineEmitter:
    """Text on its way out; where `padded`, a line break at its end is no part of it."""

    def __init__(self, padded: bool, emit_string: Callable[[str], None]) -> None:
        self._padded, self._emit_string, self._held = padded, emit_string, ""

    def add(self, text: str) -> None:
        text, self._held = self._held + text, ""
        if self._padded and text.endswith("\n"):
            text, self._held = text[:-1], "\n"
        self._emit_string(text)
