"""The literal text at the end of a token row, kept so that what follows it is tokenised together with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sgl.runtime.text.chat_templates.quoted_text import ending

Ints = NDArray[np.int32]

WINDOW = 64  # tokens; a tail longer than twice this is cut where that provably changes nothing near its end


class TailTokenizer(Protocol):
    """What the language needs of a tokenizer, to cut and encode text."""

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """Of each token id."""
        ...

    @property
    def special_ids(self) -> Collection[int]: ...

    def encode(self, text: str, special_prefix: bool = False, parse_special: bool = True) -> Ints:
        """Token ids, int32 [n]."""


def _no_tokens() -> Ints:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class UntokenizedTail:
    """The last literal text of a row and its tokens, int32 [n]. `starts_row`: the row begins with it.

    The text may be a `QuotedText`, whose quoted stretches the tokenizer keeps from becoming special tokens.
    """

    text: str = ""
    tokens: Ints = field(default_factory=_no_tokens)
    starts_row: bool = False

    def extended(self, text: str, tokenizer: TailTokenizer) -> UntokenizedTail:
        """The tail with more text: tokens as if both had been one literal."""
        whole = self.text + text
        return replace(self, text=whole, tokens=tokenizer.encode(whole, special_prefix=self.starts_row))

    def shortened(self, tokenizer: TailTokenizer) -> UntokenizedTail:
        """The last part of a long tail, if encoding that part alone gives the same tokens."""
        if len(self.tokens) <= 2 * WINDOW:
            return self
        for cut in self._cuts(tokenizer):
            part = self._from(cut, tokenizer)
            if part is not None and np.array_equal(tokenizer.encode(part.text), part.tokens):
                return part
        return self

    def _cuts(self, tokenizer: TailTokenizer) -> Iterator[int]:
        """Where the tail may be cut, the best place first: a special token near its end, which text after it cannot
        make a part of a longer one, then a place that is further from the end."""
        end = len(self.tokens)
        special = (cut for cut in range(end - 1, end - WINDOW, -1) if int(self.tokens[cut]) in tokenizer.special_ids)
        yield from (cut for cut in islice(special, 1) if _is_alone(int(self.tokens[cut]), tokenizer))
        yield from range(end - WINDOW, end - 2 * WINDOW, -1)

    def _from(self, cut: int, tokenizer: TailTokenizer) -> UntokenizedTail | None:
        """The tail from token `cut` on, if a word or a special token begins there."""
        before, first = int(self.tokens[cut - 1]), int(self.tokens[cut])
        head = tokenizer.token_bytes[first]
        begins_word = head[:1] == b" " and head[1:2].isalpha() and tokenizer.token_bytes[before][-1:].isalnum()
        if not (first in tokenizer.special_ids or begins_word):
            return None
        text = b"".join(tokenizer.token_bytes[token] for token in self.tokens[cut:].tolist()).decode(errors="replace")
        return UntokenizedTail(ending(self.text, len(text)), self.tokens[cut:]) if self.text.endswith(text) else None


def _is_alone(special: int, tokenizer: TailTokenizer) -> bool:
    """Whether the text of a special token is in no other one's."""
    own = tokenizer.token_bytes[special]
    return not any(own in tokenizer.token_bytes[other] for other in tokenizer.special_ids if other != special)


def common_prefix(rows: Sequence[Ints]) -> int:
    """How many leading tokens all rows share."""
    shared = rows[0]
    for row in rows[1:]:
        length = min(len(shared), len(row))
        same = shared[:length] == row[:length]
        shared = shared[: length if same.all() else int(same.argmin())]
    return len(shared)
