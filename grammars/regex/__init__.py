"""Regular expressions: the syntax of Python's `re` and of ECMA-262, as far as it describes regular languages.

`\\d \\w \\s` are Unicode's as in `re`, and ASCII under the flag `a`. In ECMA-262 they are ASCII, but for `\\s`.
Lazy quantifiers equal greedy ones, as only the set of matching texts counts. What cannot be enforced (look-around,
back-references, word boundaries, possessive quantifiers, `^` and `$` at inner lines) is refused by name and position.
Beyond `re`: `\\p{L}`, `\\p{Han}`, `\\z`, and groups named by `(?<name>`. Beyond ECMA-262: `(?i)` at the start, and
    `(?P<name>`.
"""

from __future__ import annotations

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import NEVER, CharClass, Expr, Literal
from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.regex.counted_repeat_checks import check_repeats
from sgl.grammars.regex.pattern_scanner import Dialect
from sgl.grammars.regex.regex_anchors import resolve_anchors
from sgl.grammars.regex.regex_parser import RegexParser

__all__ = ["Dialect", "parse_ordered", "parse_regex"]


def parse_regex(pattern: str, dialect: Dialect = "python", search: bool = False, flags: str = "") -> Expr:
    """The language of a pattern as an expression over characters.

    Args:
        pattern: the regular expression.
        dialect: what `.` and `\\d \\w \\s` mean and which escapes exist. The literals of an "ecma" expression are made
            of
            characters that JSON text spells as they are.
        search: the pattern may match anywhere in the text (JSON Schema), instead of the whole of it.
        flags: letters of the flags that hold from the start: `i`, `s`, `x`, `m`, `a`, `u`.

    Returns:
        An expression without dead ends, NEVER only with `search`; of a single character always `CharClass`.

    Raises:
        InvalidGrammarError: the pattern is malformed, or there is no text that it matches as a whole.
        UnsupportedGrammarError: it uses a construct that this engine refuses.
        GrammarLimitError: its repeats are more than the engine can follow.
    """
    if not isinstance(pattern, str):
        raise InvalidGrammarError(f"a regex must be a string, not {pattern!r}")
    parser = RegexParser(pattern, dialect, flags)
    expr = parser.parse()
    if parser.anchored or search:
        expr = resolve_anchors(expr, search, frozenset(parser.line_feeds))
    check_repeats(expr, pattern)
    if expr == NEVER and not search:
        raise InvalidGrammarError(f"no text matches the regex {pattern!r}")
    return _as_set(expr) if isinstance(expr, Literal) else expr


def _as_set(expr: Literal) -> Expr:
    text = expr.data.decode()
    return CharClass(charset.single(text)) if len(text) == 1 else expr


def parse_ordered(pattern: str, flags: str = "") -> Expr:
    """A pattern as it is written, with `Lazy` and `Lookaround` in it, for `ordered.matched_texts`.

    Raises:
        InvalidGrammarError: the pattern is malformed.
        UnsupportedGrammarError: it uses a construct that this engine refuses, anchors among them.
    """
    parser = RegexParser(pattern, "python", flags, ordered=True)
    expr = parser.parse()
    if parser.anchored:
        raise UnsupportedGrammarError("an anchor together with look-around or lazy repeats", f"the regex {pattern!r}")
    return expr
