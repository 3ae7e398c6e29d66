"""A text's place in an automaton that many texts share, and which it leaves for a fresh one when others crowd it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.automaton.python_automaton_core import DEAD
from sgl.grammars.errors import AutomatonFullError

ENDED = -1
T = TypeVar("T")


def taken(automaton: Automaton, state: int, token: int) -> int | None:
    """The state after a token; ENDED where it ends the text, None where it may not come."""
    if state == ENDED:
        return None
    if token not in automaton.vocabulary.eos_ids:
        target = automaton.move(state, token)
    elif (target := automaton.named(state, token)) == DEAD and automaton.final(state):
        return ENDED
    return None if target == DEAD else target


class AutomatonCursor:
    """The states after each token, and the tokens, which lead to the same place of another automaton."""

    __slots__ = ("_automaton", "_ended", "_forced", "_masks", "_moves", "_states", "_tokens")

    def __init__(self, automaton: Automaton) -> None:
        self._tokens: list[int] = []
        self._settle(automaton, [automaton.start])

    def _settle(self, automaton: Automaton, states: list[int]) -> None:
        self._automaton = automaton
        self._masks = automaton.masks
        self._moves = automaton.moves
        self._forced = automaton.known_forced
        self._ended = automaton.known_ended
        self._states = states

    def _with_room(self, work: Callable[[Automaton], T]) -> T:
        try:
            return work(self._automaton)
        except AutomatonFullError:
            if not self._moved():
                raise
            return work(self._automaton)

    def _moved(self) -> bool:
        """Go to the same place of a fresh automaton; False where there is none."""
        fresh = self._automaton.successor()
        if fresh is None:
            return False
        states = [fresh.start]
        for token in self._tokens:
            target = taken(fresh, states[-1], token)
            states.append(DEAD if target is None else target)
        self._settle(fresh, states)
        return True
