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
    """tokens: in order.  matchers: the grammar behind each of them; empty without a grammar."""

    tokens: list[int]
    source: Source
    matchers: list[Matcher] = field(default_factory=list)

    def cut(self, length: int) -> Draft:
        """Its first `length` tokens."""
        return Draft(self.tokens[:length], self.source, self.matchers[:length])

    def agreed(self, chosen: list[int]) -> int:
        """How many of its tokens are those that were chosen, from the first on."""
        most = min(len(self.tokens), len(chosen))
        return next((count for count in range(most) if self.tokens[count] != chosen[count]), most)
