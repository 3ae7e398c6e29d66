"""How the values that pieces of a document have for a field become one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sgl.documents import Place
from sgl.lang.errors import BadValueError, shown

from .found_values import FoundValue
from .optional_fields import OptionalFields

Rule = Literal["first", "all", "most_certain", "model"] | Callable[[list[FoundValue]], Any]
RULES = ("first", "all", "most_certain", "model")


@dataclass
class Merged:
    """Fields of a document in JSON, and the places of each by its path."""

    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, list[Place]] = field(default_factory=dict)

    def add(self, name: str, value: Any, sources: Sequence[FoundValue]) -> None:
        """A field with a value that some pieces have."""
        self.fields[name] = value
        for source in sources:
            for path, places in source.places(name, name).items():
                self.places.setdefault(path, []).extend(places)

    def add_items(self, name: str, found: Sequence[FoundValue]) -> None:
        """A list of what all pieces have."""
        items: list[Any] = []
        for source, index in new_items(found):
            self.places |= source.places(f"{name}[{index}]", f"{name}[{len(items)}]")
            items.append(source.value[index])
        self.fields[name] = items


def checked_rules(fields: OptionalFields, merge: Mapping[str, Rule] | None) -> dict[str, Rule | None]:
    """The rule of each field; None: the default. Raises BadValueError for fields and rules that there are not."""
    if not isinstance(merge, Mapping | None):
        raise BadValueError(f"merge is {shown(merge)}; give a dict of a rule for each field, one of {', '.join(RULES)}")
    given = dict(merge or {})
    if unknown := sorted(given.keys() - fields.hints.keys()):
        raise BadValueError(f"merge: there is no field {unknown[0]!r}; the fields are {', '.join(fields.hints)}")
    for name, rule in given.items():
        if not callable(rule) and rule not in RULES:
            raise BadValueError(f"merge[{name!r}] is {rule!r}; give one of {', '.join(RULES)}, or a function")
        if (rule == "all") and name not in fields.lists:
            raise BadValueError(f'merge[{name!r}] is "all", which is for lists; {name} is none')
    return {name: given.get(name, "all" if name in fields.lists else None) for name in fields.hints}


def merge_field(name: str, rule: Rule | None, found: list[FoundValue], merged: Merged) -> None:
    """Add a field to what is merged, by any rule but "model"."""
    if rule == "all":
        merged.add_items(name, found)
    elif not found:
        return
    elif callable(rule):
        value = rule(found)
        merged.add(name, _as_json(name, value), [one for one in found if one.value == value] or found)
    else:
        chosen = found[0] if rule == "first" else _most_certain(name, rule, found)
        merged.add(name, chosen.value, [chosen])


def _most_certain(name: str, rule: Rule | None, found: list[FoundValue]) -> FoundValue:
    sure = [one.confidence for one in found if one.confidence is not None]
    if len(sure) == len(found):
        return found[sure.index(max(sure))]
    if rule is None:
        return found[0]
    raise BadValueError(
        f'merge[{name!r}] is "most_certain", but the backend reports no confidence; run on an sgl.Engine, or give '
        '"first", "model" or a function'
    )


def _as_json(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise BadValueError(
            f"merge[{name!r}] returned {value!r}, which is not JSON ({error}); return the .value of what was found, or "
            "texts, numbers, lists and dicts"
        ) from None


def new_items(found: Sequence[FoundValue]) -> list[tuple[FoundValue, int]]:
    """The items of lists, as (source, index), without those that a piece repeats from the one before it.

    An item is a repeated one if the text of both pieces overlaps and the one before has an equal item that is not yet
    matched. Where the places of both are known, one must be the same.
    """
    kept: list[tuple[FoundValue, int]] = []
    before: FoundValue | None = None
    for one in found:
        repeated = _repeated(before, one) if before is not None and _overlap(before, one) else set()
        kept += ((one, index) for index in range(len(one.value)) if index not in repeated)
        before = one
    return kept


def _repeated(before: FoundValue, after: FoundValue) -> set[int]:
    """The items of the second list that the first one has, each matched with one of them."""
    unmatched, repeated = list(range(len(before.value))), set()
    for index in range(len(after.value)):
        same = next((i for i in unmatched if _is_same(before, i, after, index)), None)
        if same is not None:
            unmatched.remove(same)
            repeated.add(index)
    return repeated


def _overlap(before: FoundValue, after: FoundValue) -> bool:
    return after.piece.overlap > 0 and after.piece.index == before.piece.index + 1


def _is_same(before: FoundValue, i: int, after: FoundValue, index: int) -> bool:
    if before.value[i] != after.value[index]:
        return False
    one, other = before.spans_of_item(i), after.spans_of_item(index)
    return all(set(one[path]) & set(other[path]) for path in one.keys() & other.keys())
