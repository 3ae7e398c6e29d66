"""How large what a filter, a method or an operator makes can get, known before it is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .template_render_budget import SLOT, RenderBudget, TemplateOverBudget, text_bytes

MOST_PLACES = 10_000  # a number that pads, cuts or repeats
WIDTH_IN_FORMAT = re.compile(r"\d{4}|\*|\{[^{}]*\{")

# what templates call on texts, and on other values of JSON
STR_METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "center",
        "count",
        "endswith",
        "find",
        "format",
        "format_map",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
        "zfill",
    ]
)
OTHER_METHODS = frozenset(["copy", "count", "get", "index", "is_integer", "items", "keys", "values"])
PLAIN = (str, bytes, int, float, list, tuple, dict, set, frozenset)

Estimate = Callable[..., int]


def of_operator(budget: RenderBudget, operator: str, left: Any, right: Any) -> int:
    """Bytes that `left operator right` may take; 0 where that is no question."""
    if operator == "%" and isinstance(left, str):
        return of_percent(budget, left, right)
    if operator == "*":
        return _of_repeating(budget, left, right)
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * abs(right)
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        return text_bytes(left) + text_bytes(right)
    return 0


def _of_repeating(budget: RenderBudget, left: Any, right: Any) -> int:
    if isinstance(left, int) and not isinstance(right, int | float):
        left, right = right, left
    size = (
        text_bytes(left) if isinstance(left, str) else budget.weigh(left).bytes if isinstance(left, list | tuple) else 0
    )
    return size * right if isinstance(right, int) else 0


def of_percent(budget: RenderBudget, text: str, values: Any) -> int:
    _require_plain_widths(text)
    return len(text) + text.count("%") * (budget.weigh(values).bytes + 1000)


def _of_format(budget: RenderBudget, text: str, *args: Any, **kwargs: Any) -> int:
    _require_plain_widths(text)
    return len(text) + text.count("{") * (budget.weigh(args).bytes + budget.weigh(kwargs).bytes + 1000)


def _require_plain_widths(text: str) -> None:
    if WIDTH_IN_FORMAT.search(text):
        raise TemplateOverBudget(f"it formats by {text[:60]!r}, which asks for a width beyond 999 or a computed one")


def of_filter(budget: RenderBudget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Raises TemplateOverBudget for numbers that no template needs."""
    found = _FILTERS.get(name)
    return found(budget, value, *args, **kwargs) if found else 0


def of_method(budget: RenderBudget, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of a bound method of a plain value. Raises TemplateOverBudget for one that templates have no use for."""
    owner, name = method.__self__, method.__name__
    if name not in (STR_METHODS if isinstance(owner, str) else OTHER_METHODS):
        raise TemplateOverBudget(f"it calls {type(owner).__name__}.{name}, which chat templates may not")
    found = _METHODS.get(name) if isinstance(owner, str) else None
    return found(budget, owner, *args, **kwargs) if found else 0


def places(number: Any) -> int:
    """A number of places that is not beyond all use."""
    if isinstance(number, int) and abs(number) > MOST_PLACES:
        raise TemplateOverBudget(
            f"it asks for {str(number)[:40] if abs(number) < 10**40 else 'far too many'} places, at most "
            f"{MOST_PLACES:,} are allowed"
        )
    return abs(number) if isinstance(number, int) else 0


def _of_replacing(budget: RenderBudget, text: Any, old: Any = "", new: Any = "", count: Any = None) -> int:
    if not (isinstance(text, str) and isinstance(old, str) and isinstance(new, str)):
        return budget.weigh(text).bytes
    found = text.count(old) if old else len(text) + 1
    return text_bytes(text) + found * text_bytes(new)


def _of_joining(budget: RenderBudget, items: Any, between: Any = "", attribute: Any = None) -> int:
    weight = budget.weigh(items)
    return weight.bytes + (len(items) if hasattr(items, "__len__") else weight.elements) * text_bytes(
        between if isinstance(between, str) else ""
    )


def _of_indenting(budget: RenderBudget, text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:
    width = text_bytes(width) if isinstance(width, str) else places(width)
    return text_bytes(text) + width * (len(text.splitlines()) + 1) if isinstance(text, str) else 0


def _of_padding(budget: RenderBudget, text: Any, width: Any = 0, *fill: Any) -> int:
    return places(width)


def _of_cutting(budget: RenderBudget, items: Any, count: Any = 1, fill: Any = None) -> int:
    return places(count) * SLOT


def _of_rounding(budget: RenderBudget, value: Any, precision: Any = 0, method: Any = "common") -> int:
    if isinstance(precision, int) and abs(precision) > 300:
        raise TemplateOverBudget("it rounds to more than 300 places")
    return 0


def _of_json(
    budget: RenderBudget,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> int:
    width = len(indent) if isinstance(indent, str) else places(indent)
    between = sum(len(part) for part in separators or () if isinstance(part, str))
    weight = budget.weigh(value)
    return weight.bytes + weight.elements * (width * weight.depth + between)


def _of_filling(budget: RenderBudget, text: str, *values: Any, **named: Any) -> int:
    return of_percent(budget, text, named or values) if isinstance(text, str) else 0


_FILTERS: dict[str, Estimate] = {
    "center": _of_padding,
    "indent": _of_indenting,
    "replace": _of_replacing,
    "join": _of_joining,
    "batch": _of_cutting,
    "slice": _of_cutting,
    "round": _of_rounding,
    "format": _of_filling,
    "tojson": _of_json,
}
_METHODS: dict[str, Estimate] = {
    "center": _of_padding,
    "ljust": _of_padding,
    "rjust": _of_padding,
    "zfill": _of_padding,
    "replace": _of_replacing,
    "join": lambda budget, between, items=(): _of_joining(budget, items, between),
    "format": _of_format,
    "format_map": lambda budget, text, values: _of_format(budget, text, **values),
}
