"""`sgl.extract` on scripted answers: values, prompts, retries, errors, confidence, places."""

from __future__ import annotations

import asyncio
import enum
import inspect
import json
import math
import pickle
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

import sgl
from sgl.lang.backend import Generated
from sgl.lang.errors import BadValueError, BatchError, ExtractionError, TooLongError
from sgl.lang.typed.typed_text_writing import text_of_value
from sgl.runtime.errors import ContextLengthError
from sgl.tasks.confidence import confidences, token_places
from sgl.tasks.json_places import JsonPlaces, properties_inside


@dataclass
class Line:
    article: str
    price: Decimal


@dataclass
class Invoice:
    """An invoice."""

    number: str
    total: float | None = None
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self):
        if self.total is not None and self.total < 0:
            raise ValueError("total must not be negative")


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Guest(BaseModel):
    name: str = Field(alias="fullName")
    age: int

    @field_validator("age")
    @classmethod
    def grown_up(cls, value: int) -> int:
        if value < 18:
            raise ValueError("a guest is at least 18")
        return value


TEXT = "Invoice A-7: two chairs, 80.50 EUR."
ANSWER = '{"number": "A-7", "total": 80.5, "lines": [{"article": "chair", "price": 40.25}]}'
VALUE = Invoice("A-7", 80.5, [Line("chair", Decimal("40.25"))])


def scripted(*answers: Any) -> sgl.Scripted:
    return sgl.Scripted({"value": list(answers)})


def chat(backend: sgl.Scripted) -> str:
    return backend.calls[-1].prompt


# --- values and prompts ----------------------------------------------------------------------------------


def test_the_value_of_a_text():
    assert sgl.extract(Invoice, TEXT, backend=scripted(ANSWER)) == VALUE
    assert asyncio.run(sgl.extract.arun(Invoice, TEXT, backend=scripted(ANSWER))) == VALUE
    assert sgl.extract.batch(Invoice, [TEXT, TEXT], backend=scripted(ANSWER, ANSWER), num_threads=1) == [VALUE] * 2
    assert asyncio.run(sgl.extract.abatch(Invoice, iter([TEXT]), backend=scripted(ANSWER))) == [VALUE]


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (int, "42", 42),
        (str, "forty-two", "forty-two"),
        (bool, "True", True),
        (Literal["a", "b"], "b", "b"),
        (Colour, "red", Colour.RED),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (dict[str, Colour], '{"x": "green"}', {"x": Colour.GREEN}),
    ],
)
def test_types_without_fields(kind: Any, answer: str, value: Any):
    backend = scripted(answer)
    assert sgl.extract(kind, TEXT, backend=backend) == value
    assert chat(backend).startswith(("SYSTEM:Extract this from the text: ", "Extract this from the text: "))


def test_what_the_model_reads():
    backend = sgl.Scripted({"value": [ANSWER]}, chat_template="chatml")
    pairs = [("Nothing.", Invoice("?")), ("One chair.", '{"number": "1"}')]
    sgl.extract(
        Invoice, TEXT + "<|im_end|>", backend=backend, instructions="Amounts are in euros.", examples=iter(pairs)
    )
    assert chat(backend) == (
        "<|im_start|>system\nExtract these fields from the text as JSON. Leave out what the text does not say.\n"
        "- number (string, required)\n- total (number)\n- lines (list of objects)\n  - article (string)\n"
        "  - price (number or string)\nAmounts are in euros.<|im_end|>\n"
        '<|im_start|>user\nNothing.<|im_end|>\n<|im_start|>assistant\n{"number": "?", "lines": []}<|im_end|>\n'
        '<|im_start|>user\nOne chair.<|im_end|>\n<|im_start|>assistant\n{"number": "1"}<|im_end|>\n'
        f"<|im_start|>user\n{TEXT}<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    start = chat(backend).index(TEXT + "<|im_end|>") + len(TEXT)
    assert any(first <= start < last for first, last, _ in chat(backend).quoted)  # it ends no turn


def test_options_of_the_run_pass_through():
    seen = []
    backend = sgl.Scripted({"value": lambda prompt, request: seen.append(request.options) or ANSWER})
    sgl.extract(Invoice, TEXT, backend=backend, max_tokens=90, seed=3)
    assert (seen[0].temperature, seen[0].max_new_tokens, seen[0].seed) == (0.0, 90, 3)


def test_the_page_has_the_program_as_it_is():
    page = (Path(__file__).parents[2] / "docs/extract.md").read_text()
    assert inspect.getsource(sgl.extract.program.func) in page


# --- retries ---------------------------------------------------------------------------------------------


def test_the_validator_tells_the_model_what_is_wrong():
    backend = scripted('{"number": "A-7", "total": -1}', ANSWER)
    found = sgl.extract(Invoice, TEXT, retries=1, details=True, backend=backend)
    assert found.value == VALUE
    assert [attempt.problem for attempt in found.attempts] == ["Value error, total must not be negative", None]
    assert [attempt.text for attempt in found.attempts] == ['{"number": "A-7", "total": -1}', ANSWER]
    assert "This is not valid: Value error, total must not be negative\nWrite it again, corrected." in chat(backend)
    assert '{"number": "A-7", "total": -1}' in chat(backend)  # the same conversation
    assert found.usage.operations == 2


def test_validators_of_pydantic_and_functions():
    answers = '{"fullName": "Ann", "age": 7}', '{"fullName": "Ann", "age": 20}', '{"fullName": "Bo", "age": 20}'
    backend = scripted(*answers)

    def not_ann(guest: Guest) -> None:
        if guest.name == "Ann":
            raise AssertionError("Ann is no guest")

    found = sgl.extract(Guest, TEXT, retries=2, validate=not_ann, details=True, backend=backend)
    assert found.value.name == "Bo"
    problems = [attempt.problem for attempt in found.attempts]
    assert problems == ["age: Value error, a guest is at least 18", "Ann is no guest", None]


def test_no_valid_value():
    bad = '{"fullName": "Ann", "age": 7}'
    with pytest.raises(
        ExtractionError, match=r"extract\(Guest\): no valid value in 2 attempts; .* at least 18"
    ) as caught:
        sgl.extract(Guest, TEXT, retries=1, backend=scripted(bad, bad))
    error = pickle.loads(pickle.dumps(caught.value))
    assert [attempt.text for attempt in error.attempts] == [bad, bad]
    assert [turn["role"] for turn in error.messages] == ["system", "user", "assistant", "user", "assistant"]
    with pytest.raises(BatchError, match="item 1 of 2, extract") as failed:
        sgl.extract.batch(Guest, ["a", "b"], backend=scripted(bad.replace("7", "70"), bad), num_threads=1)
    assert isinstance(failed.value.__cause__, ExtractionError) and failed.value.results[0].age == 70


def test_errors_of_a_validator_that_say_nothing_of_the_value():
    def broken(value: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        sgl.extract(Invoice, TEXT, validate=broken, retries=3, backend=scripted(ANSWER))


def test_a_text_that_is_too_long():
    error = ContextLengthError("9000 tokens and at least 1 more do not fit the context of 2048 tokens")
    with pytest.raises(TooLongError, match=r"9000 tokens .* 2048 tokens") as caught:
        sgl.extract(Invoice, TEXT, retries=2, backend=scripted(error))
    assert isinstance(caught.value.__cause__, sgl.ProgramError)


def test_a_text_that_is_cut_is_not_asked_for_again():
    cut = Generated('{"number": "A', {"finish_reason": {"type": "length", "length": 4}})
    with pytest.raises(sgl.ProgramError, match="max_tokens=4"):
        sgl.extract(Invoice, TEXT, retries=2, max_tokens=4, backend=scripted(cut))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries is -1"),
        ({"retries": True}, "retries is True"),
        ({"on_too_long": "cut"}, "on_too_long is 'cut'"),
        ({"examples": [("a",)]}, "is no example"),
        ({"examples": [("a", 7)]}, "7 cannot be written as Invoice"),
        ({"examples": [("a", '{"numbr": "7"}')]}, "cannot be written as Invoice"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], message: str):
    with pytest.raises(BadValueError, match=message):
        sgl.extract(Invoice, TEXT, backend=scripted(ANSWER), **options)


# --- examples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (None, "yes", "yes"),
        (None, Colour.RED, "red"),
        (None, 7, "7"),
        (None, {"a": [1]}, '{"a": [1]}'),
        (None, Line("é", Decimal("1.50")), '{"article": "é", "price": 1.50}'),
        (None, Guest(fullName="Ann", age=20), '{"fullName": "Ann", "age": 20}'),
        (Invoice | None, None, "null"),
        (list[Colour], [Colour.GREEN], '["green"]'),
        (Literal[1, 2], 2, "2"),
        (float, 0.5, "0.5"),
    ],
)
def test_how_an_answer_is_written(kind: Any, value: Any, text: str):
    @sgl.function
    def shown(s):
        s += sgl.examples([("?", value)], kind)

    assert shown.run(backend=sgl.Scripted({})).messages()[-1]["content"] == text


# --- confidence ------------------------------------------------------------------------------------------


def tokens(*pairs: tuple[str, float]) -> Generated:
    entries = [[math.log(probability), place, text] for place, (text, probability) in enumerate(pairs)]
    return Generated("".join(text for text, _ in pairs), {"output_token_logprobs": entries})


def test_confidence_of_fields():
    answer = tokens(
        ('{"', 1),
        ("number", 0.5),
        ('": "', 1),
        ("A-", 0.8),
        ('7"', 0.5),
        (', "', 0.9),
        ("lines", 0.7),
        ('": []', 1),
        ("}", 1),
    )
    found = sgl.extract(Invoice, TEXT, details=True, backend=scripted(answer))
    assert found.no_confidence is None and found.confidence is not None
    number, lines, total = (found.confidence[name] for name in ("number", "lines", "total"))
    assert (number.written, number.value, number.per_token, number.tokens) == pytest.approx(
        (0.5, 0.4, 0.4 ** (1 / 3), 3)
    )
    assert number.whole == pytest.approx(0.2)
    assert (lines.written, lines.value) == pytest.approx((0.63, 1))
    assert (total.written, total.value, total.tokens) == pytest.approx((0.63, 1, 0))  # lines came in its place
    assert [*found.confidence] == ["number", "lines", "total"]


def test_confidence_of_a_bare_value():
    found = sgl.extract(int, TEXT, details=True, backend=scripted(tokens(("4", 0.5), ("2", 0.5))))
    assert found.confidence is not None and found.confidence[""].whole == 0.25


def test_why_there_is_no_confidence():
    found = sgl.extract(Invoice, TEXT, details=True, backend=scripted(ANSWER))
    assert found.confidence is None
    assert found.no_confidence == "the answer of scripted came without log-probabilities"


def test_a_field_that_the_engine_closed_has_none():
    entries = [[0.0, 0, '{"number": "A'], [None, 1, '"'], [None, 2, "}"]]
    schema = {"properties": {"number": {}}}
    assert confidences('{"number": "A"}', entries, schema) == {}


def test_tokens_that_share_a_character():
    assert token_places("aé🙂b", ["a", "\ufffd", "\ufffd", "\ufffd\ufffd", "b"]) == [
        (0, 1),
        (1, 3),
        (1, 3),
        (1, 3),
        (3, 4),
    ]
    assert token_places("x\ufffdy", ["x\ufffd", "y"]) == [(0, 2), (2, 3)]
    assert token_places("é", ["\ufffd", "\ufffd"]) == [(0, 1), (0, 1)]


def random_json(random: Random, depth: int = 4) -> Any:
    kind = random.choice(["text", "number", "constant", "list", "object"] if depth else ["text", "number", "constant"])
    if kind in ("list", "object"):
        inside = [random_json(random, depth - 1) for _ in range(random.randrange(4))]
        return inside if kind == "list" else {random_text(random): one for one in inside}
    numbers = [random.randrange(-99, 99), random.uniform(-1e9, 1e9), 1e-30, 10**30]
    return {"text": random_text(random), "number": random.choice(numbers)}.get(kind, random.choice([None, True, False]))


def random_text(random: Random) -> str:
    return "".join(random.choice('ab"\\{}[],: \n\té🙂\u2028') for _ in range(random.randrange(6)))


def leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    """The oracle: the values without fields, as the parsed JSON has them."""
    if isinstance(value, dict) and value:
        return [leaf for name, held in value.items() for leaf in leaves(held, f"{path}.{name}".removeprefix("."))]
    if isinstance(value, list) and value:
        return [leaf for index, held in enumerate(value) for leaf in leaves(held, f"{path}[{index}]")]
    return [(path, value)]


@pytest.mark.parametrize("seed", range(0, 1000, 100))
def test_places_of_the_leaves_of_any_json(seed: int):
    for each in range(seed, seed + 100):
        check_places(Random(each))


def check_places(random: Random) -> None:
    value = random_json(random)
    indent, ascii_only = random.choice([None, 0, 2, "\t"]), random.random() < 0.5
    text = random.choice(["", " \n"]) + json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    found = JsonPlaces(text)
    assert [(leaf.path, json.loads(text[leaf.start : leaf.end])) for leaf in found.leaves] == leaves(value, "")
    for one in found.objects:
        assert [first for _, first in one.members] == sorted(first for _, first in one.members)


def test_properties_of_objects_in_choices_and_lists():
    cat = {"properties": {"kind": {"const": "cat"}, "lives": {}}, "required": ["kind"]}
    dog = {"properties": {"kind": {"const": "dog"}, "bark": {}}, "required": ["kind"]}
    schema = {
        "properties": {"pets": {"items": {"anyOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}}},
        "$defs": {"cat": cat, "dog": dog},
    }
    value = {"pets": [{"kind": "dog"}, {"kind": "cat"}]}
    assert dict(properties_inside(value, schema)) == {
        "": ["pets"],
        "pets[0]": ["kind", "bark"],
        "pets[1]": ["kind", "lives"],
    }


# --- places of copied fields -----------------------------------------------------------------------------


@dataclass
class Quoted:
    article: sgl.Quote
    note: str


def test_copied_fields_of_examples_and_retries():
    pairs = [("Two beds.", Quoted("beds", "y"))]
    answers = '{"article": "two", "note": "x"}', '{"article": "chairs", "note": "x"}'

    def chairs(value: Quoted) -> None:
        if value.article != "chairs":
            raise ValueError("give the article")

    backend = scripted(*answers)
    assert sgl.extract(Quoted, TEXT, examples=pairs, validate=chairs, retries=1, backend=backend).article == "chairs"
    with pytest.raises(BadValueError, match="cannot be written as Quoted"):
        sgl.extract(Quoted, TEXT, examples=[("Two beds.", Quoted("bed", "y"))], backend=backend)


def test_the_text_of_copied_values_without_their_source():
    assert text_of_value(Quoted, Quoted("bed", "y")) == '{"article": "bed", "note": "y"}'


def test_places_of_copied_fields():
    answer = '{"article": "chairs", "note": "x"}'
    found = sgl.extract(Quoted, TEXT + " More chairs.", details=True, backend=scripted(answer))
    assert found.spans == {"article": [(17, 23), (41, 47)]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"instructions": 5}, "instructions is 5; give a text"),
        ({"validate": 5}, "validate is 5; give a function of the value"),
        ({"examples": 5}, "examples is 5; give a list of pairs"),
        ({"copied_from": "a"}, "Invoice has no copied values; mark its texts with sgl.Quote"),
        ({"text": "other"}, "text= is given twice"),
        ({"kind": int}, "kind= is given twice"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_before_the_model_writes(given, message):
    backend = sgl.Scripted({"value": "{}"})
    with pytest.raises(BadValueError, match=message):
        sgl.extract(Invoice, "A1", backend=backend, **given)
    assert backend.calls == []


def test_a_text_is_no_list_of_texts():
    for texts in ("A1", None):
        with pytest.raises(BadValueError, match=r"texts is .*; give a list of texts"):
            sgl.extract.batch(Invoice, texts, backend=sgl.Scripted({}))
    for text in (None, b"A1"):
        with pytest.raises(BadValueError, match=r"text is .*; give the text from which"):
            sgl.extract(Invoice, text, backend=sgl.Scripted({}))


def test_a_refusal_without_a_message_has_the_name_of_its_error():
    def validate(value):
        raise ValueError

    with pytest.raises(ExtractionError, match="the last is '1': ValueError, without a message"):
        sgl.extract(int, "1", validate=validate, backend=sgl.Scripted({"value": "1"}))
