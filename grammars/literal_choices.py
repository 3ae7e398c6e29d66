"""One of a list of literal texts."""

from __future__ import annotations

from collections.abc import Iterable

from sgl.grammars.algebra.expr import Expr, words
from sgl.grammars.errors import InvalidGrammarError


def choices_expr(choices: Iterable[str]) -> Expr:
    """A trie of the texts; tens of thousands are fine. With the empty text among them nothing need be written.

    Raises:
        InvalidGrammarError: the list is empty or holds something that is not text.
    """
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise InvalidGrammarError(f"choices must be a list of strings, not {choices!r}")
    texts = list(choices)
    if not texts:
        raise InvalidGrammarError("choices is empty; give at least one string")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidGrammarError(f"a choice must be a string, not {text!r}", f"choices[{i}]")
    return words(_encode(text, i) for i, text in enumerate(texts))


def _encode(text: str, index: int) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidGrammarError(f"{text!r} has an unpaired surrogate", f"choices[{index}]") from error
