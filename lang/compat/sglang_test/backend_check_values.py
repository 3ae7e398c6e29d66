"""Values that a backend is asked for: integers, JSON, types, regular expressions. Part of `backend_check_programs`."""

from __future__ import annotations

import json
import re
from typing import Any

from ...nodes.primitives import gen, gen_int, gen_string
from ...sgl_function import function


def check(holds: object, what: str, found: object) -> None:
    """Raise AssertionError with what was expected and what was found."""
    if not holds:
        raise AssertionError(f"{what}; found {found!r}")


@function
def _two_numbers(s: Any) -> None:
    s += "A week has " + gen_int("days", max_tokens=8) + " days, a year " + gen_int("weeks", max_tokens=8)
    s += " weeks.\n"


def test_decode_int() -> None:
    """gen_int gives integers."""
    state = _two_numbers.run(temperature=0.1)
    for name in ("days", "weeks"):
        check(re.fullmatch(r"-?\d+", state[name].strip()), f"{name}: an integer", state[name])


WORDS = r'"[A-Za-z ]{1,24}"'
NUMBER = r"(0|[1-9]\d{0,6})"  # of JSON: without a sign, without zeros in front


@function
def _city_by_regexes(s: Any) -> None:
    s += "A city, as JSON:\n"
    with s.var_scope("city"):
        s += '{"name": ' + gen(regex=WORDS) + ', "people": ' + gen(regex=NUMBER, stop=[" ", "\n"])
        s += ', "latitude": ' + gen(regex=NUMBER + r"\.\d{1,4}", stop=[" ", "\n"]) + "}"


def test_decode_json_regex() -> None:
    """Regular expressions for the values of an object: it parses, and has its values."""
    text = _city_by_regexes.run(temperature=0.0)["city"]
    try:
        city = json.loads(text)
    except json.JSONDecodeError as error:
        raise AssertionError(f"JSON; found {text!r}: {error}") from error
    kinds = {name: type(value) for name, value in city.items()}
    check(kinds == {"name": str, "people": int, "latitude": float}, "a city", city)


@function
def _city_by_types(s: Any) -> None:
    s += "A city, as JSON:\n"
    with s.var_scope("city"):
        s += '{"name": ' + gen_string("name") + ', "people": ' + gen_int("people", max_tokens=8)
        s += ', "area": ' + gen("area", dtype=int, max_tokens=8) + ', "country": '
        s += gen("country", dtype=str) + "}"


def test_decode_json() -> None:
    """Types for the values of an object: quoted strings and integers between its keys."""
    state = _city_by_types.run(max_new_tokens=64)
    keys = ("name", "people", "area", "country")
    built = "{" + ", ".join(f'"{key}": {state[key]}' for key in keys) + "}"
    check(state["city"] == built, f"the object {built!r}", state["city"])
    for key in ("name", "country"):
        quoted = r'\s*"[^"]*' if _was_cut(state, key) else r'\s*"[^"]*"\s*'
        check(re.fullmatch(quoted, state[key]), f"{key}: a quoted string", state[key])
    for key in ("people", "area"):
        check(re.fullmatch(r"\s*[-+]?\d+\s*", state[key]), f"{key}: an integer", state[key])


def _was_cut(state: Any, name: str) -> bool:
    """Whether the value ended where its tokens did, which a small model that rambles on comes to."""
    reason = (state.get_meta_info(name) or {}).get("finish_reason") or {}
    return bool((reason.get("type") if isinstance(reason, dict) else reason) == "length")


@function
def _one_of_each(s: Any) -> None:
    s += "A word: " + gen("word", dtype=str, stop="\n") + "\n"
    s += "A year: " + gen("year", dtype=int, max_tokens=8) + "\n"
    s += "Pi: " + gen("pi", dtype=float, max_tokens=8) + "\n"
    s += "Is it day? " + gen("day", dtype=bool) + "\n"


def test_dtype_gen() -> None:
    """Values of each dtype can be read as that type, and written back."""
    state = _one_of_each.run()
    state["year"], state["pi"] = int(state["year"]), float(state["pi"])
    check(isinstance(state["year"], int), "the integer that was written", state["year"])
    check(state["day"].strip().lower() in ("true", "false"), "a truth value", state["day"])


ADDRESS = r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"


@function
def _an_address(s: Any) -> None:
    s += "The address of this machine is " + gen("address", temperature=0, regex=ADDRESS)


def test_regex() -> None:
    """The whole of a text matches its regular expression."""
    address = _an_address.run()["address"]
    check(re.fullmatch(ADDRESS, address), "an IPv4 address", address)
