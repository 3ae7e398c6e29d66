"""The exceptions of the grammars floor: one small tree, all of them `ValueError`s that name value and place."""

from __future__ import annotations


class GrammarError(ValueError):
    """Base class of all errors of grammars."""


class InvalidGrammarError(GrammarError):
    """The regex, schema or list of choices is not well formed.

    Attributes:
        what: the defect, with the offending value.
        where: a JSON pointer (schemas) or a position (regexes); may be empty.
    """

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{what} (at {where})" if where else what)
        self.what = what
        self.where = where


class UnsupportedGrammarError(GrammarError):
    """A construct that cannot be enforced and is therefore refused.

    Attributes:
        keyword: the construct or schema keyword.
        where: a JSON pointer (schemas) or a position (regexes).
        hint: what can be done about it, or nothing.
    """

    def __init__(self, keyword: str, where: str, hint: str = "") -> None:
        text = f"{keyword} is not supported (at {where})"
        super().__init__(f"{text}; {hint}" if hint else text)
        self.keyword = keyword
        self.where = where
        self.hint = hint


class GrammarLimitError(GrammarError):
    """A grammar needed more states or threads than the limit allows."""


class AutomatonFullError(GrammarLimitError):
    """An automaton that many texts share holds too much; one text may go on in a fresh automaton."""
