"""JSON on a tape: one value passed, token by token; what is wrong is found where it is."""

from __future__ import annotations

import re
from typing import Any

from .incremental_text import IncrementalText, Reading

DEEPEST = 200  # brackets inside each other; deeper is no JSON of anybody
LONGEST = 4000  # digits of a number; json.loads refuses 4300
SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_CLOSER = {"{": "}", "[": "]"}
_HEX = frozenset("0123456789abcdefABCDEF")


def value(tape: IncrementalText, closers: list[str] | None = None, started: bool = False) -> Reading[bool]:
    """Read one value, and blanks before it. False: it is none, and the tape is at the error.

    Args:
        closers: the brackets that close what is open already, for the rest of a value.
        started: a part of the value was read already, not only what precedes it.
    """
    closers = [] if closers is None else closers
    if started and not (yield from _close(tape, closers)):
        return not closers
    while True:
        char = yield from tape.visible()
        if char in _CLOSER:
            tape.at += 1
            closers.append(_CLOSER[char])
            if len(closers) > DEEPEST:
                return False
            if (yield from tape.visible()) != closers[-1]:
                if char == "{" and not (yield from key(tape)):
                    return False
                continue
        elif not (yield from _string(tape) if char == '"' else _scalar(tape)):
            return False
        if not (yield from _close(tape, closers)):
            return not closers


def key(tape: IncrementalText) -> Reading[bool]:
    """Read a member's name and the colon after it."""
    if (yield from tape.visible()) != '"' or not (yield from _string(tape)):
        return False
    if (yield from tape.visible()) != ":":
        return False
    tape.at += 1
    return True


def _close(tape: IncrementalText, closers: list[str]) -> Reading[bool]:
    """After a value: read closing brackets and the comma before the next one. True if there must be a next one."""
    while closers:
        char = yield from tape.visible()
        if char == closers[-1]:
            tape.at += 1
            closers.pop()
        elif char == ",":
            tape.at += 1
            return closers[-1] == "]" or (yield from key(tape))
        else:
            return False
    return False


def _string(tape: IncrementalText) -> Reading[bool]:
    tape.at += 1
    while True:
        found: Any = _PLAIN.match(tape.text, tape.at)
        tape.at = found.end()
        char = yield from tape.peek()
        if char == '"':
            tape.at += 1
            return True
        if char == "\\":
            tape.at += 1
            if not (yield from _escape(tape)):
                return False
        elif char == "" or char < " ":
            return False


def _escape(tape: IncrementalText) -> Reading[bool]:
    char = yield from tape.peek()
    if char == "" or char not in '"\\/bfnrtu':
        return False
    tape.at += 1
    for _ in range(4 if char == "u" else 0):
        if (yield from tape.peek()) not in _HEX:
            return False
        tape.at += 1
    return True


def _scalar(tape: IncrementalText) -> Reading[bool]:
    """A number or a word; it stays on the tape until its end is there."""
    length = 0
    while True:
        while tape.at + length >= len(tape.text) and not tape.ended:
            yield from tape.wait()
        char = tape.text[tape.at + length : tape.at + length + 1]
        if not (char.isalnum() and char.isascii()) and char not in ("+", "-", "."):
            break
        length += 1
    if length > LONGEST or not SCALAR.fullmatch(tape.text, tape.at, tape.at + length):
        return False
    tape.at += length
    return True
