"""Masks of texts whose written items matter: those of the network's core, put right where an item or a bracket ends.

Within a string most tokens only go on with it, as the core says for thousands at once; those with a quote in them are
walked one by one, and so is everything outside of strings. What goes on with a string leads nowhere only where it
spells the beginning of a text that is written already, so that these tokens are looked at too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np

from sgl.grammars.algebra.byte_marks import BEGIN
from sgl.grammars.automaton.distinct_items_states import (
    DistinctItemsHalt,
    DistinctItemsState,
    DistinctItemsStates,
    kept,
)
from sgl.grammars.automaton.distinct_items_viability import DistinctItemsViability
from sgl.grammars.tokens.token_trie import TokenTrie, pack
from sgl.grammars.tokens.vocabulary import Vocabulary

_QUOTE = 0x22
_FEW_TOKENS = 1500  # that may come: so many are walked, more are taken from the core
_SAMPLES = tuple(c.encode() for c in ("a", "0", " ", "-", "\\n", "\\u0041", "é", "你", "😀"))


class DistinctItemsMasks:
    def __init__(self, texts: DistinctItemsStates, viability: DistinctItemsViability, vocabulary: Vocabulary) -> None:
        self._texts, self._viability, self.vocabulary = texts, viability, vocabulary
        self._quoted, self._taken_out = _of_vocabulary(vocabulary)
        self._homes: dict[int, bool] = {}
        self._ids: dict[bytes, list[int]] | None = None

    def fill(self, text: DistinctItemsState, out: np.ndarray) -> None:
        """The tokens that keep a text viable, in uint32 [words]; the end is left to the caller."""
        if text.part[:1] == b'"' and self._fill_string(text, out):
            return
        out[:] = 0
        self._set(out, self._walked(self.vocabulary.trie, text))

    def _fill_string(self, text: DistinctItemsState, out: np.ndarray) -> bool:
        """Within a string where much may come; False elsewhere."""
        code = self._texts.core.mask(text.base, out)
        if code < 0:
            raise DistinctItemsHalt(code)
        if int(np.bitwise_count(out).sum()) <= _FEW_TOKENS:
            return False
        out &= self._taken_out
        self._set(out, self._walked(self._quoted, text))
        if kept(text) and not self._home(text.base):
            out &= ~pack(self._dead_ends(text), self.vocabulary.words)
        return True

    def _set(self, out: np.ndarray, ids: Iterable[int]) -> None:
        out |= pack(ids, self.vocabulary.words)

    def _walked(self, trie: TokenTrie, text: DistinctItemsState) -> Iterator[int]:
        """The tokens of a trie that may come."""
        bytes_, depths, skips, first, ids = trie.lists
        path: list[DistinctItemsState] = [text] * (self.vocabulary.reach + 1)
        step, viable, at = self._texts.step, self._viability.of, 0
        while at < len(bytes_):
            depth = depths[at]
            after = step(path[depth - 1], bytes_[at])
            if after is None:
                at = skips[at]
                continue
            path[depth] = after
            if first[at] < first[at + 1] and viable(after):
                yield from ids[first[at] : first[at + 1]]
            at += 1

    def _home(self, base: int) -> bool:
        """Whether a string only comes back to where it is, whatever goes on with it."""
        found = self._homes.get(base)
        if found is None:
            found = self._homes[base] = self._viability.endless(base) and all(
                self._returns(base, data) for data in _SAMPLES
            )
        return found

    def _returns(self, base: int, data: bytes) -> bool:
        state = base
        for byte in data:
            state = self._texts.base(state, byte)
            if state < 0:
                return True
        return state == base

    def _dead_ends(self, text: DistinctItemsState) -> Iterator[int]:
        """Tokens without a quote that go on like a text that is written, and cannot become another one."""
        assert text.open is not None
        so_far, seen = text.part[1:], set()
        for written in text.open.strings():
            for spelled in (json.dumps(written), json.dumps(written, ensure_ascii=False)):
                data = spelled[1:-1].encode("utf-8", "surrogatepass")
                if data.startswith(so_far):
                    seen.add(data[len(so_far) :])
        for rest in seen:
            for count in range(1, min(len(rest), self.vocabulary.reach) + 1):
                ids = self._by_bytes().get(rest[:count])
                if ids and not self._goes_on(text, rest[:count]):
                    yield from ids

    def _goes_on(self, text: DistinctItemsState, data: bytes) -> bool:
        after: DistinctItemsState | None = text
        for byte in data:
            after = None if after is None else self._texts.step(after, byte)
        return after is not None and self._viability.of(after)

    def _by_bytes(self) -> dict[bytes, list[int]]:
        if self._ids is None:
            self._ids = {}
            for token in self.vocabulary.text_ids:
                self._ids.setdefault(self.vocabulary.tokens[token], []).append(token)
        return self._ids


_known: dict[int, tuple[Vocabulary, TokenTrie, np.ndarray]] = {}


def _of_vocabulary(vocabulary: Vocabulary) -> tuple[TokenTrie, np.ndarray]:
    """The tokens with a quote as a trie; and a row without them, and without those of bytes that are marks."""
    found = _known.get(id(vocabulary))
    if found is None or found[0] is not vocabulary:
        tokens = vocabulary.tokens
        quoted = [i for i in vocabulary.text_ids if _QUOTE in tokens[i]]
        marks = [i for i in vocabulary.text_ids if any(byte >= BEGIN for byte in tokens[i])]
        row = ~pack([*quoted, *marks, *vocabulary.eos_ids], vocabulary.words)
        _known.clear()
        found = _known[id(vocabulary)] = vocabulary, TokenTrie.of(tokens, quoted), row
    return found[1], found[2]
