"""Models: their layers as data (`spec`), the families that read them from config.json, and the decoder that runs
them.
"""

from .decoder import Decoder
from .families import FAMILIES, ModelFamily, family, read_model
from .spec.model_spec import ModelSpec
from .spec.tensor_names import MergedProjections, TensorNames

__all__ = [
    "FAMILIES",
    "Decoder",
    "MergedProjections",
    "ModelFamily",
    "ModelSpec",
    "TensorNames",
    "family",
    "read_model",
]
