"""What a vocabulary needs to know of a tokenizer, whichever library it comes from; nothing is imported for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from sgl.grammars.errors import GrammarError
from sgl.grammars.tokens.token_bytes import token_bytes


class TokenTable(NamedTuple):
    """Bytes by token id, what ends a text, what is no text, and whether texts
    are the tokens' bytes one after the other.
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
