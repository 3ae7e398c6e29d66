"""Where special tokens are read: in the program's own text a spelled one counts, in untrusted text it stays text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sgl.runtime.text.passage import Passage, quoted

from ..errors import BadValueError, check_text
from .ir import SglConstantText, SglExpr
from .traced import SglWords


def special(text: Any) -> SglExpr:
    """Text whose special tokens count everywhere, also inside a turn or in a choice.

    Text that a program appends outside of turns is always read like this: `s += "<|im_start|>user\\n"`.
    """
    return _words(text, False)


def plain(text: Any) -> SglExpr:
    """Text in which special tokens are plain characters everywhere. Use it for untrusted input outside of turns.

        s += "Review: " + sgl.plain(review) + "\\nVerdict:"
    """
    return _words(text, True)


def _words(text: Any, is_quoted: bool) -> SglExpr:
    if isinstance(text, str):
        return SglConstantText(_said(text, is_quoted))
    if isinstance(text, SglExpr):  # in a trace: what is text in a run
        return SglWords(text, is_quoted)
    word = "plain" if is_quoted else "special"
    raise BadValueError(f"sgl.{word}({text!r:.60}): give a text (str() it?)")


def worded(node: SglWords, text: Any) -> SglConstantText:
    """What such a node is in a run, where its text is known. Raises BadValueError for what is none."""
    if not isinstance(text, str):
        raise BadValueError(f"{node!r} is {text!r:.60} in this run; give a text (str() it?)")
    return SglConstantText(_said(text, node.quoted))


def _said(text: str, is_quoted: bool) -> Passage:
    return quoted(text) if is_quoted else Passage(text)


def in_turn(text: str, role: str | None) -> str:
    """A text as it is written where a turn of `role` is open: as it was said, else quoted inside of turns."""
    if role is None or isinstance(text, Passage):
        return text
    return quoted(text, own=role == "assistant")


def choice_texts(name: str | None, choices: Any) -> list[str]:
    """The texts of choices, quoted but for those that `special` was said of. Raises BadValueError."""
    texts = [] if isinstance(choices, str) or not isinstance(choices, Iterable) else [_choice(one) for one in choices]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise BadValueError(f"select({name!r}): choices is {choices!r}; give a list of strings")
    for text in texts:
        check_text(text, f"select({name!r}): a choice")
    if "" in texts:
        raise BadValueError(
            f"select({name!r}): choice {texts.index('')} is an empty text, which has no tokens and so no likelihood; "
            'give it words, as "none", or leave it out'
        )
    return texts


def _choice(given: Any) -> Any:
    """Choices are plain strs for those who look at them; only special ones know what they are."""
    return given.value if isinstance(given, SglConstantText) else given
