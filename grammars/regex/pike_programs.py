"""Ordered expressions as programs of a few instructions, as Pike's machine runs them (Cox 2009, "Regular Expression
Matching: the Virtual Machine Approach").

An instruction that is not a set of characters takes no text; of two ways on the first is preferred.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import (
    EMPTY,
    Alt,
    CharClass,
    Expr,
    LazyRepeat,
    Literal,
    LiteralSet,
    Lookaround,
    Repeat,
    Seq,
    alt,
)
from sgl.grammars.errors import GrammarLimitError, UnsupportedGrammarError

MOST_INSTRUCTIONS = 20_000


@dataclass
class LookaroundCondition:
    """A look-around: the program of what it looks for, and whether that may not be there."""

    program: PikeProgram
    ahead: bool
    negative: bool


@dataclass
class PikeProgram:
    """`sets[i]` is the set of characters of instruction i, `ways[i]` where else it leads, `looks[i]` its condition.

    A text matches where instruction `end` is reached. `rounds` has the instructions that end a round of a repeat
    without
    a bound, with those that begin it: a round that takes no text is the last one.
    """

    sets: list[CharSet | None] = field(default_factory=list)
    ways: list[tuple[int, ...]] = field(default_factory=list)
    looks: list[LookaroundCondition | None] = field(default_factory=list)
    rounds: dict[int, int] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def add(self, ways: tuple[int, ...], chars: CharSet | None = None, look: LookaroundCondition | None = None) -> int:
        if len(self.sets) >= MOST_INSTRUCTIONS:
            raise GrammarLimitError(f"a terminal with look-around needs more than {MOST_INSTRUCTIONS} instructions")
        self.sets.append(chars)
        self.ways.append(ways)
        self.looks.append(look)
        return len(self.sets) - 1


def program_of(expr: Expr, inner: bool = False) -> PikeProgram:
    """
    Args:
        expr: characters, literals, words, sequences, alternatives, repeats, lazy ones, and look-around.
        inner: the expression stands in a look-around.

    Raises:
        UnsupportedGrammarError: look-around in look-around.
    """
    program = PikeProgram()
    program.end = program.add(())
    program.start = _Writer(program, inner).write(expr, program.end)
    return program


class _Writer:
    def __init__(self, program: PikeProgram, inner: bool) -> None:
        self._program = program
        self._inner = inner

    def write(self, expr: Expr, after: int) -> int:
        """The instruction at which the expression begins, followed by `after`."""
        match expr:
            case CharClass(chars):
                return self._program.add((after,), chars)
            case Literal(data):
                for char in reversed(data.decode()):
                    after = self._program.add((after,), charset.single(char))
                return after
            case LiteralSet(literals):
                ordered = sorted(literals, key=len, reverse=True)
                return self.write(alt(*map(Literal, ordered)), after)
            case Seq(items):
                for item in reversed(items):
                    after = self.write(item, after)
                return after
            case Alt(items):
                return self._program.add(tuple(self.write(item, after) for item in items))
            case Repeat(item, least, most) | LazyRepeat(item, least, most):
                return self._repeat(item, least, most, isinstance(expr, LazyRepeat), after)
            case Lookaround(item, ahead, negative, position):
                return self._look(item, ahead, negative, position, after)
        raise TypeError(f"no text of characters: {type(expr).__name__}")

    def _repeat(self, item: Expr, least: int, most: int | None, lazy: bool, after: int) -> int:
        if item == EMPTY:
            return after
        if most is None:
            entry = self._program.add(())
            back = self._program.add((entry, after))
            self._program.rounds[back] = entry
            self._program.ways[entry] = self._ways(self.write(item, back), after, lazy)
            after = entry
        end = after
        for _ in range(0 if most is None else most - least):
            after = self._program.add(self._ways(self.write(item, after), end, lazy))
        for _ in range(least):
            after = self.write(item, after)
        return after

    def _ways(self, again: int, on: int, lazy: bool) -> tuple[int, int]:
        return (on, again) if lazy else (again, on)

    def _look(self, item: Expr, ahead: bool, negative: bool, position: int, after: int) -> int:
        if self._inner:
            raise UnsupportedGrammarError("look-around in look-around", f"position {position} of the regex")
        return self._program.add((after,), look=LookaroundCondition(program_of(item, inner=True), ahead, negative))
