"""Regular expressions of bytes as texts of ASCII, and of UUIDs."""

from __future__ import annotations

_64 = {"base64": "A-Za-z0-9+/", "base64url": "A-Za-z0-9_-"}
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LAST = {"base64": "+/", "base64url": "-_"}
_HEX = "[0-9a-f]"


def base64(alphabet: str) -> str:
    """Of any bytes, with padding, and zero in the bits that stand for nothing."""
    char = f"[{_64[alphabet]}]"
    return rf"(?:{char}{{4}})*(?:{char}[AQgw]==|{char}{{2}}[AEIMQUYcgkosw048]=)?"


def base64_of_ascii(alphabet: str) -> str:
    """Of bytes that are all characters of ASCII: the first bit of each is zero."""
    first, second, third, fourth = (_with_zeros(alphabet, mask) for mask in (0b100000, 0b001000, 0b000010, 0))
    one = f"{first}{_with_zeros(alphabet, 0b001111)}=="
    two = f"{first}{second}{_with_zeros(alphabet, 0b000011)}="
    return f"(?:{first}{second}{third}{fourth})*(?:{one}|{two})?"


def _with_zeros(alphabet: str, mask: int) -> str:
    """A character for six bits of which those of the mask are zero."""
    letters = [char for value, char in enumerate(_ALPHABET + _LAST[alphabet]) if not value & mask]
    return "[" + "".join(letters).replace("-", "\\-") + "]"


def hexadecimal() -> str:
    return f"(?:{_HEX}{{2}})*"


def uuid(version: int | None) -> str:
    """In small letters, of a version or of any."""
    tail = f"{_HEX}{{12}}"
    if version is None:
        return f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{tail}"
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{tail}"
