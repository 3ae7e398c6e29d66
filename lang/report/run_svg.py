"""A run as a still picture: SVG without scripts and style sheets, for notebooks, documents and pages of results.

All colours are attributes in middle tones, so that it can be read on light and on dark pages, also where a viewer
takes style sheets out of a drawing (GitHub does so in notebooks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

from ..graph.render.node_labels import printable
from .timeline_lanes import TimelineBar, TimelineLane, end_of, lanes_of, words_of

WIDTH, NAMES, ROW, HEAD, MARGIN = 760, 164, 22, 24, 8  # pixels
BAR = 16  # height of a bar
GLYPH = 6.65  # width of a character at 11 pixels
QUEUE = 46  # width of an operation that has not begun, after the end
INK, LINE = "#737d8c", "#8b94a3"
FILLS = {"gen": "#2f6fdb", "select": "#8a4bdb", "error": "#d23b3b", "guessed": "#35b58a"}
FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class RunPicture:
    """The lanes of one run. `svg` is the drawing; notebooks show it, `save` writes it.

    One lane a branch, forks below the state they came from; a bar is a `gen`, one with round ends a `select`.
    """

    def __init__(self, run: dict[str, Any], lanes: int) -> None:
        self.run = run
        self.lanes = lanes_of(run)[:lanes]
        self.hidden = len(run["branches"]) - len(self.lanes)

    def __repr__(self) -> str:
        return f"<picture of a run with {len(self.run['branches'])} branches; .save(path) writes it>"

    @cached_property
    def svg(self) -> str:
        """The drawing, a separate document."""
        notes = list(_notes(self.run, self.hidden))
        height = HEAD + ROW * (len(self.lanes) + len(notes)) + MARGIN
        body = [*_axis(self._scale, len(self.lanes)), *self._lines(), *self._drawn_lanes(), *_legend(self.lanes)]
        body += [_text(MARGIN, self._middle(len(self.lanes) + i), note) for i, note in enumerate(notes)]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_escaped(self._about)}" width="{WIDTH}" '
            f'height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" font-size="11">\n'
            + "\n".join(body)
            + "\n</svg>\n"
        )

    def save(self, path: str | Path) -> Path:
        """Write the drawing. Raises OSError."""
        target = Path(path)
        target.write_text(self.svg, encoding="utf-8")
        return target

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def _about(self) -> str:
        return f"{self.run['program']}: {len(self.run['branches'])} branches over {end_of(self.run):.2f} seconds"

    @cached_property
    def _scale(self) -> TimeScale:
        waiting = max((sum(bar.start is None for bar in lane.bars) for lane in self.lanes), default=0)
        return TimeScale(end_of(self.run), min(waiting * QUEUE, (WIDTH - NAMES) // 2))

    @staticmethod
    def _middle(lane: int) -> float:
        return HEAD + (lane + 0.5) * ROW

    def _lines(self) -> Iterator[str]:
        """From each parent down to its forks, and dashed back up where they were joined."""
        for number, lane in enumerate(self.lanes):
            if lane.parent < 0:
                continue
            top, bottom = self._middle(lane.parent), self._middle(number)
            yield _stroke(self._scale.at(lane.opened), top, self._scale.at(lane.opened), bottom)
            if lane.joined:
                yield _stroke(self._scale.at(lane.end), top, self._scale.at(lane.end), bottom, "3 2")

    def _drawn_lanes(self) -> Iterator[str]:
        for number, lane in enumerate(self.lanes):
            y = self._middle(number)
            marks = list(_marks(lane.bars, self._scale))
            yield _name(lane, y)
            yield from _life(lane, marks, y, self._scale)
            yield from (_drawn(mark, y) for mark in marks)


class TimeScale:
    """Seconds to pixels; `room` pixels are kept free after `end`."""

    def __init__(self, end: float, room: int) -> None:
        self.end = max(end, 1e-6)
        self.left, self.right = NAMES, WIDTH - 2 * MARGIN - room

    def at(self, time: float) -> float:
        return self.left + min(max(0.0, time / self.end), 1.0) * (self.right - self.left)

    def ticks(self) -> list[float]:
        """Round times, at least 80 pixels from each other."""
        least = self.end / (self.right - self.left) * 80
        power = 10.0 ** next(n for n in range(-9, 12) if 10.0**n * 10 >= least)
        step = next(n * power for n in (1, 2, 5, 10) if n * power >= least)
        return [i * step for i in range(int(self.end / step) + 1)]


def _axis(scale: TimeScale, lanes: int) -> Iterator[str]:
    for time in scale.ticks():
        x, words = scale.at(time), _tick(time, scale.end)
        yield _stroke(x, HEAD - 6, x, HEAD + lanes * ROW, width=0.3)
        if x + 3 + _width(words) < WIDTH:
            yield _text(x + 3, HEAD - 9, words)


def _tick(time: float, end: float) -> str:
    return "0" if time == 0 else f"{time * 1000:.4g} ms" if end < 1 else f"{time:,.4g} s"


def _name(lane: TimelineLane, y: float) -> str:
    x = MARGIN + 8 * min(lane.label.count("."), 6)
    label = _text(x, y, lane.label, "bold")
    left = x + GLYPH * (len(lane.label) + 1)
    return label + _text(left, y, _cut(lane.hint, NAMES - 6 - left))


def _life(lane: TimelineLane, marks: list[TimelineMark], y: float, scale: TimeScale) -> Iterator[str]:
    """A line where the branch is there and none of its operations is at work."""
    x, end = scale.at(lane.opened), scale.at(lane.end)
    for left, right in [*((mark.x, mark.right) for mark in marks), (end, end)]:
        if min(left, end) > x:
            yield _stroke(x, y, min(left, end), y, width=0.8)
        x = max(x, right)


@dataclass(frozen=True)
class TimelineMark:
    """A bar with its place. Its label is inside it or, where it is too narrow, in the free room to its right."""

    bar: TimelineBar
    x: float
    width: float
    following: float

    @property
    def inside(self) -> bool:
        room = self.width - 10
        return room >= GLYPH * len(self.bar.name) or room > self._free_right

    @property
    def _free_right(self) -> float:
        return self.following - self.x - self.width - 8

    @property
    def label(self) -> str:
        """The name, and as much of the text as fits."""
        bar = self.bar
        words = f"{bar.name} {' '.join(bar.text.split())}" if bar.text and bar.start is not None else bar.name
        return _cut(words, self.width - 10 if self.inside else self._free_right)

    @property
    def right(self) -> float:
        """Where it ends, including a label to its right."""
        end = self.x + self.width
        return end if self.inside else end + 6 + _width(self.label)


def _marks(bars: list[TimelineBar], scale: TimeScale) -> Iterator[TimelineMark]:
    places = list(_places(bars, scale))
    follow = [*(x for x, _ in places[1:]), float(WIDTH)]
    for bar, (x, width), following in zip(bars, places, follow, strict=False):
        yield TimelineMark(bar, x, width, following)


def _places(bars: list[TimelineBar], scale: TimeScale) -> Iterator[tuple[float, float]]:
    """x and width of each; operations that have not begun are in a row after the end."""
    queue = scale.right + 4.0
    for bar in bars:
        if bar.start is None:
            yield queue, QUEUE - 4.0
            queue += QUEUE
        else:
            x = scale.at(bar.start)
            yield x, max(2.0, scale.at(bar.end) - x - 1)


def _drawn(mark: TimelineMark, y: float) -> str:
    bar, x = mark.bar, mark.x
    open_end = bar.start is None or bar.state in ("running", "skipped")
    fill = FILLS["error"] if bar.state in ("failed", "stopped") else FILLS[bar.kind]
    look = f'fill="none" stroke="{fill}" stroke-dasharray="3 2"' if open_end else f'fill="{fill}"'
    rx = min(BAR / 2 if bar.kind == "select" else 3, mark.width / 2)
    box = f'<rect x="{_n(x)}" y="{_n(y - BAR / 2)}" width="{_n(mark.width)}" height="{BAR}" rx="{_n(rx)}" {look}/>'
    colour = "#ffffff" if mark.inside and not open_end else INK
    label = _text(x + 5 if mark.inside else x + mark.width + 3, y, mark.label, colour=colour)
    return f"<g><title>{_escaped(words_of(bar))}</title>{box}{_guessed(mark, x, y)}{label}</g>"


def _guessed(mark: TimelineMark, x: float, y: float) -> str:
    """A stripe below: the share of the tokens that are accepted drafts."""
    share = min(1.0, mark.bar.accepted / mark.bar.tokens) if mark.bar.tokens else 0.0
    look = f'height="3" fill="{FILLS["guessed"]}"'
    return f'<rect x="{_n(x)}" y="{_n(y + BAR / 2 - 3)}" width="{_n(mark.width * share)}" {look}/>' if share else ""


def _legend(lanes: list[TimelineLane]) -> Iterator[str]:
    """What the colours mean, of those that are in the picture; in the corner over the names."""
    bars = [bar for lane in lanes for bar in lane.bars]
    x = MARGIN
    for kind in ("gen", "select", "error", "guessed"):
        matches = {"error": lambda bar: bar.state in ("failed", "stopped"), "guessed": lambda bar: bar.accepted > 0}
        if any(kind == bar.kind or (kind in matches and matches[kind](bar)) for bar in bars):
            rx = 4 if kind == "select" else 1.5
            yield f'<rect x="{x}" y="{HEAD - 13}" width="9" height="8" rx="{rx}" fill="{FILLS[kind]}"/>'
            yield _text(x + 12, HEAD - 9, kind)
            x += int(18 + GLYPH * len(kind))


def _notes(run: dict[str, Any], hidden: int) -> Iterator[str]:
    if hidden:
        yield f"and {hidden} more branches: picture(lanes={len(run['branches'])}) shows all"
    used = run["usage"]
    prompt = ("prompt",) if "cached_tokens" in run["unknown"] else ("cached", "computed")
    tokens = [
        f"{used[name]:,} {name}" for name in (*prompt, "forced", "generated", "drafted", "accepted") if used.get(name)
    ]
    count = len(run["branches"])
    yield " · ".join(
        [
            f"{_seconds(end_of(run))}{' so far' if run['end'] is None else ''}",
            f"{count} branch{'es' if count > 1 else ''}",
            f"{used['operations']} operation{'s' if used['operations'] != 1 else ''}",
            *([f"tokens: {', '.join(tokens)}"] if tokens else []),
        ]
    )
    if error := run.get("error"):
        yield _cut(f"{run['state']}: {error['type']}: {error['message']}", WIDTH - 2 * MARGIN)


# --- pieces of SVG


def _text(x: float, y: float, text: str, weight: str = "normal", colour: str = INK) -> str:
    bold = "" if weight == "normal" else f' font-weight="{weight}"'
    return f'<text x="{_n(x)}" y="{_n(y + 4)}" fill="{colour}"{bold}>{_escaped(text)}</text>' if text else ""


def _stroke(x: float, y: float, u: float, v: float, dashes: str = "", width: float = 1) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{_n(x)} {_n(y)}L{_n(u)} {_n(v)}" stroke="{LINE}" stroke-width="{width}"{dashed}/>'


def _width(text: str) -> float:
    """In pixels; wide characters (Chinese, emoji) count twice."""
    return GLYPH * sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _cut(text: str, width: float) -> str:
    """As much of a text as is `width` pixels wide."""
    text = printable(text[:200].replace("\n", " "))
    if _width(text) <= width:
        return text
    ends = accumulate(map(_width, text))
    kept = sum(end + GLYPH <= width for end in ends)
    return f"{text[:kept]}…" if kept > 1 else ""


def _escaped(text: str) -> str:
    return escape(printable(text))


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _seconds(time: float) -> str:
    return f"{time * 1000:.3g} ms" if time < 0.1 else f"{time:,.3g} s"
