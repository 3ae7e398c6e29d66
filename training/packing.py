"""Documents of tokens into rows of one length, and which tokens of a row are to be learnt."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint16]

ROW = 2048


def pack(documents: Iterable[list[int]], start: int, row: int = ROW) -> Tokens:
    """Rows uint16 [n, row] of whole documents, each begun by the `start` token and cut at `row` tokens.

    A document goes into the fullest row that has room; what is left of a row is filled with `start`.
    """
    rows: list[list[int]] = []
    by_room: list[tuple[int, int]] = []
    for document in documents:
        tokens = [start, *document][:row]
        place = bisect_left(by_room, (len(tokens), 0))
        if place < len(by_room):
            room, index = by_room.pop(place)
            rows[index] += tokens
        else:
            room, index = row, len(rows)
            rows.append(tokens)
        insort(by_room, (room - len(tokens), index))
    packed = np.full((len(rows), row), start, dtype=np.uint16)
    for target, filled in zip(packed, rows, strict=True):
        target[: len(filled)] = filled
    return packed


def answer_mask(rows: Tokens, roles: Iterable[int], assistant: int, end: int) -> NDArray[np.bool_]:
    """Bool [n, row]: tokens that the assistant writes, with the end token of its turn, not the role token."""
    positions = np.broadcast_to(np.arange(rows.shape[-1]), rows.shape)
    is_role = np.isin(rows, list(roles))
    last_role = np.maximum.accumulate(np.where(is_role, positions, -1), axis=-1)
    last_end = np.maximum.accumulate(np.where(rows == end, positions, -1), axis=-1)
    ended_before = np.concatenate([np.full_like(last_end[..., :1], -1), last_end[..., :-1]], axis=-1)
    inside = (last_role > ended_before) & ~is_role
    speaker = np.take_along_axis(rows, np.maximum(last_role, 0), axis=-1)
    return inside & (speaker == assistant)


def document_numbers(rows: Tokens, start: int) -> NDArray[np.int32]:
    """Int32 [n, row]: which document of its row a token belongs to."""
    return np.cumsum(rows == start, axis=-1, dtype=np.int32)
