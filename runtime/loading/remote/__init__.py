"""Models that lie in a store elsewhere: small files are copied to this machine, weights are streamed into their places."""

from .folder import fetch_model, is_remote, remote_sources
from .store import is_url

__all__ = ["fetch_model", "is_remote", "is_url", "remote_sources"]
