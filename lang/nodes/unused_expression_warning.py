"""Expressions that die unused: `sgl.gen("a")` on a separate line, where `s +=` was meant."""

from __future__ import annotations

import opcode
import sys
import warnings

from ..places.source_location import is_own

_POP, _CACHE = opcode.opmap["POP_TOP"], opcode.opmap["CACHE"]
_MAKERS = {opcode.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "BINARY_OP")}


class DroppedWarning(UserWarning):
    """An expression was created but not appended, so it generates nothing."""


def warn_if_dropped(node: object) -> None:
    """Called by `node.__del__`: warn if a line of the user's has just thrown the node away as its result."""
    try:
        frame = sys._getframe(2)
    except ValueError:  # the interpreter is ending
        return
    if not is_own(frame.f_code.co_filename) and _throws_away(frame.f_code.co_code, frame.f_lasti):
        warnings.warn(
            f"{node!r:.100} was created but not appended, so it generates nothing; append it: s += ...",
            DroppedWarning,
            stacklevel=3,
        )


def _throws_away(code: bytes, at: int) -> bool:
    """Whether the instruction at `at` pops what a call or an operator has just made."""
    before = at - 2
    while before > 0 and code[before] == _CACHE:
        before -= 2
    return code[at] == _POP and before >= 0 and code[before] in _MAKERS
