"""`sgl.extract_document` on scripted answers: pieces, rules of merging, places, cost and errors."""

from __future__ import annotations

import asyncio
import enum
import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Optional, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from document_files import pdf, shown

import sgl
from sgl.documents import pieces, read
from sgl.lang.errors import BadValueError, BatchError, BudgetExceeded, ExtractionError, UnknownOptionError
from sgl.tasks.extract_document import DocumentExtraction
from sgl.tasks.long_documents.document_extraction import PieceError
from sgl.tasks.long_documents.optional_fields import optional_fields


@dataclass
class Line:
    article: str
    price: float


@dataclass
class Bill:
    firm: str
    due: str | None = None
    lines: list[Line] = field(default_factory=list)


PAGES = [
    [(72, 700, "Firm: Nordlys Energy"), (72, 686, "Desk 5"), (72, 672, "Lamp 7")],
    [(72, 700, "Lamp 7"), (72, 686, "Due May 2nd")],
    [(72, 700, "Chair 3"), (72, 686, "Firm: Brandt"), (72, 672, "Due June 1st")],
]
DOCUMENT = read(pdf(*(shown(*lines) for lines in PAGES)), source="bill.pdf")
CUT = {"tokens": 17, "overlap": 0}


def said(prompt: str, request: Any) -> str:
    """What a perfect model finds in a text."""
    text = re.findall(r"user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)[-1]
    found: dict[str, Any] = {}
    for name, pattern in (("firm", r"Firm: (\w+(?: Energy)?)"), ("due", r"Due ([\w ]+)")):
        if match := re.search(pattern, text):
            found[name] = match[1]
    if lines := re.findall(r"(Desk|Lamp|Chair) (\d)", text):
        found["lines"] = [{"article": article, "price": float(price)} for article, price in lines]
    return json.dumps(found)


@pytest.fixture
def model():
    return sgl.Scripted(said, chat_template="chatml")


def test_pieces_are_read_and_merged(model):
    result = sgl.extract_document(Bill, DOCUMENT, backend=model, details=True, **CUT)
    assert isinstance(result, DocumentExtraction)
    lines = [Line("Desk", 5.0), Line("Lamp", 7.0), Line("Lamp", 7.0), Line("Chair", 3.0)]
    assert result.value == Bill("Nordlys Energy", "May 2nd", lines)
    assert sgl.extract_document(Bill, DOCUMENT, backend=model, **CUT) == result.value
    assert len(model.calls) == 2 * len(result.pieces) == 6 and result.usage.operations == 3
    assert [one.value for one in result.found["firm"]] == ["Nordlys Energy", "Brandt"]
    assert [extraction.value for _, extraction in result.pieces][1] == {"due": "May 2nd", "lines": [lines[1]]}


def test_places_are_pages_spans_and_boxes(model):
    result = sgl.extract_document(Bill, DOCUMENT, backend=model, details=True, **CUT)

    def quoted(path):
        return [(place.page, DOCUMENT.text[slice(*place.span)]) for place in result.places[path]]

    assert quoted("firm") == [(1, "Nordlys Energy")] and quoted("due") == [(2, "May 2nd")]
    assert quoted("lines[0].article") == [(1, "Desk")] and quoted("lines[2].article") == [(2, "Lamp")]
    assert quoted("lines[3].article") == [(3, "Chair")]
    assert [place.page for place in result.places["lines[3]"]] == [3]  # the piece: an object has no place itself
    assert "lines[3].price" not in result.places and result.places["due"][0].boxes[0].page == 2


def test_items_that_an_overlap_repeats_are_read_once(model):
    text = "Desk 5\n\nLamp 7\n\nLamp 7\n\nChair 3"
    for tokens, overlap in ((6, 3), (9, 3), (9, 6), (12, 9), (30, 0)):
        result = sgl.extract_document(
            list[Line], text, backend=sgl.Scripted(as_list, chat_template="chatml"), tokens=tokens, overlap=overlap
        )
        assert [line.article for line in result] == ["Desk", "Lamp", "Lamp", "Chair"], (tokens, overlap)


def as_list(prompt: str, request: Any) -> str:
    return json.dumps({"value": json.loads(said(prompt, request)).get("lines")})


def test_rules_by_field(model):
    def run(**merge):
        return sgl.extract_document(Bill, DOCUMENT, backend=model, merge=merge, **CUT)

    assert run(firm="first", lines="first").lines == [Line("Desk", 5.0), Line("Lamp", 7.0)]
    assert run(firm=lambda found: found[-1].value).firm == "Brandt"
    assert run(due=lambda found: f"{len(found)} on {found[0].place.page}").due == "2 on 2"
    with pytest.raises(BadValueError, match=r"merge\['firm'\] is \"most_certain\", but the backend reports no conf"):
        run(firm="most_certain")
    with pytest.raises(BadValueError, match=r"merge\['firm'\] returned .*, which is not JSON"):
        run(firm=lambda found: object())


def test_the_model_chooses_between_values():
    def decides(prompt, request):
        if "what was found in the parts" not in prompt:
            return said(prompt, request)
        assert 'firm: "Nordlys Energy" (page 1)\nfirm: "Brandt" (page 3)' in prompt
        return '{"firm": "Brandt"}'

    model = sgl.Scripted(decides, chat_template="chatml")
    given = {"backend": model, "merge": {"firm": "model"}, **CUT}
    result = sgl.extract_document(Bill, DOCUMENT, details=True, **given)
    assert result.value.firm == "Brandt" and [place.page for place in result.places["firm"]] == [3]
    assert len(model.calls) == result.usage.operations == result.cost.calls == 4
    assert sgl.extract_document(Bill, "Firm: Brandt", **given).firm == "Brandt" and len(model.calls) == 5
    silent = sgl.Scripted(lambda p, r: "{}" if "what was found" in p else said(p, r), chat_template="chatml")
    with pytest.raises(ExtractionError, match=r"no piece has firm|the model chose no firm"):
        sgl.extract_document(Bill, DOCUMENT, **{**given, "backend": silent})


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ({"frim": "first"}, "there is no field 'frim'; the fields are firm, due, lines"),
        ({"firm": "last"}, "is 'last'; give one of first, all, most_certain, model, or a function"),
        ({"firm": "all"}, 'is "all", which is for lists'),
    ],
)
def test_wrong_rules_are_refused_before_anything_runs(model, merge, message):
    with pytest.raises(BadValueError, match=message):
        sgl.extract_document(Bill, DOCUMENT, backend=model, merge=merge)
    assert not model.calls


def test_cost_is_known_before_and_limits_refuse(model):
    cost = sgl.extract_document.cost(Bill, DOCUMENT, backend=model, retries=1, max_tokens=50, **CUT)
    assert not model.calls and (cost.pieces, cost.calls, cost.output_tokens, cost.exact) == (3, 6, 300, False)
    assert "3 pieces, at most 6 calls, about" in str(cost)
    for options, message in (
        ({"max_pieces": 2}, "bill.pdf has 3 pieces, max_pieces is 2"),
        ({"budget": 100}, "bill.pdf may cost more than its budget"),
        ({"budget": sgl.Budget(operations=2)}, "at most 3 calls"),
    ):
        with pytest.raises(BudgetExceeded, match=message):
            sgl.extract_document(Bill, DOCUMENT, backend=model, **options, **CUT)
    assert not model.calls
    assert sgl.extract_document(Bill, DOCUMENT, backend=model, budget=10**6, max_pieces=3, **CUT).firm


def test_a_piece_that_fails_is_named_with_its_page():
    def fails(prompt, request):
        return RuntimeError("no answer") if "Chair" in prompt else said(prompt, request)

    model = sgl.Scripted(fails, chat_template="chatml")
    with pytest.raises(PieceError, match=r"bill\.pdf, page 3: .*no answer") as raised:
        sgl.extract_document(Bill, DOCUMENT, backend=model, **CUT)
    assert raised.value.piece.place.page == 3 and raised.value.__cause__ is not None
    result = sgl.extract_document(Bill, DOCUMENT, backend=model, details=True, on_failed_piece="skip", **CUT)
    assert [line.article for line in result.value.lines] == ["Desk", "Lamp", "Lamp"]
    assert [isinstance(answer, Exception) for _, answer in result.pieces] == [False, False, True]
    with pytest.raises(PieceError, match="no answer"):
        sgl.extract_document(Bill, "Chair 3", backend=model, on_failed_piece="skip")
    with pytest.raises(BadValueError, match="on_failed_piece is 'omit'; give 'error' or 'skip'"):
        sgl.extract_document(Bill, DOCUMENT, backend=model, on_failed_piece="omit")


def test_what_is_not_valid_together_is_named(model):
    @dataclass
    class Whole:
        firm: str
        country: str

    with pytest.raises(
        ExtractionError, match=r"the pieces of <text> .* country.*no piece has country.*`\| None = None`"
    ):
        sgl.extract_document(Whole, "Firm: Brandt", backend=model)

    def check(bill):
        if len(bill.lines) < 9:
            raise ValueError("too few lines")

    with pytest.raises(ExtractionError, match=r"bill\.pdf say is not valid together: too few lines"):
        sgl.extract_document(Bill, DOCUMENT, backend=model, validate=check, **CUT)


def test_the_four_forms(model):
    texts = [DOCUMENT, "Firm: Brandt", "Nothing."]
    with pytest.raises(BatchError, match=r"item 2 of 3, extract_document\(.*no piece has firm") as raised:
        sgl.extract_document.batch(Bill, texts, backend=model, **CUT)
    assert raised.value.results[1] == Bill("Brandt")
    results = sgl.extract_document.batch(Bill, texts, backend=model, return_exceptions=True, details=True, **CUT)
    assert results[0].value.due == "May 2nd" and isinstance(results[2], ExtractionError)

    async def main():
        one = await sgl.extract_document.arun(Bill, DOCUMENT, backend=model, **CUT)
        return one, await sgl.extract_document.abatch(Bill, texts[:2], backend=model, **CUT)

    assert asyncio.run(main()) == (results[0].value, [results[0].value, Bill("Brandt")])
    assert repr(sgl.extract_document) == "<sgl.extract_document>"
    with pytest.raises(UnknownOptionError, match=r"extract_document.*token"):
        sgl.extract_document(Bill, "a", backend=model, tokenz=3)
    for options in ({"retries": -1}, {"retries": True}):
        with pytest.raises(BadValueError, match="retries is"):
            sgl.extract_document(Bill, "a", backend=model, **options)


def test_a_journal_serves_what_ran_before(model, tmp_path):
    path = tmp_path / "bills.journal"
    first = sgl.extract_document(Bill, DOCUMENT, backend=model, journal=path, **CUT)
    assert sgl.extract_document(Bill, DOCUMENT, backend=model, journal=path, **CUT) == first
    assert len(model.calls) == 3


def test_examples_are_of_the_whole_type(model):
    examples = [("We owe Ada 2.", Bill("Ada", None, [Line("Debt", 2.0)])), ("Hello", Bill("none"))]
    sgl.extract_document(Bill, "Firm: Brandt", backend=model, examples=examples, instructions="Be exact.")
    prompt = model.calls[0].prompt
    assert '{"firm": "Ada", "lines": [{"article": "Debt", "price": 2.0}]}' in prompt and "Be exact." in prompt
    with pytest.raises(BadValueError):
        sgl.extract_document(Bill, "Firm: Brandt", backend=model, examples=[("a", 3)])


class Color(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(max_length=5)]
    number: int = pydantic.Field(alias="num", gt=3, description="how many")
    color: Optional[Color] = None  # noqa: UP045


@attrs.define
class Attrs:
    name: str
    items: list[int] = attrs.field(factory=list)


class Struct(msgspec.Struct):
    name: str
    inner: list[Line] = []


class Dict(TypedDict, total=False):
    name: str
    items: list[int]


class Pair(NamedTuple):
    name: str
    number: int


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Model, '{"name": "a", "num": 4, "color": "red"}', Model(name="a", num=4, color=Color.RED)),
        (Attrs, '{"name": "a", "items": [1]}', Attrs("a", [1])),
        (Dict, '{"items": [1, 2]}', {"items": [1, 2]}),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (int, '{"value": 3}', 3),
        (Color, '{"value": "red"}', Color.RED),
        (dict[str, int], '{"value": {"a": 1}}', {"a": 1}),
        (Pair, '{"value": ["a", 1]}', Pair("a", 1)),
        (Struct, '{"name": "a", "inner": [{"article": "b", "price": 1.0}]}', Struct("a", [Line("b", 1.0)])),
    ],
)
def test_any_type_is_read_with_optional_fields(kind, text, value):
    assert sgl.extract_document(kind, "A text.", backend=sgl.Scripted({"value": text})) == value
    if kind is not Attrs:  # of which text_of_value makes no text
        assert json.loads(optional_fields(kind).example("A text.", value)).keys() == json.loads(text).keys()


def test_constraints_and_descriptions_stay():
    fields = optional_fields(Model)
    assert "num (integer): how many" in sgl.fields(fields.partial).text()
    with pytest.raises(PieceError):
        sgl.extract_document(Model, "A.", backend=sgl.Scripted({"value": '{"name": "too long", "num": 4}'}))


def test_long_texts_of_extract_are_read_in_pieces():
    too_long = "We owe. " * 1500
    with sgl.Engine() as engine:
        limits = {"backend": engine, "tokens": 600}
        cost = sgl.extract_document.cost(Bill, too_long, **limits)
        assert cost.exact and cost.pieces == len(pieces(too_long, 600, 60, backend=engine))
        short = {"backend": engine, "details": True, "max_tokens": 8}
        found = sgl.extract_document(list[str], too_long, **short)
        assert isinstance(found, DocumentExtraction) and len(found.pieces) > 1
        same = sgl.extract(list[str], too_long, on_too_long="pieces", **short)
        assert isinstance(same, sgl.Extraction) and same.value == found.value and same.confidence is None
        assert len(same.attempts) == len(found.pieces) and f"{len(found.pieces)} pieces" in same.no_confidence
        assert found.usage.prompt_tokens <= found.cost.prompt_tokens
        assert found.usage.generated_tokens <= found.cost.output_tokens


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": 0}, "tokens is 0; give a whole number from 1"),
        ({"max_tokens": 0}, "max_tokens is 0; give a whole number from 1"),
        ({"max_tokens": "9"}, "max_tokens is '9'"),
        ({"overlap": -1}, "overlap is -1; give a whole number from 0"),
        ({"max_pieces": "9"}, "max_pieces is '9'"),
        ({"budget": "9"}, "budget is '9'; give an sgl.Budget or a number of tokens"),
        ({"merge": 5}, "merge is 5; give a dict of a rule for each field"),
        ({"validate": 5}, "validate is 5; give a function"),
        ({"instructions": 5}, "instructions is 5; give a text"),
        ({"examples": 5}, "examples is 5; give a list of pairs"),
    ],
)
def test_an_option_that_does_not_fit_is_named(given, message):
    with pytest.raises(BadValueError, match=message):
        sgl.extract_document(Bill, "Firm: A", backend=sgl.Scripted({"value": "{}"}), **given)


def test_a_text_is_no_list_of_documents():
    for documents in ("Firm: A", DOCUMENT, None):
        with pytest.raises(BadValueError, match=r"documents is .*; give a list of documents"):
            sgl.extract_document.batch(Bill, documents, backend=sgl.Scripted({"value": "{}"}))


def test_examples_are_chosen_for_each_piece(model):
    pairs = [(f"Firm: {name} Lamp", Bill(name)) for name in ("Oslo", "Bern", "Rome")]
    near = sgl.nearest(pairs, 1, embed=lambda texts: [[text.count("Due"), text.count("Lamp"), 5.0] for text in texts])
    options = {"backend": model, "max_tokens": 50, **CUT}
    all_of_them, chosen = (sgl.extract_document.cost(Bill, DOCUMENT, examples=one, **options) for one in (pairs, near))
    assert chosen.prompt_tokens < all_of_them.prompt_tokens and chosen.shared_tokens < all_of_them.shared_tokens
    assert sgl.extract_document(Bill, DOCUMENT, examples=near, **options).firm
    assert model.calls and all(
        sum(name in call.prompt for name in ("Oslo", "Bern", "Rome")) == 1 for call in model.calls
    )
