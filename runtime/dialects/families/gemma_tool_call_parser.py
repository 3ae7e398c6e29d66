"""Calls of Gemma 4: JSON whose keys are bare and whose strings are between special marks, read incrementally."""

from __future__ import annotations

import json

from ..parsing.framed_tool_call_parser import FramedToolCallParser
from ..parsing.incremental_text import Reading
from ..parsing.incremental_text import TextMarks as Wanted
from ..parsing.json_value_parser import DEEPEST, SCALAR
from ..parsing.unquoted_values import quoted

QUOTE = '<|"|>'
_CLOSER = {"{": "}", "[": "]"}
_QUOTES = Wanted([QUOTE])


class GemmaToolCallParser(FramedToolCallParser):
    """A call is reported incrementally; whether its values made up an object is known in the end."""

    def _json(self, name: str, id: str) -> Reading[bool]:
        if (yield from self.tape.visible()) != "{":
            return False
        index, head = self._begin(name, id)
        self._whole, self._index, written = list[str](), index, [head]
        ended = (yield from self._values(written)) and _is_object("".join(self._whole))
        if not ended:
            written.append(self.tape.take())
            self._break(index, "".join(written), id)
            return False
        yield from self._passed_end()
        self._end(index, id)
        return True

    def _values(self, written: list[str]) -> Reading[bool]:
        """Everything up to the bracket that closes the first one."""
        closers: list[str] = []
        while char := (yield from self.tape.visible()):
            if (yield from self.tape.skip(QUOTE)):
                if not (yield from self._text(written)):
                    return False
            elif char in _CLOSER or char in "}],:":
                self.tape.at += 1
                if char in _CLOSER:
                    closers.append(_CLOSER[char])
                elif char in "}]" and (not closers or closers.pop() != char):
                    return False
                self._emit_json(char + " " * (char in ",:"))
            elif not (yield from self._word_of_json()):
                return False
            written.append(self.tape.take())
            if not closers or len(closers) > DEEPEST:
                return not closers
        return False

    def _text(self, written: list[str]) -> Reading[bool]:
        written.append(self.tape.take())
        self._emit_json('"')

        def flow(text: str) -> None:
            written.append(text)
            self._emit_json(quoted(text)[1:-1])

        self.tape.flow = flow
        mark = yield from self.tape.until(_QUOTES)
        self.tape.flow = None
        if mark:
            self._emit_json('"')
        return bool(mark)

    def _word_of_json(self) -> Reading[bool]:
        """A key, or a number, true, false or null."""
        start = self.tape.place
        while (char := (yield from self.tape.peek())) and char not in ",:{}[]<\"' \t\r\n":
            self.tape.at += 1
        word = self.tape.since(start)
        is_key = (yield from self.tape.visible()) == ":"
        word = "null" if word == "None" and not is_key else word  # as its template writes it
        if not word or not (is_key or SCALAR.fullmatch(word)):
            return False
        self._emit_json(quoted(word) if is_key else word)
        return True

    def _emit_json(self, text: str) -> None:
        self._whole.append(text)
        self._argue(self._index, [], text)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
