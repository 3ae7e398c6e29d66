"""Jump-forward: text that a grammar forces is appended without sampling, in the tokens the model knows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from sgl.runtime.text.tokenizer import Tokenizer

MIN_BYTES = 2  # shorter forced runs are left to the model: a step costs about as much as a rewrite
WINDOW = 8  # tokens that a rewrite looks back
CROSSING = 3  # last tokens of a run that a longer token might swallow
REMEMBERED = 8192  # answers kept of each kind; grammars ask the same again and again


Joined = tuple[list[int], list[int]]  # last tokens to drop, tokens to put there


class MatcherLike(Protocol):
    """What is used of `sgl.grammars` matchers."""

    def mask(self) -> np.ndarray: ...
    def accept(self, token_id: int) -> bool: ...
    def rollback(self, count: int) -> None: ...
    def forced(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class JumpForwardEdit:
    """Drop the last `drop` tokens, append `token_ids`: the text grows and none of it changes."""

    drop: int
    token_ids: list[int]


class JumpForward:
    """Finds jumps for one tokenizer each of whose tokens has its own bytes; thread-safe, build it once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokenizer.token_bytes
        self._joins: dict[tuple[tuple[int, ...], bytes], Joined | None] = {}
        self._longer: dict[tuple[int, bytes], tuple[np.ndarray, bool]] = {}  # by identity of a mask, which is kept

    def jump(self, matcher: MatcherLike, output_ids: Sequence[int], limit: int | None = None) -> JumpForwardEdit | None:
        """The jump to make now, or None; `matcher` is moved along with it, and not at all for None.

        Forced bytes are tokenised together with the last tokens of the output, so that a token across the border comes
        out as the model has learned it. The end of the run is left to the model where a longer token than the run's
        last could be meant.

        Args:
            matcher: at the end of `output_ids`, all of which it has accepted.
            output_ids: the tokens generated so far.
            limit: most tokens that the output may have afterwards.
        """
        forced = _whole_characters(matcher.forced())
        if len(forced) < MIN_BYTES or not self._tokenizer.exact_bytes:
            return None
        found = self._retokenize(output_ids, forced)
        if found is None:
            return None
        dropped, fresh = found
        room = len(fresh) if limit is None else limit - len(output_ids) + len(dropped)
        if not self._advance(matcher, dropped, fresh):
            return None
        keep = min(self._settled(matcher, fresh), max(room, 0))
        matcher.rollback(len(fresh) - keep)
        if len(self._bytes(fresh[:keep])) <= len(self._bytes(dropped)):
            _restore(matcher, keep, dropped)
            return None
        return JumpForwardEdit(len(dropped), fresh[:keep])

    def _retokenize(self, output: Sequence[int], forced: bytes) -> tuple[list[int], list[int]] | None:
        """(last tokens of the output to drop, tokens to put there): together with the same text in front."""
        for start in self._starts(output):
            found = self._join(tuple(output[start:]), forced)
            if found is not None:
                return found
        return None

    def _join(self, tail: tuple[int, ...], forced: bytes) -> Joined | None:
        """The same for the last tokens alone; None where they are not what the tokenizer makes of their text."""
        key = (tail, forced)
        if key not in self._joins:
            if len(self._joins) >= REMEMBERED:
                self._joins.clear()
            self._joins[key] = self._joined(list(tail), forced)
        return self._joins[key]

    def _joined(self, tail: list[int], forced: bytes) -> Joined | None:
        before = self._bytes(tail)
        after = self._encode(before + forced)
        if after is None:
            return None
        shared = _common_prefix(tail, after)
        if shared < len(tail) and self._encode(before) != tail:
            return None
        return tail[shared:], after[shared:]

    def _starts(self, output: Sequence[int]) -> Iterator[int]:
        """Where to begin: before the last word if it is near, then ever closer to the end."""
        count = len(output)
        first = max(0, count - WINDOW)
        words = (i for i in range(count - 1, first, -1) if self._tokens[output[i]][:1].isspace())
        yield next(words, first)
        yield from range(max(first, count - 1), count + 1)

    def _encode(self, data: bytes) -> list[int] | None:
        """Tokens of `data`; None when they cannot represent exactly these bytes as plain text."""
        try:
            ids = self._tokenizer.encode(data.decode()).tolist()
        except UnicodeDecodeError:
            return None
        plain = self._tokenizer.special_ids.isdisjoint(ids) and self._bytes(ids) == data
        return ids if plain else None

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join([self._tokens[i] for i in ids])

    def _advance(self, matcher: MatcherLike, dropped: list[int], fresh: list[int]) -> bool:
        """Move the matcher over the replacement; False, and no move, when it refuses a token of it."""
        matcher.rollback(len(dropped))
        for count, token in enumerate(fresh):
            if not matcher.accept(token):
                _restore(matcher, count, dropped)
                return False
        return True

    def _settled(self, matcher: MatcherLike, fresh: list[int]) -> int:
        """How many tokens of the run no allowed token across its end could replace; the matcher stays."""
        settled = len(fresh)
        back = min(CROSSING, len(fresh))
        for count in range(1, back + 1):
            matcher.rollback(1)
            if self._may_be_longer(matcher.mask(), self._bytes(fresh[-count:])):
                settled = len(fresh) - count
        for token in fresh[len(fresh) - back :]:
            matcher.accept(token)
        return settled

    def _may_be_longer(self, mask: np.ndarray, run: bytes) -> bool:
        """Whether an allowed token begins with all of `run` and goes on."""
        key = (id(mask), run)
        known = self._longer.get(key)
        if known is None or known[0] is not mask:
            if len(self._longer) >= REMEMBERED:
                self._longer.clear()
            known = self._longer[key] = mask, self._allows_longer(mask, run)
        return known[1]

    def _allows_longer(self, mask: np.ndarray, run: bytes) -> bool:
        ordered, ids = self._sorted
        longer = ids[bisect_right(ordered, run) : bisect_left(ordered, _successor(run))]
        return bool((mask[longer >> 5] >> (longer & 31) & 1).any())

    @cached_property
    def _sorted(self) -> tuple[list[bytes], np.ndarray]:
        """Tokens of plain text in the order of their bytes, and their ids, int32."""
        special = self._tokenizer.special_ids
        pairs = sorted((token, i) for i, token in enumerate(self._tokens) if token and i not in special)
        return [token for token, _ in pairs], np.array([i for _, i in pairs], np.int32)


def _restore(matcher: MatcherLike, accepted: int, dropped: list[int]) -> None:
    matcher.rollback(accepted)
    for token in dropped:
        matcher.accept(token)


def _whole_characters(data: bytes) -> bytes:
    """Without the unfinished character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            size = 2 + (lead >= 0xE0) + (lead >= 0xF0)
            return data if back >= size else data[:-back]
        if lead < 0x80:
            break
    return data


def _successor(prefix: bytes) -> bytes:
    """The least byte string above all that begin with `prefix`."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\xff" * 1024


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
