"""The bytes each token stands for, read from the tokenizer's decoder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

ReadsTokens = Callable[[Sequence[str]], list[bytes]]


def byte_alphabet() -> dict[str, int]:
    """The printable stand-in that byte-level vocabularies use for each byte, to that byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


def token_bytes(
    vocab: Mapping[str, int], added: Mapping[int, str], decoder: Mapping[str, Any] | None, special: Collection[int] = ()
) -> tuple[list[bytes], bool]:
    """Bytes by token id (b"" where no token has the id), and whether decoding is their plain concatenation.

    `vocab` maps every token to its id, `added` the ids of added tokens to their text, which is what they stand for:
    but one that is not `special` is spelled as the vocabulary's are where spaces have a separate sign (Gemma's
    "▁▁"). `decoder` is that part of tokenizer.json. Where it looks at more than one token (WordPiece, CTC), the bytes
    are those of the bare token and the answer is False.
    """
    reader = _reader(decoder)
    table = [b""] * (max([*vocab.values(), *added, -1]) + 1)
    read = reader or _plain([], False)
    for index, data in zip(vocab.values(), read(list(vocab)), strict=True):
        table[index] = data
    plain = {index for index in added if index in special or reader is _byte_level}
    for index in plain:
        table[index] = added[index].encode()
    rest = [index for index in added if index not in plain]
    for index, data in zip(rest, read([added[index] for index in rest]), strict=True):
        table[index] = data
    return table, reader is not None


def _reader(decoder: Mapping[str, Any] | None) -> ReadsTokens | None:
    """How the decoder reads tokens, each for itself, or None where the answer hangs on its neighbours."""
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    seen: set[str] = set()
    replacements: list[tuple[str, str]] = []
    for step in steps:
        if (replacement := _replacement(step)) is not None:
            if not _of_one_token(replacement[0], seen):
                return None
            replacements.append(replacement)
        elif not _keeps_tokens(step, seen, bool(replacements)):
            return None
        seen.add(step["type"])
    return _byte_level if "ByteLevel" in seen else _plain(replacements, "ByteFallback" in seen)


def _replacement(step: Mapping[str, Any]) -> tuple[str, str] | None:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    plain = step["type"] == "Replace" and "String" in step["pattern"]
    return (step["pattern"]["String"], step["content"]) if plain else None


def _of_one_token(old: str, seen: Collection[str]) -> bool:
    """Whether a text that is replaced is in one token: joined tokens may spell it together, and so may tokens of
    bytes."""
    return bool(old) and not {"ByteLevel", "ByteFallback"} & set(seen) and ("Fuse" not in seen or len(old) == 1)


def _keeps_tokens(step: Mapping[str, Any], seen: Collection[str], replaced: bool) -> bool:
    """Whether a step that replaces nothing reads each token for itself.

    Joined tokens are no bytes or letters of bytes any more.
    """
    kind = step["type"]
    if kind in ("ByteLevel", "ByteFallback"):
        return not {"Fuse", "ByteLevel", "ByteFallback"} & set(seen) and not (replaced and kind == "ByteLevel")
    return kind == "Fuse" or (kind == "Strip" and "Fuse" in seen and not step["stop"])


_ALPHABET = byte_alphabet()
_CODES = np.full(max(map(ord, _ALPHABET)) + 2, -1, np.int16)  # bytes by the characters that stand for them
_CODES[[ord(char) for char in _ALPHABET]] = list(_ALPHABET.values())
_GAP = "\0"  # between tokens that are read together; it stands for no byte, and few tokens have it
_HEX = "0123456789abcdefABCDEF"


def _byte_level(tokens: Sequence[str]) -> list[bytes]:
    """A token with a character that stands for no byte is taken as text."""
    codes = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32)
    found = _CODES[np.minimum(codes, len(_CODES) - 1)]
    stops = np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)))
    data = found.astype(np.uint8).tobytes()
    table = [data[start:stop] for start, stop in pairwise([0, *stops.tolist()])]
    for index in set(np.searchsorted(stops, np.flatnonzero(found < 0), "right").tolist()):
        table[index] = tokens[index].encode()
    return table


def _plain(replacements: list[tuple[str, str]], byte_fallback: bool) -> ReadsTokens:
    def read(tokens: Sequence[str]) -> list[bytes]:
        text = _GAP.join(tokens)
        for old, new in replacements:
            text = text.replace(old, new)
        table = text.encode().split(_GAP.encode())
        if len(table) != len(tokens) or any(_GAP in old for old, _ in replacements):
            table = [_replaced(token, replacements) for token in tokens]
        return _with_bytes(table, tokens) if byte_fallback else table

    return read


def _replaced(token: str, replacements: list[tuple[str, str]]) -> bytes:
    for old, new in replacements:
        token = token.replace(old, new)
    return token.encode()


def _with_bytes(table: list[bytes], tokens: Sequence[str]) -> list[bytes]:
    """Tokens that are spelled as a byte stand for it."""
    spelled = {f"<0x{high}{low}>" for high in _HEX for low in _HEX}
    for index, token in enumerate(tokens):
        if len(token) == 6 and token in spelled:
            table[index] = bytes([int(token[3:5], 16)])
    return table
