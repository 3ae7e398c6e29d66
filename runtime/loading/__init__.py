"""From a Hugging Face directory to a decoder that is ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import lazy_names

if TYPE_CHECKING:
    from .describe_model import describe
    from .load_weights import dummy_model, load_model
    from .model_files.locate_model import resolve_model
    from .model_files.model_directory import load_config, load_json_options

__all__ = ["describe", "dummy_model", "load_config", "load_json_options", "load_model", "resolve_model"]

_HOMES = {
    "describe_model": ("describe",),
    "load_weights": ("dummy_model", "load_model"),
    "model_files.locate_model": ("resolve_model",),
    "model_files.model_directory": ("load_config", "load_json_options"),
}

__getattr__ = lazy_names(__name__, _HOMES)
