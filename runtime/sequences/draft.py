"""A draft: tokens that a text may go on with. They are computed behind it in one step, and kept where the sampler chooses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sgl.grammars import Matcher


class Source(NamedTuple):
    """Whose guess it is, for what is learned of such guesses.  length: of the text behind which it was seen, in classes."""

    drafter: str
    length: int = 0


@dataclass(slots=True)
class Draft:
    """tokens: in order.  matchers: the grammar behind each of them; empty without a grammar.

    choices: what the sampler has to choose for each of them: the token, or another that a jump of the grammar rewrites to it, or None
    where the jump puts it there unasked. Empty: the tokens.
    """

    tokens: list[int]
    source: Source
    matchers: list[Matcher] = field(default_factory=list)
    choices: list[int | None] = field(default_factory=list)

    def cut(self, length: int) -> Draft:
        """Its first `length` tokens."""
        return Draft(self.tokens[:length], self.source, self.matchers[:length], self.choices[:length])

    def expects(self, place: int) -> int | None:
        """What is to be chosen for one of its tokens; None: nothing, or there is no such token."""
        return (self.choices or self.tokens)[place] if place < len(self.tokens) else None

    def guessed(self, count: int) -> int:
        """How many of its first tokens are guesses."""
        return sum(choice is not None for choice in self.choices[:count]) if self.choices else count

    def agrees(self, text: list[int]) -> int:
        """How many of its tokens a text begins with."""
        most = min(len(self.tokens), len(text))
        return next((count for count in range(most) if self.tokens[count] != text[count]), most)
