"""Classes of attrs, which not every machine has."""

from __future__ import annotations

import uuid
from decimal import Decimal

import attrs
from attrs import field, validators


@attrs.define
class Room:
    number: int = field(converter=int)
    name: str = field(validator=validators.instance_of(str), default="")
    _hidden: int = 3


@attrs.define
class Bounded:
    count: int = field(validator=[validators.ge(3), validators.lt(9)])
    size: str = field(validator=validators.in_(["s", "m"]), default="s")
    code: str | None = field(default=None, validator=validators.optional(validators.matches_re("[a-c]+")))
    few: list[int] = field(factory=list, validator=validators.max_len(2))
    made: int = field(init=False, default=3)


@attrs.define
class Tree:
    under: list[Tree] = field(factory=list)
    id: uuid.UUID | None = None
    price: Decimal = Decimal(1)


@attrs.frozen
class Spot:
    x: int


def split(text: str) -> list[str]:
    return text.split(",")


@attrs.define
class Parts:
    parts: list[str] = field(converter=split)


@attrs.define
class Unsaid:
    parts: list[str] = field(converter=lambda text: text.split(","))


@attrs.define
class Each:
    parts: list[int] = field(validator=validators.deep_iterable(validators.instance_of(int)))
