"""The `format`s of JSON Schema that are enforced, as regexes of whole strings (ECMA dialect)."""

from __future__ import annotations

from functools import lru_cache

from sgl.grammars.expr import Expr
from sgl.grammars.regex import parse_regex

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTHS = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE = rf"(?:{_YEAR}-{_MONTHS}|{_LEAP}-02-29)"
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_TIME_PARTS = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DATE_PARTS = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_URI_CHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_AUTHORITY = r"//(?:[A-Za-z0-9._~!$&'()*+,;=:-]+@)?(?:[A-Za-z0-9._~-]+)(?::\d{1,5})?"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_TAIL = rf"(?:\?(?:{_URI_CHAR}|\?)*)?(?:#(?:{_URI_CHAR}|\?)*)?"
_PATH = rf"(?:/{_URI_CHAR}*)?"
_NO_SLASH = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URI = rf"{_SCHEME}:(?:{_AUTHORITY}{_PATH}|{_NO_SLASH}{_URI_CHAR}*|/(?:{_NO_SLASH}{_URI_CHAR}*)?){_TAIL}"
_FIRST = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_RELATIVE = rf"(?:{_AUTHORITY}{_PATH}|/(?:{_NO_SLASH}{_URI_CHAR}*)?|{_FIRST}+(?:/{_URI_CHAR}*)?|){_TAIL}"
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+(?:\.[A-Za-z0-9_]+)*(?::[1-9]\d{0,3}|\*)?"
_TEMPLATE = rf"(?:{_URI_CHAR}|[?#\[\]]|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"


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


_PATTERNS = {
    "date": _DATE,
    "time": _CLOCK + _ZONE,
    "date-time": rf"{_DATE}[Tt]{_CLOCK}{_ZONE}",
    "duration": rf"P(?:{_DATE_PARTS}(?:{_TIME_PARTS})?|{_TIME_PARTS}|\d+W)",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "uri": _URI,
    "uri-reference": rf"{_URI}|{_RELATIVE}",
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
}
ENFORCED = frozenset(_PATTERNS)


@lru_cache(maxsize=len(_PATTERNS))
def format_expr(name: str) -> Expr:
    """The language of characters of an enforced format."""
    return parse_regex(_PATTERNS[name], "ecma")
