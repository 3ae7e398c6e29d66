"""Numbers and fractions of seconds end: by default, as far as is asked for, and not at all."""

import json
import math
import random
import re
import struct

import pytest
from grammar_support import JSON_PIECES, accepts, byte_vocabulary

from sgl.grammars import GrammarError, compile_json_schema

VOCABULARY = byte_vocabulary(JSON_PIECES)
NUMBER = re.compile(r"-?(\d+)(?:\.(\d+))?(?:[eE][+-]?(\d+))?")


def compiled(schema, **options):
    return compile_json_schema(schema, VOCABULARY, **options)


def short(text, digits):
    """The obvious account of the bound."""
    whole, fraction, power = NUMBER.fullmatch(text).groups()
    return len(whole) <= digits and len(fraction or "") <= digits and len(power or "") <= 4


SCHEMAS = [
    {"type": "number"},
    {"type": "integer"},
    {"type": ["integer", "null"]},
    {"type": "number", "minimum": 0},
    {"type": "number", "maximum": 0},
    {"type": "number", "minimum": -2.5},
    {"type": "number", "minimum": 3, "maximum": 700},
    {"type": "number", "exclusiveMinimum": 0.25},
    {"type": "integer", "minimum": 5},
    {"type": "integer", "maximum": -3},
    {"type": "number", "multipleOf": 0.25},
    {"type": "integer", "multipleOf": 6},
    {"type": "number", "not": {"type": "integer"}},
    {"type": "integer", "minimum": 10, "multipleOf": 5},
]


@pytest.mark.parametrize("digits", [None, 3])
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_no_number_begins_with_a_zero_and_a_digit(schema, digits):
    grammar = compiled(schema, digits=digits)
    for text in ("00", "01", "-01", "012", "006", "-09", "01.5", "00.25", "-00.5", "01e2", "010", "0125"):
        assert not accepts(grammar, text)


def some_number(dice):
    whole = dice.choice(
        [
            "0",
            *(
                str(dice.randrange(1, 10)) + "".join(dice.choice("0123456789") for _ in range(dice.randrange(9)))
                for _ in range(3)
            ),
        ]
    )
    fraction = "." + "".join(dice.choice("0005") for _ in range(dice.randrange(1, 9))) if dice.random() < 0.6 else ""
    power = dice.choice(["e5", "e-07", "E+10", "e00018"]) if dice.random() < 0.2 else ""
    return dice.choice(["", "-"]) + whole + fraction + power


@pytest.mark.parametrize(
    "schema", [s for s in SCHEMAS if "not" not in s], ids=json.dumps
)  # of that one all whole parts are short
def test_what_is_short_is_what_it_was(schema):
    """A number is allowed where it was without a bound, unless it is longer than that."""
    dice = random.Random(json.dumps(schema))
    free, bound = compiled(schema, digits=None), compiled(schema, digits=4)
    lengths = set()
    for _ in range(400):
        text = some_number(dice)
        few = short(text, 4)
        assert accepts(bound, text) == (few and accepts(free, text)), text
        lengths.add(few)
    assert lengths == {True, False}


@pytest.mark.parametrize("schema", [s for s in SCHEMAS if "maximum" not in s or s["maximum"] < 100], ids=json.dumps)
def test_digits_do_not_run_away(schema):
    """Along a text of any one digit, the end comes; without the bound it need not."""
    for head in ("1", "-1", "0.", "1.", "-1.", "5.5"):
        for digit in "0159":
            matcher = compiled(schema).matcher()
            steps = sum(1 for byte in (head + digit * 200).encode() if matcher.accept(byte))
            assert steps < 100, (head, digit)


def test_the_default_takes_what_machines_write():
    numbers = [
        2**64,
        -(2**63),
        1e308,
        5e-324,
        0.1 + 0.2,
        1 / 3,
        -1.7976931348623157e308,
        1e22,
        123456789012345680000.0,
        10**30,
    ]
    grammar = compiled({"type": "number"})
    assert [n for n in numbers if not accepts(grammar, json.dumps(n))] == []
    assert accepts(grammar, "0.0001234567890123456789") and accepts(compiled(True), str(2**64))
    assert not accepts(grammar, "9" * 41) and not accepts(grammar, "0." + "9" * 41) and not accepts(grammar, "1e10000")
    assert accepts(compiled({"type": "number"}, digits=None), "9" * 500)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 10**50}, "1" + "0" * 50),
        ({"type": "integer", "minimum": 10**50, "maximum": 10**50 + 5}, "1" + "0" * 49 + "3"),
        ({"const": 10**50}, "1" + "0" * 50),
        ({"enum": [10**50, 1]}, "1" + "0" * 50),
        (
            {"type": "string", "format": "date-time", "pattern": r"\.\d{20}Z$"},
            '"2024-01-01T00:00:00.' + "1" * 20 + 'Z"',
        ),
        ({"type": "string", "pattern": r"^\d+$"}, '"' + "1" * 100 + '"'),
    ],
    ids=str,
)
def test_what_is_asked_for_goes_beyond(schema, text):
    assert accepts(compiled(schema), text)


def test_seconds():
    for name, head in (("time", "10:00:00"), ("date-time", "2024-01-01T10:00:00")):
        schema = {"type": "string", "format": name}
        for count in (0, 1, 6, 12, 13, 40):
            text = f'"{head}{"." * (count > 0)}{"1" * count}Z"'
            assert accepts(compiled(schema), text) == (count <= 12), text
            assert accepts(compiled(schema, digits=None), text)
    assert not accepts(compiled({"type": "string", "format": "duration"}), f'"P{"1" * 50}D"')


def test_what_is_excluded_is_excluded_whole():
    """The bound is one of what is written, not of what a negation forbids."""
    grammar = compiled({"type": "string", "not": {"format": "time"}})
    assert not accepts(grammar, f'"10:00:00.{"1" * 40}Z"')
    assert not accepts(compiled({"not": {"type": "number"}}), "9" * 50)


@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMaximum", "multipleOf"])
def test_numbers_of_thousands_of_digits_are_named(keyword):
    with pytest.raises(GrammarError, match=f"{keyword} is not supported.*500 digits"):
        compiled({"type": "number", keyword: 10**4000})
    assert accepts(compiled({"type": "integer", "maximum": 10**400}), "5")
    assert accepts(compiled({"type": "string", "maxLength": 10**4000}), '"a"')


@pytest.mark.parametrize("digits", [0, -1, "5", True, 2.0])
def test_the_option_is_checked(digits):
    with pytest.raises(GrammarError, match="digits="):
        compiled(True, digits=digits)


FINITE = [
    {"type": "number"},
    {},
    {"type": "number", "minimum": 0},
    {"type": "number", "maximum": 0},
    {"type": "number", "minimum": 2.5},
    {"type": "number", "multipleOf": 0.5},
    {"type": "number", "minimum": 0, "multipleOf": 4},
    {"type": "integer"},
    {"type": "number", "not": {"type": "integer"}},
]


def with_power(dice):
    """Numbers whose exponents bring them near the largest double, or anywhere."""
    whole = dice.choice(
        ["0", "1", str(dice.randrange(1, 10)), str(dice.randrange(10, 1000)), "1" * dice.randrange(2, 60)]
    )
    fraction = dice.choice(
        [
            "",
            f".{dice.randrange(10**4)}",
            ".7976931348623157",
            ".79769313486231" + str(dice.randrange(10**6)),
            ".7" + "9" * dice.randrange(30),
        ]
    )
    power = max(0, dice.choice([308, 308, 309, 307, dice.randrange(400)]) - dice.choice([0, len(whole) - 1]))
    return (
        dice.choice(["", "-"])
        + whole
        + fraction
        + dice.choice("eE")
        + dice.choice(["", "+", "+0", "0", "-"])
        + str(power)
    )


@pytest.mark.parametrize("digits", [40, None], ids=str)
@pytest.mark.parametrize("schema", FINITE, ids=json.dumps)
def test_no_exponent_leads_beyond_the_doubles(schema, digits):
    dice = random.Random(json.dumps(schema))
    grammar = compiled(schema, digits=digits)
    for text in (with_power(dice) for _ in range(400)):
        assert not accepts(grammar, text) or math.isfinite(float(text)), text


@pytest.mark.parametrize("digits", [40, None], ids=str)
def test_exponents_that_lead_to_doubles_are_written_in_many_ways(digits):
    grammar, dice = compiled({"type": "number"}, digits=digits), random.Random(7)
    for bits in (dice.getrandbits(64) for _ in range(1000)):
        (number,) = struct.unpack("d", struct.pack("Q", bits))
        assert not math.isfinite(number) or accepts(grammar, json.dumps(number)), number
    for number in (math.nextafter(math.inf, 0), math.nextafter(1e308, 0), 1.79e308, 1.7e308, 9.9e307, 5e-324):
        assert accepts(grammar, json.dumps(number)) and accepts(grammar, json.dumps(-number).replace("e", "E"))
    for text in (with_power(dice) for _ in range(3000)):
        whole, _, power = re.split("[.eE]", text.lstrip("-"))[0], *re.split("[eE]", text)
        if len(whole) <= 40 and len(text) < 40 and int(power) <= (307 if len(whole) == 1 else 199):
            assert accepts(grammar, text), text
    for text in ("12.5e3", "0.001E+5", "100e2", "1e0005", "1e308", "1.0E+0308", "123456789e199", "7e-0300", "0e0"):
        assert accepts(grammar, text), text
    assert accepts(grammar, "1e00000005") == (digits is None)
    for text in ("1e309", "2e308", "1.8e308", "1.7976931348623159e308", "10e308", "1e0400", "9" * 41 + "e1"):
        assert not accepts(grammar, text), text
