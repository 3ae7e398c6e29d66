"""From a Hugging Face directory to a decoder that is ready to run."""

from .describe import describe
from .files import load_config, load_json_options
from .locate import resolve_model
from .weights import dummy_model, load_model

__all__ = ["describe", "dummy_model", "load_config", "load_json_options", "load_model", "resolve_model"]
