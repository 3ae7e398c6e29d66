"""The families: each a short function from config.json to a `Model`."""

from .llama import llama
from .registry import FAMILIES, Family, family, read_model

__all__ = ["FAMILIES", "Family", "family", "llama", "read_model"]
