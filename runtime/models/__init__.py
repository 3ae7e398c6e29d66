"""The models: what they are made of (`spec`), the families that say so, and the decoder that computes it."""

from .decoder import Decoder
from .families import FAMILIES, ModelFamily, family, read_model
from .spec.tensor_names import MergedProjections, TensorNames
from .spec.model_spec import ModelSpec

__all__ = ["FAMILIES", "Decoder", "ModelFamily", "MergedProjections", "ModelSpec", "TensorNames", "family", "read_model"]
