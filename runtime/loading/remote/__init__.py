"""Models in a remote store: small files are copied to this machine, weights are streamed into their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.lazy_names import lazy_names

if TYPE_CHECKING:
    from .remote_model_folder import fetch_model, is_remote, remote_sources
    from .remote_store import is_url

__all__ = ["fetch_model", "is_remote", "is_url", "remote_sources"]

_HOMES = {"remote_model_folder": ("fetch_model", "is_remote", "remote_sources"), "remote_store": ("is_url",)}

__getattr__ = lazy_names(__name__, _HOMES)
