"""Jumps of grammars that were found before: the same last tokens in the same automaton states lead to the same jump."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from .jump_forward import MIN_BYTES, WINDOW, JumpForward, JumpForwardEdit

if TYPE_CHECKING:
    from sgl.grammars import Matcher
    from sgl.grammars.automaton.grammar_automaton import Automaton

MOST = 1024  # of an automaton, of some kilobytes each

Last = tuple[tuple[int, ...], tuple[int, ...]]  # tokens, and states: see `Matcher.last`


class CachedJump(NamedTuple):
    """A jump that nothing limited, and the states after each of its tokens."""

    jump: JumpForwardEdit
    states: tuple[int, ...]


class JumpCache:
    """`JumpForward`, for the matchers of automata; thread-safe."""

    def __init__(self, jumps: JumpForward) -> None:
        self._jumps = jumps
        self._made: WeakKeyDictionary[Automaton, dict[Last, CachedJump | None]] = WeakKeyDictionary()

    def jump(self, matcher: Matcher, output_ids: Sequence[int], limit: int | None = None) -> JumpForwardEdit | None:
        """As `JumpForward.jump`."""
        if len(matcher.forced()) < MIN_BYTES:
            return None
        automaton, last = matcher.automaton, matcher.last(WINDOW)
        known = self._made.setdefault(automaton, {})
        if last not in known:
            moved = matcher.copy()
            jump = self._jumps.jump(moved, output_ids)
            if moved.automaton is not automaton:  # the search went on in another one, with other states
                return self._jumps.jump(matcher, output_ids, limit)
            if len(known) >= MOST:
                known = self._made[automaton] = {}  # who reads the full one, on another thread, goes on with it
            known[last] = None if jump is None else CachedJump(jump, moved.last(len(jump.token_ids))[1][1:])
        if (made := known[last]) is None:
            return None
        drop, tokens = made.jump.drop, made.jump.token_ids
        if limit is not None and len(output_ids) - drop + len(tokens) > limit:
            return self._jumps.jump(matcher, output_ids, limit)
        matcher.replace(drop, tokens, made.states)
        return made.jump
