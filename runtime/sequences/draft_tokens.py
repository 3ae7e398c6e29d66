"""A draft: tokens that a text may go on with.

They are computed after it in one step, and kept if the sampler chooses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sgl.grammars import Matcher


class DraftSource(NamedTuple):
    """The drafter of a token, for what is learned of such tokens.

    length: of the text after which it was seen, in classes.
    """

    drafter: str
    length: int = 0


Kind = tuple[DraftSource, bool]
ONWARD = DraftSource("onward")  # of what a draft goes on with


@dataclass(slots=True)
class DraftTokens:
    """tokens: in order.  matchers: the grammar after each of them; empty without a grammar.

    choices: what the sampler has to choose for each of them: the token, or another that a jump of the grammar rewrites
        to it, or None where the jump puts it there unasked. Empty: the tokens.
    joints: places of tokens that are another draft than what is before them.
    """

    tokens: list[int]
    source: DraftSource
    matchers: list[Matcher] = field(default_factory=list)
    choices: list[int | None] = field(default_factory=list)
    joints: list[int] = field(default_factory=list)

    def cut(self, length: int) -> DraftTokens:
        """Its first `length` tokens."""
        return DraftTokens(
            self.tokens[:length], self.source, self.matchers[:length], self.choices[:length], self.joints
        )

    def expects(self, place: int) -> int | None:
        """What is to be chosen for one of its tokens; None: nothing, or there is no such token."""
        return (self.choices or self.tokens)[place] if place < len(self.tokens) else None

    def guessed(self, count: int) -> int:
        """How many of its first tokens are draft tokens."""
        return sum(choice is not None for choice in self.choices[:count]) if self.choices else count

    def kinds(self) -> list[Kind | None]:
        """Of each token its drafter, and whether it goes on with the draft before it; None for one not drafted."""
        found: list[Kind | None] = []
        source, later, joints = self.source, False, set(self.joints)
        for place, choice in enumerate(self.choices or self.tokens):
            if place in joints:
                source, later = ONWARD, False
            found.append(None if choice is None else (source, later))
            later = later or choice is not None
        return found

    def agrees(self, text: list[int]) -> int:
        """How many of its tokens a text begins with."""
        most = min(len(self.tokens), len(text))
        return next((count for count in range(most) if self.tokens[count] != text[count]), most)
