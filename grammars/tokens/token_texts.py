"""Texts of tokens as one block of bytes, and what the core makes of them without the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sgl.grammars.algebra.grammar_core_extension import extension

_TEXTS = (c_void_p, c_void_p, c_void_p, c_int32)


class TokenTexts(NamedTuple):
    """Text i is data[starts[i] : starts[i + 1]], of token ids[i]; none is empty.

    data: uint8; starts: int64 [n + 1]; ids: int32 [n].
    """

    data: np.ndarray
    starts: np.ndarray
    ids: np.ndarray

    @classmethod
    def of(cls, tokens: Sequence[bytes] | Mapping[int, bytes], ids: Iterable[int]) -> TokenTexts:
        numbers = np.fromiter(ids, np.int32)
        texts = [tokens[i] for i in numbers.tolist()]
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
        return cls(np.frombuffer(b"".join(texts), np.uint8), starts, numbers)

    def as_dict(self) -> dict[int, bytes]:
        """By token."""
        data, starts = self.data.tobytes(), self.starts.tolist()
        return {token: data[starts[i] : starts[i + 1]] for i, token in enumerate(self.ids.tolist())}

    @property
    def pointers(self) -> tuple[int, int, int, int]:
        """As the core takes them."""
        return self.data.ctypes.data, self.starts.ctypes.data, self.ids.ctypes.data, len(self.ids)


@cache
def token_tables() -> Any:
    """The core's functions `token_trie` and `family_split`; None where it is not built, or not to be used."""
    core = extension()
    try:
        loaded = None if core is None else ctypes.CDLL(core.__file__)
        if loaded is not None:
            loaded.token_trie.restype, loaded.token_trie.argtypes = c_int64, (*_TEXTS, c_void_p, c_void_p)
            loaded.family_split.restype = c_int32
            loaded.family_split.argtypes = (*_TEXTS, c_void_p, c_int32, c_int32, *[c_void_p] * 4)
    except (OSError, AttributeError):  # of an older core
        return None
    return loaded
