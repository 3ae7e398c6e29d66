"""HTML by selectolax, whose parser builds the tree that browsers build."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .document import Document, joined_paragraphs
from .document_error import require_reader
from .plain_reader import decode
from .table_rows import row_line

_UNSEEN = {"script", "style", "noscript", "template", "head", "svg", "math", "iframe", "object", "select", "datalist"}
_INLINE = {
    *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "button", "cite", "code", "data", "del", "dfn", "em", "font"),
    *("i", "img", "input", "ins", "kbd", "label", "mark", "meter", "nobr", "output", "picture", "progress", "q", "rp"),
    *("rt", "ruby", "s", "samp", "small", "source", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var"),
    "wbr",
}
_CELLS = {"td", "th"}
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_BLANK = re.compile(r"[ \t\n\r\f\xa0]+")
_INVISIBLE = dict.fromkeys(map(ord, "\xad\u200b\ufeff"))


def read_html(data: bytes, source: str, encoding: str | None) -> Document:
    """A page of HTML: its paragraphs as a browser shows them. Scripts, styles and the head are left out."""
    parser = require_reader("selectolax.lexbor", "HTML").LexborHTMLParser
    declared = _CHARSET.search(data[:4096])
    tree = parser(decode(data, source, encoding or (declared[1].decode("ascii") if declared else None)))
    text, paragraphs = joined_paragraphs(_Paragraphs(_layout_tables(tree)).of(tree.body) if tree.body else ())
    return Document(text, source, "html", (), paragraphs, dict(_metadata(tree)))


def _metadata(tree: Any) -> Iterator[tuple[str, str]]:
    if title := tree.css_first("head title"):
        yield "title", " ".join(title.text().split())
    if language := tree.root.attributes.get("lang"):
        yield "language", language
    for meta in tree.css("head meta[name][content]"):
        if meta.attributes["name"] in ("author", "description", "keywords", "date"):
            yield meta.attributes["name"], meta.attributes["content"] or ""


def _layout_tables(tree: Any) -> set[int]:
    """The tables that contain tables: they arrange a page, so their cells are read as paragraphs."""
    outer = set()
    for table in tree.css("table table"):
        above = table.parent
        while above.tag != "table":
            above = above.parent
        outer.add(above.mem_id)
    return outer


class _Paragraphs:
    """Gathers the paragraphs of a tree. In a table of data, `row` has the cells so far."""

    def __init__(self, layout_tables: set[int]) -> None:
        self.layout_tables = layout_tables
        self.done: list[str] = []
        self.words: list[str] = []
        self.rows: list[str] | None = None
        self.row: list[str] = []
        self.pre = 0

    def of(self, body: Any) -> list[str]:
        """Walks the tree without recursion, since pages may be nested to any depth."""
        node = body
        while True:
            if self._enter(node) and node.first_child is not None:
                node = node.first_child
                continue
            self._leave(node)
            while node.next is None and node.mem_id != body.mem_id:
                node = node.parent
                self._leave(node)
            if node.mem_id == body.mem_id:
                return self.done
            node = node.next

    def _enter(self, node: Any) -> bool:
        """Whether the children of a node are to be read."""
        tag = node.tag
        if node.is_text_node:
            self._add(node.text_content)
        elif _is_unseen(node):
            return False
        elif tag == "br":
            self._break_line()
        elif tag not in _INLINE:
            self._end_block()
            self.pre += tag == "pre"
            if tag == "table" and node.mem_id not in self.layout_tables:
                self.rows = []
        return True

    def _leave(self, node: Any) -> None:
        tag = node.tag
        if node.is_text_node or tag in _INLINE or tag == "br" or _is_unseen(node):
            return
        self.pre -= tag == "pre"
        if self.rows is None or tag not in ("td", "th", "tr", "caption", "table"):
            self._end_block()
        elif tag in _CELLS:
            self.row.append(self._taken())
        else:
            self._end_row(tag == "table")

    def _end_row(self, of_table: bool) -> None:
        assert self.rows is not None
        self.rows.append(row_line([*self.row, *([words] if (words := self._taken()) else [])]))
        self.row = []
        if of_table:
            self.done.append("\n".join(line for line in self.rows if line))
            self.rows = None

    def _add(self, text: str) -> None:
        text = text.translate(_INVISIBLE)
        if not self.pre:
            text = _BLANK.sub(" ", text)
            if not self.words or self.words[-1][-1].isspace():
                text = text.removeprefix(" ")
        if text:
            self.words.append(text)

    def _break_line(self) -> None:
        if self.words and not self.pre:
            self.words[-1] = self.words[-1].rstrip(" ") or "\n"
        self.words.append("\n")

    def _end_block(self) -> None:
        """A paragraph ends; in a cell of a table it is the words that end."""
        if self.rows is None:
            if words := self._taken():
                self.done.append(words)
        elif self.words and not self.words[-1][-1].isspace():
            self.words.append(" ")

    def _taken(self) -> str:
        words = "".join(self.words).strip("\n").rstrip()
        self.words = []
        return words


def _is_unseen(node: Any) -> bool:
    return node.tag in _UNSEEN or node.tag.startswith(("-", "_", "!")) or "hidden" in node.attributes
