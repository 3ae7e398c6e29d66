"""A step with draft tokens as one of single tokens: each is a separate decode, whose context ends with it.

Keys and values of a step are stored before anything attends to them, so a token sees those in front of it. Such a step
replays the graphs of decodes, whatever mixture of sequences and tokens it has: that is how draft tokens are verified.
"""

from __future__ import annotations

from ..sequences.sequence_state import ScheduledWork

MOST = 17  # tokens of a sequence: one and as many draft tokens as are usual; more are a prompt's
MOST_TOGETHER = 64  # tokens of the step: the graphs of so many decodes are captured before they are wanted
SEEN_AGAIN = 32_768  # keys that all tokens but the first of their sequences may read once more, in each layer


def split_drafts(work: list[ScheduledWork], most: int) -> list[ScheduledWork] | None:
    """The step by tokens, in its order, if there are no more than `most`; None: it is better computed as it is."""
    lengths = [hi - lo for _, lo, hi in work]
    if sum(lengths) > min(most, MOST_TOGETHER) or max(lengths) > MOST:
        return None
    if sum((length - 1) * hi for length, (*_, hi) in zip(lengths, work, strict=True)) > SEEN_AGAIN:
        return None
    return [ScheduledWork(seq, last, last + 1) for seq, lo, hi in work for last in range(lo, hi)]


def split_draft_rows(work: list[ScheduledWork], rows: list[int]) -> list[int]:
    """What belongs to each sequence, for each of its tokens."""
    return [row for row, (_, lo, hi) in zip(rows, work, strict=True) for _ in range(lo, hi)]
