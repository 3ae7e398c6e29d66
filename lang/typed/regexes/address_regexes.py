"""Regular expressions of addresses: of networks, of pages and data bases, and of mail.

They are narrower than what the libraries read, and hold nothing that those refuse or write otherwise: hosts of
lower-case labels that are not numbers, no user names in addresses of pages, and only characters of ASCII.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from re import escape

from .number_range_regexes import counts, group

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = "[0-9A-Fa-f]"
_GROUP = rf"{_HEX}{{1,4}}"


def _ipv6() -> str:
    """All eight groups, or `::` in place of one or more."""
    forms = [rf"(?:{_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):
        head = "" if not before else rf"{_GROUP}(?::{_GROUP}){{{before - 1}}}"
        most = 7 - before
        forms.append(f"{head}::" + (rf"(?:{_GROUP}(?::{_GROUP}){{0,{most - 1}}})?" if most else ""))
    return group(forms)


IPV6 = _ipv6()


@lru_cache(maxsize=1)
def ipv4_network() -> str:
    """An address whose bits after the prefix are zero, with the prefix; or an address alone."""
    forms = [IPV4]
    for whole in range(4):
        head = rf"(?:{_OCTET}\.){{{whole}}}" if whole else ""
        tail = r"\.0" * (3 - whole)
        for bits in range(8):
            values = [str(value) for value in range(0, 256, 2 ** (8 - bits))] if bits else ["0"]
            forms.append(f"{head}{group(values)}{tail}/{8 * whole + bits}")
    return group([*forms, f"{IPV4}/32"])


@lru_cache(maxsize=1)
def ipv6_network() -> str:
    """The groups that the prefix reaches into, or fewer, then `::` or nothing; or an address alone."""
    forms = [IPV6, f"{IPV6}/128", f"::/{counts(0, 128)}"]
    forms += [rf"(?:{_GROUP}:){{{groups - 1}}}{_GROUP}::/{counts(16 * groups, 128)}" for groups in range(1, 8)]
    forms += [rf"(?:{_GROUP}:){{7}}0/112", rf"(?:{_GROUP}:){{7}}{_GROUP}/128"]
    for prefix in range(1, 128):
        whole, bits = divmod(prefix, 16)
        if bits:
            tail = {7: "", 6: "(?:::|:0)"}.get(whole, "::")
            forms.append(rf"(?:{_GROUP}:){{{whole}}}{_masked(bits)}{tail}/{prefix}")
    return group(forms)


def _masked(bits: int) -> str:
    """A group of which only the first bits may be set; zeros in front may be left out."""
    whole, rest = divmod(bits, 4)
    digits = [f"{value:x}" for value in range(0, 16, 2 ** (4 - rest))] if rest else []
    last = f"[{''.join(digits)}{''.join(digit.upper() for digit in digits if digit.isalpha())}]" if rest else ""
    head = rf"{_HEX}{{{0 if rest else 1},{whole}}}" if whole else ""
    return group([head + last + "0" * (4 - whole - bool(rest)), "0"])


def ipv4_interface() -> str:
    return rf"{IPV4}(?:/(?:3[0-2]|[12]?\d))?"


def ipv6_interface() -> str:
    return rf"{IPV6}(?:/(?:12[0-8]|1[01]\d|[1-9]?\d))?"


# --- URLs ---------------------------------------------------------------------------------------------------

_LABEL = r"[a-z0-9]+(?:-[a-z0-9]+)*"  # never two hyphens together: those mark punycode
_LAST = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"  # with a letter first, or it may be read as a part of an IPv4 address
_HOST = rf"(?:(?:{_LABEL}\.)*{_LAST}|{IPV4})"
_PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_CHAR = rf"(?:[A-Za-z0-9._~!$&()*+,;=:@-]|%{_HEX}{{2}})"
_PATH = rf"(?:/{_CHAR}*)*"
_TAIL = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_USER = r"(?:[A-Za-z0-9._~-]+(?::[A-Za-z0-9._~-]+)?@)?"
_WEB = ("http", "https", "ws", "wss", "ftp")


def url(schemes: Sequence[str] | None) -> str:
    """An absolute address with a host. Without a list of schemes any scheme is allowed, but then no port."""
    if schemes is None:
        return group([_web(_WEB), rf"[a-z][a-z0-9]*(?:[+-][a-z0-9]+)*://{_HOST}{_PATH}{_TAIL}"])
    own = [scheme for scheme in schemes if scheme not in (*_WEB, "file")]
    forms = [_web(web)] if (web := [scheme for scheme in schemes if scheme in _WEB]) else []
    forms += [rf"file://(?:{_LAST})?(?:/{_CHAR}*)+"] if "file" in schemes else []
    forms += [rf"{_named(own)}://{_USER}{_HOST}(?::{_PORT})?{_PATH}{_TAIL}"] if own else []
    return group(forms)


def _web(schemes: Sequence[str]) -> str:
    return rf"{_named(schemes)}://{_HOST}(?::{_PORT})?{_PATH}{_TAIL}"


def hosts_url(schemes: Sequence[str] | None) -> str:
    """The same for data bases, which may have several hosts."""
    place = rf"{_HOST}(?::{_PORT})?"
    scheme = r"[a-z][a-z0-9]*(?:[+-][a-z0-9]+)*" if schemes is None else _named(schemes)
    return rf"{scheme}://{_USER}{place}(?:,{place})*{_PATH}{_TAIL}"


def _named(schemes: Sequence[str]) -> str:
    return group([escape(scheme) for scheme in schemes])


# --- mail ---------------------------------------------------------------------------------------------------

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_RESERVED = ("alt", "arpa", "example", "internal", "invalid", "local", "localhost", "onion", "test")


@lru_cache(maxsize=1)
def email() -> str:
    """An address of ordinary characters, whose host has its own name and a last label that is in use."""
    local = r"[A-Za-z0-9_+-]{1,20}(?:\.[A-Za-z0-9_+-]{1,20}){0,2}"
    label = r"[a-z0-9](?:-?[a-z0-9]){0,24}"
    return rf"{local}@(?:{label}\.){{1,3}}{_other_words(_RESERVED, 18)}"


@lru_cache(maxsize=1)
def name_and_email() -> str:
    letters = r"[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff]"
    return rf"(?:{letters}{{1,30}}(?: {letters}{{1,30}}){{0,3}} <{email()}>|{email()})"


def _other_words(words: Sequence[str], most: int, least: int = 2) -> str:
    """Of words of small letters, at least `least` and at most `most`, that are none of the given ones."""
    if not words:
        return rf"[a-z]{{{least},{most}}}"
    heads = sorted({word[0] for word in words if word})
    others = "".join(letter for letter in _LETTERS if letter not in heads)
    parts = [rf"[{others}][a-z]{{{max(0, least - 1)},{most - 1}}}"]
    parts += [
        head + _other_words([word[1:] for word in words if word[:1] == head], most - 1, max(0, least - 1))
        for head in heads
    ]
    if least == 0 and "" not in words:
        parts.append("")
    return group(parts)
