"""Labels for a text, with the probability of each. Two programs to read and copy, and the task that runs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import sgl

from .calibration import Calibration
from .label_values import LabelValues
from .nearest_examples import examples_for
from .questions import NO, YES

Label = TypeVar("Label")
THRESHOLD = 0.5
MULTI_TASK = "Decide for each label whether it fits the text."


@dataclass(frozen=True)
class Classification(Generic[Label]):
    """label: the most likely label; None for "none of these".

    labels: with `multi`, the labels whose probability reaches the threshold, most likely first; else the label alone,
    or nothing for "none of these".
    probs: the probability of each label, most likely first. They sum to 1; with `multi` they are independent.
    confidence: the probability that `labels` is right: that of the label, or with `multi` the product over all labels
    of the probability of the answer that each got.
    """

    label: Label
    labels: list[Label]
    probs: dict[Label, float]
    confidence: float


@sgl.function
def classify_program(
    s: sgl.State,
    text: str,
    labels: LabelValues,
    instructions: str | None = None,
    examples: Sequence[tuple[str, str]] = (),
    calibration: Calibration | None = None,
) -> Classification[Any]:
    s += sgl.system(sgl.labels(labels.about, instructions))
    for example, label in examples_for(text, examples):
        s += sgl.user(example)
        s += sgl.assistant(label)
    s += sgl.user(text)
    s += sgl.assistant(sgl.select("label", labels.about, choices_method=sgl.answer_likelihood))
    probs = s.probs("label")
    if calibration is not None:
        probs = calibration.apply(probs, s.stream_executor.backend.get_model_name())
    values = labels.by_value(probs)
    label = next(iter(values))
    return Classification(label, [] if label is None else [label], values, values[label])


@sgl.function
def multi_program(
    s: sgl.State,
    text: str,
    labels: LabelValues,
    instructions: str | None = None,
    examples: Sequence[tuple[str, Sequence[str]]] = (),
    threshold: float = THRESHOLD,
) -> Classification[Any]:
    shown = [
        f"Text: {example}\nLabels that fit: {', '.join(fitting) or 'none'}"
        for example, fitting in examples_for(text, examples)
    ]
    s += sgl.system("\n\n".join([instructions or MULTI_TASK, *shown]))
    s += sgl.user_begin()
    s += text
    forks = s.fork(len(labels.about))
    for fork, (label, about) in zip(forks, labels.about.items(), strict=True):
        fork += "\n\n"
        fork += sgl.labels(
            [YES, NO], f"Does the label {label} fit the text?" + (f" It means: {about}" if about else "")
        )
        fork += sgl.user_end()
        fork += sgl.assistant(sgl.select("fits", [YES, NO], choices_method=sgl.answer_likelihood))
    probs = {label: fork.probs("fits")[YES] for fork, label in zip(forks, labels.about, strict=True)}
    values = labels.by_value(probs)
    chosen = [label for label, prob in values.items() if prob >= threshold]
    right = math.prod(prob if label in chosen else 1 - prob for label, prob in values.items())
    return Classification(next(iter(values)), chosen, values, right)
