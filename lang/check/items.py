"""What is in a value: the items that loops go through, and any one of them."""

from __future__ import annotations

from .values import ANY, PLAIN, Choice, Const, Group, Many, State, Unknown, Value, either, is_plain

MOST_UNROLLED = 16


def iterated(value: Value) -> list[Value] | None:
    """The items that a loop over the value goes through, if the source tells them and they are few."""
    items: list[Value] | None = None
    if isinstance(value, Const) and isinstance(value.value, list | tuple | str | range | dict):
        items = [Const(item) for item in value.value] if len(value.value) <= MOST_UNROLLED else None
    elif isinstance(value, Many) and value.complete:
        items = list(value.items)
    elif isinstance(value, Group) and len(value.children) > 1:
        items = [State((number,)) for number in value.children]
    return items if items is None or len(items) <= MOST_UNROLLED else None


def element(value: Value) -> Value:
    """Any item of the value."""
    if isinstance(value, Group):
        return State(value.children)
    if isinstance(value, Many):
        return any_item(value)
    if isinstance(value, Choice):
        return either(element(option) for option in value.options)
    if isinstance(value, Unknown):
        return value
    return PLAIN if is_plain(value) else ANY


def any_item(many: Many) -> Value:
    return either(many.items) if many.items else ANY
