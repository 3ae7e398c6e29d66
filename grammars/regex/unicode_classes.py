"""Classes of characters by Unicode property: categories from the interpreter's own tables, scripts from ours."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.regex.unicode_script_table import NAMES, RUNS

# Not looked at one by one: planes 4 to 13, unassigned in every version of Unicode, and 15 and 16, private by rule.
_SEEN = ((0, 0x3FFFF), (0xE0000, 0xEFFFF))
_UNSEEN = {
    "Cn": [(0x40000, 0xDFFFF), (0xFFFFE, 0xFFFFF), (0x10FFFE, 0x10FFFF)],
    "Co": [(0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)],
}
_GROUPS = {
    "LC": ("Lu", "Ll", "Lt"),
    "L": ("Lu", "Ll", "Lt", "Lm", "Lo"),
    "M": ("Mn", "Mc", "Me"),
    "N": ("Nd", "Nl", "No"),
    "P": ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
    "S": ("Sm", "Sc", "Sk", "So"),
    "Z": ("Zs", "Zl", "Zp"),
    "C": ("Cc", "Cf", "Cs", "Co", "Cn"),
}
_LONG_NAMES = {
    "Cased_Letter": "LC",
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Surrogate": "Cs",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}


def property_class(name: str, bare_scripts: bool = True) -> CharSet | None:
    """The characters of `L`, `Letter`, `gc=Lu`, `Script=Greek`, `ASCII`, `Any` or `Assigned`; None: an unknown name.

    With `bare_scripts` also of `Greek` alone, as the `regex` package has it and ECMA-262 has not.
    """
    key, equals, value = name.partition("=")
    if equals:
        if key in ("sc", "Script"):
            return script(value)
        if key not in ("gc", "General_Category"):
            return None
        name = value
    elif name in ("Any", "ASCII", "Assigned"):
        unassigned = charset.complement(general_category("Cn"))
        return {"Any": charset.ANY, "ASCII": ((0, 0x7F),), "Assigned": unassigned}[name]
    short = _LONG_NAMES.get(name, name)
    if short in _GROUPS or short in _categories():
        return general_category(short)
    return script(name) if bare_scripts and not equals else None


@cache
def general_category(name: str) -> CharSet:
    """The characters of a general category such as `Lu`, or of a group of them such as `L`."""
    found = _categories()
    return charset.union(*(found.get(part, ()) for part in _GROUPS.get(name, (name,))))


@cache
def _categories() -> dict[str, CharSet]:
    ranges = {"Cs": [], **{name: list(found) for name, found in _UNSEEN.items()}}
    for first, last in _SEEN:
        names = "".join(map(unicodedata.category, characters(first, last)))
        codes = np.frombuffer(names.encode(), np.uint16)
        starts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
        for start, end in pairwise(starts):
            ranges.setdefault(names[2 * start : 2 * start + 2], []).append((first + start, first + end - 1))
    return {name: charset.normalise(found) for name, found in ranges.items()}


@cache
def class_of_re(escape: str) -> CharSet:
    """What `\\d`, `\\w` or `\\s` match in Python's `re` with Unicode matching."""
    found = re.finditer(f"{escape}+", characters(*_SEEN[0]))  # beyond, none is a digit, a letter or a space
    return charset.normalise((match.start(), match.end() - 1) for match in found)


def script(name: str) -> CharSet | None:
    """The characters of a script by its name or code, such as `Han` or `Hani`; None: not a known script."""
    codes, runs = _scripts()
    return charset.normalise(runs[codes[name]]) if name in codes else None


@cache
def _scripts() -> tuple[dict[str, str], dict[str, list[tuple[int, int]]]]:
    """Codes by all names of a script, and its ranges by its code."""
    codes = {name: names[0] for names in (word.split(":") for word in NAMES.split()) for name in names}
    runs: dict[str, list[tuple[int, int]]] = {code: [] for code in codes.values()}
    at = 0
    for word in RUNS.split():
        after = at + int(word[4:], 16)
        runs[word[:4]].append((at, after - 1))
        at = after
    return codes, runs


def characters(first: int, last: int) -> str:
    """All characters from one code point to another, surrogates included."""
    codes = np.arange(first, last + 1, dtype="<u4")
    return codes.tobytes().decode("utf-32-le", "surrogatepass")
