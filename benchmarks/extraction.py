"""How much the confidence of a field says about whether it is right: the bundled model on held-out documents.

    python -m benchmarks.extraction --data DATA --count 300

The documents are those of `training/probes.py`: their schemas use names of fields, or come from domains, that training
never had. Each is read by `sgl.extract` with the type of its schema. A field is right if its JSON is the annotated one.
Written are results/extraction.json and results/extraction.svg, the reliability diagram.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, create_model

import sgl
from benchmarks.bench_results import RESULTS, keep, table
from training.probes import Probe, sample

TASKS = {"documents-names": "unseen field names", "documents-domains": "unseen domains"}
KINDS = {"string": str, "integer": int, "number": float, "boolean": bool}
BINS = 10
SIZE, EDGE = 260, 40  # pixels


@dataclass(frozen=True)
class Outcome:
    """One field: whether the model wrote it, how sure it was by each figure, and whether it was right."""

    written: bool
    confidence: dict[str, float]
    right: bool


def model_of(schema: dict[str, Any], name: str = "Document") -> type[BaseModel]:
    """A pydantic class with the fields of a schema, all of which may be left out."""
    kinds = {key: _kind(key, value) for key, value in schema["properties"].items()}
    fields: dict[str, Any] = {key: (kind | None, None) for key, kind in kinds.items()}
    return create_model(name, **fields)


def _kind(name: str, schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if schema["type"] == "object":
        return model_of(schema, name.title())
    if schema.get("format") == "date":
        return datetime.date
    return list[str] if schema["type"] == "array" else KINDS[schema["type"]]


def outcomes(probe: Probe, found: sgl.Extraction[Any]) -> Iterator[Outcome]:
    """Of each field of a document; an object or list is as sure as all that is in it together."""
    expected, given = json.loads(probe.answer), json.loads(found.attempts[-1].text)
    assert probe.schema is not None and found.confidence is not None
    for name in probe.schema["properties"]:
        inside = [
            one for path, one in found.confidence.items() if path == name or path.startswith((name + ".", name + "["))
        ]
        figures = {
            "whole": math.prod(one.whole for one in inside),
            "value": math.prod(one.value for one in inside),
            "per_token": math.prod(one.per_token for one in inside),
        }
        yield Outcome(name in given, figures, expected.get(name) == given.get(name))


def area_under_curve(pairs: list[tuple[float, bool]]) -> float:
    """The probability that a right field has a higher confidence than a wrong one; equal ones count half."""
    right, wrong = (np.array([value for value, good in pairs if good is wanted]) for wanted in (True, False))
    above = (right[:, None] > wrong).mean() + (right[:, None] == wrong).mean() / 2
    return round(float(above), 4)


def reliability(pairs: list[tuple[float, bool]]) -> list[dict[str, float]]:
    """The fields by their confidence, in bins of equal width: how many, their mean confidence, how many are right."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for value, good in pairs:
        bins.setdefault(min(int(value * BINS), BINS - 1), []).append((value, good))
    return [_bin(found) for _, found in sorted(bins.items())]


def _bin(found: list[tuple[float, bool]]) -> dict[str, float]:
    confidence, right = (round(float(np.mean(part)), 4) for part in zip(*found, strict=True))
    return {"fields": len(found), "confidence": confidence, "right": right}


def figures_of(found: list[Outcome]) -> dict[str, Any]:
    pairs = {name: [(one.confidence[name], one.right) for one in found] for name in found[0].confidence}
    bins = reliability(pairs["whole"])
    error = sum(one["fields"] * abs(one["confidence"] - one["right"]) for one in bins) / len(found)
    return {
        "fields": len(found),
        "right": round(sum(one.right for one in found) / len(found), 4),
        "auc": {name: area_under_curve(values) for name, values in pairs.items()},
        "calibration_error": round(error, 4),
        "reliability": bins,
    }


def measure(engine: sgl.Engine, data: Path, task: str, count: int) -> list[Outcome]:
    probes = sample(data, task, count)
    kinds = [model_of(probe.schema) for probe in probes if probe.schema is not None]
    asked = [
        {"kind": kind, "text": probe.prompt[1]["content"], "details": True}
        for kind, probe in zip(kinds, probes, strict=True)
    ]
    program = sgl.extract.program  # each document has a type of its own
    states = program.run_batch(asked, backend=engine, temperature=0, progress_bar=True)
    return [one for probe, state in zip(probes, states, strict=True) for one in outcomes(probe, state.ret_value)]


def drawing(parts: dict[str, dict[str, Any]]) -> str:
    """The reliability diagrams: the share of right fields over the confidence; the area of a dot shows their number."""
    width, height = len(parts) * (SIZE + EDGE) + EDGE, SIZE + 2 * EDGE
    body = [
        piece
        for place, (title, part) in enumerate(parts.items())
        for piece in _diagram(EDGE + place * (SIZE + EDGE), title, part)
    ]
    style = (
        "text{font:12px system-ui,sans-serif;fill:#24292f}line,rect{stroke:#8c959f;fill:none}"
        "circle{fill:#0969da;fill-opacity:.7}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}circle{fill:#4493f8}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" '
        f'aria-label="The share of right fields over their confidence"><style>{style}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _diagram(left: int, title: str, part: dict[str, Any]) -> Iterator[str]:
    bottom = EDGE + SIZE
    yield f'<text x="{left}" y="{EDGE - 12}">{title}: {part["fields"]:,} fields, AUC {part["auc"]["whole"]:.2f}</text>'
    yield f'<rect x="{left}" y="{EDGE}" width="{SIZE}" height="{SIZE}"/>'
    yield f'<line x1="{left}" y1="{bottom}" x2="{left + SIZE}" y2="{EDGE}"/>'
    most = max(one["fields"] for one in part["reliability"])
    for one in part["reliability"]:
        x, y = left + SIZE * one["confidence"], bottom - SIZE * one["right"]
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + 9 * math.sqrt(one["fields"] / most):.1f}"/>'
    yield f'<text x="{left}" y="{bottom + 18}">confidence 0 to 1; upwards: share right</text>'


def _error(part: dict[str, Any]) -> str:
    return f"{part['calibration_error']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the public sets (training/README.md)")
    parser.add_argument("--count", type=int, default=300, help="documents of each kind")
    args = parser.parse_args()
    found: dict[str, list[Outcome]] = {}
    with sgl.Engine() as engine:
        for task in TASKS:
            found[task] = measure(engine, args.data, task, args.count)
    every = [one for part in found.values() for one in part]
    parts = {TASKS[task]: figures_of([one for one in part if one.written]) for task, part in found.items()}
    parts["both"] = figures_of([one for one in every if one.written])
    parts["left out"] = figures_of([one for one in every if not one.written])
    names = ("whole", "value", "per_token")
    rows = [
        (title, part["fields"], f"{part['right']:.1%}", *(f"{part['auc'][name]:.3f}" for name in names), _error(part))
        for title, part in parts.items()
    ]
    table(("fields", "number", "right", *(f"AUC {name}" for name in names), "calibration error"), rows)
    keep("extraction", {"documents": args.count * len(TASKS), "confidence": parts})
    (RESULTS / "extraction.svg").write_text(drawing({name: part for name, part in parts.items() if name != "both"}))


if __name__ == "__main__":
    main()
