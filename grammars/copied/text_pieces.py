"""The pieces of a text, each as a JSON string spells it, and what reads them."""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sgl.grammars.algebra.expr import NEVER, CopiedText, Expr, GrammarRule, RuleCall
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.copied.python_piece_automaton import PythonPieceAutomaton
from sgl.grammars.copied.text_boundaries import Boundaries, boundaries
from sgl.grammars.errors import GrammarLimitError

MOST_CHARACTERS = 5_000_000
_MOST_KEPT = 32  # texts


class TextPieces:
    """All pieces of a text. `unit`: WORDS or CHARACTERS; `ascii`: characters beyond ASCII are escaped.

    Each character has one spelling, that of `json.dumps`. The two automata number their states differently.
    """

    def __init__(self, text: str, unit: str, ascii: bool = False) -> None:
        if len(text) > MOST_CHARACTERS:
            raise GrammarLimitError(
                f"the text that values are copied from has {len(text)} characters, more than {MOST_CHARACTERS}; give a "
                "part of it"
            )
        self.key = text, unit, ascii
        self.boundaries: Boundaries = boundaries(text, unit)

    def spelled(self, text: str) -> bytes:
        """A text without the quotes around it."""
        return json.dumps(text, ensure_ascii=self.key[2])[1:-1].encode()

    @cached_property
    def native(self) -> Any:
        """The automaton of the C core; None where there is no core."""
        core = extension()
        text, _, ascii = self.key
        return core and core.pieces(text, *(flags.tobytes() for flags in self.boundaries), ascii)

    @cached_property
    def python(self) -> PythonPieceAutomaton:
        """The automaton of the Python core."""
        text = self.key[0]
        return PythonPieceAutomaton([self.spelled(char) for char in text], *self.boundaries[:2])

    @property
    def some(self) -> bool:
        """Whether there are any."""
        starts, ends = map(np.flatnonzero, self.boundaries[:2])
        return bool(len(starts) and len(ends) and starts[0] < ends[-1])

    @cached_property
    def shortest(self) -> bytes:
        """One of the shortest as it is spelled; there must be one."""
        return bytes(extension().piece_end(self.native, 0)) if self.native else self.python.end(0)

    def memory(self) -> int:
        """Bytes of the C core's automaton."""
        return int(extension().pieces_size(self.native)[1]) if self.native else 0


@lru_cache(maxsize=_MOST_KEPT)
def text_pieces(text: str, unit: str, ascii: bool = False) -> TextPieces:
    """The pieces of a text, the same for the same text. Raises GrammarLimitError for a text that is far too long."""
    return TextPieces(text, unit, ascii)


@lru_cache(maxsize=_MOST_KEPT)
def _rule(text: str, unit: str, ascii: bool) -> GrammarRule:
    pieces = text_pieces(text, unit, ascii)
    return GrammarRule("a piece of the text", lambda: CopiedText(pieces))


def copied_expr(text: str, unit: str, ascii: bool = False) -> Expr:
    """A piece of a text as a JSON string spells it, without quotes; NEVER where the text has no pieces."""
    return RuleCall(_rule(text, unit, ascii)) if text_pieces(text, unit, ascii).some else NEVER
