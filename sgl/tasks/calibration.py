"""What was learnt from labelled rows about a model's probabilities: one scale, and one bias for each label."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sgl.lang.errors import BadValueError, shown

from .label_values import LabelValues, normalized

FORMAT = 1
LEAST = 1e-300  # a probability of 0 is taken as this


@dataclass(frozen=True)
class CalibrationScore:
    """On rows that the fit has not seen: the share of right labels, and the mean -log(probability of the right one)."""

    accuracy: float
    log_loss: float

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.1%}, log loss {self.log_loss:.3f}"


@dataclass(frozen=True)
class Calibration:
    """Calibrated probabilities are in proportion to probability ** scale * exp(bias of the label).

    labels, biases: in the same order. rows: how many rows it was fitted to. before: the score of the model's own
    probabilities on them. after: the score of calibrated ones, each row by a fit without its part of the rows. parts:
    into how many parts the rows were split for that; as many as rows: each was left out once.
    model, prompt: what it holds for: the last part of the model's name, and a digest of instructions, definitions and
    examples.
    """

    labels: tuple[str, ...]
    scale: float
    biases: tuple[float, ...]
    model: str
    prompt: str
    rows: int
    parts: int
    before: CalibrationScore
    after: CalibrationScore

    def apply(self, probs: Mapping[str, float], model: str) -> dict[str, float]:
        """Calibrated probabilities of the labels, by text. Raises BadValueError for another model."""
        if short_name(model) != self.model:
            raise BadValueError(
                f"the calibration was made with the model {self.model!r}, and this is {short_name(model)!r}; make one "
                "with sgl.calibrate for each model"
            )
        biases = dict(zip(self.labels, self.biases, strict=True))
        return normalized({text: self.scale * math.log(max(p, LEAST)) + biases[text] for text, p in probs.items()})

    def check(self, labels: LabelValues, prompt: str) -> None:
        """Raises BadValueError for other labels or another prompt than it was made with."""
        if set(labels.about) != set(self.labels):
            raise BadValueError(
                f"the calibration was made for the labels {shown(list(self.labels))}, not {shown(labels.texts)}"
            )
        if prompt != self.prompt:
            raise BadValueError(
                "the calibration was made with other instructions, definitions or examples; give classify the same, "
                "or calibrate again"
            )

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which `Calibration.load` reads."""
        content = {"format": FORMAT, **asdict(self)}
        Path(path).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote. Raises BadValueError for a file that is something else, OSError."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return _of_content(content)
        except (ValueError, KeyError, TypeError) as error:
            raise BadValueError(f"{path} is not a calibration that save() wrote: {error}; calibrate again") from error

    def __str__(self) -> str:
        how = "each left out once" if self.parts == self.rows else f"in {self.parts} parts"
        return f"{self.rows} rows, {how}: {self.before} before; {self.after} after"


def short_name(model: str) -> str:
    """The last part of a model's path or name."""
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2]


def prompt_digest(labels: LabelValues, instructions: str | None, examples: Sequence[Any]) -> str:
    """Of all that precedes the text in a prompt."""
    content = [list(labels.about.items()), instructions, [list(example) for example in examples]]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:16]


def _of_content(content: Any) -> Calibration:
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']!r}, and this version reads {FORMAT}")
    given = {name: value for name, value in content.items() if name != "format"}
    for name in ("before", "after"):
        given[name] = CalibrationScore(**given[name])
    for name in ("labels", "biases"):
        given[name] = tuple(given[name])
    found = Calibration(**given)
    if len(found.labels) != len(found.biases) or not all(map(math.isfinite, (found.scale, *found.biases))):
        raise ValueError("its biases do not fit its labels")
    return found
