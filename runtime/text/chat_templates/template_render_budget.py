"""The budget of one rendering of an untrusted chat template: time of its thread, and bytes of the values it makes.

Time is checked between operations, so each operation must be short: the sizes of values are bounded, and what could
make a large one (`'a' * 10**9`) is estimated before it is computed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError
from jinja2.runtime import LoopContext

SECONDS, SECONDS_A_MEGABYTE = 0.8, 1.0  # of the rendering thread; and for each megabyte of what is rendered
LARGEST, ALL = 2**21, 2**25  # bytes of one value, and of all that are made
LARGEST_SHARE, ALL_SHARE = 16, 64  # and for each byte of what is rendered
MOST_BITS = 2**14  # of a whole number
DEEPEST = 200  # of lists in each other
SLOT = 32  # bytes that count for an element, its object and its place
EACH = 64  # operations between two looks at the clock


class TemplateOverBudget(TemplateError):
    """A rendering that takes too long, or makes values that are too large."""


class ValueSize(NamedTuple):
    """bytes: of a value with all that is in it, as often as it is in it.  depth:
    of lists in each other.  elements: in it.
    """

    bytes: int
    depth: int = 0
    elements: int = 0


class RenderBudget:
    """Of one rendering. given: the weight of the values that the template gets, in bytes."""

    def __init__(self, given: int) -> None:
        self.largest = LARGEST + LARGEST_SHARE * given
        self._left = ALL + ALL_SHARE * given
        self._seconds = SECONDS + SECONDS_A_MEGABYTE * given / 1e6
        self._stop = time.thread_time() + self._seconds
        self._steps = 0
        self._known: dict[int, tuple[Any, ValueSize]] = {}  # with the container itself: its id stays its own

    def step(self, count: int = 1) -> None:
        """Before an operation, or for `count` elements."""
        self._steps += count
        if self._steps >= EACH:
            self._steps = 0
            self._look()

    def _look(self) -> None:
        if time.thread_time() > self._stop:
            raise TemplateOverBudget(f"it takes longer than {self._seconds:.1f} seconds")

    def allow(self, size: int) -> None:
        """Raises TemplateOverBudget for a value of more bytes than one may have."""
        if size > self.largest:
            raise TemplateOverBudget(f"it makes a value of {size:,} bytes, at most {self.largest:,} are allowed")

    def made(self, value: Any) -> Any:
        """A value that has just been made, counted."""
        if isinstance(value, str):
            self._spend(sys.getsizeof(value))
        elif isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                raise TemplateOverBudget(
                    f"it makes a number of {value.bit_length():,} bits, at most {MOST_BITS:,} are allowed"
                )
        elif isinstance(value, list | tuple | Mapping | set | frozenset):
            self.weigh(value)
            self._spend(SLOT * (len(value) + 1))
        elif is_flow(value):
            return self.each(value)
        return value

    def _spend(self, size: int) -> None:
        self.allow(size)
        self._left -= size
        if self._left < 0:
            raise TemplateOverBudget("the values that it makes take too many bytes together")
        self.step(1 + size // 1024)

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def weigh(self, value: Any) -> ValueSize:
        """Raises TemplateOverBudget for a container that is too large or too deep, counting what is in it twice as
        two."""
        if isinstance(value, str):
            return ValueSize(sys.getsizeof(value))
        if not isinstance(value, list | tuple | Mapping | set | frozenset):
            return ValueSize(SLOT)
        known = self._known.get(id(value))
        return known[1] if known else self._remember(value, self._sum(value))

    def _remember(self, value: Any, weight: ValueSize) -> ValueSize:
        self._known[id(value)] = value, weight
        self._spend(SLOT)
        return weight

    def _sum(self, value: Any, above: int = 0) -> ValueSize:
        size, depth, count = SLOT, 0, 0
        for part in _parts(value):
            self.step()
            found = self._part(part, above + 1)
            size, depth, count = size + SLOT + found.bytes, max(depth, found.depth), count + 1 + found.elements
            self.allow(size)
        return ValueSize(size, depth + 1, count)

    def _part(self, part: Any, above: int) -> ValueSize:
        if not isinstance(part, list | tuple | Mapping | set | frozenset) or id(part) in self._known:
            return self.weigh(part)
        if above > DEEPEST:
            raise TemplateOverBudget(f"it has lists in each other, more than {DEEPEST} deep")
        return self._remember(part, self._sum(part, above))

    def joined(self, one: Any, other: Any) -> Any:
        """Two lists or tuples as one, weighed without looking at their elements again."""
        first, second = self.weigh(one), self.weigh(other)
        weight = ValueSize(first.bytes + second.bytes, max(first.depth, second.depth), first.elements + second.elements)
        self.allow(weight.bytes)
        result = one + other
        self._remember(result, weight)
        self._spend(8 * len(result))
        return result


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield item
    else:
        yield from value


def is_flow(value: Any) -> bool:
    """Whether it gives its elements once, as they are made; jinja's `loop` is no such value to a template."""
    return isinstance(value, Iterator) and not isinstance(value, LoopContext)


def text_bytes(text: str) -> int:
    """Of its characters, at most."""
    return len(text) * (1 if text.isascii() else 4)


def weight_given(value: Any) -> int:
    """Bytes of what a template gets, however it nests."""
    total, pending = 0, [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            total += sys.getsizeof(part)
        elif isinstance(part, Mapping):
            pending += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            pending += part
        total += SLOT
    return total
