"""Refuses counted repeats that the automaton could not follow: too many counts at once, or no end in sight.

Where a repeat may have begun at several places of one text, the automaton holds a thread for each count below the
least one (above it, the lowest count stands for all). The product of these numbers over nested repeats is bounded.
"""

from __future__ import annotations

from itertools import combinations

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet, utf8_sequences
from sgl.grammars.algebra.expr import (
    Alt,
    CharClass,
    Expr,
    Literal,
    LiteralSet,
    Repeat,
    Seq,
    length_bounds,
    nullable,
    seq,
)
from sgl.grammars.algebra.length_clipping import fixed_length
from sgl.grammars.errors import GrammarLimitError

MOST_THREADS = 10_000
LONGEST_LEAST = 1_000_000


def check_repeats(expr: Expr, pattern: str) -> None:
    """
    Raises:
        GrammarLimitError: the shortest text is too long to be written, or the counts to keep are too many.
    """
    shortest = length_bounds(expr)[0]
    if shortest > LONGEST_LEAST:
        raise GrammarLimitError(f"no text shorter than {shortest} characters matches the regex {pattern!r}")
    if _threads(expr) > MOST_THREADS:
        threads = _ambiguous_threads(expr, True, ())
        if threads > MOST_THREADS:
            what = f"repeats that may begin at many places need {threads} counts at once, more than {MOST_THREADS}"
            raise GrammarLimitError(f"{what}, in the regex {pattern!r}")


def _threads(expr: Expr) -> int:
    """A bound that takes all repeats to be ambiguous; a thread waits at each group of first bytes of a class."""
    match expr:
        case CharClass(chars):
            return len({sequence[0] for sequence in utf8_sequences(chars)})
        case Seq(items) | Alt(items):
            return max(map(_threads, items), default=1)
        case Repeat(item, minimum, _):
            return _counts(minimum) * _threads(item)
    return 1


def _counts(minimum: int) -> int:
    return minimum + 1 if minimum > 1 else 1


def _ambiguous_threads(expr: Expr, unique: bool, follow: CharSet) -> int:
    """A bound for what begins at a `unique` place of the text or at several, and goes on with `follow`."""
    match expr:
        case Alt(items):
            return max((_ambiguous_threads(item, unique, follow) for item in items), default=1)
        case Seq(items):
            most = 1
            for item, after in zip(items, _follows(items, follow), strict=True):
                most = max(most, _ambiguous_threads(item, unique, after))
                unique = unique and _is_sharp(item, after)
            return most
        case Repeat(item, minimum, _):
            after = charset.union(_first(item), follow)
            unique = unique and _is_sharp(item, after)
            return (1 if unique else _counts(minimum)) * _ambiguous_threads(item, unique, after)
    return _threads(expr)


def _is_sharp(expr: Expr, follow: CharSet) -> bool:
    """Whether the place where it begins, and the text, leave only one place where it can end."""
    if fixed_length(expr) is not None:
        return True
    match expr:
        case Alt(items):
            starts = [charset.union(_first(item), follow if nullable(item) else ()) for item in items]
            apart = not any(charset.intersect(one, other) for one, other in combinations(starts, 2))
            return apart and all(_is_sharp(item, follow) for item in items)
        case Seq(items):
            follows = _follows(items, follow)
            return all(_is_sharp(item, after) for item, after in zip(items, follows, strict=True))
        case Repeat(item, minimum, maximum):
            first = _first(item)
            decided = minimum == maximum or not charset.intersect(first, follow)
            return decided and _is_sharp(item, charset.union(first, follow))
    return False


def _follows(items: tuple[Expr, ...], follow: CharSet) -> list[CharSet]:
    """For each item of a sequence the characters that may come after it."""
    found = [follow]
    for item in reversed(items[1:]):
        found.append(charset.union(_first(item), found[-1] if nullable(item) else ()))
    return found[::-1]


def _first(expr: Expr) -> CharSet:
    match expr:
        case CharClass(chars):
            return chars
        case Literal(data):
            return charset.of(data.decode()[:1])
        case LiteralSet(literals):
            return charset.of("".join(word.decode()[:1] for word in literals))
        case Alt(items):
            return charset.union(*map(_first, items))
        case Seq((head, *rest)):
            return charset.union(_first(head), _first(seq(*rest)) if nullable(head) else ())
        case Repeat(item, _, _):
            return _first(item)
    return ()
