"""The figures as a drawing in SVG that follows the reader's light or dark colours."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .every import WORKLOADS

Table = dict[str, dict[str, float]]
PEERS = {"transformers": "circle", "outlines": "square", "guidance": "triangle"}
PARTS = {
    "no prefix cache": "prefix cache",
    "no fork": "fork",
    "no fusion": "fusion",
    "requests": "sequences",
    "no reuse": "all reuse",
    "no jump-forward": "jump-forward",
    "no batching": "batching",
    "all off": "all of them",
}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .dim { fill: #6e7781 } .head { font-weight: 600; font-size: 13px }
.axis { stroke: #d0d7de } .one { stroke: #24292f } .circle { fill: #0969da } .square { fill: #bc4c00 } .triangle { fill: #1a7f37 }
.bar { fill: #54aeff } .less { fill: #d1242f }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .dim { fill: #9198a1 } .axis { stroke: #3d444d } .one { stroke: #e6edf3 } .circle { fill: #4493f8 }
  .square { fill: #db6d28 } .triangle { fill: #3fb950 } .bar { fill: #1f6feb } .less { fill: #f85149 }
}
"""  # noqa: E501
NAMES, LEFT, WIDTH, ROW, TOP = (
    150,
    160,
    330,
    30,
    74,
)  # pixels: the names' column, where the axis begins, its length, ...
COLUMN = 88
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)


def draw(ratios: Table, costs: Table) -> str:
    """ratios: times of the peers as multiples of sgl's; costs: times without a part as multiples of those with all."""
    names = [name for name in WORKLOADS if name in ratios or name in costs]
    second = LEFT + WIDTH + 50
    width, height = second + COLUMN * len(PARTS) + 10, TOP + ROW * len(names) + 50
    body = [*_rows(names, width), *_peers(names, ratios, height), *_parts(names, costs, second)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" '
        'aria-label="Times of the peers, and of sgl without its parts, as multiples of '
        f"sgl's\"><style>{STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _rows(names: list[str], width: int) -> Iterator[str]:
    for i, name in enumerate(names):
        y = TOP + ROW * i
        yield f'<line class="axis" x1="0" x2="{width}" y1="{y}" y2="{y}"/>'
        yield _text(NAMES, y + 20, name.replace("_", " "), "end")


def _peers(names: list[str], ratios: Table, height: int) -> Iterator[str]:
    top = max([2.0, *(value for row in ratios.values() for value in row.values())]) * 1.15
    low = min([0.8, *(value / 1.15 for row in ratios.values() for value in row.values())])

    def x(value: float) -> float:
        return LEFT + WIDTH * math.log(value / low) / math.log(top / low)

    yield _text(LEFT, 18, "Peers with the same weights: their time, sgl = 1", kind="head")
    for i, (peer, shape) in enumerate(PEERS.items()):
        yield _mark(shape, LEFT + 6 + 110 * i, 40)
        yield _text(LEFT + 18 + 110 * i, 44, peer)
    for tick in (tick for tick in TICKS if low <= tick <= top):
        yield (
            f'<line class="{"one" if tick == 1 else "axis"}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" '
            f'y2="{height - 40}"/>'
        )
        yield _text(x(tick), height - 22, f"{tick:g}x", "middle", "dim")
    for i, name in enumerate(names):
        for peer, value in ratios.get(name, {}).items():
            yield _mark(PEERS[peer], x(value), TOP + ROW * i + ROW / 2)


def _parts(names: list[str], costs: Table, left: int) -> Iterator[str]:
    yield _text(left, 18, "sgl without a part: its time, with all parts = 1 (bars are logarithmic)", kind="head")
    top = max([2.0, *(value for row in costs.values() for part, value in row.items() if part in PARTS)])
    for k, label in enumerate(PARTS.values()):
        yield _text(left + COLUMN * k, 58, label, kind="dim")
    for i, name in enumerate(names):
        for k, part in enumerate(PARTS):
            if (value := costs.get(name, {}).get(part)) is not None:
                yield from _cell(left + COLUMN * k, TOP + ROW * i, value, top)


def _cell(x: float, y: float, value: float, top: float) -> Iterator[str]:
    length = abs(math.log(value)) / math.log(top) * (COLUMN - 12)
    kind = "less" if value < 1 else "bar"
    yield f'<rect class="{kind}" x="{x}" y="{y + 19}" width="{max(1.0, length):.1f}" height="6" rx="2"/>'
    yield _text(x, y + 15, f"{value:.0f}x" if value >= 10 else f"{value:.2f}x")


def _mark(shape: str, x: float, y: float) -> str:
    if shape == "circle":
        return f'<circle class="circle" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>'
    if shape == "square":
        return f'<rect class="square" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
    return f'<path class="triangle" d="M{x - 6:.1f} {y + 5:.1f} L{x + 6:.1f} {y + 5:.1f} L{x:.1f} {y - 6:.1f} Z"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{f" class={kind!r}" if kind else ""}>{text}</text>'
