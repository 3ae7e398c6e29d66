"""Where the boxes go: columns by distance from the start, each ordered so that few arrows cross (Sugiyama 1981)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sgl.grammars.drawing.automaton_folding import AutomatonPicture

RADIUS, ROW, GAP, CHARACTER, MARGIN = 13, 58, 46, 7.2, 48
LONGEST_LABEL = 40
_SWEEPS = 6


@dataclass
class PictureLayout:
    """Centres of the boxes, in pixels, and the size of the picture."""

    places: list[tuple[float, float]]
    width: float
    height: float


def shortened(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def arrange(picture: AutomatonPicture) -> PictureLayout:
    columns = _columns(picture)
    for sweep in range(_SWEEPS):
        _order(columns, picture, forward=sweep % 2 == 0)
    return _placed(columns, picture)


def _columns(picture: AutomatonPicture) -> list[list[int]]:
    """Boxes by the longest way to them along arrows that lead away from the start."""
    near = _distances(picture)
    column = dict.fromkeys(range(len(picture.boxes)), 0)
    ahead = [(s, t) for s, t in picture.arrows if (near[s], s) < (near[t], t)]
    for source, target in sorted(ahead, key=lambda arrow: (near[arrow[0]], arrow[0])):
        column[target] = max(column[target], column[source] + 1)
    columns: list[list[int]] = [[] for _ in range(max(column.values()) + 1)]
    for box, place in column.items():
        columns[place].append(box)
    return [c for c in columns if c]


def _distances(picture: AutomatonPicture) -> list[int]:
    after = defaultdict(list)
    for source, target in picture.arrows:
        after[source].append(target)
    near = [len(picture.boxes)] * len(picture.boxes)
    near[0], order = 0, [0]
    for box in order:
        for target in after[box]:
            if near[target] > near[box] + 1:
                near[target] = near[box] + 1
                order.append(target)
    return near


def _order(columns: list[list[int]], picture: AutomatonPicture, forward: bool) -> None:
    """Move each box to the middle of its neighbours in the column before (or after)."""
    neighbours = defaultdict(list)
    for source, target in picture.arrows:
        neighbours[target if forward else source].append(source if forward else target)
    for i in range(1, len(columns)) if forward else range(len(columns) - 2, -1, -1):
        next_column = {box: place for place, box in enumerate(columns[i - 1 if forward else i + 1])}
        middle = {}
        for place, box in enumerate(columns[i]):
            found = [next_column[n] for n in neighbours[box] if n in next_column]
            middle[box] = sum(found) / len(found) if found else place
        columns[i].sort(key=middle.__getitem__)


def _placed(columns: list[list[int]], picture: AutomatonPicture) -> PictureLayout:
    tallest = max(map(len, columns))
    places = [(0.0, 0.0)] * len(picture.boxes)
    left = float(MARGIN + RADIUS)
    for i, column in enumerate(columns):
        top = MARGIN + (tallest - len(column)) * ROW / 2 + ROW / 2
        for row, box in enumerate(column):
            places[box] = (left, top + row * ROW)
        left += 2 * RADIUS + _room(columns, i, picture)
    return PictureLayout(places, left + MARGIN, tallest * ROW + 2 * MARGIN + _below(picture, places))


def _room(columns: list[list[int]], index: int, picture: AutomatonPicture) -> float:
    """Between a column and the next: enough for the longest label of the arrows between them."""
    if index + 1 == len(columns):
        return 0.0
    here, there = set(columns[index]), set(columns[index + 1])
    labels = [len(label) for (s, t), label in picture.arrows.items() if s in here and t in there]
    return GAP + CHARACTER * min(max(labels, default=0), LONGEST_LABEL)


def _below(picture: AutomatonPicture, places: list[tuple[float, float]]) -> float:
    """Space for the longest arrow that leads back."""
    back = [places[s][0] - places[t][0] for s, t in picture.arrows if s != t]
    return 20 + sag(max(back, default=0.0)) * 0.8


def sag(span: float) -> float:
    """How deep an arrow that leads back over so many pixels hangs."""
    return 34 + max(span, 0) / 12
