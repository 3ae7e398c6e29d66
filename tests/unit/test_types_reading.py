"""How texts of types are read: all digits of Decimals, tags of unions, the time of day, and what validators say."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import jsonschema
import pytest
import regex
from grammar_walks import WalkBackend, accepts, compile_grammar_argument
from pydantic import BaseModel, Field, FutureDate, Json, PastDate, PastDatetime, TypeAdapter
from typed_classes import Cat, Dog, Even, Floor, Node
from typed_kinds import READABLE, kind_of, needs

from sgl.grammars import explain
from sgl.lang.errors import BadValueError
from sgl.lang.sampling.options import SamplingOptions
from sgl.lang.typed import reading_of
from sgl.lang.typed.field_descriptions import words_of

BACKEND = WalkBackend()
ROOT = Path(__file__).parents[2]
LONG = "0.12345678901234567890123"
CODES = [code for rows in READABLE.values() for code, _ in rows if needs(code) is None]


def allowed(kind: Any, text: str) -> bool:
    return accepts(compile_grammar_argument(reading_of(kind).constrain(SamplingOptions(), BACKEND)), text)


def read(kind: Any, text: str) -> Any:
    return reading_of(kind).read(text, BACKEND)


# --- what is sent -----------------------------------------------------------------------------------------


def patterns(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [found for one in schema for found in patterns(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    return own + [found for one in schema.values() for found in patterns(one)]


@pytest.mark.few(30)
@pytest.mark.parametrize("code", CODES)
def test_schemas_are_json_schema_as_others_read_it(code):
    text = reading_of(kind_of(code)).constrain(SamplingOptions(), BACKEND).json_schema
    if text is None:
        return
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema, format_checker=None)
    assert "x-decimal" not in text
    for pattern in patterns(schema):
        regex.compile(re.sub(r"\\u\{(\w+)\}", lambda code: rf"\U{int(code[1], 16):08x}", pattern))


def test_contents_of_texts_are_enforced_only_where_they_are_asked_for():
    schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"type": "integer"}}
    assert allowed(Json[int], '"3"') and not allowed(Json[int], '"x"') and not allowed(Json[int], "3")
    assert allowed(Json[Node], json.dumps(json.dumps({"value": 1, "under": [{"value": 2}]}, separators=(",", ":"))))
    assert {finding.verdict for finding in explain({**schema, "x-content": "enforced"})} <= {"exact", "annotation"}
    assert accepts(compile_grammar_argument(SamplingOptions(json_schema=json.dumps(schema))), '"x"')


# --- decimals ---------------------------------------------------------------------------------------------


class Priced(BaseModel):
    price: Decimal
    either: Union[float, Decimal] = 0.0  # noqa: UP007
    number: float = 0.0
    more: list[Decimal] = []
    named: dict[str, Decimal] = {}
    pair: tuple[float, Decimal] = (0.0, Decimal(0))
    inner: Json[list[Decimal]] = "[]"  # type: ignore[assignment]
    under: Priced | None = None


def test_decimals_keep_their_digits_wherever_they_are():
    assert read(Decimal, LONG) == Decimal(LONG) == read(Decimal | None, LONG)
    text = (
        f'{{"price": {LONG}, "either": {LONG}, "number": {LONG}, "more": [1, {LONG}], "named": {{"a": -{LONG}e30}}, '
        f'"pair": [{LONG}, {LONG}], "inner": "[{LONG}]", "under": {{"price": {LONG}}}}}'
    )
    value = read(Priced, text)
    exact = Decimal(LONG)
    assert (value.price, value.more, value.named) == (exact, [Decimal(1), exact], {"a": Decimal(f"-{LONG}e30")})
    assert value.pair == (float(LONG), exact) and value.inner == [exact] and value.under.price == exact
    assert value.number == float(LONG) and isinstance(value.number, float) and value.either == float(LONG)


def test_decimals_of_strict_models_and_choices():
    class Strict(BaseModel, strict=True):
        price: Decimal
        other: Decimal | str

    value = read(Strict, f'{{"price": {LONG}, "other": {LONG}}}')
    assert value.price == value.other == Decimal(LONG)
    assert read(Decimal, "1e400") == Decimal("1e400") and read(Decimal, f'"{LONG}"') == Decimal(LONG)


def test_texts_that_look_like_numbers_stay_texts():
    assert read(list[Any], f"[{LONG}]") == [float(LONG)]
    text = f'{{"a": "{LONG}", "b": "{LONG}x"}}'
    assert read(dict[str, Decimal | str], text) == TypeAdapter(dict[str, Decimal | str]).validate_json(text)


# --- choices and keys -------------------------------------------------------------------------------------


def test_members_of_a_tagged_union_say_their_tags():
    pet = Annotated[Cat | Dog, Field(discriminator="kind")]
    assert not allowed(pet, "{}") and allowed(pet, '{"kind": "cat"}') and read(pet, '{"kind": "kitten"}').lives == 9
    assert allowed(Cat, "{}")  # where nothing must be told apart the default does


def test_tags_of_recursive_unions():
    class Leaf(BaseModel):
        is_a: Literal["leaf"] = "leaf"

    class Branch(BaseModel):
        is_a: Literal["branch"] = "branch"
        kids: list[Annotated[Union[Leaf, Branch], Field(discriminator="is_a")]] = []  # noqa: UP007

    Branch.model_rebuild(_types_namespace={"Leaf": Leaf, "Branch": Branch})
    assert not allowed(Branch, '{"is_a": "branch", "kids": [{}]}')
    assert allowed(Branch, '{"is_a": "branch", "kids": [{"is_a": "leaf"}]}')


def test_keys_are_those_that_the_type_reads():
    assert allowed(dict[Floor, int], '{"1":5}') and not allowed(dict[Floor, int], '{"2":5}')
    twelve = dict[Annotated[int, Field(ge=-3, le=12)], int]
    assert allowed(twelve, '{"-3":1, "12":2}') and not allowed(twelve, '{"13":1}') and not allowed(twelve, '{"-4":1}')
    assert not allowed(dict[Literal["a"], int], '{"b":1}')


# --- the time of day --------------------------------------------------------------------------------------


def test_the_past_and_the_future_are_those_of_the_gen():
    today, day = dt.date.today(), dt.timedelta(1)
    assert allowed(PastDate, f'"{today - day}"') and not allowed(PastDate, f'"{today + day}"')
    assert allowed(FutureDate, f'"{today + 2 * day}"') and not allowed(FutureDate, f'"{today}"')
    read(FutureDate, f'"{today + 2 * day}"')
    late, early = dt.datetime.now() + dt.timedelta(hours=1), dt.datetime.now() - dt.timedelta(hours=1)
    assert not allowed(PastDatetime, f'"{late:%Y-%m-%dT%H:%M:%S}"') and allowed(
        PastDatetime, f'"{early:%Y-%m-%dT%H:%M:%S}"'
    )


def test_the_time_is_looked_at_when_a_gen_runs(monkeypatch):
    from sgl.lang.typed import pydantic_scalars

    reading = reading_of(FutureDate)
    before = reading.constrain(SamplingOptions(), BACKEND).json_schema

    class Later(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return dt.datetime(2300, 1, 1, tzinfo=tz)

    class Module:
        datetime, timedelta, timezone, time = Later, dt.timedelta, dt.timezone, dt.time

    monkeypatch.setattr(pydantic_scalars, "datetime", Module)
    after = reading.constrain(SamplingOptions(), BACKEND).json_schema
    assert before != after and not accepts(compile_grammar_argument(SamplingOptions(json_schema=after)), '"2299-12-31"')


# --- what validators of the program refuse -------------------------------------------------------------------


def test_validators_of_the_program_are_quoted():
    with pytest.raises(
        ValueError, match=r"expected JSON of Even, but the text is '.*': number: Value error, the number must be even"
    ):
        read(Even, '{"number": 3}')


def test_a_validator_may_raise_anything():
    class Odd(BaseModel):
        number: int

        def model_post_init(self, context: Any) -> None:
            raise KeyError("gone")

    with pytest.raises(ValueError, match=r"expected JSON of Odd.*a validator of the type raised KeyError: 'gone'"):
        read(Odd, '{"number": 3}')


def test_a_remote_text_outside_the_promise_is_an_error_with_its_reason():
    for code, text in (
        ("UUID4", '"x"'),
        ("HttpUrl", '"ftp://a.b"'),
        ("Json[list[int]]", '"[1"'),
        ("NaiveDatetime", '"2024-01-01T00:00:00Z"'),
    ):
        with pytest.raises(ValueError, match=r"expected JSON of .*, but the text is"):
            read(kind_of(code), text)


# --- other libraries --------------------------------------------------------------------------------------------


def test_a_missing_library_is_named(monkeypatch):
    import pydantic
    from pydantic import networks

    def missing() -> None:
        raise ImportError("email-validator is not installed, run `pip install 'pydantic[email]'`")

    monkeypatch.setattr(networks, "import_email_validator", missing)
    with pytest.raises(BadValueError, match="pip install 'pydantic"):
        reading_of(list[pydantic.EmailStr])


def test_attrs_makes_its_own_objects():
    more = pytest.importorskip("typed_attrs")
    assert read(more.Room, '{"number": 3, "hidden": 4}') == more.Room(3, hidden=4)
    assert read(more.Parts, '{"parts": "a,b"}').parts == ["a", "b"]
    assert not allowed(more.Bounded, '{"count": 9}') and allowed(more.Bounded, '{"count": 8, "code": "abc"}')
    with pytest.raises(ValueError, match="expected JSON of Bounded"):
        read(more.Bounded, '{"count": 2}')


def test_msgspec_reads_its_own_types():
    more = pytest.importorskip("typed_structs")
    assert read(more.Cat, '{"type": "cat", "manyLives": 3}') == more.Cat(3)
    assert read(list[more.Cat | more.Dog], '[{"type": "dog", "weight": 1}]') == [more.Dog(1.0)]
    assert not allowed(more.Cat, '{"type": "cat", "manyLives": 3, "other": 1}')
    assert read(Annotated[int, more.Meta(ge=3)], "3") == 3 and not allowed(Annotated[int, more.Meta(ge=3)], "2")
    assert words_of(more.Limits).plain().splitlines()[1] == "- count (integer)"
    with pytest.raises(ValueError, match=r"expected JSON of Cat.*many"):
        read(more.Cat, '{"type": "cat"}')


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_of_types_is_what_the_code_does(monkeypatch):
    for library in ("msgspec", "attrs", "email_validator"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    import typed

    try:
        assert (ROOT / "docs/types.md").read_text() == typed.page(), "run docs/site/typed.py"
    finally:
        sys.modules.pop("typed", None)
