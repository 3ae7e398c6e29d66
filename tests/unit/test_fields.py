"""`sgl.fields`: everything that a model must know of a type is in the prompt, in the words of the backend's model."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date
from typing import Annotated, Literal, NamedTuple, Optional, TypedDict

import pytest
from lang_rules import RuleBackend
from pydantic import BaseModel, Field

import sgl
from sgl.lang.errors import BadValueError, TextOfNodeError
from sgl.runtime.nano import nano_prompts


class Currency(enum.Enum):
    EURO = "EUR"
    DOLLAR = "USD"


class Line(BaseModel):
    item: str = Field(description="what was bought")
    count: int = 1


class Party(BaseModel):
    name: str
    vat_id: str | None = None


class Invoice(BaseModel):
    number: str
    issued: date | None = None
    currency: Currency | None = None
    seller: Party | None = Field(None, description="who wants the money")
    lines: list[Line] = []
    tags: list[str] = []
    kind: Literal["invoice", "credit note"] = "invoice"


INVOICE = """Extract these fields from the text as JSON. Leave out what the text does not say.
- number (string, required)
- issued (date as YYYY-MM-DD)
- currency (EUR | USD)
- seller (object): who wants the money
  - name (string, required)
  - vat_id (string)
- lines (list of objects)
  - item (string, required): what was bought
  - count (integer)
- tags (list of strings)
- kind (invoice | credit note)"""


def test_every_field_is_said_with_what_it_holds():
    assert sgl.fields(Invoice).text() == INVOICE


@dataclasses.dataclass
class Booking:
    name: str | None
    guests: int | None


class Spot(TypedDict):
    x: float
    y: Annotated[float, Field(description="upwards")]


class Pair(NamedTuple):
    left: int
    right: int


@dataclasses.dataclass
class Either:
    what: Booking | Line
    sizes: dict[str, int]
    pair: tuple[int, str]


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            Booking,
            [
                "Extract these fields from the text as JSON. Write null where the text does not say.",
                "- name (string or null)",
                "- guests (integer or null)",
            ],
        ),
        (Spot, ["Extract these fields from the text as JSON.", "- x (number)", "- y (number): upwards"]),
        (
            list[Spot],
            [
                "Extract a list of objects with these fields from the text as JSON.",
                "- x (number)",
                "- y (number): upwards",
            ],
        ),
        (
            Either,
            [
                "Extract these fields from the text as JSON.",
                "- what (object)",
                "  either an object with",
                "    - name (string or null)",
                "    - guests (integer or null)",
                "  or an object with",
                "    - item (string, required): what was bought",
                "    - count (integer)",
                "- sizes (object with any names and values of kind integer)",
                "- pair (list: integer, string)",
            ],
        ),
        (
            {"properties": {"a": {"enum": [1, "b", None]}, "c": {"type": ["string", "null"]}}, "required": ["a", "c"]},
            ["Extract these fields from the text as JSON.", "- a (1 | b | null)", "- c (string or null)"],
        ),
    ],
)
def test_types_of_all_kinds(kind, lines):
    assert sgl.fields(kind).text().splitlines() == lines


class Node(BaseModel):
    value: int
    next: Optional[Node] = None  # noqa: UP045


def test_a_type_inside_itself_ends():
    text = sgl.fields(Node, "").text()
    assert text.count("value") == 1 and "- next (object)" in text


def test_a_task_of_ones_own():
    assert sgl.fields(Spot, "Where is it?").text() == "Where is it?\n- x (number)\n- y (number): upwards"
    assert sgl.fields(Spot, "").text().startswith("- x")


@pytest.mark.parametrize("kind", [int, str, list[int], {"type": "string"}, Currency, 7, "Invoice", dict[str, int]])
def test_what_has_no_fields_is_refused(kind):
    with pytest.raises(BadValueError, match="class"):
        sgl.fields(kind)


class Named(RuleBackend):
    def __init__(self, model: str) -> None:
        super().__init__(lambda prompt, request: "{}")
        self.model = model

    def get_model_name(self) -> str:
        return self.model


@sgl.function
def read(s, text):
    s += sgl.system("Be exact. " + sgl.fields(Invoice)) + sgl.user(text)
    s += sgl.assistant(sgl.gen("found"))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_words_are_those_of_the_backends_model(compiled):
    program = read.compile() if compiled else read
    nano = nano_prompts.extraction(nano_prompts.fields_of(Invoice.model_json_schema()), "")[0]["content"]
    for model, words in (("sgl-nano", nano), ("qwen3", INVOICE)):
        backend = Named(model)
        text = program.run("A", backend=backend).text()
        assert f"Be exact. {words}\n" in text, text


def test_a_description_is_one_line():
    schema = {"properties": {"a": {"type": "string", "description": "not <|end|>\nnor two lines"}}}
    assert sgl.fields(schema, "").text() == ("- a (string): not <|end|> nor two lines")


def test_print_says_what_it_is_and_an_f_string_is_refused() -> None:
    printed = str(sgl.fields(Invoice))
    assert (
        "the fields of Invoice" in printed
        and "s += sgl.system(sgl.fields(Invoice))" in printed
        and ".text()" in printed
    )
    assert printed.endswith(INVOICE.strip())
    with pytest.raises(TextOfNodeError, match=r"\.text\(\)"):
        f"Read this. {sgl.fields(Invoice)}"
