"""Structural tags: free text in which a trigger opens a structured part, as in tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgl.grammars.algebra.expr import EMPTY, NEVER, Expr, GrammarRule, RuleCall, alt, seq
from sgl.grammars.errors import InvalidGrammarError
from sgl.grammars.structural.free_text import AwaitedLiteral, free_text, literal, one_of, until
from sgl.grammars.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """A structured part: what it begins with, and everything after that up to and with its end."""

    begin: str
    rest: Expr


def tag(begin: str, content: Expr | None, end: str, vocabulary: Vocabulary | None = None) -> StructuralTag:
    """A tag from its parts; without content, free text up to the first `end`."""
    rest = until([end], vocabulary) if content is None else seq(content, literal(end))
    return StructuralTag(begin, rest)


def structural_expr(
    tags: Sequence[StructuralTag],
    triggers: Sequence[str] | None = None,
    *,
    at_least_one: bool = False,
    stop_after_first: bool = False,
    ends: Sequence[str] = (),
    excludes: Sequence[str] = (),
    vocabulary: Vocabulary | None = None,
) -> Expr:
    """Free text in which a completed trigger forces one of the tags that begin with it.

    Args:
        tags: the structured parts.
        triggers: literals; by default what the tags begin with.
        at_least_one: the text may not end before its first tag is complete.
        stop_after_first: the text ends with its first tag.
        ends: literals that end the whole; without any, free text may end everywhere.
        excludes: literals that free text may not contain.
        vocabulary: lets masks in free text use the slices of plain text wherever that is exact.

    Raises:
        InvalidGrammarError: a trigger opens no tag, or a tag has no trigger.
    """
    opened = _opened(tags, [t.begin for t in tags] if triggers is None else triggers)
    if stop_after_first:
        opened = [(trigger, seq(rest, one_of(ends))) for trigger, rest in opened]
    return dispatch_expr(
        opened,
        loop=not stop_after_first,
        at_least_one=at_least_one,
        ends=ends,
        excludes=excludes,
        vocabulary=vocabulary,
    )


def dispatch_expr(
    opened: Sequence[tuple[str, Expr]],
    *,
    loop: bool = True,
    at_least_one: bool = False,
    ends: Sequence[str] = (),
    excludes: Sequence[str] = (),
    vocabulary: Vocabulary | None = None,
) -> Expr:
    """Free text, in which some literals are followed by something each.

    Args:
        opened: the literals with what follows them; if nothing comes after that, up to and with one of the ends.
        loop: free text goes on after that.
        at_least_one: the text may not end before something was opened.
        ends: literals that end the whole; without any, free text may end everywhere.
        excludes: literals that free text may not contain.
        vocabulary: lets masks in free text use the slices of plain text wherever that is exact.
    """
    barred = [AwaitedLiteral(text, NEVER) for text in excludes]

    def text(then: Expr, again: bool, may_end: bool) -> Expr:
        found = [AwaitedLiteral(trigger, seq(rest, then), again) for trigger, rest in opened]
        found += [AwaitedLiteral(end, EMPTY if may_end else NEVER) for end in ends]
        return free_text(found + barred, may_end=may_end and not ends, vocabulary=vocabulary)

    if not loop:
        return text(EMPTY, False, not at_least_one)
    later = text(EMPTY, True, True)
    return text(later, False, False) if at_least_one else later


def _opened(tags: Sequence[StructuralTag], triggers: Sequence[str]) -> list[tuple[str, Expr]]:
    """Every trigger with what must follow it."""
    for i, one in enumerate(tags):
        if not any(one.begin.startswith(trigger) for trigger in triggers):
            raise InvalidGrammarError(f"no trigger is the beginning of {one.begin!r}", f"tags[{i}].begin")
    found: list[tuple[str, Expr]] = []
    for i, trigger in enumerate(dict.fromkeys(triggers)):
        rests = [seq(literal(t.begin[len(trigger) :]), t.rest) for t in tags if t.begin.startswith(trigger)]
        if not rests:
            raise InvalidGrammarError(f"no tag begins with the trigger {trigger!r}", f"triggers[{i}]")
        found.append((trigger, rule(f"after {trigger}", alt(*rests))))
    return found


def rule(name: str, body: Expr) -> Expr:
    """A separate rule, so that it is lowered once, when a text first gets there."""
    return RuleCall(GrammarRule(name, lambda: body))
