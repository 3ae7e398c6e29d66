"""Calls with JSON in them, as most families of models write them: one reader, configured by a table."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..model_output_parser import ModelOutputParser, ToolCallSyntax
from ..reasoning_marks import ReasoningMarks
from .incremental_text import Reading
from .json_value_parser import key, value

NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "parameters")
FIRST = frozenset(
    {*NAMES, *ARGUMENTS, "function", "id", "tool_call_id", "type"}
)  # what the first member of a call may be


@dataclass(frozen=True)
class JsonToolCallSyntax(ToolCallSyntax):
    """Which bodies a call may have: `{"name": ..., "arguments": {...}}`, a list of such, or name and arguments.

    Attributes:
        objects, listed, named: the three of them.
        link: what may be between a name and its arguments.
        given_id: what may precede the id of a named call.
        answer: the name that is no call: text follows the link.
    """

    objects: bool = True
    listed: bool = False
    named: bool = False
    link: str = ""
    given_id: str = ""
    answer: str = ""


class JsonToolCallParser(ModelOutputParser):
    """The reader of a JsonToolCallSyntax."""

    form: JsonToolCallSyntax

    def __init__(
        self, form: JsonToolCallSyntax, names: Collection[str] = (), marks: ReasoningMarks | None = None
    ) -> None:
        super().__init__(form, names, marks)

    def _call(self, strict: bool) -> Reading[bool]:
        char = yield from self.tape.visible()
        if char == "{" and self.form.objects:
            return (yield from self._object(strict))
        if char == "[" and self.form.listed:
            return (yield from self._list(strict))
        if self.form.named and _in_name(char):
            return (yield from self._named(strict))
        return False

    # --- a list ------------------------------------------------------------------------------------------

    def _list(self, strict: bool) -> Reading[bool]:
        self.tape.at += 1
        while (yield from self.tape.visible()) == "{" and (yield from self._object(strict)):
            if (yield from self.tape.visible()) != ",":
                break
            self.tape.at += 1
        if (yield from self.tape.visible()) == "]" and not self.tape.since(0).strip():
            self.tape.at += 1
            self.tape.take()
            return True
        return False

    # --- an object ---------------------------------------------------------------------------------------

    def _object(self, strict: bool) -> Reading[bool]:
        """Pass an object; commit it as soon as its arguments begin, if its name is known by then."""
        found: dict[str, Any] = {}
        start = self.tape.place
        self.tape.at += 1
        while (member := (yield from self._key())) is not None:
            if not found and member not in FIRST:
                return (yield from self._pass(started=False))
            if member in ARGUMENTS and isinstance(_name(found), str) and (yield from self.tape.visible()) == "{":
                return (yield from self._arguments(found))
            if not (yield from self._member(member, found)):
                return False
            if member in NAMES and not self._admits(found[member], strict):
                return (yield from self._pass(started=True))
            if (yield from self.tape.visible()) != ",":
                break
            self.tape.at += 1
        if (yield from self.tape.visible()) != "}":
            return False
        self.tape.at += 1
        return self._whole(self.tape.since(start), strict)

    def _key(self) -> Reading[str | None]:
        yield from self.tape.visible()
        start = self.tape.place
        if not (yield from key(self.tape)):
            return None
        return _loads(self.tape.since(start).rstrip(": \t\n\r"))

    def _member(self, name: str, found: dict[str, Any]) -> Reading[bool]:
        yield from self.tape.visible()
        start = self.tape.place
        whole = yield from value(self.tape)
        found[name] = _loads(self.tape.since(start)) if whole else None
        return whole

    def _admits(self, name: Any, strict: bool) -> bool:
        return isinstance(name, str) and (not strict or not self.names or name in self.names)

    def _arguments(self, found: dict[str, Any]) -> Reading[bool]:
        """The arguments incrementally, and the members after them."""
        begun = yield from self._commit(_text(_name(found)), _text(found.get("id")))
        if begun is None:
            return False
        index, id = begun
        rest: dict[str, Any] = {}
        while (yield from self.tape.visible()) == ",":
            self.tape.at += 1
            if (member := (yield from self._key())) is None or not (yield from self._member(member, rest)):
                break
        closed = (yield from self.tape.visible()) == "}"
        self.tape.at += closed
        left = "" if closed else self.tape.take()
        self._end(index, _text(rest.get("id")) or id)
        self._speech.emit_text(left)
        return closed

    def _pass(self, started: bool) -> Reading[bool]:
        """The rest of an object that is no call: text."""
        self.tape.flow = self._speech.emit_text
        yield from value(self.tape, ["}"], started)
        self.tape.flow = None
        return False

    def _whole(self, text: str, strict: bool) -> bool:
        """A call whose members come in another order."""
        call = call_in(_loads(text))
        if call is None or not self._admits(call[0], strict):
            return False
        name, arguments, id = call
        index, _ = self._begin(name, id)
        self._argue(index, [], arguments)
        self._end(index, id)
        return True

    # --- a name and its arguments ------------------------------------------------------------------------

    def _named(self, strict: bool) -> Reading[bool]:
        name = yield from self._word(strict)
        if strict and self.names and name not in (*self.names, self.form.answer):
            return False
        yield from self.tape.visible()
        before = self.tape.place
        id = (yield from self._given_id()) if self.form.given_id else ""
        linked = bool(self.form.link) and (yield from self.tape.skip(self.form.link))
        char = yield from self.tape.visible()
        if name == self.form.answer and (linked or not char):
            self.tape.take()
            return False
        if char != "{" or name == self.form.answer:
            self.tape.back(before)
            return False
        begun = yield from self._commit(name, id)
        if begun is None:
            return False
        self._end(*begun)
        return True

    def _word(self, strict: bool) -> Reading[str]:
        """A name, or as much of it as the names of the tools begin with."""
        start = self.tape.place
        known = {*self.names, self.form.answer} if strict and self.names else None
        while _in_name((yield from self.tape.peek())):
            self.tape.at += 1
            word = self.tape.since(start)
            if known is not None and not any(name.startswith(word) for name in known):
                break
        return self.tape.since(start)

    def _given_id(self) -> Reading[str]:
        if not (yield from self.tape.skip(self.form.given_id)):
            return ""
        start = self.tape.place
        while _in_name((yield from self.tape.peek())):
            self.tape.at += 1
        return self.tape.since(start)


def call_in(found: Any) -> tuple[str, str, str] | None:
    """The call that a JSON value stands for: its name, its arguments as JSON text, its id."""
    if not isinstance(found, dict):
        return None
    about = found["function"] if isinstance(found.get("function"), dict) else found
    name, given = _name(about), about.get("arguments", about.get("parameters", {}))
    text = given.strip() if isinstance(given, str) else json_text(given)
    if not isinstance(name, str) or not isinstance(_loads(text), dict):
        return None
    return name, text, _text(found.get("id"))


def json_text(found: Any) -> str:
    """JSON as models write it; empty for what JSON cannot say."""
    try:
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return ""


def _name(found: dict[str, Any]) -> Any:
    return next((found[key] for key in NAMES if key in found), None)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(found: Any) -> str:
    return found if isinstance(found, str) else ""


def _in_name(char: str) -> bool:
    return char.isalnum() or (char != "" and char in "_.-")
