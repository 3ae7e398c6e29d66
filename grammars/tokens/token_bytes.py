"""The bytes each token stands for, read from the tokenizer's decoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

ToBytes = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


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
    to_bytes = _reader(decoder)
    table = [b""] * (max([*vocab.values(), *added, -1]) + 1)
    read = to_bytes or str.encode
    for token, index in vocab.items():
        table[index] = read(token)
    for index, content in added.items():
        plain = index in special or to_bytes is _byte_level
        table[index] = content.encode() if plain else read(content)
    return table, to_bytes is not None


def _reader(decoder: Mapping[str, Any] | None) -> ToBytes | None:
    """How the decoder reads one token, or None where the answer hangs on its neighbours."""
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


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def _plain(replacements: list[tuple[str, str]], byte_fallback: bool) -> ToBytes:
    def read(token: str) -> bytes:
        if byte_fallback and (match := _BYTE_TOKEN.match(token)):
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return read
