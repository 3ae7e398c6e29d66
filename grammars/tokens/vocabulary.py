"""The bytes of every token, as a trie in flat depth-first arrays, and by families of characters."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sgl.common.lru_cache import LruCache
from sgl.grammars.algebra.byte_marks import NUMBER_BYTES, TOKEN
from sgl.grammars.errors import GrammarError, InvalidGrammarError
from sgl.grammars.tokens.token_bytes import token_bytes
from sgl.grammars.tokens.token_texts import TokenTexts
from sgl.grammars.tokens.token_trie import TokenTrie, pack

if TYPE_CHECKING:
    from sgl.grammars.tokens.character_families import CharacterFamily

MOST_GRAMMARS = 256
_MARKS = re.compile(b"[\\x%02x-\\xff]" % TOKEN)  # bytes of no text
_numbers = count(1)


class Vocabulary:
    """Token bytes, end-of-sequence ids and special ids of a tokenizer; build it once and share it.

    Special tokens and tokens without bytes are never part of a constrained text. `compiled` holds the grammars
    compiled for this vocabulary, `native` the C core's view of it. If `exact` is False, a text is not the concatenation
    of its tokens' bytes (as in WordPiece), and nothing can be compiled.
    """

    def __init__(self, tokens: Sequence[bytes], eos_ids: Iterable[int], special_ids: Iterable[int] = ()) -> None:
        self.tokens: tuple[bytes, ...] = tuple(map(bytes, tokens))
        self.size = len(self.tokens)
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(int(i) for i in eos_ids))
        self.special_ids = frozenset(int(i) for i in special_ids) | frozenset(self.eos_ids)
        for token in self.special_ids:
            if not 0 <= token < self.size:
                raise InvalidGrammarError(f"special token id {token} is outside the vocabulary of {self.size}")
        self.words = (self.size + 31) // 32
        self.reach = max(map(len, map(self.tokens.__getitem__, self.text_ids)), default=0)
        self.reach = max(self.reach, 1 + NUMBER_BYTES)  # a token that a grammar speaks of, see `marks.py`
        self.compiled: LruCache[Any] = LruCache(MOST_GRAMMARS)
        self.native: Any = None
        self.exact = True
        self.base: Vocabulary = self  # the tokenizer's own, of which `shown` special tokens are text here
        self.shown: frozenset[int] = frozenset()
        self._spelling: dict[frozenset[int], Vocabulary] = {}
        self.number = next(_numbers)
        self.masks = True  # grammars of it have automata

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, eos_ids: int | Iterable[int] | None = None, size: int | None = None
    ) -> Vocabulary:
        """Build the vocabulary of a tokenizer.

        Args:
            tokenizer: a fast tokenizer of transformers, one of the tokenizers library, the runtime's, or any object
                with `token_bytes`, `eos_ids` and `special_ids`.
            eos_ids: more tokens that end a text, such as `model.generation_config.eos_token_id`.
            size: the number of logits if the model's vocabulary is padded: `model.config.vocab_size`.

        Raises:
            GrammarError: the tokenizer is of another kind.
        """
        table = token_table(tokenizer, eos_ids, size)
        found = cls(table.tokens, table.eos_ids, table.special_ids)
        found.exact = table.exact
        return found

    @classmethod
    def from_bytes(cls, tokens: Sequence[bytes], eos_ids: Iterable[int], special_ids: Iterable[int] = ()) -> Vocabulary:
        """Build a vocabulary from the bytes of each token; the index is the token's id."""
        return cls(tokens, eos_ids, special_ids)

    def spelling(self, ids: Iterable[int]) -> Vocabulary:
        """The same, in which some special tokens are text: marks that a constrained text is to write as one token."""
        shown = frozenset(ids) & (self.special_ids - frozenset(self.eos_ids))
        if not shown:
            return self
        if shown not in self._spelling:
            found = Vocabulary(self.tokens, self.eos_ids, self.special_ids - shown)
            found.exact, found.base, found.shown, found.masks = self.exact, self.base, self.shown | shown, self.masks
            self._spelling[shown] = found
        return self._spelling[shown]

    @cached_property
    def bare(self) -> Vocabulary:
        """The same with separate compiled grammars, which have networks and no automata."""
        found = copy(self)
        found.compiled, found._spelling, found.masks = LruCache(MOST_GRAMMARS), {}, False
        return found

    @cached_property
    def text_ids(self) -> list[int]:
        """Ids of the tokens that stand for bytes which a text may have."""
        lengths = np.fromiter(map(len, self.tokens), np.int64, self.size)
        marks = np.flatnonzero(np.frombuffer(b"".join(self.tokens), np.uint8) >= TOKEN)
        found = lengths > 0
        found[np.searchsorted(np.cumsum(lengths), marks, "right")] = False
        found[list(self.special_ids)] = False
        ids: list[int] = np.flatnonzero(found).tolist()
        return ids

    def text(self, token: int) -> bytes:
        """The bytes that a token stands for in a constrained text; none for those that are never part of one."""
        if not 0 <= token < self.size or token in self.special_ids:
            return b""
        data = self.tokens[token]
        return b"" if _MARKS.search(data) else data

    @cached_property
    def by_bytes(self) -> dict[bytes, list[int]]:
        """The tokens of each text, special ones first."""
        found: dict[bytes, list[int]] = {}
        for token in sorted((i for i, data in enumerate(self.tokens) if data), key=lambda i: i not in self.special_ids):
            found.setdefault(self.tokens[token], []).append(token)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Of the tokens, and of which are special and which end a text."""
        digest = hashlib.sha256(repr((self.eos_ids, sorted(self.special_ids))).encode())
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    @cached_property
    def eos_row(self) -> np.ndarray:
        """uint32 [words]: the bits of the end-of-sequence tokens."""
        return pack(self.eos_ids, self.words)

    @cached_property
    def texts(self) -> TokenTexts:
        """Of the tokens `text_ids`."""
        return TokenTexts.of(self.tokens, self.text_ids)

    @cached_property
    def trie(self) -> TokenTrie:
        """Of all tokens with bytes."""
        return TokenTrie(self.texts)

    @cached_property
    def families(self) -> list[CharacterFamily]:
        """The families of characters that masks are made of, the largest first."""
        from sgl.grammars.tokens.character_families import FAMILIES, CharacterFamily

        return [CharacterFamily(chars, self.texts, self.words) for chars in FAMILIES]

    @cached_property
    def rest(self) -> TokenTrie:
        """Of the tokens that are not plain JSON text, and of very long ones that are."""
        from sgl.grammars.tokens.character_families import PLAIN

        return TokenTrie.of(self.tokens, self.families[PLAIN].exits.ids.tolist())


class TokenTable(NamedTuple):
    """Bytes by token id, what ends a text, what is no text, and whether texts are the tokens' bytes one after the
    other.
    """

    tokens: list[bytes]
    eos_ids: list[int]
    special_ids: list[int]
    exact: bool


def token_table(tokenizer: Any, eos_ids: int | Iterable[int] | None = None, size: int | None = None) -> TokenTable:
    """The table of a tokenizer.

    Args:
        tokenizer: a fast one of transformers, one of the tokenizers library, or any object with `token_bytes`,
            `eos_ids` and `special_ids`.
        eos_ids: more tokens that end a text, as a generation config lists them.
        size: the number of logits, where a model's vocabulary is padded or cut.

    Raises:
        GrammarError: the tokenizer is of another kind.
    """
    table = _given(tokenizer) if hasattr(tokenizer, "token_bytes") else _fast(tokenizer)
    more = [] if eos_ids is None else list(eos_ids) if isinstance(eos_ids, Iterable) else [eos_ids]
    table = table._replace(eos_ids=list(dict.fromkeys([*more, *table.eos_ids])))
    return table if size is None else _resized(table, size)


def _given(tokenizer: Any) -> TokenTable:
    exact = getattr(tokenizer, "exact_bytes", True)
    return TokenTable(list(tokenizer.token_bytes), list(tokenizer.eos_ids), list(tokenizer.special_ids), exact)


def _fast(tokenizer: Any) -> TokenTable:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not all(hasattr(backend, name) for name in ("get_vocab", "get_added_tokens_decoder", "decoder")):
        raise GrammarError(
            f"cannot read the tokens of a {type(tokenizer).__name__}; pass a fast tokenizer, "
            "or the bytes of every token to Vocabulary.from_bytes"
        )
    added = backend.get_added_tokens_decoder()
    decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    contents = {index: token.content for index, token in added.items()}
    special = {index for index, token in added.items() if token.special}
    special.update(getattr(tokenizer, "all_special_ids", ()))
    tokens, exact = token_bytes(backend.get_vocab(with_added_tokens=True), contents, decoder, special)
    own = getattr(tokenizer, "eos_token_id", None)
    return TokenTable(tokens, [] if own is None else [own], sorted(special), exact)


def _resized(table: TokenTable, size: int) -> TokenTable:
    tokens = table.tokens[:size] + [b""] * (size - len(table.tokens))
    special = [index for index in table.special_ids if index < size]
    return table._replace(tokens=tokens, special_ids=special)
