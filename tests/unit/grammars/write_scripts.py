"""Writes grammars/regex/unicode_script_table.py from the scripts that fonttools carries (Unicode's Scripts.txt).

pip install fonttools && python tests/unit/grammars/write_scripts.py > grammars/regex/unicode_script_table.py
"""

from __future__ import annotations

import re
import textwrap
from itertools import pairwise
from pathlib import Path

from fontTools.unicodedata import Scripts

_ALIASES = {"Zinh": "Qaai", "Copt": "Qaac"}


def main() -> None:
    header = Path(Scripts.__file__).read_text()[:2000]
    version = re.search(r"Scripts-([0-9.]+)\.txt", header)
    assert version is not None
    print('"""Which script each character is of; made by tests/unit/grammars/write_scripts.py, not by hand.\n')
    print(f"From Scripts.txt of the Unicode Character Database {version[1]}, (c) Unicode, Inc.; terms of use:")
    print('https://www.unicode.org/terms_of_use.html\n"""\n')
    print("# fmt: off")
    print(f'UNICODE_VERSION = "{version[1]}"')
    print("# Code and name of every script, and an older code where there is one.")
    _print("NAMES", [":".join([code, name, *_older(code)]) for code, name in sorted(Scripts.NAMES.items())])
    print("# All code points in order: a script's code and for how many of them it holds, in hexadecimal.")
    ends = [*Scripts.RANGES, 0x110000]
    _print("RUNS", [f"{code}{end - start:x}" for (start, end), code in zip(pairwise(ends), Scripts.VALUES)])  # noqa: B905


def _older(code: str) -> list[str]:
    return [_ALIASES[code]] if code in _ALIASES else []


def _print(name: str, words: list[str]) -> None:
    lines = textwrap.wrap(" ".join(words), 104, break_on_hyphens=False)
    print(f"{name} = (")
    for line in lines:
        print(f'    "{line} "')
    print(")")


main()
