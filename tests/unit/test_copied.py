"""Types with copied values in programs: where the text comes from, what is checked, and where the values occur."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field

import sgl
from sgl import Quote, Scripted, Span, copied, copied_spans, gen, user
from sgl.lang.backends.native.generate_request import check_options
from sgl.lang.errors import BadValueError, ProgramError, UnsupportedByBackendError
from sgl.lang.sampling.options import make_options
from sgl.lang.typed import reading_of

TEXT = "Ann Lee wants a table for Ann Lee in Lisbon."


@dataclass
class Booking:
    name: Quote
    city: Quote | None


@sgl.function
def book(s, text, **options):
    s += user(text)
    s += sgl.assistant(gen("x", Booking, **options))


def answered(answer: str, text: str = TEXT, **options) -> Booking:
    return book.run(text=text, backend=Scripted({"x": answer}), **options).get("x")


def test_values_are_pieces_of_the_last_user_turn():
    assert answered('{"name":"Ann Lee","city":"Lisbon"}') == Booking("Ann Lee", "Lisbon")
    assert answered('{"name":"table","city":null}') == Booking("table", None)
    for wrong in ('{"name":"Ann Le","city":null}', '{"name":"Bob","city":null}', '{"name":"","city":null}'):
        with pytest.raises(ProgramError, match="no model could answer"):
            answered(wrong)


def test_the_text_can_be_given():
    @sgl.function
    def plain(s):
        s += "Who? " + gen("x", Booking, copied_from="Bob in Rome")

    state = plain.run(backend=Scripted({"x": '{"name":"Bob","city":"Rome"}'}))
    assert state.get("x") == Booking("Bob", "Rome")
    with pytest.raises(ProgramError, match="no model could answer"):
        plain.run(backend=Scripted({"x": '{"name":"Who","city":null}'})).get("x")


def test_without_a_text_the_error_says_what_to_give():
    @sgl.function
    def plain(s):
        s += "Bob" + gen("x", Booking)

    with pytest.raises(ProgramError, match=r"the type Booking has copied values.*copied_from=text"):
        plain.run(backend=Scripted({"x": "{}"})).get("x")
    with pytest.raises(BadValueError, match="no type with copied values"):
        gen("x", int, copied_from="a")
    with pytest.raises(BadValueError, match="copied_from is 3"):
        gen("x", Booking, copied_from=3)
    with pytest.raises(BadValueError, match="unpaired surrogate"):
        gen("x", Booking, copied_from="\ud800")
    with pytest.raises(BadValueError, match="whole_words='no'"):
        copied(whole_words="no")


def test_compiled_programs_and_forks_copy_as_well():
    @sgl.function
    def twice(s, text):
        s += user(text)
        forks = s.fork(2)
        for fork in forks:
            fork += sgl.assistant(gen("x", Booking))
        s += user(gen("y", Booking, copied_from="Bob"))
        s.set_var("found", [fork.get("x") for fork in forks])

    script = {"x": '{"name":"Lisbon","city":null}', "y": '{"name":"Bob","city":null}'}
    assert twice.run(text=TEXT, backend=Scripted(script))["found"] == [Booking("Lisbon", None)] * 2
    backend = Scripted({"x": '{"name":"Lee","city":null}'})
    assert book.compile(backend=backend).run(text=TEXT, backend=backend).get("x") == Booking("Lee", None)


def test_what_is_not_a_text_or_has_bounds_is_refused_by_its_field():
    class Number(BaseModel):
        count: Annotated[int, copied]

    class Short(BaseModel):
        code: Annotated[str, copied, Field(max_length=4)]

    class Struct(msgspec.Struct):
        count: Annotated[int, copied]

    for kind in (Number, Struct):
        with pytest.raises(BadValueError, match=f"{kind.__name__}.*sgl.copied is for texts"):
            reading_of(kind)
    with pytest.raises(ProgramError, match=r"the type Short, field 'code'.*x-copied.*other keywords"):
        sgl.function(lambda s: s.__iadd__(gen("x", Short, copied_from="a"))).run().get("x")


def test_backends_without_such_masks_refuse_by_name():
    openai = sgl.OpenAI("some-model", base_url="http://127.0.0.1:9/v1", api_key="none")
    with pytest.raises(ProgramError, match=r"the type Booking has copied values: OpenAI.*has no masks"):
        book.run(text=TEXT, backend=openai).get("x")
    options = make_options(json_schema={"type": "string", "x-copied": "words", "x-copied-from": "a"})
    check_options(options, {"copies_values": True})
    with pytest.raises(UnsupportedByBackendError, match="sgl serve"):
        check_options(options, {"closes_at_limit": True})


class Line(BaseModel):
    article: Quote
    code: Annotated[str, copied(whole_words=False)] = Field(alias="theCode")


class Order(BaseModel):
    lines: list[Line]
    note: Quote | None = None
    by_name: dict[str, Quote] = {}


class Pair(NamedTuple):
    first: Quote
    second: int


class Typed(TypedDict):
    one: Quote
    both: tuple[Quote, str]


@attrs.define
class Attrs:
    _hidden: Quote
    plain: str


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: Quote


class Struct(msgspec.Struct, rename="camel"):
    big_dog: Quote
    tagged: list[Quote | None] = []


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (
            Order,
            Order(lines=[Line(article="big red", theCode="re")], note="big", by_name={"x": "dog"}),
            {"lines[0].article": [(0, 7)], "lines[0].theCode": [(4, 6)], "note": [(0, 3), (13, 16)]}
            | {"by_name.x": [(8, 11)]},
        ),
        (list[Quote], ["dog", "re", "dog"], {"[0]": [(8, 11)], "[1]": [], "[2]": [(8, 11)]}),
        (Pair, Pair("red", 3), {"[0]": [(4, 7)]}),
        (Typed, {"one": "red", "both": ("big", "dog")}, {"one": [(4, 7)], "both[0]": [(0, 3), (13, 16)]}),
        (Attrs, Attrs("red", "dog"), {"hidden": [(4, 7)]}),
        (Struct, Struct("red", ["dog", None]), {"bigDog": [(4, 7)], "tagged[0]": [(8, 11)]}),
        (Quote | int, "red", {"": [(4, 7)]}),
        (Line | Booking, Booking("dog", None), {"name": [(8, 11)]}),
        (Booking, Booking("cat", None), {"name": []}),
        (list[Cat | Dog], [Cat("red"), Dog("dog")], {"[1].name": [(8, 11)]}),
        (Quote | Literal["none"], "none", {}),
        (str, "red", {}),
    ],
)
def test_places_by_field(kind, value, expected):
    found = copied_spans(kind, value, "big red dog, big")
    assert found == {path: [Span(*span) for span in spans] for path, spans in expected.items()}


def test_all_places_also_those_that_overlap():
    kind = Annotated[str, copied(whole_words=False)]
    rng = random.Random(2)
    for _ in range(200):
        text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 20)))
        piece = text[(start := rng.randrange(len(text))) : rng.randint(start + 1, len(text))]
        places = [Span(i, i + len(piece)) for i in range(len(text)) if text.startswith(piece, i)]
        assert copied_spans(kind, piece, text) == {"": places}


@pytest.mark.parametrize("kind", [Booking, Order, Attrs, Struct, Typed, list[Quote]])
def test_every_library_gets_the_mark(kind):
    assert reading_of(kind).copies


def test_the_bundled_model_copies():
    state = book.run(text="Please book for Ingeborg Østergård, Bergen.", max_tokens=60, error_on_truncation=False)
    name = state.get("x").name
    assert name in "Please book for Ingeborg Østergård, Bergen."


def test_an_example_names_the_field_that_its_text_does_not_have():
    with pytest.raises(BadValueError, match="name is copied, but is no piece of 'I am Bob'"):
        sgl.examples([("I am Bob", Booking("Rob", None))])
