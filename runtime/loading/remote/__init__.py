"""Models in a remote store: small files are copied to this machine, weights are streamed into their places."""

from .remote_model_folder import fetch_model, is_remote, remote_sources
from .remote_store import is_url

__all__ = ["fetch_model", "is_remote", "is_url", "remote_sources"]
