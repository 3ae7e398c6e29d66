"""Where special tokens are read: in the program's own text a spelled one counts, in untrusted text it stays text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sgl.runtime.text.chat_templates.quoted_text import QuotedText, quoted

from ..errors import BadValueError, check_text, shown
from ..typed.choice_labels import ChoiceLabels, labels_of
from .ir import SglConstantText, SglExpr
from .traced_nodes import SglTracedText


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
        return SglConstantText(_quoted_text(text, is_quoted))
    if isinstance(text, SglExpr):  # in a trace: what is text in a run
        return SglTracedText(text, is_quoted)
    word = "plain" if is_quoted else "special"
    raise BadValueError(f"sgl.{word}({text!r:.60}): give a text (str() it?)")


def worded(node: SglTracedText, text: Any) -> SglConstantText:
    """What such a node is in a run, where its text is known. Raises BadValueError for what is none."""
    if not isinstance(text, str):
        raise BadValueError(f"{node!r} is {text!r:.60} in this run; give a text (str() it?)")
    return SglConstantText(_quoted_text(text, node.quoted))


def _quoted_text(text: str, is_quoted: bool) -> QuotedText:
    return quoted(text) if is_quoted else QuotedText(text)


def in_turn(text: str, role: str | None) -> str:
    """A text as it is written where a turn of `role` is open: as it was said, else quoted inside of turns."""
    if role is None or isinstance(text, QuotedText):
        return text
    return quoted(text, own=role == "assistant")


def labels_in(asks: str, choices: Any) -> ChoiceLabels:
    """The choices of a select (`asks` is its call, for errors). Their texts are quoted but for those that `special` was
    said of.

    Raises BadValueError.
    """
    try:
        labels = labels_of(choices) or ChoiceLabels("labels", _items(choices))
    except BadValueError as error:
        raise BadValueError(f"{asks}: {error}") from None
    labels = ChoiceLabels(labels.name, map(_choice, labels.texts), labels.about, labels.reading)
    _check_texts(asks, choices, labels.texts)
    return labels


def _items(choices: Any) -> list[Any]:
    return [] if isinstance(choices, str | type) or not isinstance(choices, Iterable) else list(choices)


def _check_texts(asks: str, choices: Any, texts: list[Any]) -> None:
    if not texts:
        raise BadValueError(
            f"{asks}: choices is {shown(choices)}; give a list of strings, a dict of definitions, an Enum or a Literal"
        )
    for text in texts:
        if not isinstance(text, str):
            raise BadValueError(
                f"{asks}: choices is {shown(choices)}; give a list of strings: {shown(str(text))}, not {shown(text)}"
            )
        check_text(text, f"{asks}: a choice")
    if "" in texts:
        raise BadValueError(
            f"{asks}: choice {texts.index('')} is an empty text, which has no tokens and so no likelihood; "
            'give it words, as "none", or leave it out'
        )


def _choice(given: Any) -> Any:
    """Choices are plain strs for those who look at them; only special ones know what they are."""
    return given.value if isinstance(given, SglConstantText) else given
