"""The cache's tree as indented text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from ..growable_int_array import space_text
from .cache_tree_nodes import CachedSequenceRow, CacheNode, DrawnCacheTree

LONGEST_TEXT = 60  # columns
_SIGNS = str.maketrans({"\n": "↵", "\r": "↵", "\t": "→"})


def outline(tree: DrawnCacheTree) -> str:
    """A line of totals, then one for each node and for each sequence that stands on one."""
    lines, first = [summary(tree)], tree.next_evicted
    for namespace, root in tree.roots.items():
        if namespace:
            lines.append(f"namespace {space_text(namespace)}")
        lines += _lines(root, first)
    return "\n".join(lines)


def summary(tree: DrawnCacheTree) -> str:
    nodes = list(tree.nodes())
    locked, size = sum(len(node) for node in nodes if node.locked), tree.page_size
    free = f"{tree.pages_free * size:,} of {tree.pages_total * size:,} places free"
    return f"{counted(tree.tokens, 'token')} in {counted(len(nodes), 'node')}, {locked:,} of them locked; {free}"


def _lines(root: CacheNode, first: CacheNode | None) -> Iterator[str]:
    """Depth first without recursion: chains of thousands of nodes are no error."""
    stack: list[tuple[CacheNode | CachedSequenceRow, str, bool]] = []

    def push(node: CacheNode, indent: str) -> None:
        below: list[CacheNode | CachedSequenceRow] = [*node.rows, *node.children]
        stack.extend((item, indent, i == 0) for i, item in enumerate(reversed(below)))

    push(root, "")
    while stack:
        item, indent, last = stack.pop()
        line = _node(item, first) if isinstance(item, CacheNode) else row_text(item)
        yield indent + ("└─ " if last else "├─ ") + line
        if isinstance(item, CacheNode):
            push(item, indent + ("   " if last else "│  "))


def _node(node: CacheNode, first: CacheNode | None) -> str:
    line = f'{len(node)} "{shortened(node.text, LONGEST_TEXT)}"'
    if node.locked:
        line += f"  locked by {node.locks}"
    return line + ("  evicted first" if node is first else "")


def row_text(row: CachedSequenceRow) -> str:
    beyond = f': {counted(len(row.tokens), "token")} not in the tree "{shortened(row.text, LONGEST_TEXT)}"'
    return f"· sequence {row.sequence} {row.status}" + (beyond if len(row.tokens) else "")


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def shortened(text: str, most: int) -> str:
    """At most so many columns of a text, its begin and its end, on one line."""
    shown = "".join(sign if sign.isprintable() else "·" for sign in text.translate(_SIGNS))
    if columns(shown) <= most:
        return shown if shown.strip() else shown.replace(" ", "␣")
    tail = (most - 1) // 3
    return _fitting(shown, most - 1 - tail) + "…" + _fitting(shown[::-1], tail)[::-1]


def columns(text: str) -> int:
    """How wide a text is in a font of one width: signs of East Asian scripts are twice as wide."""
    return sum(_wide(sign) for sign in text)


def _wide(sign: str) -> int:
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _fitting(text: str, most: int) -> str:
    width = 0
    for end, sign in enumerate(text):
        width += _wide(sign)
        if width > most:
            return text[:end]
    return text
