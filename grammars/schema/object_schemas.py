"""The members of an object: declared names, then the free ones by the patterns that they match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import NEVER, CharClass, Expr, ListMember, Repeat, alt, seq
from sgl.grammars.algebra.language_operations import combine, matches, texts
from sgl.grammars.errors import GrammarLimitError, UnsupportedGrammarError
from sgl.grammars.schema.distinct_items_error import TooManyDistinctError
from sgl.grammars.schema.json_spelling import QUOTE, encode
from sgl.grammars.schema.scalar_schemas import sure, text_expr
from sgl.grammars.schema.schema_resolver import SchemaResolver
from sgl.grammars.schema.schema_shapes import NameSet, ObjectShape, StringShape, Where
from sgl.grammars.schema.string_formats import longest_format

_MOST_CLASSES = 64
_LONGEST_HOST = 40  # characters of a member's name that is a host name, for which there must be a whole automaton
_ANY_TEXT = Repeat(CharClass(charset.ANY), 0, None)
Class = tuple[tuple[Expr, ...], tuple[Expr, ...]]  # patterns that names match, and that they do not


class ObjectMemberWriter(Protocol):
    """How values and members are written."""

    def value(self, places: Where) -> Expr: ...
    def member(self, name: str, value: Expr) -> Expr: ...
    def named_member(self, key: Expr, value: Expr) -> Expr: ...
    def other_member(self, names: list[str], value: Expr, new: bool = False) -> Expr: ...
    def listed_members(
        self, parts: list[ListMember], extra: Expr, objects: ObjectShape, ordered: bool, unique: bool = False
    ) -> Expr: ...


class ObjectBuilder:
    """`marked`: the grammar's texts are remembered, and objects have the marks for that (`algebra/marks.py`)."""

    def __init__(self, resolver: SchemaResolver, forms: ObjectMemberWriter, any_order: bool, marked: bool) -> None:
        self._resolver, self._forms, self._any_order, self._marked = resolver, forms, any_order, marked

    def members(self, objects: ObjectShape) -> Expr:
        """All member lists of a shape; NEVER where there is none.

        Raises:
            UnsupportedGrammarError: free names would have to be counted, or their patterns distinguished.
        """
        if objects.some:
            return self._with_some(objects)
        parts = self._parts(objects)
        if parts is None:
            return NEVER
        free = _FreeNames(self._resolver, self._forms, objects)
        extra = free.any_member()
        counted = extra != NEVER and objects.least > len(objects.required) + 1
        if counted:
            extra = self._counted(objects, free)
        return self._forms.listed_members(parts, extra, objects, self._ordered(objects), counted)

    def _ordered(self, objects: ObjectShape) -> bool:
        """The schema gives an order to the names of one `properties`, not to those of several together."""
        declared = [set(layer.properties) for layer in objects.layers if layer.properties and not layer.closing]
        return not self._any_order and (not declared or set(objects.named()) in declared)

    def _parts(self, objects: ObjectShape) -> list[ListMember] | None:
        parts: list[ListMember] = []
        required = frozenset(objects.required)
        for name in objects.named():
            allowed = not objects.names or self._may_name(name, objects)
            value = self._forms.value(objects.member(name)) if allowed else NEVER
            needed = name in required
            if value == NEVER and needed:
                return None
            if value != NEVER:
                parts.append(ListMember(self._forms.member(name, value), needed))
        return parts

    def _may_name(self, name: str, objects: ObjectShape) -> bool:
        return all(
            any(self._resolver.admits(name, shape) for shape in self._resolver.shapes(places))
            for places in objects.names
        )

    def _counted(self, objects: ObjectShape, free: _FreeNames) -> Expr:
        """Free members that are counted: their names are remembered, as one that came twice would count twice."""
        if not free.any_name():
            raise UnsupportedGrammarError(
                objects.keyword, objects.place, "free names under patterns may repeat, so more than one is not counted"
            )
        if not self._marked:
            raise TooManyDistinctError(
                objects.keyword,
                objects.place,
                "free property names may repeat, so more than one is counted only in a schema that is the whole "
                "grammar",
            )
        return free.new_member()

    def _with_some(self, objects: ObjectShape) -> Expr:
        """A member with a name of some set: a declared one that is in it, or a free one."""
        wanted, *others = _independent(objects.some)
        rest = replace(objects, some=tuple(others))
        declared = [name for name in objects.named() if self._resolver.in_names(name, wanted)]
        found = [self.members(replace(rest, required=_joined(rest.required, name))) for name in declared]
        return alt(*found, self._with_free(rest, wanted))

    def _with_free(self, objects: ObjectShape, wanted: NameSet) -> Expr:
        free = _FreeNames(self._resolver, self._forms, objects)
        special = free.some_member(wanted)
        parts = self._parts(objects)
        if special == NEVER or parts is None:
            return NEVER
        if objects.some:
            raise UnsupportedGrammarError(
                wanted.keyword, objects.place, "two sets of free names cannot both be required"
            )
        if objects.least > len(objects.required) + 1:
            raise UnsupportedGrammarError(objects.keyword, objects.place, "free names are not counted")
        return self._forms.listed_members([*parts, ListMember(special, True)], free.any_member(), objects, False)


def _independent(sets: tuple[NameSet, ...]) -> list[NameSet]:
    """The sets that are within none of the others: a name of a smaller set is also one of the larger."""
    found: list[NameSet] = []
    for names in dict.fromkeys(sets):
        if not any(other.within(names) for other in found):
            found = [other for other in found if not names.within(other)] + [names]
    return found


def _joined(required: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*required, name)))


def _as_names(strings: StringShape) -> StringShape:
    """What names are generated from: names of a long format without a bound are short."""
    found = sure(strings)
    return replace(found, most=_LONGEST_HOST) if found.languages and found.most == longest_format("hostname") else found


class _FreeNames:
    """Members of names that are not declared, split into classes by the patterns that a name matches."""

    def __init__(self, resolver: SchemaResolver, forms: ObjectMemberWriter, objects: ObjectShape) -> None:
        self._resolver, self._forms, self._objects = resolver, forms, objects
        self._declared = objects.named()
        self._languages = [self._name_language(places) for places in objects.names]

    def any_member(self) -> Expr:
        patterns = list(dict.fromkeys(p for layer in self._objects.layers for p, _ in layer.patterns))
        if not patterns and not self._languages:
            value = self._value(())
            return value if value == NEVER else self._forms.other_member(self._declared, value)
        return alt(*(self._member(group, self._key(group)) for group in self._classes(patterns)))

    def any_name(self) -> bool:
        """Whether all names are allowed, and alike."""
        return not self._languages and not any(layer.patterns for layer in self._objects.layers)

    def new_member(self) -> Expr:
        """A member whose name no other free one has."""
        return self._forms.other_member(self._declared, self._value(()), new=True)

    def some_member(self, wanted: NameSet) -> Expr:
        """Members whose names are in a set of names."""
        patterns = list(dict.fromkeys(p for layer in self._objects.layers for p, _ in layer.patterns))
        listed = texts(n for n in wanted.listed if n not in self._declared)
        missed = (self._name_language(wanted.missed, lambda strings: strings),) if wanted.missed else ()
        unmatched = (*wanted.unmatched, *missed, *([listed] if listed != NEVER else []))
        found: list[Expr] = []
        for matched, others in self._classes(patterns):
            key = self._key(((*matched, *wanted.matched), (*others, *unmatched)))
            found.append(self._member((matched, others), key))
        return alt(*found)

    def _classes(self, patterns: list[Expr]) -> list[Class]:
        """The combinations of patterns that names can match, found pattern by pattern."""
        classes: list[Class] = [((), ())]
        for pattern in patterns:
            split = [c for ins, outs in classes for c in (((*ins, pattern), outs), (ins, (*outs, pattern)))]
            classes = [c for c in split if self._value(c[0]) == NEVER or self._language(c) != NEVER]
            if len(classes) > _MOST_CLASSES:
                raise UnsupportedGrammarError("patternProperties", self._objects.place, "too many patterns overlap")
        return classes

    def _member(self, group: Class, key: Expr) -> Expr:
        value = self._value(group[0])
        return NEVER if NEVER in (value, key) else self._forms.named_member(seq(QUOTE, encode(key), QUOTE), value)

    def _value(self, matched: tuple[Expr, ...]) -> Expr:
        places: Where = ()
        for layer in self._objects.layers:
            found = [where for pattern, where in layer.patterns if pattern in matched]
            places += sum(found, ()) if found else layer.additional
        return self._forms.value(tuple(dict.fromkeys(places)))

    def _key(self, group: Class) -> Expr:
        """The names of a class that are not declared."""
        if self._value(group[0]) == NEVER:
            return NEVER
        relevant = [n for n in self._declared if all(matches(p, n) for p in group[0])]
        return self._language(group, texts(relevant) if relevant else None)

    def _language(self, group: Class, without: Expr | None = None) -> Expr:
        included = [*group[0], *self._languages] or [_ANY_TEXT]
        excluded = [*group[1], *([without] if without else [])]
        if len(included) == 1 and not excluded:
            return included[0]
        try:
            return combine(included, excluded)
        except GrammarLimitError as error:
            keyword = "patternProperties" if group[0] or group[1] else "propertyNames"
            raise UnsupportedGrammarError(keyword, self._objects.place, str(error)) from error

    def _name_language(self, places: Where, read: Callable[[StringShape], StringShape] | None = None) -> Expr:
        """The names that are strings of some places; `read` may leave in what is not sure to be."""
        found: list[Expr] = []
        for shape in self._resolver.shapes(places):
            if shape.values is not None:
                found.append(texts(v for v in shape.values if isinstance(v, str) and self._resolver.admits(v, shape)))
            elif shape.strings is not None:
                bounded = StringShape() != shape.strings
                found.append(text_expr((read or _as_names)(shape.strings)) if bounded else _ANY_TEXT)
        return alt(*found)
