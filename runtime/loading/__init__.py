"""From a Hugging Face directory to a decoder that is ready to run."""

from .describe_model import describe
from .load_weights import dummy_model, load_model
from .model_files.locate_model import resolve_model
from .model_files.model_directory import load_config, load_json_options

__all__ = ["describe", "dummy_model", "load_config", "load_json_options", "load_model", "resolve_model"]
