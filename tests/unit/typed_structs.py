"""Structs of msgspec, which not every machine has."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

T = TypeVar("T")


class Floor(enum.IntEnum):
    GROUND = 0
    FIRST = 1


class Cat(Struct, tag="cat", rename="camel"):
    many_lives: int
    name: str | None = None


class Dog(Struct, tag="dog", forbid_unknown_fields=True):
    weight: float


class Row(Struct, array_like=True, tag=True):
    x: int
    y: str = ""


class Node(Struct):
    value: int
    under: list[Node] = []


class Sparse(Struct, omit_defaults=True, kw_only=True, frozen=True):
    value: int = 3
    other: int | UnsetType = UNSET


class Box(Struct, Generic[T]):
    item: T


class Limits(Struct):
    count: Annotated[int, Meta(gt=3, le=10)]
    word: Annotated[str, Meta(min_length=2, max_length=4, pattern="^a")]
    half: Annotated[float, Meta(multiple_of=0.5)]
    some: Annotated[list[int], Meta(min_length=1, max_length=3)]
    here: Annotated[datetime.datetime, Meta(tz=True)]
    there: Annotated[datetime.datetime, Meta(tz=False)]
    times: Annotated[datetime.time, Meta(tz=True)]
    sevens: Annotated[int, Meta(multiple_of=7)]


class Everything(Struct):
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time
    lasts: datetime.timedelta
    price: Decimal
    id: uuid.UUID
    raw: bytes
    rest: Raw
    thing: Any
    floor: Floor
    one: Literal["a", 1, None]
    some: set[int]
    pair: tuple[int, str]
    many: tuple[int, ...]
    either: int | str | None


class Keys(Struct):
    floors: dict[Floor, int]
    ids: dict[uuid.UUID, int]
    numbers: dict[float, int]
    literal: dict[Literal["x"], int]
    whole: dict[Annotated[int, Meta(ge=3, lt=20)], int]
    raw: dict[bytes, int]
    days: dict[datetime.date, int]


class Bools(Struct):
    bools: dict[bool, int]


class Pair(NamedTuple):
    cat: Cat
    count: int = 3


class Complex(Struct):
    number: complex
