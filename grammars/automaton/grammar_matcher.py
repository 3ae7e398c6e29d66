"""A position in a text that a grammar constrains: masks, tokens accepted, and the way back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sgl.grammars.automaton.automaton_cursor import ENDED, AutomatonCursor, taken
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.automaton.python_automaton_core import DEAD


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
        """The last `count` tokens, or all, and the automaton's states before the
        first of them and after each.
        """
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
        """Return a shortest completion of this text; empty if `can_end`. Raises
        GrammarLimitError if it is far too long.
        """
        state = self._states[-1]
        return b"" if state == ENDED else self._with_room(lambda automaton: automaton.shortest_end(self._states[-1]))
