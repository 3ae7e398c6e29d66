"""Which sgl this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """That of the installed package; of a source tree that runs without one there is none to read."""
    try:
        return version("sgl")
    except PackageNotFoundError:
        return "not installed"
