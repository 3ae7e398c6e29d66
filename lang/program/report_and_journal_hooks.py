"""What programs and states use from rooms above this one.

A state shows itself as the room `report` draws it; a run is written down by the room `journal`. Those rooms import this
one, so this one cannot import them: `lang/__init__.py` registers them here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from ..backend import Backend


class ReportHandle(Protocol):
    """A page about runs. `html` is the whole page, `save` writes it; notebooks show it."""

    data: dict[str, Any]

    @property
    def html(self) -> str: ...
    def save(self, path: str | Path) -> Path: ...
    def _repr_html_(self) -> str: ...


class PictureHandle(Protocol):
    """The branches of a run over time. `svg` is the drawing, `save` writes it; notebooks show it."""

    @property
    def svg(self) -> str: ...
    def save(self, path: str | Path) -> Path: ...
    def _repr_svg_(self) -> str: ...


class ReportModule(Protocol):
    """What draws states: the room `report`."""

    def report(
        self, states: Any, path: str | Path | None = None, *, title: str | None = None, wait: bool = True
    ) -> ReportHandle: ...
    def picture(
        self, state: Any, path: str | Path | None = None, *, lanes: int = 40, wait: bool = True
    ) -> PictureHandle: ...
    def brief(self, state: Any) -> str: ...


class JournalModule(Protocol):
    """What records and replays runs: the room `journal`."""

    def journalled(self, backend: Backend, path: Any) -> Backend: ...


_loaders: dict[str, Callable[[], Any]] = {}


def register(reports: Callable[[], ReportModule], journals: Callable[[], JournalModule]) -> None:
    """Say how the rooms above are loaded, when they are first asked for. Called in `lang/__init__.py`."""
    _loaders.update(reports=reports, journals=journals)


def reports() -> ReportModule:
    found: ReportModule = _loaders["reports"]()
    return found


def journals() -> JournalModule:
    found: JournalModule = _loaders["journals"]()
    return found
