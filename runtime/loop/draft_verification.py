"""Rows of a draft: the ordinary sampler chooses after each of its tokens, and what agrees with the draft is taken.

So the text is the text without drafts, for any parameters, seed and grammar (up to the rounding of logits, unless that
does not depend on the step: `deterministic`).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from sgl.grammars import Matcher
    from sgl.grammars.automaton.batch_token_masks import MaskOrError

    from ..sampling import SampledTokens, SamplingRow
    from ..sequences.draft_tokens import DraftTokens
    from ..sequences.ops.generate_op import Generate
    from ..sequences.running_generation import RunningGeneration
    from ..sequences.sequence_state import SequenceState
    from .sequence_lifecycle import SequenceLifecycle


def matchers(seq: SequenceState, op: Generate, rows: range) -> list[Matcher | None]:
    """The grammar, or None, after the text and after each token of its draft that has a row."""
    first = None if op.decoding is None else op.decoding.matcher
    if len(rows) == 1 or seq.draft is None:
        return [first]
    following: Sequence[Matcher | None] = seq.draft.matchers or [None] * len(seq.draft.tokens)
    return [first, *following][: len(rows)]


def usable(masks: Sequence[MaskOrError]) -> list[np.ndarray | None]:
    """Those of the rows before the first error: what a draft leads to may be beyond a grammar's limits."""
    found: list[np.ndarray | None] = []
    for mask in masks:
        if isinstance(mask, Exception):
            break
        found.append(mask)
    return found


def sampling_rows(seq: SequenceState, op: Generate, count: int) -> list[SamplingRow]:
    assert op.decoding is not None
    if count == 1:
        return [op.decoding.row]
    drafted = [] if seq.draft is None else seq.draft.tokens
    if not op.decoding.row.changes_by(len(drafted)):
        return [op.decoding.row] * count
    return [op.decoding.next_row(drafted[:count_before]) for count_before in range(count)]


def common_count(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether they are the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def accept_draft(
    life: SequenceLifecycle, seq: SequenceState, decoding: RunningGeneration, samples: SampledTokens, rows: range
) -> bool:
    """The next tokens of a generation; True when it ends."""
    if seq.draft is None:
        return decoding.take(seq, samples, rows.start)
    draft, seq.draft = seq.draft, None
    text, before, reached = len(seq), decoding.accepted, seq.computed
    seq.computed = text  # what follows is computed once it is chosen: no other sequence may get it before
    decoding.drafted += draft.guessed(len(draft.tokens))
    try:
        return _take_all(seq, decoding, samples, rows, draft)
    finally:
        if seq.computed == text:
            kept, seq.computed = draft.agrees(seq.tokens.array[text:].tolist()), reached
            # the logits after its last token are wanted, for which there may have been no mask
            if decoding.result is None:
                kept = min(kept, max(len(seq) - text - 1, 0))
            life.rewind(seq, text + kept)
            _count(life, seq, draft, kept)
            decoding.accepted = before + draft.guessed(kept)


def _take_all(
    seq: SequenceState, decoding: RunningGeneration, samples: SampledTokens, rows: range, draft: DraftTokens
) -> bool:
    """Row after row, as long as the text is what the next row was computed for: with what a grammar forced, too."""
    text, before, place = len(seq), decoding.accepted, 0
    while True:
        row = rows[place]
        decoding.accepted = before + draft.guessed(place) + (samples.ids[row] == draft.expects(place))
        if decoding.take(seq, samples, row):
            return True
        grown = len(seq) - text
        if (
            decoding.work is not None
            or not place < grown < len(rows)
            or draft.agrees(seq.tokens.array[text:].tolist()) < grown
        ):
            return False
        place = grown


def _count(life: SequenceLifecycle, seq: SequenceState, draft: DraftTokens, kept: int) -> None:
    """What became of a draft."""
    life.stats.computed_tokens += kept
    _charge(life, seq, kept)
    if life.speculation is not None:
        life.speculation.tried(draft, kept)


def _charge(life: SequenceLifecycle, seq: SequenceState, kept: int) -> None:
    """Its tenant pays for kept tokens as for others."""
    counters = life.scheduler.counters
    if kept and not counters.alone:
        counters.charge(seq.terms.tenant, kept, kept)
        seq.charged_tokens = max(seq.charged_tokens, len(seq) + kept)
