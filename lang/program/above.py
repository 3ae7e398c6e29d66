"""What programs and states find in rooms that stand on this one.

A state shows itself as the room `report` draws it; a run is written down by the room `journal`. Those rooms know this
one. This one finds them by their names, when a method of a state or an option of a run first asks for them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from ..backend import Backend


class Report(Protocol):
    """A page about runs. `html` is the whole page, `save` writes it; notebooks show it."""

    data: dict[str, Any]

    @property
    def html(self) -> str: ...
    def save(self, path: str | Path) -> Path: ...
    def _repr_html_(self) -> str: ...


class Picture(Protocol):
    """The branches of a run over time. `svg` is the drawing, `save` writes it; notebooks show it."""

    @property
    def svg(self) -> str: ...
    def save(self, path: str | Path) -> Path: ...
    def _repr_svg_(self) -> str: ...


class Reports(Protocol):
    """What draws states: the room `report`."""

    def report(
        self, states: Any, path: str | Path | None = None, *, title: str | None = None, wait: bool = True
    ) -> Report: ...
    def picture(self, state: Any, path: str | Path | None = None, *, lanes: int = 40, wait: bool = True) -> Picture: ...
    def brief(self, state: Any) -> str: ...


class Journals(Protocol):
    """What records and replays runs: the room `journal`."""

    def journalled(self, backend: Backend, path: Any) -> Backend: ...


def reports() -> Reports:
    return cast(Reports, import_module("sgl.lang.report"))


def journals() -> Journals:
    return cast(Journals, import_module("sgl.lang.journal"))
