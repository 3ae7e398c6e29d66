"""What a grammar may ask of texts that are remembered as they are written."""

from __future__ import annotations

from sgl.grammars.errors import UnsupportedGrammarError


class TooManyDistinctError(UnsupportedGrammarError):
    """Items or names that must differ are not few enough to be listed; a grammar whose texts are remembered may have
    them.
    """
