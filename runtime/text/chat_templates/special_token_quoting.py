"""Untrusted texts in a conversation: a special token that they spell stays text.

A message that holds "<|im_end|>" must not end its own turn. So before the template sees the messages, every place
where one of their texts spells such a mark is replaced by one private character that no text holds; what spells a mark
in the rendered prompt is then the template's own. When the text becomes tokens, the private characters are put back as
plain text. Texts that spell no mark are not touched at all.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Protocol

import numpy as np
from tokenizers import AddedToken

from ...errors import ConfigError
from ..tokenizer_protocols import EncodesText
from .quoted_text import PRIVATE, QuotedText

NOTHING = re.compile("(?!)")


class SpecialTokenMarks:
    """Marks that separate the turns of a conversation: special tokens, and added ones that the template writes.

    An assistant's text may spell the latter ("</think>"): templates look for them there.
    """

    def __init__(self, tokenizer: EncodesText, added: Mapping[int, AddedToken]) -> None:
        self._tokenizer = tokenizer
        templates = "\0".join(tokenizer.chat_sources)
        special = frozenset(i for i, token in added.items() if token.special)
        self.ids = special | {i for i, token in added.items() if token.content in templates}
        self._ids = (self.ids, special)
        self._patterns = tuple(_any_of(added[i].content for i in ids) for ids in self._ids)
        self._normalized = any(added[i].normalized for i in self.ids)

    def spelled(self, text: str, by_assistant: bool = False) -> set[str]:
        """The parts of `text` that would become marks."""
        found = set(self._patterns[by_assistant].findall(text))
        if self._normalized:  # such as fullwidth letters: found in the normalised text only
            ids = self._ids[by_assistant]
            found |= {text[start:stop] for i, start, stop in self._tokenizer.spans(text) if i in ids and stop > start}
        return found

    def split(self, text: str) -> list[str]:
        """`text` in parts that are marks or hold none."""
        pattern, ends = self._patterns[False], [0]
        for match in pattern.finditer(text):
            ends += match.span()
        return [text[start:end] for start, end in pairwise([*ends, len(text)]) if end > start]

    def encode(self, passage: QuotedText, special_prefix: bool = False) -> np.ndarray:
        """Token ids of a passage, int32 [n]: no mark that a quoted stretch spells, or helps to spell, is one of
        them."""
        parts = self._parts(passage)
        if not any(quoted for _, quoted in parts):
            return self._tokenizer.encode(str(passage), special_prefix)
        return self.encode_parts(parts, special_prefix)

    def encode_parts(self, parts: Iterable[tuple[str, bool]], special_prefix: bool = False) -> np.ndarray:
        """Token ids of a text in parts, int32 [n]: of a part that is quoted as plain text, of others as they are."""
        pieces: list[np.ndarray] = []
        for quoted, some in groupby(parts, lambda part: part[1]):
            text, first = "".join(part for part, _ in some), special_prefix and not pieces
            pieces.append(self.plain(text, first) if quoted else self._tokenizer.encode(text, first))
        return np.concatenate(pieces)

    def _parts(self, passage: QuotedText) -> list[tuple[str, bool]]:
        """The passage cut at the marks that are meant; a part between them is quoted if strangers spell one there."""
        text, ends = str(passage), [0]
        for start, stop in self._meant(passage):
            ends += (start, stop)
        places = [place for place in pairwise([*ends, len(text)]) if place[0] < place[1]]
        meant = set(zip(ends[1::2], ends[2::2], strict=True))
        strange = _QuotedOverlaps(passage)
        cut = ((text[a:b], (a, b) not in meant and strange.touch(a, b)) for a, b in places)
        return [(part, touched and bool(self.spelled(part))) for part, touched in cut]

    def _meant(self, passage: QuotedText) -> Iterator[tuple[int, int]]:
        """Where marks stand in unquoted stretches, or such as are no special tokens in the model's own words."""
        at = 0
        for part, quoted, own in passage.stretches():
            for found in self._patterns[False].finditer(part) if not quoted or own else ():
                if not (quoted and self._patterns[True].fullmatch(found[0])):
                    yield at + found.start(), at + found.end()
            at += len(part)

    def plain(self, text: str, special_prefix: bool = False) -> np.ndarray:
        """Token ids of `text`, int32 [n], none of them a mark."""
        ids = self._tokenizer.encode(text, special_prefix, parse_marks=False)
        prefix = np.array(self._tokenizer.prefix_ids if special_prefix else (), np.int32)
        if self.ids.isdisjoint(ids[len(prefix) :].tolist()):
            return ids
        pieces = [piece for part in self.split(text) for piece in (part if part in self._words else (part,))]
        known = {piece: self._tokenizer.encode(piece, parse_marks=False) for piece in set(pieces)}
        return np.concatenate([prefix, *(known[piece] for piece in pieces)])

    @cached_property
    def _words(self) -> frozenset[str]:
        """Marks as they are written: those that the tokenizer has among its words too must be spelled out."""
        return frozenset(self._tokenizer.token_bytes[i].decode() for i in self.ids)


class _QuotedOverlaps:
    """Which parts of a passage hold quoted characters."""

    def __init__(self, passage: QuotedText) -> None:
        self._starts = [start for start, _, _ in passage.quoted]
        self._stops = [stop for _, stop, _ in passage.quoted]

    def touch(self, start: int, stop: int) -> bool:
        following = bisect_right(self._stops, start)  # the first that ends after `start`
        return following < len(self._starts) and self._starts[following] < stop


class EncodesMarkedText(EncodesText, Protocol):
    """A tokenizer with the marks of its chat templates."""

    @property
    def marks(self) -> SpecialTokenMarks: ...


class QuotedConversation:
    """A conversation whose marks are quoted.

    value: what was given (texts in mappings, lists and tuples, at any depth, keys too), safe for a template.
    """

    def __init__(self, tokenizer: EncodesMarkedText, value: Any) -> None:
        self._tokenizer = tokenizer
        found = sorted({part for text, own in _texts(value) for part in tokenizer.marks.spelled(_checked(text), own)})
        self._originals = dict(zip(_unused(value), found, strict=False)) if found else {}
        if len(self._originals) < len(found):
            raise ConfigError(
                "the messages hold all characters of Unicode's plane 15, which is for private use; leave some out"
            )
        try:
            self.value = _mapped(value, self._quote) if found else value
        except RecursionError:
            raise ConfigError("the messages are nested too deeply to be read; send them flatter") from None

    def encode(self, text: str, special_prefix: bool = False) -> np.ndarray:
        """Token ids of text made of `value`, int32 [n]: the quoted as plain text, all else as `Tokenizer.encode` has
        it.
        """
        if not self._originals:
            return self._tokenizer.encode(text, special_prefix)
        signs, marks = re.compile(f"[{''.join(self._originals)}]"), self._tokenizer.marks
        parts = ((self.restored(part), signs.search(part) is not None) for part in marks.split(text))
        return marks.encode_parts(parts, special_prefix)

    def restored(self, text: str) -> str:
        """Text made of `value`, with what was quoted as it was."""
        return text.translate({ord(sign): original for sign, original in self._originals.items()})

    def _quote(self, text: str, by_assistant: bool) -> str:
        spelled = self._tokenizer.marks.spelled(text, by_assistant)
        return _any_of(spelled).sub(lambda match: self._signs[match[0]], text) if spelled else text

    @cached_property
    def _signs(self) -> dict[str, str]:
        return {original: sign for sign, original in self._originals.items()}


def _checked(text: str) -> str:
    """JSON can hold halves of characters, which are no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"a message is not valid Unicode: {error.reason} at its character {error.start}; leave it out"
        ) from None
    return text


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the texts, of several at one place the longest."""
    words = set(texts) - {""}
    return re.compile(_branches(words)) if words else NOTHING


def _branches(words: set[str]) -> str:
    """A pattern that looks at what the words begin with in common once: some tokenizers have thousands of marks."""
    rests: dict[str, set[str]] = {}
    for word in sorted(words - {""}):
        rests.setdefault(word[0], set()).add(word[1:])
    choices = [re.escape(char) + _branches(rest) for char, rest in rests.items()]
    one = choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})" if choices else ""
    return f"(?:{one})?" if one and "" in words else one


def _unused(value: Any) -> Iterator[str]:
    """Private characters that no text of `value` holds."""
    used = {char for text, _ in _texts(value) if not text.isascii() for char in text}
    return (char for char in map(chr, PRIVATE) if char not in used)


def _texts(value: Any) -> Iterator[tuple[str, bool]]:
    """Every text in `value`, keys too, and whether it is part of an assistant's message."""
    pending = [(value, False)]
    while pending:
        part, own = pending.pop()
        if isinstance(part, str):
            yield part, own
        elif isinstance(part, Mapping):
            own = _by_assistant(part, own)
            pending += [(item, own) for pair in part.items() for item in pair]
        elif isinstance(part, (list, tuple)):
            pending += [(item, own) for item in part]


def _mapped(value: Any, change: Callable[[str, bool], str], own: bool = False) -> Any:
    """`value` with every text of `_texts` changed."""
    if isinstance(value, str):
        return change(value, own)
    if isinstance(value, Mapping):
        own = _by_assistant(value, own)
        return {_mapped(key, change, own): _mapped(item, change, own) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change, own) for item in value]
    return value


def _by_assistant(part: Mapping[Any, Any], outer: bool) -> bool:
    role = part.get("role")
    return outer if role is None else role == "assistant"
