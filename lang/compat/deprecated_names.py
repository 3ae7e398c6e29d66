"""Names of 2024's versions that have other names now."""

from __future__ import annotations

from typing import Any

from ..backends.default_backend import get_server_info
from ..sampling.options import REGEX_STR

__all__ = ["REGEX_STRING", "get_server_args"]

REGEX_STRING = REGEX_STR


def get_server_args(backend: Any = None) -> dict[str, Any] | None:
    """See get_server_info."""
    return get_server_info(backend)
