"""Fits a calibration of `sgl.classify` to a few labelled rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, Unpack

import numpy as np

from sgl.lang.backends.default_backend import resolve_backend
from sgl.lang.errors import BadValueError, shown
from sgl.lang.program.batch_options import BatchDisplayOptions, BatchOptions

from .calibration import LEAST, Calibration, CalibrationScore, prompt_digest, short_name
from .calibration_fit import Array, Indices, fit, held_out
from .classify import classify, example_texts
from .classify_program import Classification
from .label_values import LabelValues

Rows: TypeAlias = Iterable[tuple[str, Any]]

FEWEST = 10  # rows in all
FEWEST_EACH = 3  # rows of each label, for its bias
MOST_LEFT_OUT = 100  # up to so many rows each is left out once
PARTS = 10  # of more rows


class Calibrate:
    """`sgl.calibrate`."""

    def __call__(
        self,
        rows: Rows,
        labels: Any,
        *,
        none: bool | str | None = None,
        instructions: str | None = None,
        examples: Sequence[tuple[str, Any]] = (),
        biases: bool = True,
        **options: Unpack[BatchDisplayOptions],
    ) -> Calibration:
        """Learn from labelled rows how far the probabilities of `sgl.classify` are to be trusted.

        One scale makes all probabilities sharper or softer, and a bias for each label corrects labels that the model
        prefers whatever the text is. Both are fitted by maximum a posteriori. The result, given to `sgl.classify` as
        `calibration=`, also has the scores before and after on rows that the fit has not seen.

        rows: (text, label) pairs. A label is a value of `labels`, or its text; None for "none of these".
        labels, none, instructions, examples: those that `sgl.classify` will get.
        biases: False: fit the scale alone, which cannot change the most likely label.
        options: of `run_batch`.

        Raises BadValueError with fewer than 10 rows, and with `biases` with fewer than 3 rows of a label; it says how
        many are missing. Raises ProgramError.
        """
        found, pairs = _checked(rows, labels, none, biases)
        results = classify.batch(
            [text for text, _ in pairs],
            labels,
            none=none or False,
            instructions=instructions,
            examples=examples,
            **options,
        )
        return _calibration(results, found, pairs, instructions, examples, biases, options.get("backend"))

    async def arun(
        self,
        rows: Rows,
        labels: Any,
        *,
        none: bool | str | None = None,
        instructions: str | None = None,
        examples: Sequence[tuple[str, Any]] = (),
        biases: bool = True,
        **options: Unpack[BatchOptions],
    ) -> Calibration:
        """`sgl.calibrate(...)` for event loops."""
        found, pairs = _checked(rows, labels, none, biases)
        results = await classify.abatch(
            [text for text, _ in pairs],
            labels,
            none=none or False,
            instructions=instructions,
            examples=examples,
            **options,
        )
        return _calibration(results, found, pairs, instructions, examples, biases, options.get("backend"))


def _checked(
    rows: Rows, labels: Any, none: bool | str | None, biases: bool
) -> tuple[LabelValues, list[tuple[str, str]]]:
    """The labels, and each row's text with the text of its label."""
    found = LabelValues.of("calibrate", labels, none)
    if not isinstance(rows, Iterable):
        raise BadValueError(f"calibrate: rows is {shown(rows)}; give a list of (text, label)")
    pairs = []
    for index, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != 2 or not isinstance(row[0], str):
            raise BadValueError(f"calibrate: row {index} is {shown(row)}; give (text, label)")
        pairs.append((row[0], found.text_of(f"calibrate: the label of row {index}", row[1])))
    _enough(found, Counter(label for _, label in pairs), biases)
    return found, pairs


def _enough(labels: LabelValues, counts: Counter[str], biases: bool) -> None:
    missing = {text: FEWEST_EACH - counts[text] for text in labels.about if biases and counts[text] < FEWEST_EACH}
    lacks = FEWEST - counts.total()
    if not missing and lacks <= 0:
        return
    wanted = [f"{count} more of {shown(text)}" for text, count in missing.items()]
    if lacks > sum(missing.values()):
        wanted.append(f"{lacks} more in all")
    advice = "; with biases=False each label needs no rows" if missing else ""
    each = f", and {FEWEST_EACH} of each label" if biases else ""
    raise BadValueError(
        f"calibrate has {counts.total()} rows and needs {FEWEST}{each}: add {', '.join(wanted)}{advice}"
    )


def _calibration(
    results: Sequence[Classification[Any]],
    labels: LabelValues,
    pairs: list[tuple[str, str]],
    instructions: str | None,
    examples: Sequence[tuple[str, Any]],
    biases: bool,
    backend: Any,
) -> Calibration:
    texts = labels.texts
    probs = np.array([[result.probs[labels.values[text]] for text in texts] for result in results])
    logs, right = np.log(np.maximum(probs, LEAST)), np.array([texts.index(label) for _, label in pairs])
    parts = len(pairs) if len(pairs) <= MOST_LEFT_OUT else PARTS
    scale, bias = fit(logs, right, biases)
    shown_examples = example_texts(labels, examples)
    return Calibration(
        tuple(texts),
        scale,
        tuple(bias.tolist()),
        short_name(resolve_backend(backend).get_model_name()),
        prompt_digest(labels, instructions, shown_examples),
        len(pairs),
        parts,
        _score(logs, right),
        _score(held_out(logs, right, biases, parts), right),
    )


def _score(logs: Array, right: Indices) -> CalibrationScore:
    likely = logs[np.arange(len(right)), right]
    return CalibrationScore(float((logs.argmax(1) == right).mean()), float(-likely.mean()))


calibrate = Calibrate()
