"""The names of `sglang` itself that the alias adds to those of the language. Resolved on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Engine": ".sglang_alias_engine",
    "Runtime": ".sglang_runtime",
    "RuntimeEndpoint": ".sglang_alias_endpoint",
    "ServerArgs": ".server_args",
    "OpenAI": "..backends.openai.openai_backend",
    "Crusoe": "..backends.openai.openai_backend",
    "Anthropic": "..backends.apis.anthropic_backend",
    "LiteLLM": "..backends.apis.litellm_backend",
    "VertexAI": "..backends.apis.vertex_backend",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name], __package__), name)


def _version() -> str:
    """The version whose frontend this is, marked as ours."""
    from importlib.metadata import PackageNotFoundError, version

    from .sglang_module_map import UPSTREAM

    try:
        return f"{UPSTREAM}+sgl.{version('sgl')}"
    except PackageNotFoundError:
        return f"{UPSTREAM}+sgl"
