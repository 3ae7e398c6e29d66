"""Terminals that are one token of the vocabulary, whatever its bytes: `<|eot_id|>`, `<[128009]>`, `<[10-20,7]>`,
`<[^7]>`, `<[*]>`.

Only the token itself is such a terminal, and not the text that it stands for. What is written as any token, or as any
but some, leaves out those that end a text, which a grammar has to name, and those that stand for nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from sgl.grammars.algebra.expr import Expr, GrammarRule, RuleCall
from sgl.grammars.algebra.marked_expressions import naming, token_among
from sgl.grammars.ebnf.grammar_source import GrammarText
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.tokens.vocabulary import Vocabulary

_NUMBERS = re.compile(r"<\[(?P<but>\^?)(?P<any>\*?)(?P<runs>[^\]]*)\]>")
_RUN = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")
_MOST_DIGITS = 9
_SHOWN = 5


class NoVocabularyError(UnsupportedGrammarError):
    """A grammar speaks of tokens, and is read without a vocabulary."""


class SpecialTokenTerminals:
    """Of one grammar and those that it imports; `used` are the tokens that it speaks of."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self.used: set[int] = set()

    def expr(self, source: GrammarText, text: str, at: int, negated: bool = False) -> Expr:
        """The terminal that is written as `text`.

        Raises:
            InvalidGrammarError: the vocabulary has no such token, or the terminal matches none.
            NoVocabularyError: there is no vocabulary.
        """
        vocabulary = self._known(source, text, at)
        found = self._meant(vocabulary, source, text, at)
        ids = self._others(vocabulary, found) if negated else found
        if not ids:
            source.invalid(f"{'!' * negated}{text} is no token of the vocabulary", at)
        return self._terminal(ids, text)

    def ids(self, source: GrammarText, text: str, at: int) -> frozenset[int]:
        """The numbers of the tokens that are written as `text`."""
        return frozenset(self._meant(self._known(source, text, at), source, text, at))

    def any_token_except(self, source: GrammarText, texts: Iterable[str], at: int) -> Expr:
        """Any token but some, and but those that end a text."""
        vocabulary = self._known(source, "in general", at)
        ids = self._others(vocabulary, {token for text in texts for token in self._meant(vocabulary, source, text, at)})
        if not ids:
            source.invalid("no token of the vocabulary is left", at)
        return self._terminal(ids, "but some")

    def _known(self, source: GrammarText, text: str, at: int) -> Vocabulary:
        if self._vocabulary is None:
            hint = (
                "its tokens are those of a vocabulary: compile the grammar with one, by compile_ebnf or "
                "compile_structural"
            )
            raise NoVocabularyError(
                f"token {text} in a grammar that is read without a vocabulary", source.place(at), hint
            )
        return self._vocabulary

    def _terminal(self, ids: set[int], text: str) -> Expr:
        self.used.update(ids)
        language = token_among(ids)
        return RuleCall(GrammarRule(f"token {text}", lambda: language))

    def number(self, source: GrammarText, token: int, at: int) -> Expr:
        return self.expr(source, f"<[{token}]>", at)

    def around(self, expr: Expr) -> Expr:
        """The whole grammar."""
        if self._vocabulary is None or not self.used:
            return expr
        return naming(expr, [token for token in self._vocabulary.eos_ids if token in self.used])

    def _meant(self, vocabulary: Vocabulary, source: GrammarText, text: str, at: int) -> set[int]:
        numbers = _NUMBERS.fullmatch(text)
        if numbers is None:
            return {_of_name(vocabulary, source, text, at)}
        if numbers["any"]:
            if numbers["but"] or numbers["runs"]:
                source.invalid(f"{text} has something next to the '*', which is any token", at)
            return self._others(vocabulary, ())
        found = {token for run in numbers["runs"].split(",") for token in _of_run(vocabulary, source, text, run, at)}
        return self._others(vocabulary, found) if numbers["but"] else found

    def _others(self, vocabulary: Vocabulary, ids: Iterable[int]) -> set[int]:
        return {i for i, data in enumerate(vocabulary.tokens) if data} - set(ids) - set(vocabulary.eos_ids)


def _of_name(vocabulary: Vocabulary, source: GrammarText, text: str, at: int) -> int:
    found = vocabulary.by_bytes.get(text.encode("utf-8", "surrogatepass"))
    if found is None:
        source.invalid(f"the vocabulary has no token {text!r}; {_near(vocabulary, text)}", at)
    return found[0]


def _near(vocabulary: Vocabulary, text: str) -> str:
    """Which special tokens there are, those that are spelled nearly so."""
    names = sorted(
        vocabulary.tokens[i].decode(errors="replace") for i in vocabulary.special_ids if vocabulary.tokens[i]
    )
    near = difflib.get_close_matches(text, names, _SHOWN)
    if near:
        return f"did you mean {' or '.join(near)}?"
    shown = f"{', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)}"
    return f"its special tokens are {shown}" if names else "it has no special tokens"


def _of_run(vocabulary: Vocabulary, source: GrammarText, text: str, run: str, at: int) -> range:
    found = _RUN.fullmatch(run)
    if found is None:
        source.invalid(f"bad token numbers {text!r}, expected such as <[7]>, <[10-20,7]>, <[^7]> or <[*]>", at)
    low, high = (int(digits[:_MOST_DIGITS]) for digits in (found[1], found[2] or found[1]))
    if max(low, high) >= vocabulary.size:
        source.invalid(f"token {max(low, high)} of {text} is outside the vocabulary of {vocabulary.size}", at)
    if low > high:
        source.invalid(f"bad token range {run.strip()} in {text}", at)
    return range(low, high + 1)
