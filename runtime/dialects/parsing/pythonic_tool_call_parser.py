"""Calls in Python's syntax. Their arguments are emitted as JSON, one by one: values are held back until complete."""

from __future__ import annotations

from ..model_output_parser import ModelOutputParser, ToolCallSyntax
from .incremental_text import Reading
from .python_literals import as_json, json_text

FORM = ToolCallSyntax("[", bare=True, known=True)
DEEPEST = 200


class PythonicToolCallParser(ModelOutputParser):
    """The reader of a list of calls, `[f(a=1), g(b="x")]`."""

    def _call(self, strict: bool) -> Reading[bool]:
        if (yield from self.tape.visible()) != "[":
            return False
        self.tape.at += 1
        while (yield from self._head()):
            char = yield from self.tape.visible()
            self.tape.at += char in (",", "]")
            if char != ",":
                break
        else:
            return False
        if char == "]":
            self.tape.take()
        return char == "]"

    def _head(self) -> Reading[bool]:
        """One call, reported as soon as it has a name and an argument or none."""
        yield from self.tape.visible()
        name = yield from self._word(in_call=True)
        if not name or (self.names and name not in self.names) or (yield from self.tape.visible()) != "(":
            return False
        self.tape.at += 1
        key = yield from self._key()
        return key is not None and (yield from self._arguments(name, key))

    def _word(self, in_call: bool = False) -> Reading[str]:
        """A name; that of a call may have dots, and no more of it is read than some tool's name has."""
        start = self.tape.place
        word = ""
        while _in_name((yield from self.tape.peek()), in_call):
            self.tape.at += 1
            word = self.tape.since(start)
            if in_call and self.names and not any(name.startswith(word) for name in self.names):
                break
        return word

    def _key(self) -> Reading[str | None]:
        """`name=`; empty where the arguments end, None for what is neither."""
        if (yield from self.tape.visible()) == ")":
            return ""
        word = yield from self._word()
        if not word or (yield from self.tape.visible()) != "=":
            return None
        self.tape.at += 1
        return word

    def _arguments(self, name: str, key: str | None) -> Reading[bool]:
        """The rest of a call, from the value of `key` on, or from its end."""
        index, head = self._begin(name)
        written, before = [head], "{"
        while key:
            key = yield from self._argument(index, written, before, key)
            before = ", "
        if key is None or (yield from self.tape.visible()) != ")":
            return self._cut(index, written)
        self.tape.at += 1
        self._argue(index, [], "{}" if before == "{" else "}")
        self._end(index)
        return True

    def _argument(self, index: int, written: list[str], before: str, key: str) -> Reading[str | None]:
        """One argument from its value on; the `_key` after it."""
        value = yield from self._value()
        if value is None:
            return None
        self._argue(index, [], f"{before}{json_text(key)}: {value}")
        written.append(self.tape.take())
        if (yield from self.tape.visible()) != ",":
            return ""
        self.tape.at += 1
        return (yield from self._key())

    def _cut(self, index: int, written: list[str]) -> bool:
        """A call that broke; where the text has ended all of it was the call's."""
        if self.tape.ended and self.tape.at == len(self.tape.text):
            written.append(self.tape.take())
        self._break(index, "".join(written))
        return False

    # --- values ------------------------------------------------------------------------------------------

    def _value(self) -> Reading[str | None]:
        """A value as JSON; None for what is neither JSON nor a Python literal."""
        start = self.tape.place
        depth = 0
        while char := (yield from self.tape.peek()):
            if depth == 0 and char in ",)":
                return as_json(self.tape.since(start).strip())
            if char in "'\"":
                if not (yield from self._quoted(char)):
                    return None
                continue
            depth += (char in "[{(") - (char in "]})")
            if not 0 <= depth <= DEEPEST or (char == "(" and _in_name(self.tape.since(start)[-1:])):
                return None
            self.tape.at += 1
        return None

    def _quoted(self, quote: str) -> Reading[bool]:
        self.tape.at += 1
        while char := (yield from self.tape.peek()):
            self.tape.at += 1
            if char == quote:
                return True
            if char == "\\":
                yield from self.tape.peek()
                self.tape.at += self.tape.at < len(self.tape.text)
        return False


def _in_name(char: str, in_call: bool = False) -> bool:
    return char.isalnum() or char == "_" or (in_call and char != "" and char in ".-")
