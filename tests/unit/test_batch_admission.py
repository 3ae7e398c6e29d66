"""Who waits for a prefill that computes its tokens, beside the plain definition."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np

from sgl.runtime.cache import common_prefix
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.scheduling.batch_admission import WORTH_WAITING, BatchAdmission
from sgl.runtime.scheduling.length_estimate import LengthEstimate
from sgl.runtime.sequences.ops.generate_op import Generate
from sgl.runtime.sequences.ops.sequence_ops import Prefill
from sgl.runtime.sequences.sequence_options import SequenceOptions
from sgl.runtime.sequences.sequence_state import SequenceState


def sequence(draw: random.Random, number: int, beginnings: list[np.ndarray]) -> SequenceState:
    seq = SequenceState(
        number, SequenceOptions(priority=draw.choice([0, 0, 1]), namespace=draw.choice(["", "", "other"]))
    )
    seq.tokens.extend(draw.choice(beginnings)[: draw.randrange(1, 100)])
    seq.tokens.extend([draw.randrange(3) for _ in range(draw.randrange(40))])
    seq.prefilling = draw.random() < 0.8
    seq.ops.append(Prefill())
    return seq


def plainly(running: list[SequenceState], seq: SequenceState, reusable: int) -> bool:
    enough = min(reusable + WORTH_WAITING, seq.ops[0].reuse(seq))
    return reusable < enough and any(
        common_prefix(seq.tokens.array, other.tokens.array) >= enough
        for other in running
        if other.prefilling and other.namespace == seq.namespace and other.terms.priority >= seq.terms.priority
    )


def test_who_is_computed_by_another() -> None:
    draw, seen = random.Random(5), {True: 0, False: 0}
    for _ in range(60):
        beginnings = [np.array([draw.randrange(3) for _ in range(100)], np.int32) for _ in range(3)]
        running = [sequence(draw, number, beginnings) for number in range(draw.randrange(12))]
        scheduler: Any = SimpleNamespace(
            running=running,
            preemptions=0,
            refused=[],
            estimate=SimpleNamespace(remaining=lambda seq: 0),
            checkpoint_positions=SimpleNamespace(kept=False),
        )
        newcomers = BatchAdmission(scheduler, {})
        for number in range(30):
            if draw.random() < 0.3:  # one that gets its place
                is_new_request = sequence(draw, 100 + number, beginnings)
                running.append(is_new_request)
                newcomers._note(is_new_request, is_new_request.namespace)
            elif running and draw.random() < 0.1:
                running.pop(draw.randrange(len(running)))
                scheduler.preemptions += 1
            seq = sequence(draw, 200 + number, beginnings)
            reusable = draw.randrange(len(seq) + 1)
            found = newcomers._computed_by_another(seq, reusable)
            assert found == plainly(running, seq, reusable)
            seen[found] += 1
    assert min(seen.values()) > 100


def test_a_text_without_a_limit_is_expected_as_long_as_such_texts_are() -> None:
    """It claims neither the context nor a share of it, and what others used of their max_tokens says nothing of it."""
    estimate = LengthEstimate()

    def running(most: int | None, limit: int, made: int) -> Any:
        op = Generate(SamplingParams(max_tokens=most))
        op.decoding = SimpleNamespace(limit=limit, output=range(made))  # type: ignore[assignment]
        return SimpleNamespace(ops=[op])

    assert estimate.remaining(running(None, 100_000, 0)) == 128 and estimate.remaining(running(1000, 1000, 0)) == 500
    assert estimate.remaining(running(None, 100_000, 500)) == 1 and estimate.remaining(running(None, 20, 0)) == 20
    for _ in range(200):
        estimate.finished(600, 100_000, bounded=False)
    assert 590 < estimate.remaining(running(None, 100_000, 0)) <= 600 and estimate.share == 0.5
    for _ in range(100):
        estimate.raise_estimate()
    assert estimate.remaining(running(None, 1 << 20, 0)) == 1 << 17
