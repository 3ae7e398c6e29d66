"""The `format`s of JSON Schema that are enforced, as regexes of whole strings (ECMA dialect)."""

from __future__ import annotations

from functools import lru_cache

from sgl.grammars.algebra.expr import Expr, Literal, alt, seq
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.bounded_numbers import SECOND_DIGITS, bounded
from sgl.grammars.schema.content_encoding import exactly
from sgl.grammars.schema.schema_options import DIGITS

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTHS = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE = rf"(?:{_YEAR}-{_MONTHS}|{_LEAP}-02-29)"
_FRACTION = r"(?:\.\d+)?"
_ZONE = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LOCAL_LENGTH, _HOST_LENGTH = 64, 253  # octets; RFC 5321 and RFC 1035
_IDN_LOCAL_LENGTH, _IDN_HOST_LENGTH = 16, 40  # characters that have not more octets than that, in UTF-8 and in punycode
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_IDN_ATOM = _ATOM.replace("[", r"[\u0080-\u{10ffff}", 1)
_IDN_QUOTED = _QUOTED.replace("(?:[", r"(?:[\u00a0-\u{10ffff}", 1)
# Lower-case letters of scripts from left to right that are whole by themselves: with all others RFC 5892 has
# conditions.
_IDN_LETTERS = (
    r"a-z\u00e0-\u00f6\u00f8-\u00ff\u03b1-\u03c9\u0430-\u044f\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
_LETTER, _INNER = "[A-Za-z0-9]", "[A-Za-z0-9-]"
# A hyphen in both the third and the fourth place marks labels in punycode, whose meaning no pattern can tell (RFC
# 5891).
_FOURTH = rf"(?:{_LETTER}{_INNER}|-{_LETTER})"
_LABEL = rf"{_LETTER}(?:{_INNER}{{0,2}}{_LETTER}|{_INNER}{_FOURTH}{_INNER}{{0,58}}{_LETTER})?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_WIDE_LABEL = rf"{_LETTER}(?:{_INNER}{{0,61}}{_LETTER})?"
_WIDE_HOST = rf"{_WIDE_LABEL}(?:\.{_WIDE_LABEL})*"
_IDN_LABEL = rf"(?:{_LABEL}|[{_IDN_LETTERS}]{{1,9}})"
_IDN_HOST = rf"{_IDN_LABEL}(?:\.{_IDN_LABEL})*"
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
    """Times of RFC 3339; a leap second only where it is 23:59 in UTC (supported for offsets of whole hours)."""
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


def _regex(deep: int) -> str:
    """Regular expressions of ECMA-262 with groups within groups so deep; not all, but only such."""
    escape = r"\\(?:[dDsSwWfnrtv]|[\^$\\.*+?()\[\]{}|/]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
    member = rf"(?:[^\\\[\]\n\r\u2028\u2029^-]|a-z|A-Z|0-9|{escape})"
    atom = rf"(?:[^\^$\\.*+?()\[\]{{}}|/\n\r\u2028\u2029]|\.|{escape}|\[\^?{member}+\]"
    atom += rf"|\((?:\?[:=!])?{_regex(deep - 1)}\))" if deep else ")"
    many = r"(?:(?:[*+?]|\{[1-9]\d?,?\})\??)?"
    term = rf"(?:\^|\$|\\[bB]|{atom}{many})"
    return rf"{term}*(?:\|{term}*)*"


_ADDRESS = rf"\[(?:{_IPV4}|IPv6:(?:{_ipv6()}))\]"
_LOCAL = rf"{_ATOM}(?:\.{_ATOM})*|{_QUOTED}"
_IDN_LOCAL = rf"{_IDN_ATOM}(?:\.{_IDN_ATOM})*|{_IDN_QUOTED}"
_PATTERNS = {
    "date": _DATE,
    "time": _time(),
    "date-time": rf"{_DATE}[Tt]{_time()}",
    "duration": rf"P(?:{_DATE_PARTS}(?:{_TIME_PARTS})?|{_TIME_PARTS}|\d+W)",
    "hostname": _WIDE_HOST,
    "email": "",  # see `format_expr`
    "idn-email": r"(?:[^]*@[^]*)",
    "idn-hostname": r"(?:[^]{3,}|[^]{1,2})",
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
    "regex": r"(?:[^]{3,}|[^]{0,2})",
}
_LONGEST = {"hostname": _HOST_LENGTH, "idn-hostname": _HOST_LENGTH}


def _bounded_text(pattern: str, most: int) -> Expr:
    return combine([parse_regex(pattern, "ecma")], (), 1, most)


def _email(host: str) -> Expr:
    return seq(_bounded_text(_LOCAL, _LOCAL_LENGTH), parse_regex(rf"@(?:{host}|{_ADDRESS})", "ecma"))


def _idn_email() -> Expr:
    local = alt(_bounded_text(_LOCAL, _LOCAL_LENGTH), _bounded_text(_IDN_LOCAL, _IDN_LOCAL_LENGTH))
    return seq(local, Literal(b"@"), alt(_idn_hostname(), parse_regex(_ADDRESS, "ecma")))


def _idn_hostname() -> Expr:
    return alt(parse_regex(_HOST, "ecma"), _bounded_text(_IDN_HOST, _IDN_HOST_LENGTH))


_GENERATED = {
    "hostname": lambda: parse_regex(_HOST, "ecma"),
    "email": lambda: _email(_HOST),
    "idn-email": _idn_email,
    "idn-hostname": _idn_hostname,
    "regex": lambda: parse_regex(_regex(3), "ecma"),
}
ENFORCED = frozenset(_PATTERNS)
NARROWER = frozenset(_GENERATED)  # formats of which not all texts are generated


@lru_cache(maxsize=32)
def format_expr(name: str) -> Expr:
    """The language of characters of an enforced format, but for its `longest_format`.

    Where no grammar describes a format exactly, it has all texts of the format and more: a text outside is outside
    the format; the texts that are written are `generated`.
    """
    return _email(_WIDE_HOST) if name == "email" else parse_regex(_PATTERNS[name], "ecma")


@lru_cache(maxsize=32)
def _generated(name: str) -> Expr:
    return _GENERATED[name]()


def generated(language: Expr) -> Expr:
    """The part of a language that is surely in the format, or encoding, that it stands for; any other language
    itself."""
    encoding = exactly(language)
    if encoding is not None:
        return encoding
    for name in _GENERATED:
        if language is format_expr(name):
            return _generated(name)
    return language


def longest_format(name: str) -> int | None:
    """The most characters of a format's texts that its language does not count by itself."""
    return _LONGEST.get(name)


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
