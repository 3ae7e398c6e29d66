"""From places in a schema to shapes: references, and the applicators that combine schemas in place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from sgl.grammars.errors import GrammarLimitError, InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.closed_objects import close_objects, joined, quiet_contains, quieted
from sgl.grammars.schema.distinct_alternatives import distinct, merged, repeated
from sgl.grammars.schema.instance_validator import InstanceValidator
from sgl.grammars.schema.keyword_reader import APPLICATORS, KeywordReader, Schema, check_keywords, check_names, where
from sgl.grammars.schema.schema_document import EndlessReference, SchemaDocument, SchemaOptions, child
from sgl.grammars.schema.schema_negation import complement
from sgl.grammars.schema.schema_shapes import (
    ANYTHING,
    NOWHERE,
    NameSet,
    ObjectShape,
    PropertyLayer,
    SchemaShape,
    Where,
    both,
    same,
)
from sgl.grammars.schema.string_formats import generated
from sgl.grammars.schema.unevaluated_keywords import close_items, close_members, speaks

MOST_ALTERNATIVES = 256
_MOST_TOGETHER = 5
_MOST_COMPARED = 6000  # alternatives of a schema that are looked through for those that say the same
_MOST_RIVALS = 400  # branches of oneOf, each pair of which is compared
_FEW_RIVALS = 16  # the same where the work is limited
_MOST_BRANCHES = 2048  # that are not multiplied with others
_MOST_NESTED = 40  # places that are worked out within each other
Shapes = list[SchemaShape]


class _DeeperError(Exception):
    """A place is below so many others in work that it must be known before them."""

    def __init__(self, place: str, above: list[str]) -> None:
        super().__init__(place)
        self.place, self.above = place, list(above)


class SchemaResolver:
    """Alternatives of what a set of places allows; each place is worked out once.

    most_work: pairs of alternatives that are combined, beyond which GrammarLimitError is raised; None for no limit.
    With a limit a oneOf of many branches is read as an anyOf.
    """

    def __init__(self, document: SchemaDocument, options: SchemaOptions, most_work: int | None = None) -> None:
        self._left = float("inf") if most_work is None else most_work
        self._document = document
        self._reader = KeywordReader(options)
        self._judge = InstanceValidator(self.shapes)
        self._maker = InstanceValidator(self.written, generated)
        self._closing = not options.additional_properties
        self._compared = 0
        self._known: dict[str, Shapes] = {}
        self._active: list[str] = []  # the places that are being worked out, each for the one before it
        self._floor = 0
        self._negations: dict[str, tuple[Where, str]] = {}
        self._choices: dict[str, tuple[Where, ...]] = {}
        self._quiets: dict[str, Where] = {}

    def shapes(self, places: Where) -> Shapes:
        """The alternatives that satisfy all places."""
        found = [ANYTHING]
        for place in places:
            found = self._meet(found, self._of(place), place)
        return found

    def written(self, places: Where) -> Shapes:
        """The alternatives that are written: of a value that satisfies all places, with its object closed where objects
        are.
        """
        found = self.shapes(places)
        return [close_objects(shape) for shape in found] if self._closing else found

    def admits(self, value: Any, shape: SchemaShape) -> bool:
        """Whether a value surely fits, so that it may be written."""
        return self._maker.fits(value, shape)

    def in_names(self, name: str, names: NameSet) -> bool:
        """Whether a name is in a set of names."""
        return self._judge.names(name, names)

    def disjoint(self, left: Where, right: Where) -> bool:
        """Whether certainly no value satisfies both."""
        return all(self._judge.empty(shape) for shape in self.shapes(both(left, right)))

    def finite(self, places: Where) -> list[Any] | None:
        """All values that satisfy the places, each once; None where they are not few, or not easily found."""
        found: list[Any] = []
        for shape in self.written(places):
            values = self._maker.few(shape)
            if values is None:
                return None
            for value in values:
                if not any(same(value, other) for other in found):
                    found.append(value)
        return found

    def _of(self, place: str) -> Shapes:
        if place in self._known:
            return self._known[place]
        if place in self._active:
            raise EndlessReference("$ref leads back to itself without a value in between", place)
        if not self._active:
            return self._in_stretches(place)
        if len(self._active) - self._floor >= _MOST_NESTED:
            raise _DeeperError(place, self._active)
        return self._worked_out(place)

    def _in_stretches(self, place: str) -> Shapes:
        """Places that are too deep are worked out first, then again what needs them, so that no chain is too long."""
        waiting: list[tuple[str, list[str]]] = [(place, [])]
        try:
            while waiting:
                wanted, self._active = waiting[-1][0], list(waiting[-1][1])
                self._floor = len(self._active)
                try:
                    self._worked_out(wanted)
                    waiting.pop()
                except _DeeperError as deeper:
                    waiting.append((deeper.place, deeper.above))
        finally:
            self._active, self._floor = [], 0
        return self._known[place]

    def _worked_out(self, place: str) -> Shapes:
        self._active.append(place)
        try:
            if place in self._negations:
                places, keyword = self._negations[place]
                found = self._outside([self.shapes(places)], place, keyword)
            elif place in self._choices:
                found = [shape for places in self._choices[place] for shape in self.shapes(places)]
            elif place in self._quiets:
                found = [quieted(shape, self._quiet) for shape in self.shapes(self._quiets[place])]
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
        found = [self._listed(self._own(schema, place))]
        if APPLICATORS.isdisjoint(schema):
            return found
        for keyword, read in (
            ("$ref", self._reference),
            ("$dynamicRef", self._dynamic),
            ("$recursiveRef", self._dynamic),
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
        return self._evaluated(found, schema, place)

    def _own(self, schema: Schema, place: str) -> SchemaShape:
        """What the keywords of a schema allow that speak of the value itself."""
        shape = self._reader.shape(schema, place)
        if not self._closing or shape.arrays is None or not shape.arrays.contains:
            return shape
        return replace(shape, arrays=quiet_contains(shape.arrays, self._quiet))

    def _listed(self, shape: SchemaShape) -> SchemaShape:
        """Scalar values are judged at once, so that nothing else need be said of them."""
        if shape.values is None or any(isinstance(v, list | dict) for v in shape.values):
            return shape
        if shape.strings and any(generated(language) is not language for language in shape.strings.languages):
            return shape
        unlisted = replace(shape, values=None)
        return SchemaShape(values=tuple(v for v in shape.listed() if self._judge.fits(v, unlisted)))

    def _evaluated(self, found: Shapes, schema: Schema, place: str) -> Shapes:
        """What was not spoken of satisfies `unevaluatedProperties` and `unevaluatedItems`."""
        if "unevaluatedProperties" in schema:
            rest = where(schema["unevaluatedProperties"], child(place, "unevaluatedProperties"))
            found = [close_members(shape, rest) for shape in found]
        if "unevaluatedItems" in schema:
            rest = where(schema["unevaluatedItems"], child(place, "unevaluatedItems"))
            found = [close_items(shape, rest, self._either, self._document.draft_2019) for shape in found]
        return found

    def _either(self, choices: tuple[Where, ...]) -> Where:
        """The place of what satisfies one of some sets of places."""
        if () in choices:
            return ()
        name = f"any({' or '.join(' and '.join(c) for c in choices)})"
        self._choices[self._document.define(name, None)] = choices
        return (name,)

    def _quiet(self, places: Where) -> Where:
        """The place of what satisfies some places, but closes no object."""
        if not places or places == NOWHERE:
            return places
        name = f"quiet({' and '.join(places)})"
        self._quiets[self._document.define(name, None)] = places
        return (name,)

    def _constant(self, value: Any) -> Where:
        """The place of a schema that allows one value."""
        return (self._document.define(f"const({json.dumps(value)})", {"const": value}),)

    def _meet(self, left: Shapes, right: Shapes, place: str) -> Shapes:
        self._left -= len(left) * len(right) + 1
        if self._left < 0:
            raise GrammarLimitError(f"the schema at {place} has too many alternatives to be worked out at once")
        if len(left) == 1 and left[0] is ANYTHING:
            return right
        if len(right) == 1 and right[0] is ANYTHING:
            return left
        found = [m for a in left for b in right if not (m := a.meet(b)).allows_nothing()]
        most = MOST_ALTERNATIVES if min(len(left), len(right)) > 1 else _MOST_BRANCHES
        self._compared += len(found) if len(found) > most else 0
        if len(found) > most and self._compared <= _MOST_COMPARED:
            found = [shape for shape in distinct(found) if not self._judge.empty(shape)]
        if len(found) > most:
            hint = f"combining it with its neighbours gives {len(found)} alternatives"
            raise UnsupportedGrammarError(self._combining(place), place, hint)
        return found

    def _combining(self, place: str) -> str:
        """The keyword of a place that makes alternatives."""
        if place in self._negations:
            return self._negations[place][1]
        schema = self._document.value(place) or {}
        return next((k for k in ("anyOf", "oneOf", "not", "if", *APPLICATORS) if k in schema), "anyOf")

    def _reference(self, schema: Schema, place: str) -> Shapes:
        return self._of(self._document.resolve(schema["$ref"], place))

    def _dynamic(self, schema: Schema, place: str) -> Shapes:
        found = [ANYTHING]
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                target = self._document.dynamic(keyword, schema[keyword], place)
                found = self._meet(found, self._of(target), place)
        return found

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
        branches = self._branches(schema, "anyOf", place)
        if self._document.asks_for_unevaluated:
            branches += self._together([b for b in branches if any(map(speaks, b))], place)
        elif self._closing:
            branches += joined(branches, schema.get("properties", ()), partial(self._meet_in_earnest, place=place))
        return merged([shape for branch in branches for shape in branch])

    def _together(self, branches: list[Shapes], place: str) -> list[Shapes]:
        """Two or more branches at once: what each of them speaks of counts as evaluated."""
        if len(branches) > _MOST_TOGETHER:
            raise UnsupportedGrammarError("anyOf", place, "it has too many branches next to an unevaluated keyword")
        found: list[Shapes] = []
        for count in range(2, len(branches) + 1):
            for chosen in combinations(branches, count):
                met = [ANYTHING]
                for branch in chosen:
                    met = self._meet(met, branch, place)
                found.append([shape for shape in met if not self._judge.empty(shape)])
        return found

    def _meet_in_earnest(self, left: Shapes, right: Shapes, place: str) -> Shapes:
        """Without alternatives that allow nothing."""
        return [shape for shape in self._meet(left, right, place) if not self._judge.empty(shape)]

    def _one(self, schema: Schema, place: str) -> Shapes:
        """The branches as they are where they are disjoint; else each without all the others."""
        branches = self._branches(schema, "oneOf", place)
        if all(shape.only_lists() for branch in branches for shape in branch) and not repeated(branches):
            return merged([shape for branch in branches for shape in branch])
        if self._left < float("inf") and len(branches) > _FEW_RIVALS:
            return [shape for branch in branches for shape in branch]
        if len(branches) > _MOST_RIVALS:
            raise UnsupportedGrammarError(
                "oneOf", place, f"{len(branches)} branches are more than {_MOST_RIVALS}; use anyOf"
            )
        siblings = [self._reader.shape(schema, place)]
        overlapping = [
            pair for pair in combinations(range(len(branches)), 2) if self._overlap(siblings, branches, pair, place)
        ]
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
            return self._outside(rivals, place, "oneOf")
        except UnsupportedGrammarError as error:
            hint = f"its branches {pair[0]} and {pair[1]} overlap, or cannot be distinguished; use anyOf"
            raise UnsupportedGrammarError("oneOf", place, hint) from error

    def _outside(self, branches: list[Shapes], place: str, keyword: str) -> Shapes:
        """What no branch allows."""
        found = [ANYTHING]
        for branch in branches:
            for shape in branch:
                negate = partial(self.negated, keyword=keyword)
                others = complement(shape, negate, self._constant, place, keyword)
                met = self._meet(found, others, place)
                found = [s for s in met if not self._judge.empty(s)]
        return found

    def negated(self, places: Where, keyword: str) -> Where:
        """The place of what does not satisfy some places."""
        name = f"not({' and '.join(places)})"
        self._negations[self._document.define(name, None)] = places, keyword
        return (name,)

    def _member(self, schema: Schema, place: str, keyword: str) -> Shapes:
        where(schema[keyword], child(place, keyword))
        return self._of(child(place, keyword))

    def _not(self, schema: Schema, place: str) -> Shapes:
        inner = schema["not"]
        if isinstance(inner, dict) and inner.keys() == {"not"}:
            return [shape.unspoken() for shape in self._member(inner, child(place, "not"), "not")]
        return self._outside([self._member(schema, place, "not")], place, "not")

    def _conditional(self, schema: Schema, place: str) -> Shapes:
        condition = self._member(schema, place, "if")
        then = self._member(schema, place, "then") if "then" in schema else [ANYTHING]
        other = self._member(schema, place, "else") if "else" in schema else [ANYTHING]
        if then == other == [ANYTHING] and not self._document.asks_for_unevaluated and not self._closing:
            return then
        holding = [quieted(shape, self._quiet) for shape in condition] if self._closing else condition
        return self._meet(holding, then, place) + self._meet(self._outside([condition], place, "if"), other, place)

    def _dependencies(self, schema: Schema, place: str) -> Iterable[Shapes]:
        """Each dependency as two alternatives: without the member, or with it and what it asks for."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            listed = schema.get(keyword, {})
            if not isinstance(listed, dict):
                raise InvalidGrammarError(f"{keyword} must be an object, not {listed!r}", child(place, keyword))
            for name, asked in listed.items():
                absent = SchemaShape(objects=ObjectShape((PropertyLayer({name: NOWHERE}, spoken=False),)))
                if isinstance(asked, list):
                    check_names(asked, keyword, place)
                    present = [SchemaShape(objects=ObjectShape((), (name, *asked)))]
                else:
                    asked_shapes = self._of(child(place, keyword, name))
                    present = self._meet([SchemaShape(objects=ObjectShape((), (name,)))], asked_shapes, place)
                yield [absent, *present]
