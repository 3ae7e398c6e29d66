"""The tokens of a generation: which they were, how likely, and which part of the text each of them made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..backend import Backend, Generated

NEVER = -1e6  # stands for -inf, which JSON does not have
_BROKEN = "\ufffd"  # in the text of a token that holds a part of a character


class PageVocabulary:
    """The different tokens of a page, by number: each is written once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int | None, str], int] = {}

    def number(self, token: int | None, text: str | None) -> int:
        return self._numbers.setdefault((token, text or ""), len(self._numbers))

    def data(self) -> list[list[Any]]:
        """[id or None, text] of each."""
        return [list(entry) for entry in self._numbers]


def token_data(result: Generated, backend: Backend, vocabulary: PageVocabulary) -> dict[str, Any]:
    """tokens: numbers of the vocabulary; logprobs and top ([number, logprob] ...) where they were asked for.

    spans: [text, tokens that made it] ..., only where that is not simply each token's own text; None where the
    text cannot be matched with the tokens. Empty for backends that report no tokens.
    """
    entries = entries_of(result, backend)
    if not entries:
        return {}
    data: dict[str, Any] = {"tokens": [vocabulary.number(token, text) for _, token, text in entries]}
    meta = result.meta_info
    if meta.get("output_token_logprobs"):
        data["logprobs"] = [rounded(value) for value, _, _ in entries]
    if tops := meta.get("output_top_logprobs"):
        data["top"] = [
            [[vocabulary.number(token, text), rounded(value)] for value, token, text in filled(row, backend)]
            for row in tops
        ]
    texts = [text or "" for _, _, text in entries]
    if "".join(texts) != result.text:
        data["spans"] = align(result.text, texts)
    return data


def entries_of(result: Generated, backend: Backend) -> list[list[Any]]:
    """[logprob or None, token id or None, text] of each token; empty if they are not known."""
    if entries := result.meta_info.get("output_token_logprobs"):
        return filled(entries, backend)
    texts = backend.token_texts(result.token_ids) if result.token_ids else None
    return [[None, token, text] for token, text in zip(result.token_ids or (), texts or (), strict=bool(texts))]


def filled(entries: Sequence[Sequence[Any]], backend: Backend) -> list[list[Any]]:
    """Entries with the texts that they lack (return_text_in_logprobs=False leaves them out)."""
    rows = [list(entry) for entry in entries or ()]
    bare = [row for row in rows if row[2] is None and row[1] is not None]
    for row, text in zip(bare, (bare and backend.token_texts([row[1] for row in bare])) or (), strict=False):
        row[2] = text
    return rows


def rounded(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return round(max(value, NEVER), 4)


def align(text: str, tokens: Sequence[str]) -> list[list[Any]] | None:
    """[part of the text, number of tokens] ...; the parts make the text, the numbers all tokens, in order.

    Several tokens that make one character are grouped; tokens that are not in the text (ends, stops) have
    the empty part. None if token and text do not match.
    """
    spans: list[list[Any]] = []
    at, index = 0, 0
    while index < len(tokens):
        if text.startswith(tokens[index], at) and _BROKEN not in tokens[index]:
            part, count = tokens[index], 1
        elif at == len(text):
            part, count = "", 1
        else:
            part, count = _resume(text, at, tokens, index)
            if not count:
                return None
        spans.append([part, count])
        at, index = at + len(part), index + count
    return spans if at == len(text) else None


def _resume(text: str, at: int, tokens: Sequence[str], index: int) -> tuple[str, int]:
    """The part and the number of tokens up to the next token that is in the text again; ("", 0) if none is."""
    end = next((i for i in range(index, len(tokens)) if tokens[i] and _BROKEN not in tokens[i]), len(tokens))
    if end == index:  # not in the text itself (a special token), or the tokens are not those of the text
        beyond = end + 1 < len(tokens) and text.startswith(tokens[end + 1], at)
        return "", int(beyond and tokens[end + 1] != "")
    found = text.find(tokens[end], at) if end < len(tokens) else len(text)
    broken = sum(map(len, tokens[index:end]))
    return (text[at:found], end - index) if 0 <= found - at <= broken else ("", 0)
