"""Inline flags such as `(?i)` and `(?s-x:...)`."""

from __future__ import annotations

from sgl.grammars.regex.pattern_scanner import PatternScanner, RegexFlags

_NAMES = {"i": "ignore_case", "s": "dot_all", "x": "verbose", "m": "multi_line", "a": "ascii", "u": "unicode"}
_TYPES = "au"


def set_letters(scan: PatternScanner, letters: str, at: int) -> RegexFlags:
    """The flags in force with some more switched on.

    Raises:
        InvalidGrammarError: a letter is unknown, or `a` and `u` come together.
    """
    for letter in letters:
        if letter not in _NAMES:
            scan.invalid(f"unknown flag {letter!r}", at)
    if "a" in letters and "u" in letters:
        scan.invalid("the flags 'a' and 'u' exclude each other", at)
    flags = scan.flags
    if any(letter in _TYPES for letter in letters):
        flags = flags._replace(ascii=False, unicode=False)
    return flags._replace(**{_NAMES[letter]: True for letter in letters})


def read_flags(scan: PatternScanner, start: int) -> tuple[RegexFlags, bool]:
    """The flags after `(?`, up to and with the closing `)` or the `:`, and whether they hold for a group only."""
    flags = set_letters(scan, scan.run("".join(_NAMES), len(scan.text)), start)
    if scan.take(")"):
        return flags, False
    if scan.take("-"):
        off = scan.run("ismx", len(scan.text))
        if not off or any(getattr(flags, _NAMES[x]) and not getattr(scan.flags, _NAMES[x]) for x in off):
            scan.invalid("missing flag, or a flag both on and off", start)
        flags = flags._replace(**{_NAMES[letter]: False for letter in off})
    if not scan.take(":"):
        scan.invalid(f"unknown extension {scan.text[start : scan.at + 1]}", start)
    return flags, True
