"""Marks: bytes that no text has. By some a grammar asks what was written; they are put in while a text is read.

A grammar that asks begins with `BEGIN`. After `[` comes the mark of an array, and after each item whether it is new.

By another a grammar speaks of tokens themselves, whatever their bytes: such a token is `TOKEN` and its number. A
grammar that does so begins with `TOKEN`, or with `ENDS` and the number of a token that is one of its terminals and ends
texts.
"""

from __future__ import annotations

ENDS, TOKEN = 0xF7, 0xF8
NUMBER_BYTES = 3  # of a token
BEGIN = 0xF9  # the first of all
OPENED, OPENED_PLAIN, OPENED_UNIQUE = 0xFB, 0xFC, 0xFD  # of any array, and which kinds of it may be meant
NEW, REPEATED = 0xFE, 0xFF
MOST_ITEMS = 256  # of an array whose items are remembered


def token_mark(token: int) -> bytes:
    """How a token is spelled where a grammar speaks of it."""
    return bytes((TOKEN,)) + token.to_bytes(NUMBER_BYTES, "big")
