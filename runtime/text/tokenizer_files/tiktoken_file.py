"""Rank files in the way of tiktoken (`*.tiktoken`, some `tokenizer.model`): the same tokenizer in the tokenizers
library.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from sgl.grammars.tokens.token_bytes import byte_alphabet
from sgl.runtime.errors import ConfigError

from .bpe_merges import all_pairs

MOST_BYTES, MOST_RANKS = 2**25, 2**19  # of a file
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
_LETTERS = {
    byte: char for char, byte in byte_alphabet().items()
}  # by byte, which Latin-1 has as a character of the same number
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| "
    r"?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS_IN_THREES = _WORDS.format(digits=r"\p{N}{1,3}")
DIGITS_ALONE = _WORDS.format(digits=r"\p{N}")


def is_tiktoken(file: Path) -> bool:
    """Whether the file begins as a list of ranks does."""
    with file.open("rb") as stream:
        return _LINE.match(stream.read(1024)) is not None


def tiktoken_backend(file: Path, pattern: str, extra: dict[int, AddedToken], nfc: bool = False) -> Backend:
    """The tokenizer of a rank file.

    Args:
        pattern: cuts a text into the words that are tokenised apart.
        extra: tokens by id that the checkpoint adds; ids between that nothing has are named `<|unused_N|>`.
        nfc: texts are composed before.
    """
    ranks = _ranks(file)
    try:
        backend = ranked_backend(ranks, pattern, nfc)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; download it again") from None
    unused = (
        AddedToken(f"<|unused_{i}|>", normalized=False, special=True)
        for i in range(len(ranks), max(extra, default=-1) + 1)
    )
    backend.add_tokens([extra.get(i, token) for i, token in enumerate(unused, len(ranks))])
    return backend


def ranked_backend(ranks: Mapping[bytes, int], pattern: str, nfc: bool = False, first: Sequence[str] = ()) -> Backend:
    """The tokenizer of ranks 0 to n - 1. pattern, nfc: as above. first: special tokens, whose ids come before those of
    the ranks.

    Raises ValueError for ranks whose merges are too many.
    """
    backend = Backend(_model(ranks, first))
    backend.normalizer = normalizers.NFC() if nfc else None
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in first])
    return backend


def _ranks(file: Path) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for number, line in enumerate(_lines(file), 1):
        try:
            if line:
                token, rank = line.split() if line[:1] != b" " else (b"", line)
                found[base64.b64decode(token.strip(b"=") and token, validate=True)] = int(
                    rank
                )  # a single "=" is a token of no bytes
        except (ValueError, binascii.Error):
            raise ConfigError(
                f"{file}: line {number} is not 'base64 rank'; download it again, or save a tokenizer.json"
            ) from None
    if not found or sorted(found.values()) != list(range(len(found))):
        raise ConfigError(f"{file}: its {len(found)} ranks are not 0 to {len(found) - 1}, each once; download it again")
    return found


def _lines(file: Path) -> list[bytes]:
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ConfigError(f"{file} has {size:,} bytes, at most {MOST_BYTES:,} are read; download it again")
    data = file.read_bytes()
    if (lines := data.count(b"\n")) > MOST_RANKS:
        raise ConfigError(f"{file} has {lines:,} lines, at most {MOST_RANKS:,} are read; download it again")
    return data.splitlines()


def _model(ranks: Mapping[bytes, int], first: Sequence[str]) -> models.BPE:
    letters = {token: token.decode("latin-1").translate(_LETTERS) for token in ranks}
    pairs = all_pairs(sorted(ranks, key=ranks.__getitem__), ranks, lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    vocab = {letters[token]: rank + len(first) for token, rank in ranks.items()} | {
        token: i for i, token in enumerate(first)
    }
    return models.BPE(vocab, [(letters[left], letters[right]) for left, right in pairs], ignore_merges=True)
