"""Classes of every library, for the table of types and its tests."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import ipaddress
import pathlib
import uuid
from collections import namedtuple
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar

import pydantic
import pydantic.alias_generators
import typing_extensions
from pydantic import (
    UUID4,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    RootModel,
    computed_field,
    field_validator,
)
from typing_extensions import TypeAliasType

T = TypeVar("T")


class Floor(enum.IntEnum):
    GROUND = 0
    FIRST = 1


class Size(enum.StrEnum):
    SMALL = "s"
    LARGE = "two words"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Share(float, enum.Enum):
    HALF = 0.5
    QUARTER = 0.25


class Mixed(enum.Enum):
    ONE = 1
    TEXT = "x"
    PART = 2.5
    NOTHING = None


class Days(enum.Enum):
    FIRST = datetime.date(2020, 1, 1)


class Node(BaseModel):
    value: int
    under: list[Node] = []


class Box(BaseModel, Generic[T]):
    item: T
    more: list[T] = []


class Cat(BaseModel):
    kind: Literal["cat", "kitten"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Strict(BaseModel, strict=True):
    whole: int
    number: float
    day: datetime.date
    id: UUID4
    size: Size
    floor: Floor
    price: Decimal
    some: set[int]
    pair: tuple[int, str]
    raw: bytes
    lasts: datetime.timedelta
    file: pathlib.Path
    host: ipaddress.IPv4Address


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, str_min_length=1, str_max_length=10)
    name: str
    code: Annotated[str, Field(pattern="^a")]


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    first: int = Field(alias="theFirst")
    other: str = Field("", validation_alias=AliasChoices("otherName", "second"))


class Deep(BaseModel):
    inside: int = Field(validation_alias=AliasPath("outer", 0))


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int] = Field(init=False)
    first: int


class Computed(BaseModel):
    once: int

    @computed_field
    def twice(self) -> int:
        return 2 * self.once


class Numbers(RootModel[list[int]]):
    pass


class Frozen(BaseModel, frozen=True):
    x: int


class Base64Bytes(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    raw: bytes


class HexBytes(BaseModel):
    model_config = ConfigDict(val_json_bytes="hex")
    raw: bytes


class Page(BaseModel):
    link: HttpUrl
    seen: Optional[datetime.date] = None  # noqa: UP045


class Order(BaseModel):
    id: UUID4
    links: list[HttpUrl] = Field(default=[], max_length=3)
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2, ge=0)]
    at: pydantic.AwareDatetime
    network: Optional[ipaddress.IPv4Network] = None  # noqa: UP045
    tags: set[str] = set()
    extra: pydantic.Json[dict[str, Decimal]] = Field("{}", validate_default=True)


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=pydantic.alias_generators.to_camel)
    some_name: int


class Doubly(BaseModel):
    kind: Literal["double"] = "double"
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] = Cat()


class Even(BaseModel):
    """A validator of the program: what it refuses is refused when the text is read."""

    number: int

    @field_validator("number")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("the number must be even")
        return value


class Card(BaseModel):
    card: pydantic.types.PaymentCardNumber


class Behind(BaseModel):
    """A pattern that only Python's re can match."""

    model_config = ConfigDict(regex_engine="python-re")
    word: Annotated[str, Field(pattern=r"^(?=a)\w+$")]


@dataclasses.dataclass(kw_only=True, slots=True)
class Guest:
    name: str
    age: int = 3
    prices: list[Decimal] = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(init=False, default=2)


@dataclasses.dataclass
class Initial:
    once: int
    seed: dataclasses.InitVar[int] = 3


@pydantic.dataclasses.dataclass(config=ConfigDict(extra="forbid"))
class Checked:
    count: Annotated[int, Field(gt=3, alias="theCount")]
    id: UUID4


class Film(TypedDict, total=False):
    title: typing_extensions.Required[str]
    year: int


class Extra(typing_extensions.TypedDict, extra_items=int):
    first: int


class Point(NamedTuple):
    x: int
    price: Decimal = Decimal(1)


Plain = namedtuple("Plain", "left right")
UserId = typing_extensions.NewType("UserId", int)
Alias = TypeAliasType("Alias", list[int])
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


def tag_of(value: Any) -> str | None:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


def upper(text: str) -> str:
    return text.upper()


def long(text: str) -> bool:
    return len(text) > 3


def identity(value: uuid.UUID) -> uuid.UUID:
    return value
