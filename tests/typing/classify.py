"""What a type checker knows of labels. Checked by mypy in tests/unit/test_typed_public_api.py, never run."""

from __future__ import annotations

import enum
from typing import Literal, assert_type

import sgl
from sgl.tasks.questions import Answer, PredicateAnswer


class Kind(enum.Enum):
    BILLING = "billing"
    TECHNICAL = "technical"


Mood = Literal["good", "bad"]

assert_type(sgl.classify("x", Kind), sgl.Classification[Kind])
assert_type(sgl.classify("x", Kind).label, Kind)
assert_type(sgl.classify("x", Kind, none=True).label, Kind | None)
assert_type(sgl.classify("x", Mood).label, Literal["good", "bad"])
assert_type(sgl.classify("x", Literal["good", "bad"], none="other").label, Literal["good", "bad"] | None)
assert_type(sgl.classify("x", bool).probs, dict[bool, float])
assert_type(sgl.classify("x", ["a", "b"]).label, str)
assert_type(sgl.classify("x", {"a": "one", "b": None}, none=True).label, str | None)
assert_type(sgl.classify("x", Kind, multi=True, threshold=0.3, temperature=0.0).labels, list[Kind])
assert_type(sgl.classify.batch(["x"], Kind, num_threads=2, progress_bar=True), list[sgl.Classification[Kind]])
assert_type(sgl.classify.batch(["x"], ["a", "b"], none=True), list[sgl.Classification[str | None]])
sgl.classify("x", Kind, mutli=True)  # type: ignore[call-overload]
sgl.classify(3, Kind)  # type: ignore[call-overload]


async def later() -> None:
    assert_type(await sgl.classify.arun("x", Mood), sgl.Classification[Literal["good", "bad"]])
    assert_type(await sgl.classify.abatch(["x"], Kind), list[sgl.Classification[Kind]])
    assert_type(await sgl.decide.arun("x", [sgl.predicate("It is cold.")]), sgl.Decision)


made = sgl.calibrate([("x", "a")], ["a", "b"], num_threads=2)
assert_type(made, sgl.Calibration)
sgl.classify("x", ["a", "b"], calibration=made)
decision = sgl.decide("x", [sgl.score("How cold?", ["cold", "warm"]), {"type": "predicate", "instructions": "It is."}])
answer = decision[0]
assert_type(answer, Answer)
if isinstance(answer, PredicateAnswer):
    assert_type(answer.probability, float)
sgl.decide("x", [{"type": "rank", "instructions": "?"}])  # type: ignore[list-item]
