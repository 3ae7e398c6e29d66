"""A run as lanes over time: what a still picture shows, taken from the data of the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Data = dict[str, Any]
TITLE = 240  # characters of a text in the tooltip


@dataclass(frozen=True)
class TimelineBar:
    """An operation. Times in seconds since the run began.

    `start` is when it had a place in the engine's batch or, where a backend does not tell, when the text before it was
    there, None as long as that is not; `end` when its result was there, or now. `accepted`: of the tokens, those that
    the engine had guessed ahead. `kind` is "gen" or "select"; `state` "done", "running", "failed", "stopped" or
    "skipped".
    """

    name: str
    kind: str
    state: str
    text: str
    tokens: int | None
    start: float | None
    end: float
    accepted: int = 0


@dataclass(frozen=True)
class TimelineLane:
    """A branch. `parent` is the number of the lane that it forked off, -1 for the first."""

    label: str
    hint: str
    parent: int
    opened: float
    end: float
    joined: bool
    bars: list[TimelineBar]


def lanes_of(run: Data) -> list[TimelineLane]:
    """The branches of a run's data, each before its own forks."""
    bars = [[_bar(run, piece) for piece in branch["pieces"] if "kind" in piece] for branch in run["branches"]]
    return [_lane(run, *each) for each in zip(run["branches"], bars, _ends(run, bars), strict=True)]


def end_of(run: Data) -> float:
    """When the run ended, or how far it is, in seconds."""
    return float(run["now"] if run["end"] is None else run["end"])


def _ends(run: Data, bars: list[list[TimelineBar]]) -> list[float]:
    """When each branch was joined; if never, when it last did something: an operation, or a fork."""
    branches = run["branches"]
    ends = [max([branch["opened"], *(bar.end for bar in own)]) for branch, own in zip(branches, bars, strict=True)]
    for branch in branches:
        if branch["parent"] >= 0:
            ends[branch["parent"]] = max(ends[branch["parent"]], branch["opened"])
    return [end if branch["closed"] is None else branch["closed"] for branch, end in zip(branches, ends, strict=True)]


def _lane(run: Data, branch: Data, bars: list[TimelineBar], end: float) -> TimelineLane:
    root = branch["parent"] < 0
    hint = run["program"] if root else " ".join(_own_words(branch).split())
    hint = f"adapter {branch['adapter']}: {hint}" if "adapter" in branch else hint
    joined = branch["closed"] is not None and not root
    return TimelineLane(branch["label"], hint, branch["parent"], branch["opened"], end, joined, bars)


def _bar(run: Data, piece: Data) -> TimelineBar:
    end = run["now"] if piece["finished"] is None else piece["finished"]
    start = None if piece["ready"] is None else min(piece.get("began", piece["ready"]), end)
    text = _cause(piece["error"]) if "error" in piece else piece["text"]
    counts = piece.get("counts", {})
    return TimelineBar(
        piece["name"] or piece["kind"],
        piece["kind"],
        piece["state"],
        text,
        counts.get("generated"),
        start,
        end,
        counts.get("accepted", 0),
    )


def _cause(error: Data) -> str:
    return str(error.get("causes", [f"{error['type']}: {error['message']}"])[0])


def _own_words(branch: Data) -> str:
    """The literal text that a branch has added, with blanks for the marks of the chat template."""
    marks = {at for _, start, end in branch["turns"] for at in (start - 1, end)}
    pieces = enumerate(branch["pieces"], branch["start"])
    return "".join(" " if number in marks else piece["text"] for number, piece in pieces if "kind" not in piece)


def words_of(bar: TimelineBar) -> str:
    """What a reader sees when pointing at a bar: its name, its time, its tokens and the beginning of its text."""
    time = "not begun" if bar.start is None else f"{bar.start:.3f} s to {bar.end:.3f} s"
    tokens = (
        ""
        if bar.tokens is None
        else f", {bar.tokens} tokens" + (f", {bar.accepted} of them guessed ahead" if bar.accepted else "")
    )
    state = "" if bar.state == "done" else f", {bar.state}"
    text = bar.text if len(bar.text) <= TITLE else f"{bar.text[:TITLE]}…"
    return f"{bar.kind} {bar.name}: {time}{tokens}{state}\n{text}"
