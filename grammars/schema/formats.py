"""The `format`s of JSON Schema that are enforced, as regexes of whole strings (ECMA dialect)."""

from __future__ import annotations

from functools import lru_cache

from sgl.grammars.algebra.expr import Expr
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.bounded import DIGITS, SECOND_DIGITS, bounded

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTHS = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE = rf"(?:{_YEAR}-{_MONTHS}|{_LEAP}-02-29)"
_FRACTION = r"(?:\.\d+)?"
_ZONE = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_TIME_PARTS = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DATE_PARTS = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_ESCAPE = r"%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9._~\-"
_BEYOND_ASCII = (
    r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}"
    r"\u{40000}-\u{4fffd}\u{50000}-\u{5fffd}\u{60000}-\u{6fffd}\u{70000}-\u{7fffd}\u{80000}-\u{8fffd}"
    r"\u{90000}-\u{9fffd}\u{a0000}-\u{afffd}\u{b0000}-\u{bfffd}\u{c0000}-\u{cfffd}\u{d0000}-\u{dfffd}"
    r"\u{e1000}-\u{efffd}"
)
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+(?:\.[A-Za-z0-9_]+)*(?::[1-9]\d{0,3}|\*)?"
_LITERAL = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?#\[\]-]|%[0-9A-Fa-f]{2})"
_TEMPLATE = rf"(?:{_LITERAL}|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"


def _time() -> str:
    """Times of RFC 3339; a leap second only where it is 23:59 in UTC (told for offsets of whole hours)."""
    leaps = ["23:59:60" + _FRACTION + r"(?:[Zz]|[+-]00:00)"]
    for hours in range(1, 24):
        leaps.append(rf"{(23 + hours) % 24:02}:59:60{_FRACTION}\+{hours:02}:00")
        leaps.append(rf"{23 - hours:02}:59:60{_FRACTION}-{hours:02}:00")
    plain = rf"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d{_FRACTION}{_ZONE}"
    return rf"(?:{plain}|{'|'.join(leaps)})"


def _ipv6() -> str:
    """All groups, or `::` in place of one group or more."""
    forms = [rf"(?:{_GROUP}:){{7}}{_GROUP}", rf"(?:{_GROUP}:){{6}}{_IPV4}"]
    for before in range(8):
        head = "" if before == 0 else rf"{_GROUP}(?::{_GROUP}){{{before - 1}}}"
        most = 7 - before
        forms.append(head + "::" + (rf"(?:{_GROUP}(?::{_GROUP}){{0,{most - 1}}})?" if most else ""))
        if most >= 2:
            forms.append(head + rf"::(?:{_GROUP}:){{0,{most - 2}}}{_IPV4}")
    return "|".join(forms)


def _uri(beyond: str, private: str, relative: bool) -> str:
    """Addresses of RFC 3986, or of RFC 3987 with its characters beyond ASCII.

    Without a host a path must follow, as in `file:///etc`.
    """
    word = rf"{_UNRESERVED}!$&'()*+,;={beyond}"
    path_char, no_slash = rf"(?:[{word}:@/]|{_ESCAPE})", rf"(?:[{word}:@]|{_ESCAPE})"
    literal = rf"\[(?:{_ipv6()}|[Vv][0-9A-Fa-f]+\.[{_UNRESERVED}!$&'()*+,;=:]+)\]"
    host = rf"(?:(?:[{word}:]|{_ESCAPE})*@)?(?:{literal}|(?:[{word}]|{_ESCAPE})+)(?::\d*)?"
    authority = rf"//(?:{host}(?:/{path_char}*)?|/{path_char}*)"
    rooted = rf"/(?:{no_slash}{path_char}*)?"
    tail = rf"(?:\?(?:[{word}:@/?{private}]|{_ESCAPE})*)?(?:#(?:[{word}:@/?]|{_ESCAPE})*)?"
    whole = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{rooted}|{no_slash}{path_char}*|){tail}"
    first = rf"(?:[{word}@]|{_ESCAPE})+"
    return whole + (rf"|(?:{authority}|{rooted}|{first}(?:/{path_char}*)?|){tail}" if relative else "")


_PATTERNS = {
    "date": _DATE,
    "time": _time(),
    "date-time": rf"{_DATE}[Tt]{_time()}",
    "duration": rf"P(?:{_DATE_PARTS}(?:{_TIME_PARTS})?|{_TIME_PARTS}|\d+W)",
    "email": rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOST}|\[(?:{_IPV4}|IPv6:(?:{_ipv6()}))\])",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "uri": _uri("", "", False),
    "uri-reference": _uri("", "", True),
    "iri": _uri(_BEYOND_ASCII, _PRIVATE, False),
    "iri-reference": _uri(_BEYOND_ASCII, _PRIVATE, True),
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
ENFORCED = frozenset(_PATTERNS)


@lru_cache(maxsize=len(_PATTERNS))
def format_expr(name: str) -> Expr:
    """The language of characters of an enforced format."""
    return parse_regex(_PATTERNS[name], "ecma")


@lru_cache(maxsize=64)
def _short_format(name: str, digits: int) -> Expr:
    return bounded(format_expr(name), digits)


def with_digits(languages: tuple[Expr, ...], digits: int) -> tuple[Expr, ...]:
    """The same languages, formats of them with so many digits at most where theirs have no bound."""
    return tuple(_with_digits(language, digits) for language in languages)


def _with_digits(language: Expr, digits: int) -> Expr:
    for name, most in _ENDLESS.items():
        if language is format_expr(name):
            return _short_format(name, min(digits, most))
    return language


_ENDLESS = {"time": SECOND_DIGITS, "date-time": SECOND_DIGITS, "duration": DIGITS}
