"""What drafts: the protocol, and what a grammar leaves of a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..sequences.draft import Draft

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..sequences.decoding import Decoding
    from ..sequences.ops import Generate
    from ..sequences.sequence import SequenceState


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
    matchers, state = [], matcher
    for token in draft.tokens:
        state = state.copy()
        if not state.accept(token) or state.finished:
            break
        matchers.append(state)
    return Draft(draft.tokens[: len(matchers)], draft.source, matchers) if matchers else None
