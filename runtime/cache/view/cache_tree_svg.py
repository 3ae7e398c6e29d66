"""The cache's tree as an SVG picture: it grows to the right, what begins with the same tokens hangs on the same box.

Where each box goes is decided on a shortened copy, whose size is bounded: as deep as its width has room for, ROWS high.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from ...errors import ConfigError
from ..growable_int_array import space_text
from .cache_tree_nodes import CachedSequenceRow, CacheNode, DrawnCacheTree
from .cache_tree_outline import columns, counted, shortened, summary

ROWS = 36
NARROWEST, WIDEST = 200, 20_000  # pixels
ROW, BOX, GAP, MARGIN, TOP = 52, 38, 26, 14, 40  # pixels
SIGN, SMALL, PAD, ROOT = 6.7, 6.1, 9, 100  # pixels of a character of each font, around a text, and for the first column
SHORTEST, LONGEST, NOTE = 7, 44, 6  # signs of a text, and how many more a note may have
_STYLE = (
    ".sgl-cache text{font:11px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2933}"
    ".sgl-cache .small{font-size:10px;fill:#52606d}.sgl-cache .link{fill:none;stroke:#9aa5b1;stroke-width:1.3}"
    ".sgl-cache rect{fill:#ffffff;stroke:#7b8794;stroke-width:1.2}.sgl-cache .ground{stroke:none}"
    ".sgl-cache .locked{fill:#cfe3f7;stroke:#1d5fa3;stroke-width:1.8}.sgl-cache .pinned{stroke-width:3.4}"
    ".sgl-cache .row{fill:#fff6e0;stroke:#9a6700;stroke-dasharray:4 3}"
    ".sgl-cache .first{stroke:#b42318;stroke-dasharray:2 2;stroke-width:1.8}.sgl-cache .more{fill:#f1f3f5;stroke:none}"
)
_LEGEND = {
    "locked": "blue: sequences stand on it, ×n",
    "pinned": "thick edge: pinned",
    "row": "yellow: computed by a sequence, not in the tree",
    "first": "red dots: evicted first",
}


@dataclass
class CacheTreeBox:
    """kind: classes of _STYLE.  level: its column.  row: its line, the first one of what hangs on it."""

    text: str
    note: str
    kind: str
    level: int
    row: int = 0
    children: list[CacheTreeBox] = field(default_factory=list)

    def all(self) -> Iterator[CacheTreeBox]:
        yield self
        for child in self.children:
            yield from child.all()


def draw(tree: DrawnCacheTree, width: int) -> str:
    if isinstance(width, bool) or not isinstance(width, int) or not NARROWEST <= width <= WIDEST:
        raise ConfigError(f"width is {width!r}; give a whole number of pixels from {NARROWEST} to {WIDEST}")
    roots = _boxes(tree, int((width - ROOT) / ((SHORTEST + NOTE) * SMALL + 2 * PAD + GAP)))
    boxes = [box for root in roots for box in root.all()]
    limit = _limit(boxes, width)
    lefts, widths = _columns(boxes, limit)
    rows = 1 + max((box.row for box in boxes), default=0)
    right = max([420.0, *(lefts[level] + widths[level] + MARGIN for level in widths)])
    size = min(float(width), right), TOP + rows * ROW + 22
    body = [part for box in boxes for part in _drawn(box, lefts, widths, limit)]
    return "\n".join([*_head(*size), *_texts(tree, boxes, size[1]), *body, "</svg>\n"])


def _head(width: float, height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sgl-cache" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f'<title>the prefix cache</title><style>{_STYLE}</style><rect class="ground" width="100%" height="100%"/>',
    ]


def _texts(tree: DrawnCacheTree, boxes: list[CacheTreeBox], height: float) -> list[str]:
    kinds = {kind for box in boxes for kind in box.kind.split()}
    legend = " · ".join(label for kind, label in _LEGEND.items() if kind in kinds)
    return [
        f'<text x="{MARGIN}" y="22">{escape(summary(tree))}</text>',
        f'<text class="small" x="{MARGIN}" y="{height - 9:.0f}">{escape(legend)}</text>',
    ]


# which boxes there are


def _boxes(tree: DrawnCacheTree, levels: int) -> list[CacheTreeBox]:
    """A box for each namespace with all that is shown of it, in rows of their own."""
    fold, row, made = _FoldedTree(tree.next_evicted, max(1, levels)), 0, []
    roots = [(name, root) for name, root in tree.roots.items() if root.children or root.rows]
    for i, (name, root) in enumerate(roots):
        if row >= ROWS - 1 and i < len(roots) - 1:
            made.append(CacheTreeBox(f"+ {len(roots) - i:,}", "namespaces", "more", 0, row))
            break
        box = CacheTreeBox(space_text(name) if name else "root", "namespace" if name else "", "", 0, row)
        made.append(fold.hang(root, box, max(1, ROWS - row - (i < len(roots) - 1))))
        row = 1 + max(box.row for box in made[-1].all())
    return made


@dataclass(frozen=True)
class _FoldedTree:
    """first: the node that is evicted first.  levels: how many columns there may be."""

    first: CacheNode | None
    levels: int

    def hang(self, node: CacheNode, box: CacheTreeBox, room: int) -> CacheTreeBox:
        """Attach to the box of `node` what follows it, in at most `room` rows."""
        items: list[CacheNode | CachedSequenceRow] = [*(row for row in node.rows if len(row.tokens)), *node.children]
        shown = [] if box.level == self.levels - 1 else items if len(items) <= room else items[: room - 1]
        row, left = box.row, room - (len(shown) < len(items))
        for waiting, item in zip(range(len(shown) - 1, -1, -1), shown, strict=True):
            child = self._box(item, box.level + 1, row)
            if isinstance(item, CacheNode):
                self.hang(item, child, left - waiting)
            used = 1 + max(each.row for each in child.all()) - row
            row, left = row + used, left - used
            box.children.append(child)
        if len(shown) < len(items):
            box.children.append(_rest(items[len(shown) :], box.level + 1, row))
        return box

    def _box(self, item: CacheNode | CachedSequenceRow, level: int, row: int) -> CacheTreeBox:
        if isinstance(item, CachedSequenceRow):
            return CacheTreeBox(
                item.text, f"{len(item.tokens)} · sequence {item.sequence} {item.status}", "row", level, row
            )
        kind = "locked" * item.locked + " pinned" * item.pinned + " first" * (item is self.first)
        return CacheTreeBox(
            item.text, counted(len(item), "token") + f" ×{item.locks}" * item.locked, kind.strip(), level, row
        )


def _rest(items: list[CacheNode | CachedSequenceRow], level: int, row: int) -> CacheTreeBox:
    """One box for all that there is no room for."""
    nodes = [node for item in items if isinstance(item, CacheNode) for node in item.nodes()]
    if not nodes:
        return CacheTreeBox(f"+ {len(items)}", "sequences", "more", level, row)
    return CacheTreeBox(f"+ {len(nodes):,}", counted(sum(map(len, nodes)), "token"), "more", level, row)


# where they go


def _limit(boxes: list[CacheTreeBox], width: int) -> int:
    """How many signs a text may have for all columns to fit."""
    for limit in range(LONGEST, SHORTEST, -1):
        lefts, widths = _columns(boxes, limit)
        if all(lefts[level] + widths[level] + MARGIN <= width for level in widths):
            return limit
    return SHORTEST


def _columns(boxes: list[CacheTreeBox], limit: int) -> tuple[dict[int, float], dict[int, float]]:
    """Left edge and width of each column, in pixels."""
    widths: dict[int, float] = {}
    for box in boxes:
        wanted = max(min(columns(box.text), limit) * SIGN, min(columns(box.note), limit + NOTE) * SMALL)
        widths[box.level] = max(widths.get(box.level, 0.0), wanted + 2 * PAD)
    lefts, left = {}, float(MARGIN)
    for level in sorted(widths):
        lefts[level] = left
        left += widths[level] + GAP
    return lefts, widths


# how they look


def _drawn(box: CacheTreeBox, lefts: dict[int, float], widths: dict[int, float], limit: int) -> list[str]:
    x, y = lefts[box.level], TOP + box.row * ROW
    if box.level == 0:
        widths = widths | {0: max(columns(box.text), columns(box.note)) * SIGN + 2 * PAD}
    line = y + (16 if box.note else BOX / 2 + 4)
    links = [_link(x + widths[box.level], box.row, lefts[child.level], child.row) for child in box.children]
    return [
        *links,
        f'<g><title>{escape(shortened(box.text, 600))}</title><rect class="{box.kind}" x="{x:.1f}" y="{y}" '
        f'width="{widths[box.level]:.1f}" height="{BOX}" rx="5"/>',
        f'<text x="{x + PAD:.1f}" y="{line:.0f}" xml:space="preserve">{escape(shortened(box.text, limit))}</text>',
        f'<text class="small" x="{x + PAD:.1f}" y="{y + 31}">{escape(shortened(box.note, limit + NOTE))}</text></g>',
    ]


def _link(x1: float, row1: int, x2: float, row2: int) -> str:
    y1, y2, middle = TOP + row1 * ROW + BOX / 2, TOP + row2 * ROW + BOX / 2, x2 - GAP / 2
    return f'<path class="link" d="M{x1:.1f} {y1:.1f} H{middle:.1f} V{y2:.1f} H{x2:.1f}"/>'
