"""Regular expressions: a recursive descent parser from the common subset of Python's `re` and ECMA-262.

`\\d \\w \\s` are ASCII. Lazy quantifiers equal greedy ones, as only the set of matching texts counts. What cannot be
enforced (look-around, back-references, word boundaries, flags) is refused by name and position.
"""

from __future__ import annotations

from typing import Literal as OneOf
from typing import NoReturn

from sgl.grammars import charset
from sgl.grammars.anchors import resolve_anchors
from sgl.grammars.charset import CharSet
from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.expr import Anchor, Chars, Expr, alt, repeat, seq

Dialect = OneOf["python", "ecma"]

DIGIT = charset.normalise([(0x30, 0x39)])
WORD = charset.normalise([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE = charset.of(" \t\n\r\f\v")
UNICODE_SPACE = charset.union(
    SPACE, charset.of("\x1c\x1d\x1e\x1f\x85\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), ((0x2000, 0x200A),)
)
_CLASSES = {
    "d": DIGIT,
    "w": WORD,
    "s": SPACE,
    "D": charset.complement(DIGIT),
    "W": charset.complement(WORD),
    "S": charset.complement(UNICODE_SPACE),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_HEX_WIDTH = {"x": 2, "u": 4, "U": 8}
_DOT: dict[Dialect, CharSet] = {
    "python": charset.complement(charset.single("\n")),
    "ecma": charset.complement(charset.of("\n\r\u2028\u2029")),
}
_REFUSED_GROUPS = {
    "?=": "look-ahead (?=",
    "?!": "look-ahead (?!",
    "?<=": "look-behind (?<=",
    "?<!": "look-behind (?<!",
    "?P=": "back-reference (?P=",
    "?>": "atomic group (?>",
    "?(": "conditional (?(",
}
_MOST_REPEATS = 1_000_000


def parse_regex(pattern: str, dialect: Dialect = "python", search: bool = False) -> Expr:
    """The language of a pattern as an expression over characters.

    Args:
        pattern: the regular expression.
        dialect: what `.` means and which escapes exist.
        search: the pattern may match anywhere in the text (JSON Schema), instead of the whole of it.

    Raises:
        InvalidGrammarError: the pattern is malformed.
        UnsupportedGrammarError: it uses a construct that this engine refuses.
    """
    if not isinstance(pattern, str):
        raise InvalidGrammarError(f"a regex must be a string, not {pattern!r}")
    return resolve_anchors(_Parser(pattern, dialect).parse(), search, pattern)


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self.text = pattern
        self.dialect = dialect
        self.at = 0

    def parse(self) -> Expr:
        expr = self._alternatives()
        if self.at < len(self.text):
            self._invalid("unbalanced ')'")
        return expr

    def _invalid(self, what: str, at: int | None = None) -> NoReturn:
        place = self.at if at is None else at
        raise InvalidGrammarError(f"{what} in the regex {self.text!r}", f"position {place}")

    def _unsupported(self, construct: str, at: int) -> NoReturn:
        raise UnsupportedGrammarError(construct, f"position {at} of the regex {self.text!r}")

    def _peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self.at += len(text) * found
        return found

    def _next(self) -> str:
        if self.at >= len(self.text):
            self._invalid("unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    def _alternatives(self) -> Expr:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        return alt(*branches)

    def _branch(self) -> Expr:
        items: list[Expr] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self._quantified())
        return seq(*items)

    def _quantified(self) -> Expr:
        start = self.at
        atom = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor):
            self._invalid("nothing to repeat", start)
        if self._peek("+"):
            self._unsupported("possessive quantifier", self.at)
        self._take("?")
        at = self.at
        if self._quantifier() is not None:
            self._invalid("multiple repeat", at)
        return repeat(atom, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        return self._braces() if self._peek("{") else None

    def _braces(self) -> tuple[int, int | None] | None:
        start, end = self.at, self.text.find("}", self.at)
        low, comma, high = self.text[start + 1 : max(end, start + 1)].partition(",")
        numbers = [part for part in (low, high) if part]
        if end < 0 or not numbers or not all(p.isascii() and p.isdigit() for p in numbers):
            return None
        if not low and self.dialect == "ecma":
            return None
        minimum, maximum = int(low or 0), int(high) if high else None if comma else int(low)
        if max(int(n) for n in numbers) > _MOST_REPEATS:
            self._unsupported(f"a repeat of more than {_MOST_REPEATS}", start)
        if maximum is not None and maximum < minimum:
            self._invalid(f"min repeat {minimum} above max repeat {maximum}")
        self.at = end + 1
        return minimum, maximum

    def _atom(self) -> Expr:
        start, char = self.at, self._next()
        if char == "(":
            return self._group(start)
        if char == "[":
            return Chars(self._class(start))
        if char == "\\":
            return self._escape(start)
        if char in "^$":
            return Anchor(char == "^", start)
        if char == ".":
            return Chars(_DOT[self.dialect])
        if char in "*+?":
            self._invalid("nothing to repeat", start)
        if char == "{":
            self.at = start
            if self._braces() is not None:
                self._invalid("nothing to repeat", start)
            self.at = start + 1
        return Chars(self._character(char, start))

    def _character(self, char: str, at: int) -> CharSet:
        if 0xD800 <= ord(char) <= 0xDFFF:
            self._invalid(f"{char!r} is half of a surrogate pair", at)
        return charset.single(char)

    def _group(self, start: int) -> Expr:
        for opening in sorted(_REFUSED_GROUPS, key=len, reverse=True):
            if self._peek(opening):
                self._unsupported(_REFUSED_GROUPS[opening], start)
        if self._take("?#"):
            self._until(")", start)
            return seq()
        if self._take("?P<") or self._take("?<"):
            name = self._until(">", start)
            if not name.isidentifier():
                self._invalid(f"bad group name {name!r}", start)
        elif not self._take("?:") and self._peek("?"):
            self._unsupported(f"inline flag {self.text[start : start + 3]}", start)
        inner = self._alternatives()
        if not self._take(")"):
            self._invalid("missing ')'", start)
        return inner

    def _until(self, end: str, start: int) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            self._invalid(f"missing {end!r}", start)
        found = self.text[self.at : stop]
        self.at = stop + 1
        return found

    def _escape(self, start: int) -> Expr:
        char = self.text[self.at : self.at + 1]
        if char in ("b", "B"):
            self._unsupported(f"word boundary \\{char}", start)
        if (char.isdigit() and char != "0") or char == "k":
            self._unsupported(f"back-reference \\{char}", start)
        if self.dialect == "python" and char in ("A", "Z"):
            self.at += 1
            return Anchor(char == "A", start)
        return Chars(self._escaped_set(start))

    def _escaped_set(self, start: int) -> CharSet:
        """The set named by an escape; the backslash is read already."""
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return charset.single(_CONTROLS[char])
        if char in _HEX_WIDTH and not (char == "U" and self.dialect == "ecma"):
            return self._hexadecimal(char, start)
        if char == "c" and self.dialect == "ecma":
            return charset.single(chr(ord(self._next()) % 32))
        if char == "a" and self.dialect == "python":
            return charset.single("\a")
        if char in "pP":
            self._unsupported(f"unicode property \\{char}", start)
        if char.isascii() and char.isalnum() and self.dialect == "python":
            self._invalid(f"bad escape \\{char}", start)
        return self._character(char, start)

    def _hexadecimal(self, kind: str, start: int) -> CharSet:
        if kind == "u" and self._take("{"):
            digits = self._until("}", start)
        else:
            digits = self.text[self.at : self.at + _HEX_WIDTH[kind]]
            self.at += len(digits)
            if len(digits) < _HEX_WIDTH[kind]:
                digits = ""
        code = self._code_point(digits, start)
        if 0xD800 <= code <= 0xDBFF and self._peek("\\u"):
            self.at += 2
            low = self._code_point(self.text[self.at : self.at + 4], start)
            self.at += 4
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return self._character(chr(code), start)

    def _code_point(self, digits: str, start: int) -> int:
        if not digits or any(d not in "0123456789abcdefABCDEF" for d in digits) or int(digits, 16) > 0x10FFFF:
            self._invalid(f"bad character escape {digits!r}", start)
        return int(digits, 16)

    def _class(self, start: int) -> CharSet:
        negated = self._take("^")
        found: list[CharSet] = []
        if self.dialect == "python" and self._take("]"):
            found.append(self._range(charset.single("]")))
        while not self._take("]"):
            if self.at >= len(self.text):
                self._invalid("missing ']'", start)
            found.append(self._range(self._class_atom()))
        chars = charset.union(*found)
        return charset.complement(chars) if negated else chars

    def _class_atom(self) -> CharSet:
        start, char = self.at, self._next()
        if char != "\\":
            return self._character(char, start)
        if self._take("b"):
            return charset.single("\b")
        return self._escaped_set(start)

    def _range(self, low: CharSet) -> CharSet:
        start = self.at
        if not self._peek("-") or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        high = self._class_atom()
        if not (_is_single(low) and _is_single(high)):
            if self.dialect == "ecma":
                return charset.union(low, charset.single("-"), high)
            self._invalid("bad character range", start)
        if low[0][0] > high[0][0]:
            self._invalid(f"bad character range {chr(low[0][0])}-{chr(high[0][0])}", start)
        return charset.normalise([(low[0][0], high[0][0])])


def _is_single(chars: CharSet) -> bool:
    return len(chars) == 1 and chars[0][0] == chars[0][1]
