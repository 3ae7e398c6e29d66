"""Sentencepiece models (`tokenizer.model`): the protobuf read by hand, and the same tokenizer in the tokenizers
library.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sgl.runtime.errors import ConfigError, brief

from .bpe_merges import MOST_SQUARES, all_pairs

SPACE = "▁"
UNIGRAM, BPE = 1, 2
MOST_BYTES, MOST_PIECES, MOST_FIELDS = 2**26, 2**19, 5 * 2**18  # of a file
MOST_CHARACTERS = 2**22  # of all pieces
MOST_IN_TRIE = 3 * 2**20  # bytes of all pieces of a unigram model, which takes a hundred of memory for each
MOST_USER, MOST_USER_CHARACTERS = 2**12, 2**16  # user-defined pieces with spaces
_SIZES = {1: 8, 5: 4}  # bytes of the wire types of fixed size


class PieceKind(IntEnum):
    """What a piece is, as the file numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER = 4
    UNUSED = 5
    BYTE = 6


class SentencePiece(NamedTuple):
    text: str
    score: float
    kind: int


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """What a sentencepiece model says of itself; the index of a piece is its id, -1 stands for no such token."""

    pieces: list[SentencePiece]
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    charsmap: bytes = b""
    dummy_prefix: bool = True
    collapse_spaces: bool = True
    escape_spaces: bool = True
    space_suffix: bool = False

    @classmethod
    def read(cls, file: Path) -> SentencePieceFile:
        """Raises ConfigError where the file is not a sentencepiece model."""
        try:
            return cls._parsed(memoryview(_bounded(file)))
        except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
            raise ConfigError(
                f"{file} is not a sentencepiece model ({brief(error)}); download it again, or save a tokenizer.json"
            ) from None

    @classmethod
    def _parsed(cls, data: memoryview) -> SentencePieceFile:
        parts: dict[int, list[Any]] = {1: [], 2: [], 3: []}
        left = count(MOST_FIELDS, -1)
        for number, value in _fields(data, left):
            if number in parts:
                parts[number].append(value)
            if len(parts[1]) > MOST_PIECES:
                raise ValueError(f"it has more than {MOST_PIECES:,} pieces")
        if not parts[1]:
            raise ValueError("it has no pieces")
        trainer = {number: value for part in parts[2] for number, value in _fields(part, left)}
        normal = {number: value for part in parts[3] for number, value in _fields(part, left)}
        return cls(
            [_piece(part, left) for part in parts[1]],
            algorithm=trainer.get(3, UNIGRAM),
            byte_fallback=bool(trainer.get(35, False)),
            unk_id=_signed(trainer.get(40, 0)),
            bos_id=_signed(trainer.get(41, 1)),
            eos_id=_signed(trainer.get(42, 2)),
            charsmap=_bytes(normal.get(2, b"")),
            dummy_prefix=bool(normal.get(3, True)),
            collapse_spaces=bool(normal.get(4, True)),
            escape_spaces=bool(normal.get(5, True)),
            space_suffix=bool(trainer.get(24, False)),
        )

    def special_names(self) -> dict[str, str]:
        """`bos_token` and its like, by what the file says."""
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_id, "unk_token": self.unk_id}
        return {name: self.pieces[i].text for name, i in ids.items() if 0 <= i < len(self.pieces)}


def sentencepiece_backend(file: Path, extra: dict[int, AddedToken], first_only: bool) -> tuple[Backend, dict[str, str]]:
    """The tokenizer of a sentencepiece model, and what the file says of `bos_token` and its like.

    Args:
        extra: tokens by id that the checkpoint adds, or puts in the place of pieces.
        first_only: the dummy space is at the start of a text only, not after special tokens in it.

    Raises:
        ConfigError: the file is not a sentencepiece model, or one of a kind that cannot be read.
    """
    return backend_of(SentencePieceFile.read(file), str(file), extra, first_only)


def backend_of(
    found: SentencePieceFile, where: str, extra: dict[int, AddedToken], first_only: bool
) -> tuple[Backend, dict[str, str]]:
    """The same of a model that was read. where: names it in errors."""
    _check(found, where)
    pieces = _with_extra(found.pieces, extra)
    try:
        backend = Backend(_bpe(found, pieces) if found.algorithm == BPE else _unigram(found, pieces))
        backend.normalizer = _normalizer(found)
    except Exception as error:
        raise ConfigError(
            f"{where}: the tokenizers library does not take its pieces ({brief(error)}); download it again"
        ) from None
    scheme = "never" if not found.dummy_prefix else "first" if first_only else "always"
    spaces, alone = (
        pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False),
        _isolating(pieces, extra, where),
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence([spaces, *alone]) if alone else spaces
    backend.decoder = _decoder(found)
    backend.add_tokens(list(_added(pieces, extra)))
    return backend, found.special_names()


def _check(found: SentencePieceFile, where: str) -> None:
    if found.algorithm not in (UNIGRAM, BPE):
        raise ConfigError(
            f"{where}: model_type {found.algorithm} is neither unigram (1) nor BPE (2); save a tokenizer.json instead"
        )
    if found.space_suffix or not found.escape_spaces:
        raise ConfigError(
            f"{where} keeps spaces after words or unescaped, which is not supported; save a tokenizer.json instead"
        )
    lengths = [len(piece.text) for piece in found.pieces]
    if sum(lengths) > MOST_CHARACTERS or sum(length**2 for length in lengths) > MOST_SQUARES:
        longest = max(found.pieces, key=lambda piece: len(piece.text))
        raise ConfigError(
            f"{where}: its pieces are too long to be cut, one has {len(longest.text):,} characters; download it again"
        )
    if not 0 <= found.unk_id < len(found.pieces):
        raise ConfigError(
            f"{where}: unk_id {found.unk_id} is none of its {len(found.pieces)} pieces; download it again"
        )


def _with_extra(pieces: list[SentencePiece], extra: dict[int, AddedToken]) -> list[SentencePiece]:
    """With the extra tokens at their ids; ids between that nothing has are named `<unused N>`."""
    known = {piece.text: i for i, piece in enumerate(pieces)}
    pieces = list(pieces)
    for i, token in sorted(extra.items()):
        if known.get(token.content, i) != i:
            continue
        pieces += [SentencePiece(f"<unused {n}>", 0.0, PieceKind.UNUSED) for n in range(len(pieces), i + 1)]
        kind = pieces[i].kind if pieces[i].text == token.content else PieceKind.CONTROL
        pieces[i] = SentencePiece(token.content, pieces[i].score, kind)
    return pieces


def _bpe(found: SentencePieceFile, pieces: list[SentencePiece]) -> models.BPE:
    vocab = {piece.text: i for i, piece in enumerate(pieces)}
    unk = pieces[found.unk_id].text
    return models.BPE(vocab, _merges(pieces), unk_token=unk, fuse_unk=True, byte_fallback=found.byte_fallback)


def _merges(pieces: list[SentencePiece]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, that of the highest score first."""
    made = sorted(
        (piece for piece in pieces if piece.kind in (PieceKind.NORMAL, PieceKind.USER)), key=lambda piece: -piece.score
    )
    return all_pairs((piece.text for piece in made), (piece.text for piece in made))


def require_small_trie(pieces: Iterable[str]) -> None:
    """Raise ValueError for a unigram model that would take too much memory."""
    if (size := sum(len(piece.encode("utf-8", "replace")) for piece in pieces)) > MOST_IN_TRIE:
        raise ValueError(f"its pieces have {size:,} bytes, at most {MOST_IN_TRIE:,} are read")


def _unigram(found: SentencePieceFile, pieces: list[SentencePiece]) -> models.Unigram:
    require_small_trie(piece.text for piece in pieces)
    worst = min(piece.score for piece in pieces)
    scores = [piece.score if piece.kind in (PieceKind.NORMAL, PieceKind.USER) else worst - 100 for piece in pieces]
    vocab = [(piece.text, score) for piece, score in zip(pieces, scores, strict=True)]
    return models.Unigram(vocab, unk_id=found.unk_id, byte_fallback=found.byte_fallback)


def _normalizer(found: SentencePieceFile) -> Any:
    steps: list[Any] = [normalizers.Precompiled(found.charsmap)] if found.charsmap else []
    if found.collapse_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    return normalizers.Sequence(steps) if steps else None


def _decoder(found: SentencePieceFile) -> Any:
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] if found.dummy_prefix else steps)


def _added(pieces: list[SentencePiece], extra: dict[int, AddedToken]) -> Iterator[AddedToken]:
    """Control pieces are special, the user's are not; a user's piece with spaces is found in escaped text alone."""
    for i, piece in enumerate(pieces):
        if i in extra and extra[i].content == piece.text:
            yield extra[i]
        elif piece.kind in (PieceKind.CONTROL, PieceKind.UNKNOWN):
            yield AddedToken(piece.text, normalized=False, special=True)
        elif piece.kind == PieceKind.USER and SPACE not in piece.text:
            yield AddedToken(piece.text, normalized=False, special=False)


def _isolating(pieces: list[SentencePiece], extra: dict[int, AddedToken], where: str) -> list[pre_tokenizers.Split]:
    """User-defined pieces with spaces are taken whole, the longest first, and no other piece is merged through them.

    Those without spaces are added tokens. Raises ConfigError where they are more than any tokenizer has.
    """
    found = [
        piece.text
        for i, piece in enumerate(pieces)
        if piece.kind == PieceKind.USER and SPACE in piece.text and i not in extra
    ]
    if len(found) > MOST_USER or sum(map(len, found)) > MOST_USER_CHARACTERS:
        raise ConfigError(
            f"{where} has {len(found):,} user-defined pieces with spaces, at most {MOST_USER:,} are read; save a "
            "tokenizer.json instead"
        )
    pattern = "|".join(re.escape(text) for text in sorted(found, key=len, reverse=True))
    return [pre_tokenizers.Split(Regex(pattern), behavior="isolated")] if found else []


# the wire format of protobuf


def _bounded(file: Path) -> bytes:
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, at most {MOST_BYTES:,} are read")
    return file.read_bytes()


def _piece(data: memoryview, left: Iterator[int]) -> SentencePiece:
    fields = dict(_fields(data, left))
    (score,) = struct.unpack("<f", _bytes(fields.get(2, bytes(4))))
    if not math.isfinite(score):
        raise ValueError(f"a score is {score}")
    return SentencePiece(_bytes(fields[1]).decode(), score, int(fields.get(3, PieceKind.NORMAL)))


def _bytes(value: Any) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number stands where bytes should")
    return bytes(value)


def _fields(data: memoryview, left: Iterator[int]) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a message: int for varints, bytes for the rest. left:
    counts down how many of the file are still read.
    """
    at = 0
    while at < len(data):
        if not next(left):
            raise ValueError(f"it has more than {MOST_FIELDS:,} fields")
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size, at = _varint(data, at) if wire == 2 else (_SIZES.get(wire, -1), at)
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"field {number} of wire type {wire} ends beyond the data")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
