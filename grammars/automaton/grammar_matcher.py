"""A position in a text that a grammar constrains: masks, tokens accepted, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

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


class Matcher(AutomatonCursor):
    """Matches one text against a grammar. Cheap to create and copy; do not share one between threads.

    `accept` and `rollback` move it; the other methods only read. Where the automaton is crowded by other texts, this
    one goes on in a fresh one: a limit is reached by a text alone.
    """

    __slots__ = ()

    def mask(self) -> np.ndarray:
        """Return the mask, int32 [ceil(V / 32)], read-only: bit i % 32 of word i // 32 is set if token i may come next.

        Calls in the same state return the same object while it is cached. After the end only end-of-sequence
        tokens are allowed.
        """
        state = self._states[-1]
        row = self._masks.young.get(state)
        if row is None:
            row = self._with_room(lambda automaton: automaton.mask(self._states[-1]))
        return row

    def known_mask(self) -> np.ndarray | None:
        """The mask if it is remembered."""
        return self._masks.young.get(self._states[-1])

    def accept(self, token_id: int) -> bool:
        """Accept a token. Returns False and changes nothing if it is not allowed here."""
        state = self._states[-1]
        target = self._moves.get((state, token_id))
        if target is None:
            target = self._with_room(lambda automaton: taken(automaton, self._states[-1], token_id))
            if target is None:
                return False
        elif target == DEAD:
            return False
        self._states.append(target)
        self._tokens.append(token_id)
        return True

    @property
    def automaton(self) -> Automaton:
        return self._automaton

    @property
    def state(self) -> int:
        """Of the automaton; below zero after the end."""
        return self._states[-1]

    def trail(self, most: int) -> tuple[list[int], list[int]]:
        """The first `most` tokens, and the states in which they came, of the automaton."""
        tokens = self._tokens[:most]
        return tokens, self._states[: len(tokens)]

    def last(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The last `count` tokens, or all, and the automaton's states before the first of them and after each."""
        tokens = tuple(self._tokens[-count:]) if count else ()
        return tokens, tuple(self._states[-1 - len(tokens) :])

    def replace(self, count: int, tokens: Sequence[int], states: Sequence[int]) -> None:
        """Put tokens in the place of the last `count`.

        states: those of the automaton after each token; the caller knows that the tokens lead there.
        """
        self.rollback(count)
        self._tokens += tokens
        self._states += states

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            ValueError: fewer tokens were accepted.
        """
        if not 0 <= count < len(self._states):
            raise ValueError(f"cannot roll back {count} tokens; only {len(self._states) - 1} were accepted")
        if count:
            del self._states[-count:]
            del self._tokens[-count:]

    def copy(self) -> Matcher:
        """Return an independent matcher at the same position."""
        duplicate = Matcher.__new__(Matcher)
        duplicate._tokens = self._tokens.copy()
        duplicate._settle(self._automaton, self._states.copy())
        return duplicate

    def forced(self) -> bytes:
        """Return the bytes that must come next, at most 1024 at a time."""
        state = self._states[-1]
        found = b"" if state == ENDED else self._forced.get(state)
        return self._with_room(lambda automaton: automaton.forced(self._states[-1])) if found is None else found

    @property
    def can_end(self) -> bool:
        """True if the text so far is complete."""
        state = self._states[-1]
        return state == ENDED or self._automaton.final(state)

    @property
    def finished(self) -> bool:
        """True if only an end-of-sequence token may come next, or one was accepted."""
        state = self._states[-1]
        found = True if state == ENDED else self._ended.get(state)
        return self._with_room(lambda automaton: automaton.ended(self._states[-1])) if found is None else found

    @property
    def accepted(self) -> int:
        """The number of tokens accepted and not rolled back."""
        return len(self._states) - 1

    def shortest_end(self) -> bytes:
        """Return a shortest completion of this text; empty if `can_end`. Raises GrammarLimitError if it is far too
        long.
        """
        state = self._states[-1]
        return b"" if state == ENDED else self._with_room(lambda automaton: automaton.shortest_end(self._states[-1]))
