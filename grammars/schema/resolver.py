"""From places in a schema to shapes: references, and the applicators that combine schemas in place."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from sgl.grammars.schema.document import Document, SchemaOptions, child
from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.instances import Judge
from sgl.grammars.schema.keywords import KeywordReader, Schema, check_keywords, where
from sgl.grammars.schema.negation import complement
from sgl.grammars.schema.shapes import ANYTHING, NOWHERE, Layer, Objects, Shape, Where

MOST_ALTERNATIVES = 256
Shapes = list[Shape]


class Resolver:
    """Alternatives of what a set of places allows; each place is worked out once."""

    def __init__(self, document: Document, options: SchemaOptions) -> None:
        self._document = document
        self._reader = KeywordReader(options)
        self._judge = Judge(self.shapes)
        self._known: dict[str, Shapes] = {}
        self._active: list[str] = []
        self._negations: dict[str, Where] = {}

    def shapes(self, places: Where) -> Shapes:
        """The alternatives that satisfy all places."""
        found = [ANYTHING]
        for place in places:
            found = self._meet(found, self._of(place), place)
        return found

    def admits(self, value: Any, shape: Shape) -> bool:
        return self._judge.fits(value, shape)

    def _of(self, place: str) -> Shapes:
        if place in self._known:
            return self._known[place]
        if place in self._active:
            raise InvalidGrammarError("$ref leads back to itself without a value in between", place)
        self._active.append(place)
        try:
            if place in self._negations:
                found = self._outside([self.shapes(self._negations[place])], place)
            else:
                found = self._read(self._document.value(place), place)
            self._known[place] = found
        finally:
            self._active.pop()
        return found

    def _read(self, schema: Any, place: str) -> Shapes:
        places = where(schema, place)
        if not places or places == NOWHERE:
            return [] if places else [ANYTHING]
        check_keywords(schema, place)
        if "$ref" in schema and self._document.legacy:
            return self._reference(schema, place)
        found = [self._reader.shape(schema, place)]
        for keyword, read in (
            ("$ref", self._reference),
            ("allOf", self._all),
            ("anyOf", self._any),
            ("oneOf", self._one),
        ):
            if keyword in schema:
                found = self._meet(found, read(schema, place), place)
        for alternatives in self._dependencies(schema, place):
            found = self._meet(found, alternatives, place)
        if "not" in schema:
            found = self._meet(found, self._not(schema, place), place)
        if "if" in schema:
            found = self._meet(found, self._conditional(schema, place), place)
        return found

    def _meet(self, left: Shapes, right: Shapes, place: str) -> Shapes:
        if len(left) == 1 and left[0] is ANYTHING:
            return right
        if len(right) == 1 and right[0] is ANYTHING:
            return left
        found = [m for a in left for b in right if not (m := a.meet(b)).hollow()]
        if len(found) > MOST_ALTERNATIVES:
            raise UnsupportedGrammarError(
                "anyOf", place, f"combining it with its neighbours gives {len(found)} alternatives"
            )
        return found

    def _reference(self, schema: Schema, place: str) -> Shapes:
        return self._of(self._document.resolve(schema["$ref"], place))

    def _branches(self, schema: Schema, keyword: str, place: str) -> list[Shapes]:
        listed = schema[keyword]
        if not isinstance(listed, list) or not listed:
            raise InvalidGrammarError(f"{keyword} must be a list of schemas, not {listed!r}", child(place, keyword))
        return [self._of(child(place, keyword, i)) for i in range(len(listed))]

    def _all(self, schema: Schema, place: str) -> Shapes:
        found = [ANYTHING]
        for branch in self._branches(schema, "allOf", place):
            found = self._meet(found, branch, place)
        return found

    def _any(self, schema: Schema, place: str) -> Shapes:
        return [shape for branch in self._branches(schema, "anyOf", place) for shape in branch]

    def _one(self, schema: Schema, place: str) -> Shapes:
        """The branches as they are where they are disjoint; else each without all the others."""
        branches = self._branches(schema, "oneOf", place)
        siblings = [self._reader.shape(schema, place)]
        overlapping = [pair for pair in combinations(range(len(branches)), 2) if self._overlap(siblings, branches, pair, place)]
        if not overlapping:
            return [shape for branch in branches for shape in branch]
        found: Shapes = []
        for i, branch in enumerate(branches):
            rivals = [branches[j] for j in range(len(branches)) if (i, j) in overlapping or (j, i) in overlapping]
            found += self._meet(branch, self._outside_of_rivals(rivals, overlapping[0], place), place)
        return found

    def _overlap(self, siblings: Shapes, branches: list[Shapes], pair: tuple[int, int], place: str) -> bool:
        common = self._meet(self._meet(siblings, branches[pair[0]], place), branches[pair[1]], place)
        return any(not self._judge.empty(shape) for shape in common)

    def _outside_of_rivals(self, rivals: list[Shapes], pair: tuple[int, int], place: str) -> Shapes:
        try:
            return self._outside(rivals, place)
        except UnsupportedGrammarError as error:
            hint = f"its branches {pair[0]} and {pair[1]} overlap, or cannot be told apart; use anyOf"
            raise UnsupportedGrammarError("oneOf", place, hint) from error

    def _outside(self, branches: list[Shapes], place: str) -> Shapes:
        """What no branch allows."""
        found = [ANYTHING]
        for branch in branches:
            for shape in branch:
                met = self._meet(found, complement(shape, self._negated, place), place)
                found = [s for s in met if not self._judge.empty(s)]
        return found

    def _negated(self, places: Where) -> Where:
        name = f"not({' and '.join(places)})"
        self._negations[name] = places
        return (name,)

    def _member(self, schema: Schema, place: str, keyword: str) -> Shapes:
        where(schema[keyword], child(place, keyword))
        return self._of(child(place, keyword))

    def _not(self, schema: Schema, place: str) -> Shapes:
        inner = schema["not"]
        if isinstance(inner, dict) and inner.keys() == {"not"}:
            return self._member(inner, child(place, "not"), "not")
        return self._outside([self._member(schema, place, "not")], place)

    def _conditional(self, schema: Schema, place: str) -> Shapes:
        condition = self._member(schema, place, "if")
        then = self._member(schema, place, "then") if "then" in schema else [ANYTHING]
        other = self._member(schema, place, "else") if "else" in schema else [ANYTHING]
        if then == other == [ANYTHING]:
            return then
        return self._meet(condition, then, place) + self._meet(self._outside([condition], place), other, place)

    def _dependencies(self, schema: Schema, place: str) -> Iterable[Shapes]:
        """Each dependency as two alternatives: without the member, or with it and what it asks for."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            listed = schema.get(keyword, {})
            if not isinstance(listed, dict):
                raise InvalidGrammarError(f"{keyword} must be an object, not {listed!r}", child(place, keyword))
            for name, asked in listed.items():
                absent = Shape(objects=Objects((Layer({name: NOWHERE}),)))
                if isinstance(asked, list):
                    present = [Shape(objects=Objects((), (name, *asked)))]
                else:
                    asked_shapes = self._of(child(place, keyword, name))
                    present = self._meet([Shape(objects=Objects((), (name,)))], asked_shapes, place)
                yield [absent, *present]
