"""The drawings of docs/internals.md, as SVG that reads on light and dark pages.

python docs/site/drawings.py        # writes docs/drawings/*.svg
"""

from __future__ import annotations

import html
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "drawings"
WIDTH = 760
INK, LINE = "#1f2937", "#7a8794"
FILLS = {"plain": "#e5e9f0", "warm": "#f3e3c3", "cool": "#cfe3ee", "green": "#d5e8cf"}


class Drawing:
    """Boxes, arrows and text on a page of `WIDTH` by `height`."""

    def __init__(self, name: str, title: str, height: int) -> None:
        self.name, self.title, self.height = name, title, height
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *lines: str, fill: str = "plain") -> None:
        """A rounded box; its first line is bold when there are several."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{FILLS[fill]}" stroke="{LINE}"/>'
        )
        first = y + height / 2 - 8 * (len(lines) - 1) + 4.5
        for i, line in enumerate(lines):
            weight = ' font-weight="600"' if i == 0 and len(lines) > 1 else ""
            self._text(x + width / 2, first + 16 * i, line, f'text-anchor="middle" fill="{INK}"{weight}')

    def words(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """Words next to the boxes, in a grey that shows on both pages."""
        self._text(x, y, text, f'text-anchor="{anchor}" fill="{LINE}"')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="1.5"{dash} '
            'marker-end="url(#tip)"/>'
        )

    def _text(self, x: float, y: float, text: str, style: str) -> None:
        self.parts.append(f'<text x="{x}" y="{y}" {style}>{html.escape(text)}</text>')

    def save(self) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="12.5">\n<title>{html.escape(self.title)}</title>\n'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>\n'
        )
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{self.name}.svg").write_text(head + "\n".join(self.parts) + "\n</svg>\n", encoding="utf-8")


def floors() -> Drawing:
    page = Drawing("floors", "Five floors, each of which knows only those below", 288)
    rows = [
        ("sgl/", "the names that import sgl gives, the command line", "plain"),
        ("lang/", "gen, select, fork: nodes, interpreter, backends, journals, reports", "warm"),
        ("runtime/", "engine, scheduler, cache, models, attention, sampler, server", "cool"),
        ("grammars/", "regex, JSON Schema, EBNF to automata to token masks", "green"),
        ("common/", "what every floor needs: child processes, a cache", "plain"),
    ]
    for i, (name, rooms, fill) in enumerate(rows):
        page.box(20, 10 + 56 * i, 500, 42, name, rooms, fill=fill)
        if i:
            page.arrow(270, 52 + 56 * (i - 1), 270, 10 + 56 * i)
    for y, text in (
        (35, "imports nothing heavy"),
        (91, "knows no torch"),
        (147, "knows no programs"),
        (203, "knows no models, no requests"),
        (259, "knows nothing of sgl"),
    ):
        page.words(540, y, text)
    return page


def program() -> Drawing:
    page = Drawing(
        "program",
        "A program's statements become operations of one sequence; the engine's steps run them without going back",
        268,
    )
    page.words(10, 40, "your thread")
    page.words(10, 120, "its sequence")
    page.words(10, 216, "engine's steps")
    ops = [("s += user(...)", "extend"), ('gen("a")', "generate"), ('s += " and "', "extend"), ('gen("b")', "generate")]
    for i, (said, op) in enumerate(ops):
        x = 110 + 112 * i
        page.box(x, 18, 104, 36, said, fill="warm")
        page.box(x, 98, 104, 36, op, fill="cool")
        page.arrow(x + 52, 54, x + 52, 98)
    page.box(570, 18, 104, 36, 's["b"]', fill="warm")
    page.words(622, 74, "waits here", "middle")
    page.words(622, 90, "for a future", "middle")
    steps = [
        (110, 96, "prompt", "plain"),
        (210, 34, "a1", "green"),
        (248, 34, "a2", "green"),
        (286, 100, 'a3 + " and "', "green"),
        (390, 34, "b1", "green"),
        (428, 34, "b2", "green"),
        (466, 34, "b3", "green"),
    ]
    for x, width, text, fill in steps:
        page.box(x, 194, width, 36, text, fill=fill)
    page.arrow(500, 194, 612, 100, dashed=True)
    page.words(
        110, 252, "the literal is computed in the step that follows a's last token: no round trip between two gens"
    )
    return page


def loop() -> Drawing:
    page = Drawing("loop", "The loop of the engine, and one step ahead of the host on a GPU", 250)
    names = ["drain inbox", "plan", "launch", "decide", "finish"]
    notes = ["new operations", "who computes", "the forward", "masks, sampling", "tokens and futures"]
    for i, (name, note) in enumerate(zip(names, notes, strict=True)):
        page.box(10 + 150 * i, 16, 132, 46, name, note, fill="cool")
        if i:
            page.arrow(10 + 150 * i - 18, 39, 10 + 150 * i, 39)
    page.words(10, 108, "device")
    page.words(10, 170, "host")
    for i, (before, now) in enumerate((("k - 1", "k"), ("k", "k + 1"), ("k + 1", "k + 2"))):
        x = 90 + 222 * i
        page.box(x, 88, 214, 34, f"forward {now}", fill="green")
        page.box(x, 150, 92, 34, f"finish {before}", fill="warm")
        page.box(x + 98, 150, 92, 34, f"decide {now}", fill="warm")
        page.arrow(x + 144, 150, x + 175, 122)
    page.words(
        90, 214, "the forward of step k + 1 starts before the host knows token k: it finds the token on the device;"
    )
    page.words(90, 232, "masks, penalties and positions are made once every earlier token is known")
    return page


def mask() -> Drawing:
    page = Drawing("mask", "From a constraint to the mask of the next token", 266)
    chain = [
        (10, "constraint", "regex, schema ...", "plain"),
        (162, "algebra", "bytes and rules", "plain"),
        (314, "automaton", "states on demand", "green"),
        (466, "token trie", "one walk a state", "green"),
        (618, "mask row", "a bit a token", "cool"),
    ]
    for i, (x, name, note, fill) in enumerate(chain):
        page.box(x, 20, 132, 50, name, note, fill=fill)
        if i:
            page.arrow(x - 20, 45, x, 45)
    page.box(618, 118, 132, 50, "sampler", "only allowed tokens", fill="warm")
    page.box(618, 206, 132, 50, "logits", "from the model", fill="warm")
    page.box(314, 118, 132, 50, "token", "moves the state", fill="cool")
    page.arrow(684, 70, 684, 118)
    page.arrow(684, 206, 684, 168)
    page.arrow(618, 143, 446, 143)
    page.arrow(380, 118, 380, 70)
    page.words(10, 140, "a row is kept with its state:")
    page.words(10, 158, "seen again, it costs a microsecond")
    page.words(10, 226, "bytes that must come next are appended without asking the model (jump-forward)")
    return page


if __name__ == "__main__":
    for drawing in (floors(), program(), loop(), mask()):
        drawing.save()
