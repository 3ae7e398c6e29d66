"""Divides a batch into padded groups: the index building that torch_native does once a step.

A batch holds up to three kinds of sequences. Decodes (one query) and small extends are padded to the longest context of
their bucket and attended together; a long prefill is attended alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..cache.kv_pool import PAD_SLOT

SMALL_EXTEND = 16  # most query tokens of a sequence that is still padded together with others
BUCKET_WASTE = 2048  # padded tokens that cost about as much as the dozen calls of one more bucket


@dataclass(frozen=True, slots=True)
class QuerySpan:
    """Queries of one sequence of a step: their rows in the batch and the slots they may look at, in order.

    The last query sees the last slot, each one before it a slot less.  before: tokens of the sequence in front of the
    slots.
    """

    start: int
    queries: int
    slots: np.ndarray
    before: int = 0

    @property
    def context(self) -> int:
        return len(self.slots)

    @property
    def cached(self) -> int:
        return len(self.slots) - self.queries


def spans_of(
    query_lens: Sequence[int], context_slots: Sequence[np.ndarray], window: int | None, chunk: int | None = None
) -> list[QuerySpan]:
    """The sequences of a step; a window drops the slots that no query of the step can see any more.

    With chunks of positions a sequence has a span for each chunk that contains its queries, without the chunks before.
    """
    spans, start = [], 0
    for queries, slots in zip(query_lens, context_slots, strict=True):
        for begin, end in _within_chunks(len(slots) - queries, len(slots), chunk):
            first = 0 if chunk is None else begin - begin % chunk
            if window is not None:
                first = max(first, begin - window + 1)
            spans.append(QuerySpan(start, end - begin, slots[first:end], first))
            start += end - begin
    return spans


def _within_chunks(begin: int, end: int, chunk: int | None) -> list[tuple[int, int]]:
    """The positions begin .. end, cut where chunks end."""
    if chunk is None or begin // chunk == (end - 1) // chunk:
        return [(begin, end)]
    borders = range((begin // chunk + 1) * chunk, end, chunk)
    return list(pairwise([begin, *borders, end]))


def groups_of(spans: list[QuerySpan]) -> tuple[list[list[QuerySpan]], list[QuerySpan]]:
    """Padded groups (decodes, then small extends, each in buckets of similar context) and long prefills."""
    decodes = [span for span in spans if span.queries == 1]
    extends = [span for span in spans if 1 < span.queries <= SMALL_EXTEND]
    prefills = [span for span in spans if span.queries > SMALL_EXTEND]
    return _buckets(decodes) + _buckets(extends), prefills


def _buckets(spans: list[QuerySpan]) -> list[list[QuerySpan]]:
    """Split where padding the shorter sequences to the longest would cost more than another bucket.

    Without a split the batch's order is kept, so that the group's rows stay one slice.
    """
    if not spans:
        return []
    ordered = sorted(spans, key=lambda span: -span.context)
    buckets, first = [], 0
    for index, span in enumerate(ordered):
        waste = (ordered[first].context - span.context) * (len(ordered) - index)
        if waste > BUCKET_WASTE and span.context * 2 <= ordered[first].context:
            buckets.append(ordered[first:index])
            first = index
    return buckets + [ordered[first:]] if first else [spans]


def padded_slots(group: list[QuerySpan]) -> np.ndarray:
    """int64 [sequences, longest context], padded on the right with `PAD_SLOT`."""
    longest = max(span.context for span in group)
    if len(group) == 1:
        return group[0].slots.astype(np.int64)[None]
    slots = np.full((len(group), longest), PAD_SLOT, np.int64)
    for row, span in zip(slots, group, strict=True):
        row[: span.context] = span.slots
    return slots


def all_visible(group: list[QuerySpan]) -> bool:
    """Whether every query sees every key of its padded group."""
    return all(span.queries == 1 and span.context == group[0].context for span in group)


def distances(group: list[QuerySpan]) -> np.ndarray:
    """int32 [sequences, most queries, longest context]: how far before the query the key is, negative after it.

    Rows that pad the queries have the last query's position: their softmax must stay finite.
    """
    contexts, cached = np.array([(span.context, span.cached) for span in group], np.int32).T
    offsets = np.arange(max(span.queries for span in group), dtype=np.int32)
    last_key = np.minimum(cached[:, None] + offsets, contexts[:, None] - 1)
    return last_key[:, :, None] - np.arange(contexts.max(), dtype=np.int32)


def visible(distance: np.ndarray, window: int | None) -> np.ndarray:
    """May a query see a key so far before it?"""
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


class AttentionGroupRows(NamedTuple):
    """The positions of a group's queries in the batch. A slice if they are contiguous and need no padding.

    padded: [sequences * most queries]; real: those of the padded rows that are no padding, None for all; targets: the
    batch rows of the real ones.
    """

    padded: slice | np.ndarray
    real: np.ndarray | None
    targets: slice | np.ndarray


def rows_of(group: list[QuerySpan]) -> AttentionGroupRows:
    queries = max(span.queries for span in group)
    starts = np.array([span.start for span in group])
    counts = np.array([span.queries for span in group])
    if (counts == queries).all() and (np.diff(starts) == queries).all():
        together = slice(group[0].start, group[0].start + queries * len(group))
        return AttentionGroupRows(together, None, together)
    offsets = np.arange(queries)
    padded = (starts[:, None] + np.minimum(offsets, counts[:, None] - 1)).reshape(-1)
    real = np.flatnonzero(offsets < counts[:, None])
    return AttentionGroupRows(padded, real, padded[real])


def distances_in_block(queries: int, keys: int) -> np.ndarray:
    """int32 [queries, keys], as `distances`, for queries at the end of the keys: any smaller block aligned at the
    bottom right is a view of it.
    """
    return np.arange(keys - queries, keys, dtype=np.int32)[:, None] - np.arange(keys, dtype=np.int32)
