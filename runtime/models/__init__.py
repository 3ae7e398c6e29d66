"""The models: what they are made of (`spec`), the families that say so, and the decoder that computes it."""

from .decoder import Decoder
from .families import FAMILIES, Family, family, read_model
from .names import Merged, Names
from .spec import Model

__all__ = ["FAMILIES", "Decoder", "Family", "Merged", "Model", "Names", "family", "read_model"]
