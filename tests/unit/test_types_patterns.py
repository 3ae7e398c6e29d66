"""The patterns of bounds, networks, encodings and dialects against the libraries that they speak of."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import random
import re
from typing import Annotated

import pytest
from grammar_walks import BYTES, accepts
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime, Field, StringConstraints, TypeAdapter, ValidationError

from sgl.grammars import compile_json_schema
from sgl.lang.errors import BadValueError
from sgl.lang.typed import reading_of
from sgl.lang.typed.regexes import address_regexes, datetime_regexes, encoding_regexes, number_range_regexes
from sgl.lang.typed.regexes.datetime_regexes import DatetimeRange
from sgl.lang.typed.regexes.ecma_regexes import of_ecma

few = settings(max_examples=60, deadline=None)
MARKS = st.one_of(st.none(), st.integers(-1200, 1200))


def full(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


@given(MARKS, MARKS, st.integers(-1300, 1300))
@few
def test_integers_between_bounds(low, high, value):
    within = (low is None or low <= value) and (high is None or value <= high)
    assert full(number_range_regexes.integers(low, high), str(value)) == within


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
@few
def test_counts_have_no_leading_zeros(low, more, value):
    pattern = number_range_regexes.counts(low, low + more)
    assert full(pattern, str(value)) == (low <= value <= low + more)
    assert not full(pattern, f"0{value}")


@given(st.dates(), st.dates(), st.dates())
@few
def test_dates_between_bounds(one, other, day):
    low, high = sorted((one, other))
    assert full(datetime_regexes.dates(DatetimeRange(low, high)), day.isoformat()) == (low <= day <= high)


@given(st.dates(), st.dates())
@few
def test_the_days_next_to_a_bound(low, high):
    for bound in (low, high):
        for shift in (-366, -31, -1, 0, 1, 31, 366):
            try:
                day = bound + dt.timedelta(shift)
            except OverflowError:
                continue
            assert full(datetime_regexes.dates(DatetimeRange(low, high)), day.isoformat()) == (low <= day <= high)


def test_leap_days_are_those_of_the_calendar():
    pattern = re.compile(datetime_regexes.dates(DatetimeRange(dt.date(1796, 3, 1), dt.date(2404, 12, 30))), re.ASCII)
    for year in range(1790, 2410):
        leap = year % 4 == 0 and (year % 100 or year % 400 == 0)
        assert bool(pattern.fullmatch(f"{year}-02-29")) == bool(leap and 1797 <= year <= 2404)


@given(st.times(), st.times(), st.times())
@few
def test_times_between_bounds_keep_inside(one, other, clock):
    low, high = sorted((one, other))
    if full(datetime_regexes.times(DatetimeRange(low, high)), clock.isoformat()):
        assert low <= clock <= high
    whole = clock.replace(microsecond=0)
    assert full(datetime_regexes.times(DatetimeRange(low, high)), whole.isoformat()) == (low <= whole <= high)


@given(st.datetimes(), st.datetimes(), st.datetimes())
@few
def test_datetimes_between_bounds_keep_inside(one, other, at):
    low, high = sorted((one, other))
    whole = at.replace(microsecond=0)
    assert full(datetime_regexes.datetimes(DatetimeRange(low, high)), whole.isoformat()) == (low <= whole <= high)


@given(
    st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2001, 1, 1)),
    st.integers(-4 * 86400, 4 * 86400),
    st.integers(-23, 23),
)
@few
def test_moments_near_a_bound_with_an_offset(bound, seconds, hours):
    """What is allowed is read by pydantic; with `Z` every whole second up to the bound is allowed."""
    bound = bound.replace(microsecond=0, tzinfo=dt.timezone(dt.timedelta(hours=hours)))
    adapter = TypeAdapter(Annotated[AwareDatetime, Field(ge=bound)])
    pattern = datetime_regexes.moments(DatetimeRange(low=bound), "aware")
    for offset in (dt.timedelta(0), dt.timedelta(hours=7), dt.timedelta(hours=-11)):
        at = (bound + dt.timedelta(seconds=seconds)).astimezone(dt.timezone(offset))
        text = at.isoformat().replace("+00:00", "Z")
        if full(pattern, text):
            adapter.validate_json(f'"{text}"')
        elif text.endswith("Z"):
            with pytest.raises(ValidationError):
                adapter.validate_json(f'"{text}"')


@given(
    st.timedeltas(dt.timedelta(-40), dt.timedelta(40)),
    st.timedeltas(dt.timedelta(0), dt.timedelta(40)),
    st.integers(-4000, 4000),
)
@few
def test_durations_between_bounds(low, more, count):
    pattern = datetime_regexes.durations(DatetimeRange(low, low + more))
    for form, unit in (("P{}D", 86400), ("PT{}H", 3600), ("PT{}M", 60), ("PT{}S", 1)):
        text = ("-" if count < 0 else "") + form.format(abs(count))
        within = low <= dt.timedelta(seconds=count * unit) <= low + more
        assert full(pattern, text) == within, text


def test_networks_are_those_without_host_bits():
    rng, pattern = random.Random(0), re.compile(address_regexes.ipv4_network())
    for _ in range(2000):
        prefix = rng.randrange(33)
        bits = rng.getrandbits(32) & ~((1 << rng.randrange(33)) - 1)
        text = f"{ipaddress.IPv4Address(bits)}/{prefix}"
        assert bool(pattern.fullmatch(text)) == (not bits & ((1 << (32 - prefix)) - 1)), text


def test_networks_of_ipv6_are_written_as_python_writes_them():
    rng, pattern = random.Random(0), re.compile(address_regexes.ipv6_network())
    for prefix in range(129):
        bits = rng.getrandbits(128) | 1 << 127
        network = ipaddress.IPv6Network((bits >> (128 - prefix) << (128 - prefix) if prefix < 128 else bits, prefix))
        assert "::" in str(network).partition("::/")[0] or pattern.fullmatch(str(network)), network
        if 0 < prefix < 128:
            assert not pattern.fullmatch(f"{ipaddress.IPv6Address(int(network.network_address) | 1)}/{prefix}")


@given(st.binary(max_size=12), st.sampled_from(["base64", "base64url"]))
@few
def test_encodings_are_those_of_the_standard_library(data, alphabet):
    encode = base64.b64encode if alphabet == "base64" else base64.urlsafe_b64encode
    text = encode(data).decode()
    assert full(encoding_regexes.base64(alphabet), text)
    assert full(encoding_regexes.base64_of_ascii(alphabet), text) == data.isascii()
    assert full(encoding_regexes.hexadecimal(), data.hex())


CHARACTERS = (
    [chr(code) for code in range(0x250)]
    + list("ⅷⒶⓩ٣߀०９ªº²¼ֿ‿⁀Ω漢ア가𝟙🙂𐐀🅰\u200b\u200c\u200d\u2028\u2029\u202f\u205f\u3000\ufeff\u180e\u1680\u0345\u2170")
    + [chr(code) for code in range(0x2000, 0x2010)]
)


@pytest.mark.parametrize(
    "pattern", [r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"[^\s]", r"[^\d]", r"[^\w]", r"[\s_]", r"[\s\S]", "."]
)
@pytest.mark.parametrize("engine", ["rust", "python"])
def test_what_ecma_matches_the_reader_matches(pattern, engine):
    """A character at a time: all that the translated pattern allows is what the reader's dialect allows."""
    anchored = f"^(?:{pattern})$"
    given = re.compile(anchored) if engine == "python" else anchored
    adapter = TypeAdapter(Annotated[str, StringConstraints(pattern=given)])
    grammar = compile_json_schema({"type": "string", "pattern": of_ecma(given, engine == "rust")}, BYTES)
    allowed = [char for char in CHARACTERS if char >= " " and char not in '"\\' and accepts(grammar, f'"{char}"')]
    assert allowed
    for char in allowed:
        adapter.validate_python(char)


@pytest.mark.parametrize("pattern", ["[[:alpha:]]", "[a&&b]", "[a--b]", r"[\W_]", r"[^\S]"])
def test_what_dialects_read_differently_is_refused(pattern):
    with pytest.raises(BadValueError, match="has no counterpart"):
        reading_of(Annotated[str, Field(pattern=pattern)])


def test_reserved_last_labels_are_no_mail():
    pattern = re.compile(address_regexes.email())
    assert pattern.fullmatch("ann.lee@mail.lee.org") and pattern.fullmatch("a@b.tests") and pattern.fullmatch("a@b.te")
    for host in ("test", "local", "localhost", "onion", "arpa", "invalid", "example", "internal"):
        assert not pattern.fullmatch(f"ann@lee.{host}")
