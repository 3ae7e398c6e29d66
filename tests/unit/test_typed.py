"""Typed results: whatever the grammar of a type allows is read, and every value can be written."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import random
import typing
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import pytest
import typing_extensions
from grammar_walks import WalkBackend, accepts, compile_grammar_argument, walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

import sgl
from sgl.lang.errors import BadValueError, UnsupportedByBackendError
from sgl.lang.sampling.options import SamplingOptions, make_options
from sgl.lang.typed import reading_of

BACKEND = WalkBackend()
UTC = datetime.timezone.utc  # noqa: UP017
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Color(enum.Enum):
    RED = "red"
    BLUE = "sky blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mood(str, enum.Enum):  # noqa: UP042
    GOOD = "good"
    BAD = "bad"


class Mixed(enum.Enum):
    ONE = 1
    TEXT = "x"
    NOTHING = None


class Pair(enum.Enum):
    ONE = (1, 2)


@dataclasses.dataclass
class Guest:
    name: str
    age: int
    tags: list[str] = dataclasses.field(default_factory=list)
    color: Color = Color.RED


class Film(typing.TypedDict, total=False):
    title: typing.Required[str]
    year: int


class OtherFilm(typing_extensions.TypedDict):
    title: str
    year: int


class Point(NamedTuple):
    x: int
    label: str = "origin"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Tree(BaseModel):
    value: int = Field(ge=0, lt=100, description="a small number")
    code: str = Field(pattern="^[a-z]+$", min_length=2, max_length=5)
    share: float = Field(gt=0.5)
    sizes: list[int] = Field(min_length=1, max_length=3)
    pick: Literal["x", 1, None] = None
    under: Optional[Tree] = None  # noqa: UP045
    renamed: bool = Field(True, alias="is renamed")


class Event(BaseModel):
    at: datetime.datetime
    day: datetime.date
    lasts: datetime.timedelta
    id: uuid.UUID


Pet = Annotated[Union[Cat, Dog], Field(discriminator="kind")]  # noqa: UP007

KINDS: list[Any] = [
    int,
    float,
    bool,
    str,
    None,
    Color,
    Level,
    Mood,
    Mixed,
    Guest,
    Film,
    OtherFilm,
    list[Film],
    Film | None,
    Point,
    Tree,
    Event,
    Pet,
    list[Pet],
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    Decimal,
    bytes,
    dict,
    list,
    Any,
    Literal["red", "b.c*", "two words\n", ""],
    Literal[1, -20],
    Literal["a", True],
    int | None,
    int | str,
    int | bool,
    list[int],
    list[list[float]],
    tuple[int, str],
    tuple[bool, ...],
    set[int],
    dict[str, int],
    dict[int, str],
    dict[bool, int],
    dict[float, int],
    dict[datetime.date, int],
    dict[Color, int],
    dict[Annotated[str, Field(pattern="^a+$")], int],
    Annotated[int, Field(multiple_of=3, ge=0)],
    Annotated[str, Field(pattern=r"^\d+$")],
    Annotated[Decimal, Field(ge=0, max_digits=5, decimal_places=2)],
    Annotated[float, Field(allow_inf_nan=False)],
    Annotated[int, Field(gt=3)],
]


def constrained(kind: Any) -> SamplingOptions:
    return reading_of(kind).constrain(SamplingOptions(), BACKEND)


def read(kind: Any, text: str) -> Any:
    return reading_of(kind).read(text, BACKEND)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_whatever_the_grammar_allows_is_read(kind):
    grammar = compile_grammar_argument(constrained(kind))
    rng = random.Random(str(kind))
    for _ in range(25):
        text = walk(grammar, rng, rng.choice([3, 20, 60, 150])) if grammar else rng.randbytes(9).decode("latin")
        read(kind, text)


SCALARS = st.sampled_from(
    [
        int,
        float,
        bool,
        str,
        type(None),
        datetime.date,
        uuid.UUID,
        datetime.timedelta,
        Color,
        Level,
        Literal["a", 2],
        Guest,
        Point,
        OtherFilm,
        Cat,
    ]
)
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: dict[str, kind]),
        st.tuples(inner, inner).map(lambda kinds: tuple[kinds]),
        inner.map(lambda kind: kind | None),
    ),
    max_leaves=4,
).filter(lambda kind: kind is not str and constrained(kind).json_schema)


@given(NESTED, st.data())
@quick
def test_every_value_can_be_written_and_comes_back(kind, data):
    value = data.draw(values_of(kind))
    text = TypeAdapter(kind).dump_json(value).decode()
    assert accepts(compile_grammar_argument(constrained(kind)), text), text
    assert read(kind, text) == value


@given(NESTED, st.integers(0, 2**32))
@quick
def test_random_types_read_random_texts(kind, seed):
    rng = random.Random(seed)
    read(kind, walk(compile_grammar_argument(constrained(kind)), rng, rng.randrange(120)))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    st.register_type_strategy(str, st.text(st.characters(exclude_categories=("Cs",))))
    st.register_type_strategy(
        datetime.timedelta, st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6))
    )
    st.register_type_strategy(
        OtherFilm, st.builds(lambda title, year: {"title": title, "year": year}, st.text(), st.integers())
    )
    return st.from_type(kind)


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_numbers_are_bare(whole, number, truth):
    for kind, value in ((int, whole), (float, number), (bool, truth)):
        assert accepts(compile_grammar_argument(constrained(kind)), str(value))
        assert read(kind, str(value)) == value


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=1, max_size=6, unique=True))
@quick
def test_literals_of_any_strings_are_bare(texts):
    kind = Literal[tuple(texts)]
    for text in texts:
        assert accepts(compile_grammar_argument(constrained(kind)), text)
        assert read(kind, text) == text
    assert walk(compile_grammar_argument(constrained(kind)), random.Random(0), 50) in texts


def test_values_have_the_types_that_were_asked_for():
    assert read(Color, "sky blue") is Color.BLUE and read(Level, "2") is Level.HIGH
    assert read(Mood, "good") is Mood.GOOD
    assert read(Literal[1, -20], "-20") == -20
    assert read(Guest, '{"name": "Ann", "age": 3}') == Guest("Ann", 3)
    assert read(Point, '[1, "here"]') == Point(1, "here") and isinstance(read(Point, "[1]"), Point)
    assert read(Film, '{"title": "Heat", "year": 1995}') == {"title": "Heat", "year": 1995}
    assert read(Pet, '{"kind": "dog", "name": "Rex"}') == Dog(kind="dog", name="Rex")
    assert read(datetime.datetime, '"2024-05-06T07:08:09Z"') == datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert read(Decimal, "12.50") == Decimal("12.50")
    assert read(tuple[int, str], '[1, "a"]') == (1, "a")
    assert read(list[int], "[1e20, 3.0]") == [10**20, 3]


def test_objects_have_no_members_of_other_names():
    grammar = compile_grammar_argument(constrained(Guest))
    assert not accepts(grammar, '{"name": "Ann", "age": 3, "extra": 1}')
    assert not accepts(compile_grammar_argument(constrained(OtherFilm)), '{"title": "Heat"}')
    assert accepts(compile_grammar_argument(constrained(Film)), '{"title": "Heat"}')


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (int, "four", "expected int, but the text is 'four'"),
        (bool, "maybe", "expected bool"),
        (Color, "green", "expected Color, but the text is 'green'"),
        (Guest, '{"name": "Ann"}', "expected JSON of Guest.*age: Field required"),
        (list[int], "[1, x]", r"expected JSON of list\[int\]"),
        (int | None, "9" * 5000, "expected JSON"),
    ],
)
def test_a_text_without_a_value_says_what_was_expected(kind, text, message):
    with pytest.raises(ValueError, match=message):
        read(kind, text)


def test_unconstrained_text_is_read_tolerantly():
    assert read(int, " 42\n") == 42 and read(bool, "true") is True and read(Color, " red ") is Color.RED
    assert read(list[int], "```json\n[1, 2]\n```\n") == [1, 2]


def test_options_of_the_gen_stay():
    options = reading_of(int).constrain(make_options(max_new_tokens=5, stop="x"), BACKEND)
    assert (options.max_new_tokens, options.stop, options.close_at_limit) == (5, ("x",), None)
    assert reading_of(Guest).constrain(make_options(close_at_limit=True), BACKEND).close_at_limit is True
    for said in (None, False, True):  # of a typed text that is cut there is no value
        assert reading_of(Guest).constrain(make_options(error_on_truncation=said), BACKEND).error_on_truncation is True
    assert reading_of(int).constrain(SamplingOptions(), BACKEND).max_new_tokens is None
    assert reading_of(str).constrain(SamplingOptions(), BACKEND) == SamplingOptions()


@pytest.mark.parametrize("own", [{"regex": "a+"}, {"json_schema": {}}, {"dtype": int}, {"ebnf": "root ::= 'a'"}])
def test_two_constraints_are_refused(own):
    with pytest.raises(BadValueError, match="the type Guest and"):
        reading_of(Guest).constrain(make_options(**own), BACKEND)


def test_a_backend_without_grammars_gets_plain_options():
    class Plain(WalkBackend):
        def prepare(self, options):
            raise UnsupportedByBackendError("no grammars here")

    assert reading_of(int).constrain(SamplingOptions(), Plain()) == SamplingOptions()


def test_backends_get_what_they_know():
    class Picky(WalkBackend):
        refused: tuple[str, ...] = ()

        def prepare(self, options):
            if name := next((name for name in self.refused if getattr(options, name)), None):
                raise UnsupportedByBackendError(f"no {name} here")

    def given(kind, *refused):
        backend = Picky()
        backend.refused = refused
        options = reading_of(kind).constrain(SamplingOptions(), backend)
        return {name for name in ("regex", "dtype", "json_schema", "error_on_truncation") if getattr(options, name)}

    assert given(int) == {"regex", "error_on_truncation"}
    assert given(bool, "regex") == {"dtype", "error_on_truncation"}
    assert given(Color, "regex") == {"json_schema", "error_on_truncation"} and given(Guest, "json_schema") == set()
    assert read(Color, '"sky blue"') is Color.BLUE and read(Literal[1, 2], '"2"') == 2


def test_chat_apis_get_types_that_they_know():
    backend = sgl.OpenAI("gpt-4o", api_key="none")
    assert reading_of(int).constrain(SamplingOptions(), backend).dtype == "int"
    assert reading_of(Guest).constrain(SamplingOptions(), backend).json_schema is not None


def test_what_cannot_be_enforced_names_type_and_field():
    class Order(BaseModel):
        counts: Annotated[dict[Annotated[str, Field(pattern="^x")], int], Field(min_length=2)]

    class Shop(BaseModel):
        orders: list[Order]

    with pytest.raises(BadValueError, match="the type Order, field 'counts', cannot be enforced: minProperties"):
        constrained(Order)
    with pytest.raises(BadValueError, match=r"the type Shop \(in Order\), field 'counts'"):
        constrained(Shop)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (3, "3 is not a type"),
        ("int", "'int' is not a type"),
        (print, "is not a type"),
        (object(), "is a value, not a type; give its class: object"),
        (Exception, "Exception cannot be written as JSON"),
        (complex, "no complex numbers"),
        (typing.Callable[[int], str], "cannot be written as JSON"),
        (Pair, r"Pair.ONE is \(1, 2\)"),
        (list[Pair], r"Pair.ONE is \(1, 2\)"),
    ],
)
def test_what_is_no_type_is_refused(kind, message):
    with pytest.raises(BadValueError, match=message):
        reading_of(kind)


def test_readings_are_shared():
    assert reading_of(Guest) is reading_of(Guest) and reading_of(list[int]) is reading_of(list[int])
    assert read(Literal[True], "true") is True and read(Literal[1], "1") == 1
    unhashable = Annotated[int, Field(json_schema_extra={"examples": [1]}), ["notes"]]
    assert reading_of(unhashable).read("4", BACKEND) == 4
