"""Pictures as the text of an SVG file, one below the other."""

from __future__ import annotations

from html import escape

from sgl.grammars.drawing.automaton_folding import AutomatonPicture
from sgl.grammars.drawing.automaton_layout import CHARACTER, RADIUS, PictureLayout, sag, shortened

_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1f2933; text-anchor: middle }
.halo { stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round }
.call { fill: #1d5fa3; font-weight: bold }
.title { font-size: 14px; font-weight: bold; text-anchor: start }
.note { fill: #7b8794; text-anchor: start }
.arrow { fill: none; stroke: #9aa5b1; stroke-width: 1.3 }
.box { fill: #ffffff; stroke: #52606d; stroke-width: 1.3 }
.final { fill: #e3f8e8; stroke: #1f8a45; stroke-width: 2.4 }
"""
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#9aa5b1"/></marker></defs>'
)
_HEADER = 34


def render(pictures: list[tuple[AutomatonPicture, PictureLayout]], title: str) -> str:
    note = _note([picture for picture, _ in pictures])
    width = max([640.0, 32 + CHARACTER * len(note), *(layout.width for _, layout in pictures)])
    height = _HEADER + sum(layout.height for _, layout in pictures) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(title or 'automaton')}</title><style>{_STYLE}</style>{_TIP}",
        f'<rect width="100%" height="100%" fill="#ffffff"/><text class="title" x="16" y="24">{escape(title)}</text>',
    ]
    top = float(_HEADER)
    for picture, layout in pictures:
        parts += [f'<g transform="translate(0 {top:.0f})">', *_drawn(picture, layout), "</g>"]
        top += layout.height
    parts.append(f'<text class="note" x="16" y="{height - 12:.0f}">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _note(pictures: list[AutomatonPicture]) -> str:
    notes = ["green: the text may end" if len(pictures) == 1 else "green: the rule may end"]
    if any(p.called for p in pictures):
        notes.append("‹…›: a rule is called; repeats are drawn without their counts")
    if any(p.cut for p in pictures):
        notes.append("more states are left out")
    return " · ".join(notes)


def _drawn(picture: AutomatonPicture, layout: PictureLayout) -> list[str]:
    x, y = layout.places[0]
    return [
        f'<text class="title" x="16" y="20">{escape(picture.title)}</text>',
        f'<path class="arrow" marker-end="url(#tip)" d="M{x - 40:.1f} {y:.1f} H{x - RADIUS:.1f}"/>',
        *(_arrow(picture, layout, arrow, label) for arrow, label in picture.arrows.items()),
        *(_box(final, layout.places[i], i) for i, final in enumerate(picture.boxes)),
    ]


def _box(final: bool, place: tuple[float, float], number: int) -> str:
    x, y = place
    return (
        f'<circle class="{"final" if final else "box"}" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}"/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}">{number}</text>'
    )


def _arrow(picture: AutomatonPicture, layout: PictureLayout, arrow: tuple[int, int], label: str) -> str:
    path, (x, y) = _path(*layout.places[arrow[0]], *layout.places[arrow[1]])
    kind = ' class="call"' if arrow in picture.called else ""
    text = escape(shortened(label))
    at = f'x="{x:.1f}" y="{y:.1f}"'
    return (
        f'<path class="arrow" marker-end="url(#tip)" d="{path}"/><text class="halo" {at}>{text}</text>'
        f"<text{kind} {at}><title>{escape(label)}</title>{text}</text>"
    )


def _path(x1: float, y1: float, x2: float, y2: float) -> tuple[str, tuple[float, float]]:
    """The curve of an arrow and where its label stands: ahead, a loop above, or an arc back below."""
    if x2 > x1:
        return _ahead(x1 + RADIUS, y1, x2 - RADIUS, y2)
    if (x1, y1) == (x2, y2):
        top = y1 - RADIUS
        curve = (
            f"M{x1 - 6:.1f} {top:.1f} C{x1 - 22:.1f} {top - 26:.1f} {x1 + 22:.1f} {top - 26:.1f} {x1 + 6:.1f} {top:.1f}"
        )
        return curve, (x1, top - 22)
    deep = sag(x1 - x2)
    bottom = max(y1, y2) + RADIUS + deep
    curve = f"M{x1:.1f} {y1 + RADIUS:.1f} C{x1:.1f} {bottom:.1f} {x2:.1f} {bottom:.1f} {x2:.1f} {y2 + RADIUS:.1f}"
    return curve, ((x1 + x2) / 2, (y1 + y2) / 2 + RADIUS + deep * 0.75 + 4)


def _ahead(x1: float, y1: float, x2: float, y2: float) -> tuple[str, tuple[float, float]]:
    bend = min((x2 - x1) / 2, 60)
    curve = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return curve, ((x1 + x2) / 2, (y1 + y2) / 2 - 5)
