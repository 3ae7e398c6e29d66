"""Formats of tokens themselves, whatever their bytes; the token that ends the nearest tag around them is none of the
free ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sgl.grammars.algebra.expr import Expr, alt, optional, repeat, seq
from sgl.grammars.errors import InvalidGrammarError
from sgl.grammars.schema.schema_document import child
from sgl.grammars.structural.located_errors import count_at, placed
from sgl.grammars.structural.structural_tags import rule
from sgl.grammars.tokens.vocabulary import Vocabulary


class TokenFormats:
    """Those of one specification.

    Attributes:
        terminals: the tokens that the specification speaks of.
    """

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        from sgl.grammars.ebnf import SpecialTokenTerminals
        from sgl.grammars.ebnf.grammar_source import GrammarText

        self.terminals = SpecialTokenTerminals(vocabulary)
        self._nowhere = GrammarText("")  # tokens stand in no text
        self._ending: tuple[str, ...] = ()

    @contextmanager
    def ended_by(self, token: Any, place: str) -> Iterator[None]:
        """What is read meanwhile stands in a tag that ends with a token, or with text (None)."""
        before, self._ending = self._ending, () if token is None else (_written(token, place),)
        try:
            yield
        finally:
            self._ending = before

    def token(self, value: Any, place: str) -> Expr:
        text = _written(value, place)
        return placed(place, lambda: self.terminals.expr(self._nowhere, text, 0))

    def free(self, excluded: Sequence[Any], place: str, opening: Sequence[str] = ()) -> Expr:
        """One token but those that are excluded, that open something, or that end the tag around it."""
        texts = [_written(value, child(place, i)) for i, value in enumerate(excluded)]
        return placed(
            place, lambda: self.terminals.any_token_except(self._nowhere, [*texts, *opening, *self._ending], 0)
        )

    def any_tokens(self, fields: Mapping[str, Any], place: str) -> Expr:
        most = fields["max_tokens"]
        if most is not None and (type(most) is not int or most < 0):
            raise InvalidGrammarError(f"max_tokens must be a count of tokens, not {most!r}", child(place, "max_tokens"))
        return repeat(
            self.free(fields["exclude_tokens"], child(place, "exclude_tokens")),
            0,
            count_at(most, child(place, "max_tokens")),
        )

    def triggered(self, fields: Mapping[str, Any], begins: Sequence[Any], rests: Sequence[Expr], place: str) -> Expr:
        """Free tokens in which a trigger opens one of the tags that begin with it; a required tag comes first of
        all."""
        triggers = [
            self._id(value, child(place, "trigger_tokens", i)) for i, value in enumerate(fields["trigger_tokens"])
        ]
        found = [self._id(value, child(place, "tags", i, "begin", "token")) for i, value in enumerate(begins)]
        _check_triggers(fields["trigger_tokens"], triggers, begins, found, place)
        opened = alt(*(self._opened(begin, rest, place) for begin, rest in zip(begins, rests, strict=True)))
        free = self._free_in(fields, begins, place)
        if fields["at_least_one"]:
            return opened if fields["stop_after_first"] else seq(opened, repeat(alt(free, opened)))
        return _dispatched(free, opened, loop=not fields["stop_after_first"])

    def dispatch(self, fields: Mapping[str, Any], rules: Sequence[tuple[Any, Expr]], place: str) -> Expr:
        """Free tokens, in which some are followed by a format each."""
        opened = alt(
            *(self._opened(token, content, child(place, "rules", i)) for i, (token, content) in enumerate(rules))
        )
        return _dispatched(self._free_in(fields, [token for token, _ in rules], place), opened, loop=fields["loop"])

    def _free_in(self, fields: Mapping[str, Any], opening: Sequence[Any], place: str) -> Expr:
        return self.free(
            fields["exclude_tokens"], child(place, "exclude_tokens"), [_written(value, place) for value in opening]
        )

    def _opened(self, token: Any, rest: Expr, place: str) -> Expr:
        return seq(self.token(token, place), rule(f"after token {token}", rest))

    def _id(self, value: Any, place: str) -> frozenset[int]:
        return placed(place, lambda: self.terminals.ids(self._nowhere, _written(value, place), 0))


def _dispatched(free: Expr, opened: Expr, *, loop: bool) -> Expr:
    return repeat(alt(free, opened)) if loop else seq(repeat(free), optional(opened))


def _check_triggers(
    triggers: Sequence[Any],
    opening: Sequence[frozenset[int]],
    begins: Sequence[Any],
    found: Sequence[frozenset[int]],
    place: str,
) -> None:
    """Each trigger opens a tag, and each tag has a trigger."""
    for i, ids in enumerate(found):
        if ids not in opening:
            raise InvalidGrammarError(
                f"token {begins[i]!r} is none of the trigger_tokens", child(place, "tags", i, "begin")
            )
    for i, ids in enumerate(opening):
        if ids not in found:
            raise InvalidGrammarError(
                f"no tag begins with the token {triggers[i]!r}", child(place, "trigger_tokens", i)
            )


def _written(value: Any, place: str) -> str:
    """A token's number or text as `SpecialTokenTerminals` reads it."""
    if type(value) is int and value >= 0:
        return f"<[{value}]>"
    if not isinstance(value, str):
        raise InvalidGrammarError(f"expected a token's number or text, not {value!r}", place)
    return value
