"""Pictures of a grammar's automaton, as SVG: small ones whole, large ones folded."""

from __future__ import annotations

from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.drawing.automaton_folding import pictures
from sgl.grammars.drawing.automaton_layout import arrange
from sgl.grammars.drawing.automaton_svg import render
from sgl.grammars.errors import UnsupportedGrammarError

MOST_BOXES = 60


def draw(automaton: Automaton, title: str = "", most: int = MOST_BOXES) -> str:
    """The automaton as the text of an SVG file.

    Args:
        automaton: see `Grammar.automaton`.
        title: a line above the picture.
        most: how many boxes a picture may have. A larger automaton is folded: one picture a rule, in which a
            called rule is one arrow and repeats have no counts. Characters in a row are one arrow everywhere.

    Raises:
        UnsupportedGrammarError: the grammar has tokens as terminals: arrows are of characters.
    """
    if automaton.names:
        raise UnsupportedGrammarError("a picture of a grammar with tokens as terminals", "the grammar")
    return render([(picture, arrange(picture)) for picture in pictures(automaton, most)], title)


__all__ = ["draw"]
