"""Codes of a few bits out of the words that files keep them in.

A few operations on bytes for a whole weight, on any device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BYTE, WORD = 8, 32


def words_of(count: int, bits: int) -> int:
    """How many int32 words hold so many codes without a gap."""
    return -(-count * bits // WORD)


def stream(words: Tensor, bits: int, count: int) -> Tensor:
    """Rows of words of any width -> uint8 [rows, count]: code i in bits i * bits and up of its row, the lowest
    first."""
    filled = words.contiguous().view(torch.uint8)
    if bits in (4, BYTE):
        return (nibbles(filled) if bits == 4 else filled)[:, :count]
    filled = F.pad(filled, (0, -filled.shape[1] % bits)).unflatten(1, (-1, bits))  # eight codes are `bits` bytes
    codes = filled.new_empty(*filled.shape[:2], BYTE)
    for place in range(BYTE):
        byte, shift = divmod(place * bits, BYTE)
        code = filled[..., byte] >> shift
        if shift + bits > BYTE:
            code |= filled[..., byte + 1] << (BYTE - shift)
        codes[..., place] = code & (2**bits - 1)
    return codes.flatten(1)[:, :count]


def apart(words: Tensor, bits: int, count: int) -> Tensor:
    """The same where no code crosses a word: the bits that are left over in each are not used."""
    return torch.stack([(words >> place * bits & 2**bits - 1).byte() for place in range(WORD // bits)], -1).flatten(1)[
        :, :count
    ]


def nibbles(filled: Tensor, high_first: bool = False) -> Tensor:
    """uint8 [..., n] -> uint8 [..., 2 n] of four bits."""
    low, high = filled & 15, filled >> 4
    return torch.stack((high, low) if high_first else (low, high), -1).flatten(-2)
