"""The models: what they are made of (`spec`), the families that say so, and the decoder that computes it."""

from ..common.moved_names import moved_names
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

_MOVED = {
    "Family": "models.families.ModelFamily",
    "Merged": "models.spec.tensor_names.MergedProjections",
    "Model": "models.spec.model_spec.ModelSpec",
    "Names": "models.spec.tensor_names.TensorNames",
}

__getattr__ = moved_names(__name__, _MOVED)
