"""A recursive descent parser from regexes to expressions; anchors are still in its result."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import (
    NEVER,
    Alt,
    CharClass,
    Expr,
    LazyRepeat,
    Literal,
    Lookaround,
    RegexAnchor,
    Repeat,
    Seq,
    alt,
    seq,
    words,
)
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.regex.pattern_scanner import Dialect, PatternScanner
from sgl.grammars.regex.regex_character_sets import bracketed_set, character, dot, escaped_set
from sgl.grammars.regex.regex_flags import read_flags, set_letters
from sgl.grammars.regex.repeat_merging import merge_repeats, sequence

MOST_REPEATS = 1_000_000
_COMMENT = re.compile(r"\(\?#(?:[^\\)]|\\.)*\)", re.DOTALL)
_BLANKS = re.compile(r"(?:[ \t\n\r\v\f]|#(?:[^\\\n]|\\.)*\n?)+", re.DOTALL)
_REFUSED_GROUPS = {
    "?=": "look-ahead (?=",
    "?!": "look-ahead (?!",
    "?<=": "look-behind (?<=",
    "?<!": "look-behind (?<!",
    "?P=": "back-reference (?P=",
    "?>": "atomic group (?>",
    "?(": "conditional (?(",
}
_LOOKS = {"?=": (True, False), "?!": (True, True), "?<=": (False, False), "?<!": (False, True)}
_FRESH, _REPEATED, _NOTHING = range(3)


@cache
def _runs(dialect: Dialect) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Plain text up to a quantifier's item, and alternatives of nothing but plain text up to their group's end.

    Of the ECMA dialect that is what JSON text spells as it is.
    """
    plain = r"[^\\.\[(){*+?|^$\ud800-\udfff]" if dialect == "python" else r"[ !#%&',\-/0-9:;<=>@A-Z\]_`a-z}~]"
    return (
        re.compile(rf"{plain}+(?![*+?{{]|\(\?#)"),
        re.compile(rf"{plain}*(?:\|{plain}*)+(?=\)|\Z)"),
    )


class RegexParser:
    """With `ordered` the result keeps what the set of texts does not show: the order of alternatives, lazy repeats,
    and look-around.
    """

    def __init__(self, pattern: str, dialect: Dialect, flags: str, ordered: bool = False) -> None:
        self._ordered = ordered
        self._scan = PatternScanner(pattern, dialect)
        self._run, self._words = _runs(dialect)
        self._names: set[str] = set()
        self._depth = 0
        self._atoms: dict[str, Callable[[int], Expr]] = {
            "(": self._group,
            "[": lambda start: _chars(bracketed_set(self._scan, start)),
            "\\": self._escape,
            ".": lambda start: CharClass(dot(self._scan)),
            "^": lambda start: self._anchor(True, start),
            "$": lambda start: self._anchor(False, start),
            "{": self._brace,
        }
        self.anchored = False
        self.line_feeds: set[int] = set()
        self._scan.flags = set_letters(self._scan, flags, 0)

    def parse(self) -> Expr:
        self._global_flags()
        expr = self._alternatives()
        if not self._scan.done():
            self._scan.invalid("unbalanced ')'")
        return expr

    def _global_flags(self) -> None:
        """Flags for the whole pattern stand at its start; in verbose mode blanks may come between them."""
        scan = self._scan
        while True:
            start = scan.at
            if scan.flags.verbose:
                self._skipped()
            if not (scan.take("(?") and scan.text[scan.at : scan.at + 1] in set("aimsuxL")):
                break
            flags, scoped = read_flags(scan, start)
            if scoped:
                break
            scan.flags = flags
        scan.at = start

    def _alternatives(self) -> Expr:
        scan = self._scan
        if not (scan.flags.ignore_case or scan.flags.verbose or self._ordered):
            found = self._words.match(scan.text, scan.at)
            if found:
                scan.at = found.end()
                return words(word.encode() for word in found[0].split("|"))
        branches = [self._branch()]
        while scan.take("|"):
            branches.append(self._branch())
        return branches[0] if len(branches) == 1 else alt(*branches) if self._ordered else _union(branches)

    def _branch(self) -> Expr:
        scan, items, kind = self._scan, list[Expr](), _NOTHING
        text, size = scan.text, len(scan.text)
        plain = not (scan.flags.ignore_case or scan.flags.verbose)
        while scan.at < size and text[scan.at] not in "|)":
            run = self._run.match(text, scan.at) if plain else None
            if run:
                scan.at = run.end()
                items.append(Literal(run[0].encode()))
                kind = _FRESH
            elif not self._skipped():
                kind = self._item(items, kind)
        if len(items) == 1:
            return items[0]
        return seq(*items) if self._ordered else sequence(items)

    def _item(self, items: list[Expr], kind: int) -> int:
        """Read a quantifier for the last item, or one more item; what may be quantified next is the result."""
        start = self._scan.at
        bounds = self._quantifier()
        if bounds is None:
            items.append(self._atom())
            bare = isinstance(items[-1], RegexAnchor) and self._scan.text[start] != "("
            return _NOTHING if bare else _FRESH
        if kind != _FRESH:
            self._scan.invalid("nothing to repeat" if kind == _NOTHING else "multiple repeat", start)
        if self._scan.peek("+"):
            self._scan.unsupported("possessive quantifier", self._scan.at)
        lazy = self._scan.take("?")
        items[-1] = self._in_order(items[-1], bounds, lazy) if self._ordered else self._repeat(items[-1], *bounds)
        return _REPEATED

    def _in_order(self, item: Expr, bounds: tuple[int, int | None], lazy: bool) -> Expr:
        return LazyRepeat(item, *bounds) if lazy else Repeat(item, *bounds)

    def _repeat(self, item: Expr, minimum: int, maximum: int | None) -> Expr:
        if maximum != 0 and self.anchored and _has_anchor(item):
            return Repeat(item, minimum, maximum)
        found = merge_repeats(item, minimum, maximum)
        if isinstance(found, Repeat) and max(found.minimum, found.maximum or 0) > MOST_REPEATS:
            what = f"nested repeats make more than {MOST_REPEATS}"
            raise GrammarLimitError(f"{what} in the regex {self._scan.text!r}")
        return found

    def _quantifier(self) -> tuple[int, int | None] | None:
        scan = self._scan
        char = scan.text[scan.at]
        if char == "{":
            return self._braces()
        if char not in "*+?":
            return None
        scan.at += 1
        return int(char == "+"), 1 if char == "?" else None

    def _braces(self) -> tuple[int, int | None] | None:
        """None, with nothing read, where the brace is a character."""
        scan = self._scan
        start, end = scan.at, scan.text.find("}", scan.at)
        low, comma, high = scan.text[start + 1 : max(end, start + 1)].partition(",")
        numbers = [part for part in (low, high) if part]
        if end < 0 or not (numbers or comma) or not all(p.isascii() and p.isdigit() for p in numbers):
            return None
        if not low and scan.dialect == "ecma":
            return None
        minimum, maximum = int(low or 0), int(high) if high else None if comma else int(low)
        if max(minimum, maximum or 0) > MOST_REPEATS:
            scan.unsupported(f"a repeat of more than {MOST_REPEATS}", start)
        if maximum is not None and maximum < minimum:
            scan.invalid(f"min repeat {minimum} above max repeat {maximum}")
        scan.at = end + 1
        return minimum, maximum

    def _atom(self) -> Expr:
        start, char = self._scan.at, self._scan.next()
        reader = self._atoms.get(char)
        return self._character(ord(char), start) if reader is None else reader(start)

    def _character(self, code: int, start: int) -> Expr:
        return self._spelled(character(self._scan, code, start))

    def _spelled(self, chars: CharSet) -> Expr:
        """A set of characters, as text where it is a single plain one."""
        if len(chars) == 1 and chars[0][0] == chars[0][1] and self._is_plain(chr(chars[0][0])):
            return Literal(chr(chars[0][0]).encode())
        return _chars(chars)

    def _is_plain(self, char: str) -> bool:
        return self._scan.dialect == "python" or (char.isascii() and char.isprintable() and char not in '"\\')

    def _brace(self, start: int) -> Expr:
        """A brace that is no quantifier; a quantifier that follows nothing was refused before."""
        return self._character(ord("{"), start)

    def _anchor(self, at_start: bool, start: int) -> Expr:
        if self._scan.flags.multi_line:
            name = "^" if at_start else "$"
            self._scan.unsupported(f"anchor {name} with the flag m", start)
        if not at_start and self._scan.dialect == "python":
            self.line_feeds.add(start)
        self.anchored = True
        return RegexAnchor(at_start, start)

    def _escape(self, start: int) -> Expr:
        scan = self._scan
        char, after = scan.text[scan.at : scan.at + 1], scan.text[scan.at + 1 : scan.at + 3]
        if char and char in "bB":
            scan.unsupported(f"word boundary \\{char}", start)
        if char == "k" or (char and char in "123456789" and not self._is_octal(char + after)):
            scan.unsupported(f"back-reference \\{char}", start)
        if scan.dialect == "python" and char and char in "AZz":
            scan.at += 1
            self.anchored = True
            return RegexAnchor(char == "A", start)
        return self._spelled(escaped_set(scan, start))

    def _is_octal(self, digits: str) -> bool:
        return self._scan.dialect == "python" and len(digits) == 3 and all(d in "01234567" for d in digits)

    def _skipped(self) -> bool:
        """Skip a comment, and blanks where they mean nothing."""
        scan = self._scan
        start = scan.at
        blank = _COMMENT.match(scan.text, start)
        if blank is None and scan.peek("(?#"):
            scan.invalid("missing ')', unterminated comment", start)
        if blank is None and scan.flags.verbose:
            blank = _BLANKS.match(scan.text, start)
        if blank is not None:
            scan.at = blank.end()
        return blank is not None

    def _group(self, start: int) -> Expr:
        scan, flags = self._scan, self._scan.flags
        look = self._look() if self._ordered else None
        if look is None and scan.peek("?"):
            self._extension(start)
        inner = self._alternatives()
        if not scan.take(")"):
            scan.invalid("missing ')'", start)
        scan.flags = flags
        return Lookaround(inner, *look, start) if look is not None else inner

    def _look(self) -> tuple[bool, bool] | None:
        """(ahead, negative) of the look-around that begins here."""
        return next((look for opening, look in _LOOKS.items() if self._scan.take(opening)), None)

    def _extension(self, start: int) -> None:
        """Read what stands between `(?` and a group's content."""
        scan = self._scan
        for opening in sorted(_REFUSED_GROUPS, key=len, reverse=True):
            if scan.peek(opening):
                scan.unsupported(_REFUSED_GROUPS[opening], start)
        if scan.take("?P<") or scan.take("?<"):
            self._name(scan.until(">", start), start)
        elif not scan.take("?:"):
            scan.at += 1
            flags, scoped = read_flags(scan, start)
            if not scoped:
                scan.invalid("global flags are not at the start", start)
            scan.flags = flags

    def _name(self, name: str, start: int) -> None:
        plain = name.replace("$", "_") if self._scan.dialect == "ecma" else name
        if not plain.isidentifier():
            self._scan.invalid(f"bad group name {name!r}", start)
        if name in self._names:
            self._scan.invalid(f"the group name {name!r} comes twice", start)
        self._names.add(name)


def _chars(chars: CharSet) -> Expr:
    return CharClass(chars) if chars else NEVER


def _has_anchor(expr: Expr) -> bool:
    match expr:
        case Repeat(item) | LazyRepeat(item) | Lookaround(item):
            return _has_anchor(item)
        case Seq(items) | Alt(items):
            return any(map(_has_anchor, items))
    return isinstance(expr, RegexAnchor)


def _union(branches: list[Expr]) -> Expr:
    """Alternatives; all literal ones make one trie, all sets one set."""
    texts = [branch.data for branch in branches if type(branch) is Literal]
    sets = [branch.chars for branch in branches if type(branch) is CharClass]
    rest = [branch for branch in branches if type(branch) not in (Literal, CharClass)]
    found = [words(texts)] if texts else []
    if sets:
        found.append(CharClass(charset.union(*sets)))
    return alt(*found, *rest)
