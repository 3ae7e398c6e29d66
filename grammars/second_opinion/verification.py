"""What our automaton and independent engines decide about the same texts, and where they differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sgl.grammars.compile import Grammar
from sgl.grammars.errors import GrammarLimitError, InvalidGrammarError
from sgl.grammars.second_opinion.engine_process import SECONDS, answers_of
from sgl.grammars.second_opinion.engine_table import ENGINES

OURS = "sgl"
_LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Verdict:
    """What one engine decides about one text; `accepts` is None where it cannot, and `reason` then says why."""

    engine: str
    accepts: bool | None
    reason: str = ""

    def __str__(self) -> str:
        if self.accepts is None:
            return f"not supported: {self.reason}"
        return "accepts" if self.accepts else "refuses"


@dataclass(frozen=True)
class TextVerdicts:
    """Our verdict on a text and those of the other engines."""

    text: str
    ours: Verdict
    others: tuple[Verdict, ...]

    @property
    def differing(self) -> tuple[Verdict, ...]:
        """The verdicts that contradict ours."""
        if self.ours.accepts is None:
            return ()
        return tuple(v for v in self.others if v.accepts is not None and v.accepts != self.ours.accepts)

    @property
    def judged(self) -> bool:
        """Whether there is a second opinion: we and at least one other engine decided."""
        return self.ours.accepts is not None and any(v.accepts is not None for v in self.others)

    @property
    def confirmed(self) -> bool:
        """Whether there is a second opinion, and none that contradicts ours."""
        return self.judged and not self.differing


@dataclass(frozen=True)
class Verification:
    """The verdicts on all texts. `print(verification)` shows a table of texts and engines."""

    texts: tuple[TextVerdicts, ...]

    @property
    def differences(self) -> tuple[TextVerdicts, ...]:
        """The texts on which some engine contradicts ours."""
        return tuple(row for row in self.texts if row.differing)

    @property
    def unjudged(self) -> tuple[TextVerdicts, ...]:
        """The texts on which there is no second opinion."""
        return tuple(row for row in self.texts if not row.judged)

    def __str__(self) -> str:
        return "\n".join([*_table(self.texts), *map(_difference, self.differences), _summary(self)])


def verify(grammar: Grammar, texts: Iterable[str], *, seconds: float = SECONDS) -> Verification:
    """Ask independent engines whether a grammar accepts texts, and compare with what it does.

    lark's Earley parser reads EBNF grammars. Python's `re`, interegular's automata and outlines-core's index read
    regular expressions and choices; outlines-core also reads JSON Schema. Each engine works in a process, with a limit
    of time and memory. What an engine cannot read is no verdict, and never counts as agreement.

    Args:
        grammar: what a `compile_` function returned.
        texts: whole texts.
        seconds: how long each engine may take for all of them.

    Raises:
        InvalidGrammarError: the grammar has no source, the texts are no list of strings, or `seconds` is not positive.
    """
    found = [texts] if isinstance(texts, str) else list(texts)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in found):
        raise InvalidGrammarError(f"texts must be a list of strings, not {texts!r}")
    if seconds <= 0:
        raise InvalidGrammarError(f"seconds must be positive, not {seconds!r}")
    recipe = grammar.recipe
    if recipe is None:
        raise InvalidGrammarError("this grammar has no source to verify; make it with a compile_ function")
    ours = [_our_verdict(grammar, text) for text in found]
    columns = [[Verdict(name, *a) for a in answers_of(name, recipe, found, seconds)] for name in ENGINES]
    rows = zip(*columns, strict=True)
    return Verification(tuple(map(TextVerdicts, found, ours, rows)))


def _our_verdict(grammar: Grammar, text: str) -> Verdict:
    automaton = grammar.automaton
    try:
        state = automaton.advance(automaton.start, text.encode("utf-8", "surrogatepass"))
        return Verdict(OURS, state >= 0 and automaton.final(state))
    except GrammarLimitError as error:
        return Verdict(OURS, None, str(error))


def _table(texts: tuple[TextVerdicts, ...]) -> list[str]:
    """Text by engine; an engine that has the same reason against all texts comes below, in a line."""
    if not texts:
        return []
    columns = list(zip(*((row.ours, *row.others) for row in texts), strict=True))
    refused = [column[0] for column in columns if column[0].reason and len(set(column)) == 1]
    cells = [["text", *(_shown(row.text) for row in texts)]]
    cells += [[column[0].engine, *map(str, column)] for column in columns if column[0] not in refused]
    widths = [max(map(len, column)) for column in cells]
    rows = zip(*cells, strict=True)
    table = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*table, *(f"{verdict.engine}: {verdict}" for verdict in refused)]


def _difference(row: TextVerdicts) -> str:
    verdicts = (row.ours, *row.others)
    return f"differs: {row.text!r}: " + ", ".join(f"{v.engine} {v}" for v in verdicts if v.accepts is not None)


def _summary(found: Verification) -> str:
    confirmed = sum(row.confirmed for row in found.texts)
    return (
        f"texts: {confirmed} confirmed, {len(found.differences)} differ, {len(found.unjudged)} without a second opinion"
    )


def _shown(text: str) -> str:
    whole = repr(text)
    return whole if len(whole) <= _LONGEST_SHOWN else f"{whole[: _LONGEST_SHOWN - 1]}…"
