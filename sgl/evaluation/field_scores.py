"""How good a value is: each field compared with what it should be, lists of objects by their best matching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from statistics import fmean
from typing import Any

from sgl.lang.errors import BadValueError, shown

from .best_matching import best_matching
from .plain_values import exact_form, normalised_form

Score = Callable[[Any, Any], float]
Scores = Mapping[str, Score | str]


class Missing:
    """In place of the value of a row that failed: equal to nothing, not even to None."""


MISSING = Missing()


@dataclass(frozen=True)
class FieldScore:
    """A field of a row.

    path: `city`, `lines[].price`, or "" for a value without fields. exact: the same value. normalised: the same but for
    case, white space and the writing of numbers and dates. score: from 0 to 1; of a list F1, else 1 if normalised,
    unless `scores` has another for the path. nested: a field of an item of a list, which the list's score contains.
    confidence: of the program in this field, if it has one.
    """

    path: str
    gold: Any
    given: Any
    exact: bool
    normalised: bool
    score: float
    nested: bool = False
    confidence: float | None = None

    @property
    def right(self) -> bool:
        return self.score >= 1.0


@dataclass(frozen=True)
class FieldComparison:
    """Compares plain values under scores for some paths. `confidences` are by path, with the places of items."""

    scores: Scores
    confidences: Mapping[str, float]

    def fields(self, gold: Any, given: Any, path: str = "", place: str = "") -> Iterator[FieldScore]:
        """The scores of all fields. `path`: of the field, `place`: the same with the numbers of items."""
        if path not in self.scores and _are(dict, gold, given):
            for name in {**_items(gold), **_items(given)}:
                yield from self.fields(
                    _member(gold, name), _member(given, name), _joined(path, name), _joined(place, name)
                )
        elif path not in self.scores and _are(list, gold, given) and any(_objects(gold) + _objects(given)):
            yield from self._of_objects(gold, given, path, place)
        else:
            yield self._leaf(gold, given, path, place)

    def _leaf(self, gold: Any, given: Any, path: str, place: str) -> FieldScore:
        exact, normalised = same(gold, given, exact_form), same(gold, given, normalised_form)
        if path in self.scores:
            score = 0.0 if given is MISSING else _own(path, self.scores[path])(gold, given)
        elif isinstance(gold, list) and isinstance(given, list):
            score = f1(_shared(gold, given), len(gold), len(given))
        else:
            score = float(normalised)
        return FieldScore(path, gold, given, exact, normalised, score, "[]" in path, self._confidence(place))

    def _of_objects(self, gold: Any, given: Any, path: str, place: str) -> Iterator[FieldScore]:
        """The list itself, then the fields of its items, each item with the one that it is matched to."""
        wanted, items = (value if isinstance(value, list) else [] for value in (gold, given))
        table = [[self.similarity(one, other, f"{path}[]") for other in items] for one in wanted]
        pairs = best_matching(table)
        score = f1(sum(table[i][j] for i, j in pairs), len(wanted), len(items))
        exact = same(gold, given, exact_form)
        yield FieldScore(path, gold, given, exact, score == 1.0, score, "[]" in path, self._confidence(place))
        for i, j in _all_items(pairs, len(wanted), len(items)):
            one, other = (MISSING if i is None else wanted[i], MISSING if j is None else items[j])
            yield from self.fields(one, other, f"{path}[]", f"{place}[{j}]")

    def _confidence(self, place: str) -> float | None:
        """Of a field; of one that has only parts, as a list, that all of them are right."""
        if place in self.confidences:
            return self.confidences[place]
        parts = [
            one for other, one in self.confidences.items() if place and other.startswith((f"{place}.", f"{place}["))
        ]
        return prod(parts) if parts else None

    def similarity(self, gold: Any, given: Any, path: str) -> float:
        """The mean score of the fields of two items; 1 for two without fields."""
        found = [field.score for field in self.fields(gold, given, path) if field.path.count("[]") == path.count("[]")]
        return fmean(found) if found else 1.0


def compared(gold: Any, given: Any, scores: Scores, confidences: Mapping[str, float]) -> tuple[FieldScore, ...]:
    """The score of every field of a plain value, and of every field of the gold one that it does not have."""
    return tuple(FieldComparison(scores, confidences).fields(gold, given))


def same(gold: Any, given: Any, form: Callable[[Any], Any]) -> bool:
    """Whether two plain values have the same form. A member that is missing from an object is None."""
    if gold is MISSING or given is MISSING:
        return False
    if isinstance(gold, dict) and isinstance(given, dict):
        return all(same(gold.get(name), given.get(name), form) for name in {**gold, **given})
    if isinstance(gold, list) and isinstance(given, list):
        return all(same(one, other, form) for one, other in zip_longest(gold, given, fillvalue=MISSING))
    if isinstance(gold, dict | list) or isinstance(given, dict | list):
        return False
    return bool(form(gold) == form(given))


def f1(shared: float, gold: int, given: int) -> float:
    """The harmonic mean of precision and recall; 1 for two empty lists."""
    return 2 * shared / (gold + given) if gold + given else 1.0


def _shared(gold: list[Any], given: list[Any]) -> int:
    """How many values two lists have in common, in any order."""
    return sum((Counter(map(_hashable, gold)) & Counter(map(_hashable, given))).values())


def _hashable(value: Any) -> Any:
    return ("list", *map(_hashable, value)) if isinstance(value, list) else normalised_form(value)


def _all_items(pairs: list[tuple[int, int]], gold: int, given: int) -> Iterator[tuple[int | None, int | None]]:
    """The pairs, then each item that has no partner with None in its partner's place."""
    yield from pairs
    yield from ((i, None) for i in sorted(set(range(gold)) - {i for i, _ in pairs}))
    yield from ((None, j) for j in sorted(set(range(given)) - {j for _, j in pairs}))


def _own(path: str, score: Score | str) -> Score:
    if callable(score):
        return lambda gold, given: _share(path, score(None if gold is MISSING else gold, given))
    forms = {"exact": exact_form, "normalised": normalised_form}
    if score not in forms:
        raise BadValueError(f"scores[{path!r}] is {score!r}; give 'exact', 'normalised' or a function of (gold, given)")
    return lambda gold, given: float(same(gold, given, forms[score]))


def _share(path: str, score: Any) -> float:
    """Raises BadValueError for what is no number from 0 to 1: means of other numbers would be no scores."""
    try:
        found = float(score)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found <= 1:
        raise BadValueError(f"scores[{path!r}] returned {shown(score)}; return a number from 0 to 1")
    return found


def _are(kind: type, gold: Any, given: Any) -> bool:
    """Whether one is of this kind, and the other too unless there is no value."""
    pair = (gold, given)
    return any(isinstance(one, kind) for one in pair) and all(isinstance(one, kind | Missing | None) for one in pair)


def _items(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[bool]:
    return [isinstance(item, dict) for item in value] if isinstance(value, list) else []


def _member(value: Any, name: str) -> Any:
    return MISSING if value is MISSING else _items(value).get(name)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
