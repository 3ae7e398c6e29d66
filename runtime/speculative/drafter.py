"""What drafts: the protocol, and what a grammar leaves of a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sgl.grammars.automaton.automaton import GUESSED

from ..sequences.draft import Draft

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..sequences.decoding import Decoding
    from ..sequences.ops import Generate
    from ..sequences.sequence import SequenceState


BUILT = 8 << 20  # bytes of an automaton, beyond which guesses add nothing to it


class Drafter(Protocol):
    """Called on the scheduler thread only."""

    def propose(self, seq: SequenceState, op: Generate, most: int) -> Draft | None:
        """Up to `most` tokens, which need not be what the grammar allows; None: no idea."""
        ...

    def learn(self, seq: SequenceState, decoding: Decoding) -> None:
        """A generation ended: the tokens of `seq` from `decoding.prompt_tokens` on are its text."""
        ...

    def forget(self) -> None:
        """Drop what was learned of finished texts."""
        ...


def legal(draft: Draft, matcher: Matcher | None) -> Draft | None:
    """Its longest part that the grammar allows, and does not end within; None: not even its first token."""
    if matcher is None:
        return draft
    matchers, state, builds = [], matcher, may_build(matcher)
    for token in draft.tokens:
        state = state.copy()
        if not follow(state, token, builds) or state.finished or not (builds or state.known_mask() is not None):
            break
        matchers.append(state)
    return Draft(draft.tokens[: len(matchers)], draft.source, matchers) if matchers else None


def may_build(matcher: Matcher) -> bool:
    """Whether guesses may add states to the automaton, which all its texts share: while there are few of them.

    The automaton has room for as many on top of its limit, so that no text fails for want of what was guessed.
    """
    automaton = matcher.automaton
    return automaton.core.size() < automaton.limit // GUESSED and automaton.core.memory() < BUILT


def follow(matcher: Matcher, token: int, builds: bool) -> bool:
    """Move the matcher over a guess; False, and no move, where the token is not allowed, or would add to the automaton and may not."""
    return (builds or (matcher.state, token) in matcher.automaton.moves) and matcher.accept(token)
